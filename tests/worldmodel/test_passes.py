"""Passes that are skipped: never the first, by a sum of changes, games apart; what was found stays."""

import io

import pytest
import torch
from tiny import CHANNELS, MEMORIES, TOKENS, clip, denoiser, noise, world
from torch.testing import assert_close

from fastar import STEPS, method
from fastar.rivals import FlowCacheSteps, TeaCache
from worldmodel.world import World

LEVELS = (1.0, 0.8, 0.6, 0.3)
PROMPT = "a red room"
RULES = {"teacache": TeaCache, "flowcache": FlowCacheSteps}
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
each_memory = pytest.mark.parametrize("memory", MEMORIES)


def begun(passes=None, memory="dense", *, levels=LEVELS, frames=4, batch=2, **options) -> World:
    game = world(memory, levels=levels, passes=passes, **options)
    game.reset_latents(*clip(frames, batch=batch), PROMPT, seed=3)
    return game


def dreamt(game: World, frames: int = 6, batch: int = 2) -> torch.Tensor:
    return torch.stack([game.step(held) for held in clip(frames, batch=batch, seed=9)[1].unbind(1)])


def passes_run(game: World, frames: int = 6) -> list[int]:
    """Frames in each pass of the denoiser that is run, over so many frames of the game."""
    seen, run = [], game._run

    def counted(x, *rest):
        seen.append(x.shape[1])
        return run(x, *rest)

    game._run = counted
    dreamt(game, frames)
    return seen


def test_the_rules_are_those_of_the_step_axis():
    assert STEPS == RULES


@each_rule
@each_memory
def test_no_threshold_is_no_rule(rule, memory):
    assert torch.equal(dreamt(begun(rule(threshold=0.0), memory)), dreamt(begun(None, memory)))


@each_rule
@each_memory
def test_the_pass_that_remembers_is_never_skipped(rule, memory):
    """However much may be skipped: the first of each frame, over two frames, commits the one before."""
    game = begun(rule(threshold=1e9), memory)
    assert passes_run(game) == [2] * 6
    assert game.memory.stats().seen == (4 + 6 - 1) * TOKENS


@each_rule
def test_what_was_found_stands(rule):
    """With all passes but the first skipped, a frame is that of one step from the same noise."""
    game = begun(rule(threshold=1e9), frames=5)
    found = game.step(clip(1, seed=9)[1][:, 0])
    expected = begun(None, levels=(1.0,), frames=5).step(clip(1, seed=9)[1][:, 0])
    assert_close(found, expected, rtol=0, atol=1e-6)


@each_rule
def test_noise_is_drawn_for_passes_that_are_skipped(rule):
    """So that the next frame has the noise that it would have had."""
    rested, busy = begun(rule(threshold=1e9)), begun()
    for game in (rested, busy):
        dreamt(game)
    assert torch.equal(rested._noise.get_state(), busy._noise.get_state())


@each_rule
@pytest.mark.parametrize("warmup, last, expected", [(1, False, 1), (2, False, 2), (3, True, 4), (1, True, 2)])
def test_some_passes_are_run_in_any_case(rule, warmup, last, expected):
    game = begun(rule(threshold=1e9, warmup=warmup, last=last))
    assert len(passes_run(game)) == 6 * expected
    assert [asked for asked, _ in game.passes.tally] == [12] * 3
    assert sum(skipped for _, skipped in game.passes.tally) == 12 * (4 - expected)


# ---- the rule itself


def told(*numbers: float, games: int = 1) -> list[torch.Tensor]:
    return [torch.full((games, 3), x) for x in numbers]


def decisions(rule, signals: list[torch.Tensor]) -> list[list[bool]]:
    """What is skipped of the passes after the first, told these level embeddings [b, ...]."""
    tokens = torch.zeros(len(signals[0]), 2, 3)
    rule.begin(signals[0], tokens)
    return [rule.skips(i, len(signals), x, tokens).tolist() for i, x in enumerate(signals[1:], 1)]


def test_changes_add_up_until_a_pass_is_run():
    """Changes of 0.1 each: with a threshold of .25 two passes are skipped and the third is run."""
    signals = told(*(1.1**i for i in range(7)))
    skipped = [x for (x,) in decisions(TeaCache(threshold=0.25), signals)]
    assert skipped == [True, True, False, True, True, False]


def test_a_frame_begins_with_no_sum():
    rule, signals = TeaCache(threshold=0.25), told(1.0, 1.1, 1.21)
    for _ in range(3):
        assert decisions(rule, signals) == [[True], [True]]


def test_changes_are_relative_to_what_there_was():
    assert decisions(TeaCache(threshold=0.6), told(2.0, 3.0)) == [[True]]  # .5
    assert decisions(TeaCache(threshold=0.6), told(3.0, 1.0)) == [[False]]  # .67


def test_a_polynomial_gives_no_less_than_nothing():
    """The published ones fall far below 0 on wide steps: clamped, such a change counts as none, not less."""
    signals = told(1.0, 1.5, 1.6, 1.7)
    changes = [0.5, 0.1 / 1.5, 0.1 / 1.6]
    falling = TeaCache(threshold=0.03, rescale=[-10.0, 1.0, 0.0])
    assert -10 * changes[0] ** 2 + changes[0] < 0
    sums = [sum(-10 * x**2 + x for x in changes[1 : i + 1]) for i in range(3)]
    assert [x for (x,) in decisions(falling, signals)] == [x < 0.03 for x in sums] == [True, True, False]
    assert decisions(TeaCache(threshold=0.1, rescale=[2.0, 0.0]), told(1.0, 1.06)) == [[False]]
    assert decisions(TeaCache(threshold=0.1), told(1.0, 1.06)) == [[True]]


def test_flowcache_goes_by_what_is_seen_and_teacache_by_the_schedule():
    level = told(1.0, 1.0)
    still, moved = torch.ones(1, 2, 3), torch.full((1, 2, 3), 5.0)
    for rule, skipped in ((FlowCacheSteps(threshold=0.1), False), (TeaCache(threshold=0.1), True)):
        rule.begin(level[0], still)
        assert rule.skips(1, 2, level[1], moved).tolist() == [skipped]


def test_teacache_skips_the_same_passes_in_every_frame():
    game = begun(TeaCache(threshold=0.3))
    dreamt(game, 10)
    assert {skipped for _, skipped in game.passes.tally} <= {0, 20}


# ---- games of a batch


@each_memory
def test_games_of_a_batch_skip_on_their_own(memory):
    """Some skip while others do not; each is as if it were alone."""
    latents, keys = clip(6)
    held, draws = clip(10, seed=9)[1], noise(10 * len(LEVELS), seed=3)
    threshold = even_odds(memory)
    outputs = []
    for games in (slice(0, 2), slice(0, 1), slice(1, 2)):
        game = world(memory, denoiser(), levels=LEVELS, passes=FlowCacheSteps(threshold=threshold))
        game.reset_latents(latents[games], keys[games], PROMPT, seed=3)
        own = iter([x[games, None] for x in draws])
        game._draw = lambda own=own: next(own)
        outputs.append([game.step(x) for x in held[games].unbind(1)])
        if games == slice(0, 2):
            assert any(0 < skipped < asked for asked, skipped in game.passes.tally)
    for together, *alone in zip(*outputs, strict=True):
        assert_close(together, torch.cat(alone), rtol=0, atol=1e-4)


def even_odds(memory: str) -> float:
    """A threshold at which some passes are skipped and some are not."""
    sums = []

    class Listening(FlowCacheSteps):
        def skips(self, *told):
            found = super().skips(*told)
            sums.extend(self._sum.tolist())
            return found

    game = begun(Listening(threshold=1e9), memory, frames=6)
    dreamt(game, 4)
    return sorted(sums)[len(sums) // 2]


# ---- saved moments and graphs


@each_rule
@each_memory
def test_a_saved_game_goes_on_to_the_bit(rule, memory):
    game = begun(rule(threshold=0.5), memory)
    dreamt(game, 5)
    file = io.BytesIO()
    torch.save(game.state_dict(), file)
    expected, tally = dreamt(game, 5), game.passes.tally
    file.seek(0)
    other = begun(rule(threshold=0.5), memory)
    other.load_state_dict(torch.load(file))
    assert torch.equal(dreamt(other, 5), expected) and other.passes.tally == tally


def test_a_save_from_before_there_were_rules_is_gone_on_with():
    plain, other = begun(), begun(TeaCache(threshold=0.0))
    dreamt(plain, 3)
    state = plain.state_dict()
    assert "passes" not in state
    other.load_state_dict(state)
    assert torch.equal(dreamt(other), dreamt(plain))
    plain.load_state_dict(other.state_dict())


@pytest.mark.parametrize("rule, foreseen", [
    (None, True),
    (TeaCache(), False),
    (FlowCacheSteps(), False),
    (TeaCache(schedule=[True, False, True]), True),
])  # fmt: skip
def test_only_what_is_known_beforehand_goes_into_a_graph(rule, foreseen):
    game, launched = begun(rule), []
    game._graphs = lambda *told: launched.append(1) or game._imagine(*told)
    dreamt(game, 3)
    assert launched == [1] * 3 * foreseen


def test_a_schedule_says_which_passes_are_skipped():
    game = begun(TeaCache(schedule=[True, False, True]))
    assert passes_run(game, 3) == [2, 1] * 3
    found, rule = begun(TeaCache(threshold=0.3)), TeaCache(threshold=0.3)
    expected = dreamt(found)
    schedule = [skipped > 0 for _, skipped in found.passes.tally]
    assert torch.equal(dreamt(begun(TeaCache(schedule=schedule))), expected)
    assert rule.fixed is False and TeaCache(schedule=schedule).fixed


def test_a_schedule_of_another_length_is_refused():
    with pytest.raises(ValueError, match="for 2 passes after the first, a frame has 3"):
        dreamt(begun(TeaCache(schedule=[True, True])))


@pytest.mark.parametrize("wrong", [{"threshold": -1}, {"warmup": 0}])
def test_the_first_pass_is_no_matter_of_settings(wrong):
    with pytest.raises(ValueError, match="threshold is at least 0 and warmup at least 1, got"):
        TeaCache(**wrong)


def test_a_world_changes_its_rule_with_its_memory():
    chosen = method(
        {"kind": "flowcache", "recent": 2, "far": 20}, {"kind": "radial"}, step={"kind": "teacache"}
    )
    game = begun()
    game.switch(chosen.cache, chosen.cross, chosen.step)
    assert game.passes is chosen.step
    assert dreamt(game).shape == (6, 2, TOKENS, CHANNELS)
    assert game.beside(chosen.cache).passes is None
    assert game.beside(chosen.cache, passes=chosen.step).passes is chosen.step

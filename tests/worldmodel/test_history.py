"""What history is worth: the same task and the same noise for every memory."""

import numpy as np
import pytest
import torch
from rooms import AWAY, HOME, path, play
from tiny import GRID, MEMORIES, TOKENS, denoiser, noise, world
from torch.testing import assert_close

from worldmodel.denoiser import Denoiser
from worldmodel.evaluation.clips import encoded
from worldmodel.evaluation.history import Stretch, errors, kinds, measure, richest, rows, stretches, windows
from worldmodel.evaluation.views import last_sight
from worldmodel.world import World

PAST, FRAMES, LAYERS = 9, 5, 2


def played(game: World, games: int = 3) -> list[Stretch]:
    random = np.random.default_rng(0)
    clips = random.integers(256, size=(games, PAST + FRAMES, 32, 48, 3), dtype=np.uint8)
    everything = {"all": np.ones((FRAMES, TOKENS), bool)}
    return [
        Stretch(encoded(game, x), random.integers(2, size=(PAST + FRAMES, 9)), x[PAST:], everything)
        for x in clips
    ]


def deaf() -> Denoiser:
    """A network that makes nothing of what it attends to, so that history is lost on it."""
    network = denoiser()
    for block in network.blocks:
        torch.nn.init.zeros_(block.out.weight)
    return network


def every_memory() -> dict:
    lengths = windows([1, 3, "all"], LAYERS)
    return lengths | {name: (MEMORIES[name], None) for name in ("window_sink", "tempcache")}


def test_history_is_worth_nothing_to_a_network_that_ignores_it():
    game = world(network=deaf())
    clips, base = played(game), None
    for make, reach in every_memory().values():
        game.use(make)
        error = errors(game, clips, reach=reach)
        base = error if base is None else base
        assert_close(error, base)
    for row in measure(game, every_memory(), clips):
        assert row["gain"] == pytest.approx(0, abs=1e-6)


def test_and_something_to_one_that_reads_it():
    game = world()
    clips = played(game)
    one, three, *_ = (row["error"] for row in measure(game, every_memory(), clips))
    assert abs(one - three) > 1e-4


@pytest.mark.parametrize("name", every_memory())
def test_every_memory_is_given_the_same_noise(name):
    network = denoiser()
    for parameter in network.out.parameters():
        torch.nn.init.zeros_(parameter)  # no velocity: the dream is the noise
    game = world(network=network)
    make, reach = every_memory()[name]
    game.use(make)
    clips = played(game, 2)
    drawn = torch.stack(noise(FRAMES, seed=7), 1)
    truth = torch.stack([clip.latents[PAST:] for clip in clips])
    expected = (drawn - truth).square().mean(-1).numpy()
    assert_close(errors(game, clips, reach=reach, batch=2, seed=7), expected)


@pytest.mark.parametrize("games, batch", [(1, 1), (3, 2), (3, 5)])
def test_every_token_of_every_scored_frame_has_an_error(games, batch):
    game = world()
    error = errors(game, played(game, games), batch=batch)
    assert error.shape == (games, FRAMES, TOKENS)
    assert (error > 0).all()
    (row,) = rows("all", error, error, played(game, games))
    assert row["count"] == games * FRAMES * TOKENS
    assert row["error"] == pytest.approx(error.mean()) and row["gain"] == 0


@pytest.mark.parametrize("length", [1, 2])
def test_no_more_is_shown_of_the_past_than_a_window_can_reach(length):
    game = world()
    clips = played(game)
    make, reach = windows([length], LAYERS)[f"last {length}"]
    game.use(make)
    assert reach is not None and reach < PAST
    part, whole, less = (errors(game, clips, reach=n) for n in (reach, None, reach - 1))
    assert_close(part, whole)
    assert np.abs(less - whole).max() > 1e-4


def test_a_window_over_everything_remembers_everything():
    game = world()
    clips, found = played(game), []
    for make, reach in windows([PAST + FRAMES, "all"], LAYERS).values():
        game.use(make)
        found.append(errors(game, clips, reach=reach))
    assert_close(*found)


def test_a_length_is_a_number_or_all():
    with pytest.raises(ValueError, match="not 'most'"):
        windows([16, "most"], LAYERS)


def test_kinds_tell_what_comes_back_from_what_is_new():
    old, seen, fresh = 1, 2, 3
    wall = np.array([[old, old]] + [[seen, seen]] * 6 + [[old, seen], [old, fresh]])
    view = np.array([-1] * 8 + [0])
    found = kinds(view, wall, 7, 5, rows=2)
    assert all(tokens.shape == (2, 4) for tokens in found.values())
    assert found["all"].all()
    assert found["returns"].tolist() == [[False] * 4, [True] * 4]
    assert found["back"].tolist() == [[True, False] * 2, [False] * 4]  # then it is in sight already
    assert found["new"].tolist() == [[False] * 4, [False, True] * 2]


def test_the_richest_part_has_most_walls_that_come_back():
    wall = np.zeros((200, 2), int)
    wall[40], wall[150] = 5, 5
    start = richest(last_sight(wall), 100, 20, 60)
    assert start <= 40 and start + 100 <= 150 < start + 120
    assert richest(last_sight(wall)[:130], 100, 20, 60) == 0  # nothing to find


def test_stretches_are_of_long_episodes(tmp_path):
    pose = path((HOME, 20), (AWAY, 180), (HOME, 20))
    found = [play(tmp_path / str(i), pose[:n]) for i, n in enumerate((len(pose), 100, len(pose)))]
    game = world()
    long = stretches(game, found, 2, past=196, frames=8)
    assert [len(stretch.latents) for stretch in long] == [204, 204]
    for stretch in long:
        assert stretch.frames.shape == (8, 32, 48, 3)
        assert stretch.tokens["returns"].sum(0).tolist() == [4] * TOKENS
        assert stretch.tokens["back"].sum(0).reshape(GRID).tolist() == [[1] * GRID[1]] * GRID[0]
        assert not stretch.tokens["new"].any()
    with pytest.raises(ValueError, match="2 have past \\+ frames = 204 frames, but 3"):
        stretches(game, found, 3, past=196, frames=8)

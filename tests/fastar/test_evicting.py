"""Caches that evict: with room for all they are dense, with none a window, and in between what they say."""

import pytest
import torch
from frames import HEADS, ROPE, TIMELESS, TOKENS, film, play, playing, softmax_over
from torch.testing import assert_close

from fastar import Dense, Stats, TempCache, WindowSink
from fastar.rivals import R1KV, RandomEviction, UniformFrames
from fastar.window import REBASE

EXACT = dict(rtol=0, atol=1e-12)
KINDS = {"random": RandomEviction, "uniform": UniformFrames, "flowcache": R1KV}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def kept(memory) -> torch.Tensor:
    """Numbers of all tokens that are read in the next frame, in order [b, h, m]."""
    return memory._number(0).expand(2, HEADS, -1).sort().values


@each_kind
def test_with_room_for_everything_it_is_dense(kind):
    frames = film(24)
    memory = kind(1, ROPE, sink=1, recent=2, far=24 * TOKENS)
    for a, b in zip(play(memory, frames), play(Dense(1, ROPE), frames), strict=True):
        assert_close(a, b, **EXACT)


@each_kind
def test_with_no_room_it_is_a_window(kind):
    frames = film(24)
    memory, window = kind(1, ROPE, sink=1, recent=2, far=0), WindowSink(1, ROPE, sink=1, recent=2)
    for a, b in zip(play(memory, frames), play(window, frames), strict=True):
        assert torch.equal(a, b)
    assert memory.stats().kept == window.stats().kept


@each_kind
@pytest.mark.parametrize("far", [1, 5, 16, 18])  # with and without a frame that is kept in part
def test_what_is_read_is_what_is_kept(kind, far):
    """Attention over the tokens whose numbers it says it keeps, each once, window and sink among them."""
    frames, memory = film(20), kind(1, ROPE, sink=1, recent=2, far=far)
    keys, values = (
        torch.cat(x, 2)
        for x in ([ROPE(frame.k, frame.where) for frame in frames], [frame.v for frame in frames])
    )
    for t, frame in enumerate(frames):
        output = memory.attend(0, *frame)
        number = memory._number(0).expand(2, HEADS, -1)
        assert number.shape[2] == min((t + 1) * TOKENS, 4 * TOKENS + far)
        assert (kept(memory).diff() > 0).all() and (number >= 0).all() and (number < (t + 1) * TOKENS).all()
        whole = [x for x in range(t + 1) if x < 1 or x >= t - 2]
        assert {x * TOKENS + i for x in whole for i in range(TOKENS)} <= set(number[0, 0].tolist())
        k, v = (x.gather(2, number[..., None].expand(-1, -1, -1, x.shape[3])) for x in (keys, values))
        expected = (ROPE(frame.q, frame.where) @ k.mT / k.shape[3] ** 0.5).softmax(-1) @ v
        assert_close(output, expected, **EXACT)
        memory.commit(0)


@each_kind
def test_what_was_evicted_never_comes_back(kind):
    memory, gone = kind(1, ROPE, sink=1, recent=2, far=10), set()
    for t, _ in enumerate(playing(memory, film(30, batch=2)), 1):
        held = {x for x in memory.far_number[0, 1, 0].tolist() if x >= 0}
        assert not held & gone
        gone |= set(range(TOKENS, (t - 2) * TOKENS)) - held


@each_kind
def test_memory_is_bounded(kind):
    memory = kind(1, ROPE, sink=1, recent=2, far=16)
    held = [memory.stats() for _ in playing(memory, film(30))]
    assert {x.kept for x in held[6:]} == {3 * TOKENS + 16} and len({x.bytes for x in held}) == 1
    assert held[-1].seen == 30 * TOKENS
    rival = TempCache(1, ROPE, sink=1, recent=2, far=16, threshold=1.5, floor=1.5)
    play(rival, film(30))
    assert rival.stats().kept == memory.stats().kept  # the same budget
    memory.reset()
    assert memory.stats() == Stats(0, 0, 0)


@each_kind
def test_a_frame_spans_what_is_kept(kind):
    memory = kind(1, ROPE, sink=1, recent=2, far=2 * TOKENS)
    for t, _ in enumerate(playing(memory, film(9))):
        assert memory.span(0) == min(t + 2, 6)
        assert memory.span(0, ahead=2) == min(t + 4, 6)


@each_kind
def test_far_tokens_are_never_farther_back_than_the_reach(kind):
    """They are moved forward with the sink, so that with equal keys time makes no difference to them."""
    reach, last = 70, 3 * REBASE
    frames = film(last + 1, batch=1)
    memory = kind(1, ROPE, sink=1, recent=2, far=400 * TOKENS, reach=reach)
    output = play(memory, frames)[-1]
    moved = [
        frame._replace(where=frame.where + torch.tensor([max(0, last - reach - t), 0, 0]))
        for t, frame in enumerate(frames)
    ]
    assert_close(output, softmax_over(frames[-1], moved[:-1], ROPE), rtol=0, atol=1e-9)


def test_a_budget_below_nothing_is_refused():
    with pytest.raises(ValueError, match="far >= 0 tokens, got -1"):
        UniformFrames(1, ROPE, far=-1)


# ---- by lot


def sample(seed: int, count: int = 60, far: int = 40) -> set[int]:
    memory = RandomEviction(1, ROPE, sink=0, recent=1, far=far, seed=seed)
    play(memory, film(count, batch=1))
    assert torch.equal(memory.far_number[0, 0, 0].sort().values, memory.far_number[0, 0, 1].sort().values)
    return set(memory.far_number[0, 0, 0].tolist())


def test_a_seed_decides_which_tokens_are_kept():
    assert sample(0) == sample(0) != sample(1)


def test_the_sample_is_fair():
    """Each token is as likely to be kept as any other, however long ago: 40 of 354 here, in 100 games."""
    counts = torch.zeros(59 * TOKENS)
    for seed in range(100):
        counts[list(sample(seed))] += 1
    quarters = torch.stack([x.sum() for x in counts.chunk(4)]) / 1000
    assert ((quarters - 1).abs() < 0.12).all()  # 4 deviations
    assert counts.max() < 30


def test_a_saved_seed_is_gone_on_with():
    frames, memory = film(20), RandomEviction(1, ROPE, sink=1, recent=2, far=16, seed=3)
    other = RandomEviction(1, ROPE, sink=1, recent=2, far=16)
    play(memory, frames[:10])
    other.load_state_dict(memory.state_dict())
    for a, b in zip(play(memory, frames[10:]), play(other, frames[10:]), strict=True):
        assert torch.equal(a, b)


# ---- evenly spaced


@pytest.mark.parametrize("room", [1, 3, 4, 7])
def test_frames_kept_are_evenly_spaced(room):
    """All multiples of a power of two, and of the next smaller one the newest that fit."""
    memory = UniformFrames(1, ROPE, sink=1, recent=2, far=room * TOKENS)
    for t, _ in enumerate(playing(memory, film(70, batch=1)), 1):
        left = range(1, t - 2)
        held = {x // TOKENS for x in memory.far_number[0, 0, 0].tolist() if x >= 0}
        assert len(held) == min(room, len(left))
        step = next(s for s in (2**i for i in range(10)) if len([x for x in left if x % s == 0]) <= room)
        even = {x for x in left if x % step == 0}
        between = sorted(x for x in left if x % step == step // 2) if step > 1 else []
        assert held == even | set(between[len(between) - (len(held) - len(even)) :])


def test_equal_keys_in_other_frames_lose_nothing_by_spacing():
    """A still scene: a sample of its frames is attention to it, as far as the share of each frame goes."""
    (frame,) = film(1)
    frames = [frame._replace(where=frame.where + torch.tensor([t, 0, 0])) for t in range(40)]
    spaced = UniformFrames(1, TIMELESS, sink=1, recent=2, far=3 * TOKENS)
    for a, b in zip(play(spaced, frames), play(Dense(1, TIMELESS), frames), strict=True):
        assert_close(a, b, **EXACT)

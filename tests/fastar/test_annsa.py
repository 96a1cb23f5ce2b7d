"""AnnSA reads everything at its exact setting, and otherwise what the queries would have read anyway."""

import math

import pytest
import torch
from frames import HEADS, ROPE, TOKENS, WIDTH, film, normal, play
from torch.testing import assert_close

from fastar import Dense, TempCache, WindowSink
from fastar.annsa import AnnSA
from fastar.attention import attend_reference, sampled
from fastar.kernels.buckets import gathered
from fastar.memory import Past

EXACT = dict(rtol=0, atol=1e-12)

CACHES = {
    "dense": lambda pattern: Dense(1, ROPE, pattern=pattern, recent=2),
    "window_sink": lambda pattern: WindowSink(1, ROPE, sink=1, recent=3, pattern=pattern),
    "tempcache": lambda pattern: TempCache(1, ROPE, sink=1, recent=2, far=30, pattern=pattern),
    "per head": lambda pattern: TempCache(
        1, ROPE, sink=1, recent=2, far=30, pattern=pattern, per_head=True, floor=0.3
    ),
}
each_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)


def heaps(count: int) -> tuple[Past, torch.Tensor]:
    """A past of 8 keys in each of so many heaps, far from each other, and the heap of each key [m].

    They lie mixed, but so that every eighth key is of another heap: there k-means begins.
    """
    place = torch.arange(8 * count)
    heap = (place + place // 8) % count
    keys = 20 * torch.eye(WIDTH, dtype=torch.float64)[heap] + 0.01 * normal(1, HEADS, len(heap), WIDTH)
    return Past(keys, normal(1, HEADS, len(heap), WIDTH, seed=1), None, slice(0, len(heap))), heap


@each_cache
@pytest.mark.parametrize("every", [1, 4])
def test_all_blocks_are_everything(make, every):
    """The exact setting, with every cache: equal to attention without a pattern."""
    pattern = AnnSA(density=1.0, block=4, every=every)
    frames = film(24)
    for a, b in zip(play(make(pattern), frames), play(make(None), frames), strict=True):
        assert_close(a, b, **EXACT)


@each_cache
@pytest.mark.parametrize("block", [3, 4])
def test_a_share_is_read_and_what_must_be_is_always(make, block):
    """With far values of zero, what is read is the present, the sink and the window in full, scaled."""
    frames = film(24)
    for t, frame in enumerate(frames):
        whole = t < 1 or t >= len(frames) - 3
        frame.v.mul_(whole)[..., 0] = whole
    sparse = play(make(AnnSA(density=0.3, block=block, every=1)), frames)[-1]
    full = play(make(None), frames)[-1]
    assert_close(sparse / sparse[..., :1], full / full[..., :1], **EXACT)
    if make is not CACHES["window_sink"]:
        assert (sparse[..., 0] > full[..., 0]).all()  # something far was left out


@each_cache
def test_attend_twice_is_attend_once(make):
    memory = make(AnnSA(density=0.3, block=4, every=2))
    for frame in film(24):
        first = memory.attend(0, *frame)
        assert torch.equal(memory.attend(0, *frame), first)
        memory.commit(0)


@each_cache
@pytest.mark.parametrize("saved_after", [1, 13, 14])
def test_a_saved_memory_goes_on_to_the_bit(make, saved_after):
    """The plan of last time is part of the state."""
    frames, pattern = film(24), AnnSA(density=0.3, block=4, every=5)
    memory, other = make(pattern), make(pattern)
    play(memory, frames[:saved_after])
    other.load_state_dict(memory.state_dict())
    for a, b in zip(play(memory, frames[saved_after:]), play(other, frames[saved_after:]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("block", [4, 8])
def test_alike_keys_share_a_bucket(block):
    past, heap = heaps(4)
    plan = AnnSA(density=0.5, block=block, rounds=8).plan(0, past)
    sorted_heaps = heap[plan.order[0, 0]].view(-1, block)
    assert (sorted_heaps == sorted_heaps[:, :1]).all()


def test_the_bucket_that_is_asked_for_is_read():
    """Queries towards one heap, and a share of a quarter: what they get is what they would get anyway."""
    past, heap = heaps(4)
    pattern = AnnSA(density=0.25, block=8, rounds=8)
    plan = pattern.plan(0, past)
    for which in range(4):
        q = torch.eye(WIDTH, dtype=torch.float64)[which].expand(1, HEADS, 5, WIDTH) * 5
        read = pattern.read(0, q, past, plan)
        assert_close(read, attend_reference(q, past.keys, past.values), rtol=0, atol=1e-9)
        inside = heap == which
        assert_close(read, attend_reference(q, past.keys[:, :, inside], past.values[:, :, inside]), **EXACT)


def test_a_bucket_counts_as_often_as_what_it_stands_for():
    """Two heaps equally near: the one whose keys stand for a thousand each is read in full."""
    past, heap = heaps(2)
    bias = torch.where(heap == 1, math.log(1000.0), 0.0).double().expand(1, 1, -1)
    past = past._replace(bias=bias)
    pattern = AnnSA(density=0.5, block=8, rounds=8, rest=False)
    q = torch.zeros(1, HEADS, 3, WIDTH, dtype=torch.float64)
    read = pattern.read(0, q, past, pattern.plan(0, past))
    inside = heap == 1
    expected = attend_reference(q, past.keys[:, :, inside], past.values[:, :, inside])
    assert_close(read, expected, **EXACT)


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_attention_to_everything_alike_loses_nothing(density):
    """What is not read in full is read as its mean, as often as it counts."""
    past, heap = heaps(4)
    past = past._replace(bias=torch.where(heap == 1, math.log(5.0), 0.0).double().expand(1, 1, -1))
    pattern = AnnSA(density=density, block=8, rounds=8)
    q = torch.zeros(1, HEADS, 3, WIDTH, dtype=torch.float64)
    expected = attend_reference(q, past.keys, past.values, past.bias)
    assert_close(pattern.read(0, q, past, pattern.plan(0, past)), expected, **EXACT)


def test_empty_slots_are_in_no_bucket_that_is_read():
    past, heap = heaps(4)
    bias = torch.where(heap == 3, -torch.inf, 0.0).double().expand(1, 1, -1)
    past = past._replace(bias=bias)
    pattern = AnnSA(density=0.75, block=8, rounds=8)
    q = normal(1, HEADS, 5, WIDTH)
    read = pattern.read(0, q, past, pattern.plan(0, past))
    assert_close(read, attend_reference(q, past.keys, past.values, past.bias), rtol=0, atol=1e-9)


def test_tiles_choose_on_their_own():
    past, _ = heaps(4)
    pattern = AnnSA(density=0.25, block=8, rounds=8, tile=5)
    plan = pattern.plan(0, past)
    ways = torch.eye(WIDTH, dtype=torch.float64)[:2].repeat_interleave(5, 0) * 5
    q = ways.expand(1, HEADS, 10, WIDTH)
    assert_close(
        pattern.read(0, q, past, plan), attend_reference(q, past.keys, past.values), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("mass, needed", [(1.0, 4), (0.999, 1), (1e-6, 1)])
def test_no_more_is_read_than_holds_the_mass(mass, needed):
    past, _ = heaps(4)
    pattern = AnnSA(density=0.99, block=8, rounds=8, mass=mass)
    q = torch.eye(WIDTH, dtype=torch.float64)[2].expand(1, HEADS, 5, WIDTH) * 5
    plan = AnnSA(density=0.5, block=8, rounds=8).plan(0, past)
    assert (pattern.choose(q, plan).useful.sum(-1) == needed).all()


@pytest.mark.parametrize("rest", [True, False])
def test_it_knows_how_many_keys_it_reads(rest):
    memory = CACHES["tempcache"](AnnSA(density=0.4, block=4, every=1, rest=rest))
    frames = film(24)
    play(memory, frames)
    pattern, plan = memory.pattern, memory.plans[0]
    past = memory._past(0)
    keys, _, _ = gathered(past.keys, past.values, past.bias, plan, pattern.choose(frames[-1].q, plan))
    assert pattern.keys_read(past.keys.shape[2], plan) == keys.shape[2] < past.keys.shape[2]


def test_many_queries_choose_by_some_of_them():
    q = torch.arange(5000.0)[None, None, :, None]
    assert torch.equal(sampled(q)[0, 0, :, 0], torch.arange(0.0, 5000, 20))
    assert sampled(q[:, :, :9]).shape[2] == 9


def test_the_first_layers_may_read_everything():
    past, _ = heaps(4)
    pattern = AnnSA(density=0.25, block=8, dense_layers=1)
    assert pattern.plan(0, past) is None and pattern.plan(1, past) is not None


@pytest.mark.parametrize("wrong", [{"density": 0}, {"density": 1.5}, {"mass": 0}])
def test_shares_are_shares(wrong):
    with pytest.raises(ValueError, match="shares above 0 and up to 1, got"):
        AnnSA(**wrong)


def test_what_is_planned_counts_as_memory():
    frames = film(24)
    with_plan = TempCache(1, ROPE, sink=1, recent=2, far=30, pattern=AnnSA(density=0.3, block=4))
    without = TempCache(1, ROPE, sink=1, recent=2, far=30)
    play(with_plan, frames)
    play(without, frames)
    assert with_plan.stats().bytes > without.stats().bytes
    assert with_plan.stats().kept == without.stats().kept <= 3 * TOKENS + 30


@each_cache
def test_the_first_passes_of_a_frame_may_read_everything(make):
    """Then the others are sparse, until the frame is committed; also in a memory saved in between."""
    sparse, mixed, full = (make(p) for p in (AnnSA(**FEW), AnnSA(**FEW, dense_steps=2), None))
    frames = film(24)
    for memory in (sparse, mixed, full):
        play(memory, frames[:-1])
    answers = [memory.attend(0, *frames[-1]) for memory in (full, full, sparse)]
    assert torch.equal(mixed.attend(0, *frames[-1]), answers[0])
    saved = mixed.state_dict()
    for _ in range(2):
        assert torch.equal(mixed.attend(0, *frames[-1]), answers[1])
        assert torch.equal(mixed.attend(0, *frames[-1]), answers[2])
        mixed.load_state_dict(saved)


FEW = dict(density=0.3, block=4, every=1)

"""What every pattern promises that says which keys each query reads."""

import pytest
import torch
from frames import HEADS, ROPE, TOKENS, film, play
from torch.testing import assert_close

from fastar import Dense, WindowSink
from fastar.memory import Past
from fastar.rivals import R1KV, SVG1, SVG2, Radial, RandomEviction, SlidingTiles, TopK

EXACT = dict(rtol=0, atol=1e-12)
PATTERNS = {
    "topk": lambda **how: TopK(keys=9, **how),
    "radial": lambda **how: Radial(block=2, decay=0.5, **how),
    "sta": lambda **how: SlidingTiles(grid=[2, 3], tile=[1, 1], window=[4, 1, 1], **how),
    "svg1": lambda **how: SVG1(density=0.3, **how),
    "svg2": lambda **how: SVG2(mass=0.5, least=0.1, queries=2, size=4, every=3, **how),
}
CACHES = {
    "dense": lambda pattern, layers=1: Dense(layers, ROPE, pattern=pattern, recent=2),
    "window_sink": lambda pattern, layers=1: WindowSink(layers, ROPE, sink=1, recent=6, pattern=pattern),
    "random": lambda pattern, layers=1: RandomEviction(
        layers, ROPE, sink=1, recent=2, far=20, pattern=pattern
    ),
    "flowcache": lambda pattern, layers=1: R1KV(layers, ROPE, sink=1, recent=2, far=20, pattern=pattern),
}
each_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
each_cache = pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)


@each_pattern
@each_cache
def test_what_is_read_is_what_is_said(pattern, cache):
    """Attention over the keys of `choose` alone; and something is left out."""
    pattern, left_out = pattern(), 0
    memory = cache(pattern)
    for frame in film(24):
        output = memory.attend(0, *frame)
        past = (
            memory._past(0) if not isinstance(memory, Dense) else memory._past(0, memory.lengths[0] + TOKENS)
        )
        q = ROPE(frame.q, frame.where)
        reads = pattern.choose(q, past, memory.plans[0]).expand(2, HEADS, TOKENS, -1)
        assert reads.any(-1).all() and reads.shape[-1] == past.keys.shape[2]
        left_out += int((~reads).sum())
        scores = (q @ past.keys.mT / q.shape[-1] ** 0.5).masked_fill(~reads, -torch.inf)
        assert_close(output, scores.softmax(-1) @ past.values, **EXACT)
        memory.commit(0)
    assert left_out


@each_pattern
@each_cache
def test_attend_twice_is_attend_once(pattern, cache):
    once, often = cache(pattern()), cache(pattern())
    for frame, other in zip(film(24), film(24, seed=1), strict=True):
        expected = once.attend(0, *frame)
        for noise in (other, frame, frame):
            found = often.attend(0, *noise)
        assert torch.equal(found, expected)
        once.commit(0)
        often.commit(0)


@each_pattern
@each_cache
@pytest.mark.parametrize("saved_after", [0, 5, 13])
def test_a_saved_memory_goes_on_to_the_bit(pattern, cache, saved_after):
    frames, memory, other = film(20), cache(pattern()), cache(pattern())
    play(memory, frames[:saved_after])
    other.load_state_dict(memory.state_dict())
    for a, b in zip(play(memory, frames[saved_after:]), play(other, frames[saved_after:]), strict=True):
        assert torch.equal(a, b)


@each_pattern
def test_games_of_a_batch_are_independent(pattern):
    both = film(16)
    together = play(CACHES["dense"](pattern()), both)
    for game in range(2):
        alone = [frame._replace(**{x: getattr(frame, x)[game : game + 1] for x in "qkv"}) for frame in both]
        for a, b in zip(together, play(CACHES["dense"](pattern()), alone), strict=True):
            assert_close(a[game : game + 1], b, **EXACT)


@each_pattern
def test_the_first_layers_and_passes_may_read_everything(pattern):
    frames = film(24)
    full, sparse, mixed = (CACHES["dense"](x) for x in (None, pattern(), pattern(dense_steps=2)))
    for memory in (full, sparse, mixed):
        play(memory, frames[:-1])
    (whole, part), last = (memory.attend(0, *frames[-1]) for memory in (full, sparse)), frames[-1]
    assert not torch.allclose(whole, part)
    for expected in (whole, whole, part, part):
        assert torch.equal(mixed.attend(0, *last), expected)
    layers = CACHES["dense"](pattern(dense_layers=1), 2)
    for frame in frames:
        outputs = [layers.attend(i, *frame) for i in range(2)]
        for i in range(2):
            layers.commit(i)
    assert torch.equal(outputs[0], whole) and torch.equal(outputs[1], part)


@each_pattern
def test_nothing_asked_is_nothing_answered(pattern):
    memory = CACHES["dense"](pattern())
    for frame in film(10):
        assert memory.attend(0, frame.q[:, :, :0], *frame[1:]).shape[2] == 0
        memory.commit(0)


def test_a_cache_forgets_what_a_pattern_never_reads():
    """A sliding window without a sink needs no more than its frames: memory is bounded."""
    pattern = PATTERNS["sta"]
    small = WindowSink(1, ROPE, sink=0, recent=3, pattern=pattern())
    for a, b in zip(play(CACHES["dense"](pattern()), film(24)), play(small, film(24)), strict=True):
        assert_close(a, b, **EXACT)
    assert small.stats().kept == 3 * TOKENS


@pytest.mark.parametrize("name", ["radial", "svg1", "svg2", "topk"])
def test_other_patterns_may_read_any_frame_again(name):
    """Over all frames there are, so the memory under them must keep everything."""
    pattern, ages = PATTERNS[name](), set()
    memory = CACHES["dense"](pattern)
    for t, frame in enumerate(film(40)):
        memory.attend(0, *frame)
        past = memory._past(0, memory.lengths[0] + TOKENS)
        reads = pattern.choose(ROPE(frame.q, frame.where), past, memory.plans[0])
        reads = reads.expand(2, HEADS, TOKENS, -1).any(2).any(1).any(0).unflatten(0, (-1, TOKENS)).any(1)
        ages |= {t - x for x in reads.nonzero()[:, 0].tolist()}
        memory.commit(0)
    assert len(ages & set(range(20, 40))) > 5


def test_a_numbered_pattern_has_no_phase():
    """What it reads of the same places differs from frame to frame."""
    for name, phased in {"radial": False, "svg2": True, "topk": True}.items():
        memory = CACHES["random"](PATTERNS[name]())
        play(memory, film(30))
        assert (memory.phase() is not None) == phased


def past_of(frames: int, tokens: int) -> Past:
    """So many frames, the last of them present, of which nothing but the number of each token matters."""
    count = frames * tokens
    empty = torch.zeros(1, 1, count, 1)
    present = slice(count - tokens, count)
    return Past(empty, empty, None, slice(0), present, None, torch.arange(count)[None, None])


def density(pattern, frames: int, tokens: int) -> float:
    """Share of the keys that the queries of the last of so many frames read."""
    past = past_of(frames, tokens)
    number = past.number
    assert number is not None
    age = frames - 1 - number // tokens
    return float(pattern.within(age, number // tokens, number % tokens, tokens).double().mean())


# ---- densities, of Wan's frames of 1,560 tokens where a figure is known


@pytest.mark.parametrize("decay, read", [(1.0, 6.9), (0.2, 5.5)])
def test_radial_reads_as_many_frames_as_it_should(decay, read):
    """Of 21 frames, in frames' worth of tokens."""
    assert density(Radial(block=128, decay=decay), 21, 1560) * 21 == pytest.approx(read, abs=0.05)


@pytest.mark.parametrize(
    "frames, decay, read", [(48, 1, 8.5), (120, 1, 10.2), (750, 1, 13.5), (750, 0.2, 12.1)]
)
def test_radial_reads_few_of_many_frames(frames, decay, read):
    """Pairs within w of each other of n tokens are n (2 w + 1) - w (w + 1), up to w = n - 1."""
    n = 1560
    age = torch.arange(frames)
    width = Radial(block=128, decay=decay).width(age, n).long().clamp_max(n - 1).masked_fill(age <= 1, n - 1)
    width[-1] = n - 1  # the first frame
    pairs = torch.where(width < 0, 0, n * (2 * width + 1) - width * (width + 1))
    assert float(pairs.sum()) / n**2 == pytest.approx(read, abs=0.1)


def test_radial_leaves_out_frames_where_strips_are_narrowest():
    """Of those from 16, 32 and 64 frames ago on one in 2, 4 and 8, for frames of 1,560 tokens."""
    read = Radial(block=128).width(torch.arange(128), 1560) >= 0
    assert read[:16].all() and [int(read[i : 2 * i].sum()) for i in (16, 32, 64)] == [8, 8, 8]


@pytest.mark.parametrize(
    "grid, tile, window, frames",
    [([7, 10], [1, 2], [4, 3, 1], 9), ([8, 12], [2, 3], [5, 3, 3], 6), ([30, 50], [3, 5], [3, 3, 5], 4)],
)
def test_sta_reads_its_window_everywhere(grid, tile, window, frames):
    """Where tiles divide the grid, the share is that of the window in tiles, also at the borders."""
    pattern = SlidingTiles(grid=grid, tile=tile, window=window)
    tiles = (grid[0] // tile[0]) * (grid[1] // tile[1])
    share = window[0] * window[1] * window[2] / (frames * tiles)
    assert density(pattern, frames, grid[0] * grid[1]) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
def test_both_ways_of_svg1_read_the_density(share):
    frames, tokens = 60, 200
    pattern, past = SVG1(density=share), past_of(frames, tokens)
    age = frames - 1 - past.number // tokens
    ways = pattern.within(age, past.number // tokens, past.number % tokens, tokens).double()
    spatial, temporal = ways.mean((1, 2, 3, 4)).tolist()
    assert spatial == pytest.approx(share, abs=1e-12)
    assert temporal == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("keys", [1, 7, 50])
def test_topk_reads_so_many_and_the_present(keys):
    memory = CACHES["dense"](TopK(keys=keys))
    play(memory, film(20))
    (frame,) = film(1)
    memory.attend(0, *frame)
    past = memory._past(0, 21 * TOKENS)
    reads = memory.pattern.choose(ROPE(frame.q, frame.where), past, None)
    assert (reads.sum(-1) == keys + TOKENS).all() and reads[..., past.present].all()

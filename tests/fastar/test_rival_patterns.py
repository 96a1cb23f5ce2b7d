"""What is particular to each of the rival patterns; what they share is in test_masked.py."""

import math

import pytest
import torch
from frames import HEADS, ROPE, TOKENS, WIDTH, film, normal, play
from torch.testing import assert_close

from fastar import Dense
from fastar.attention import attend_reference
from fastar.memory import Past
from fastar.rivals import SVG1, SVG2, Radial, SlidingTiles, TopK
from fastar.rivals.svg2 import means, members, nearest

EXACT = dict(rtol=0, atol=1e-12)


def flat(pattern, frames: int, tokens: int) -> torch.Tensor:
    """Which keys each query of the last of so many frames reads, [n, frames, n]."""
    number = torch.arange(frames * tokens)[None, None]
    frame, place = number // tokens, number % tokens
    reads = pattern.within(frames - 1 - frame, frame, place, tokens)
    return reads.expand(1, 1, tokens, -1)[0, 0].unflatten(1, (frames, tokens))


# ---- radial


def test_radial_is_what_it_is_defined_to_be():
    """Key by key, from the definition: widths halve as distance doubles, then frames are left out."""
    n, frames, block, decay = 12, 40, 2, 0.8
    found = flat(Radial(block=block, decay=decay), frames, n)
    for age in range(frames):
        strip = 16 / 2 ** age.bit_length()
        stride = max(1, int(block / strip))
        for i in range(n):
            for j in range(n):
                near = abs(i - j) <= max(strip * decay, block) and age % stride == 0
                assert found[i, frames - 1 - age, j] == (near or age <= 1 or age == frames - 1)


def test_present_and_the_frame_before_and_the_first_are_read_whole():
    found = flat(Radial(block=1, decay=0.1), 30, 12)
    assert found[:, [0, 28, 29]].all() and not found[:, 20].all()


@pytest.mark.parametrize("wrong", [{"block": -1}, {"decay": 0}])
def test_a_radius_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="block is at least 0 and decay above 0, got"):
        Radial(**wrong)


# ---- sta


def test_a_tile_reads_the_tiles_around_it():
    """The same for all its tokens; a window at the border is moved in, not cut."""
    found = flat(SlidingTiles(grid=[6, 10], tile=[2, 2], window=[2, 1, 3]), 5, 60)
    assert not found[:, :3].any()
    shown = found[:, 4].unflatten(1, (6, 10))
    for row, column, left in [(0, 0, 0), (1, 1, 0), (2, 5, 2), (5, 9, 4), (3, 7, 4)]:
        expected = torch.zeros(6, 10, dtype=torch.bool)
        expected[row // 2 * 2 :][:2, left : left + 6] = True
        assert torch.equal(shown[row * 10 + column], expected)


def test_a_grid_that_tiles_do_not_divide_has_smaller_tiles_at_the_end():
    found = flat(SlidingTiles(grid=[7, 10], tile=[4, 4], window=[1, 1, 1]), 1, 70)[:, 0]
    counts = {0: 16, 9: 8, 60: 12, 69: 6}  # tokens at the corners, and the tokens of their tiles
    assert {place: int(found[place].sum()) for place in counts} == counts


def test_a_sink_is_read_however_long_ago():
    found = flat(SlidingTiles(grid=[2, 3], tile=[1, 1], window=[2, 1, 1], sink=1), 9, 6)
    assert found.any(2).any(0).tolist() == [True, *[False] * 6, True, True]


@pytest.mark.parametrize("wrong", [{"window": [2, 2, 1]}, {"tile": [0, 1]}, {"window": [0, 1, 1]}])
def test_windows_have_a_middle(wrong):
    with pytest.raises(ValueError, match="at least 1, a window of tiles odd; got"):
        SlidingTiles(**({"grid": [2, 3], "tile": [1, 1], "window": [2, 1, 1]} | wrong))


def test_a_grid_of_another_size_is_refused():
    pattern = SlidingTiles(grid=[7, 10], tile=[1, 1], window=[2, 1, 1])
    with pytest.raises(ValueError, match="Frames of 6 tokens are no grid of 7 by 10; set grid"):
        play(Dense(1, ROPE, pattern=pattern), film(1))


# ---- svg1


def test_a_head_is_what_it_looks_at():
    """One head asks what was here, the other what was just now; each is answered the way that fits."""
    tokens, frames, width = 16, 40, 64
    here, now = torch.zeros(2, frames, tokens, width, dtype=torch.float64)
    here[..., :tokens] = torch.eye(tokens)
    now[-4:, :, -1] = 1
    keys = torch.stack([here, now]).flatten(1, 2)[None]
    q = 200 * torch.stack([here[0], now[-1]])[None]
    number = torch.arange(frames * tokens)[None, None]
    values = normal(1, 2, frames * tokens, width)
    past = Past(keys, values, None, slice(0), slice((frames - 1) * tokens, frames * tokens), None, number)
    pattern = SVG1(density=0.25, rows=4)
    ways = [x.expand(1, 2, -1, -1) for x in super(SVG1, pattern).choose(q, past, None)]
    assert pattern.is_temporal(q, past, *ways).tolist() == [[True, False]]
    exact = attend_reference(q, keys, values)
    assert_close(pattern.read(0, q, past, None), exact, rtol=0, atol=1e-9)


def test_a_spatial_head_reads_the_first_frame_and_the_last():
    spatial, temporal = SVG1(density=0.25).within(
        torch.arange(19, -1, -1)[None, None],
        torch.arange(20)[None, None],
        torch.zeros(1, 1, 20, dtype=torch.long),
        1,
    )
    assert spatial[0, 0, 0].tolist() == [True, *[False] * 15, *[True] * 4] and temporal.all()


@pytest.mark.parametrize("wrong", [{"density": 0}, {"density": 1.1}, {"rows": 0}])
def test_a_density_is_a_share(wrong):
    with pytest.raises(ValueError, match="density is a share above 0 and up to 1, rows at least 1; got"):
        SVG1(**wrong)


# ---- svg2


def heaps(count: int, each: int = 8) -> tuple[Past, torch.Tensor]:
    """So many keys in each of some heaps, far apart and mixed, and their heaps; the last 8 are present."""
    place = torch.arange(each * count)
    heap = (place + place // each) % count
    keys = 20 * torch.eye(WIDTH, dtype=torch.float64)[heap] + 0.01 * normal(1, HEADS, len(heap), WIDTH)
    values = normal(1, HEADS, len(heap), WIDTH, seed=1)
    return Past(keys, values, None, slice(4, 20), slice(len(heap) - 8, len(heap))), heap


def test_clusters_are_heaps():
    past, heap = heaps(4)
    plan = SVG2(size=6, rounds=8).plan(0, past)
    cluster = members(past, plan)
    assert cluster.shape == (1, HEADS, 32) and plan.member.shape[2] == 16
    for each in cluster[0]:
        assert len({(int(a), int(b)) for a, b in zip(heap, each, strict=True)}) == 4


def test_k_means_moves_each_mean_to_the_middle_of_what_is_nearest_to_it():
    x, weight = normal(2, HEADS, 40, WIDTH), normal(2, HEADS, 40, seed=1).abs()
    before, after = means(x, weight, 5, 3), means(x, weight, 5, 4)
    cluster = nearest(x, before)
    assert torch.equal(cluster, torch.cdist(x, before).argmin(-1))
    for i in range(5):
        mine = weight * (cluster == i)
        middle = (x * mine[..., None]).sum(2) / mine.sum(-1)[..., None]
        there = mine.sum(-1) > 0
        assert_close(after[:, :, i][there], middle[there], **EXACT)


@pytest.mark.parametrize("mass", [0.3, 0.9])
def test_the_heap_that_is_asked_for_is_read_and_the_rest_is_not(mass):
    past, heap = heaps(4)
    pattern = SVG2(mass=mass, least=0, queries=2, size=6, rounds=8)
    plan = pattern.plan(0, past)
    q = torch.eye(WIDTH, dtype=torch.float64)[[0, 0, 2, 2]].expand(1, HEADS, -1, -1) * 5
    reads = pattern.choose(q, past, plan)
    assert torch.equal(reads[0, 0], torch.stack([heap == x for x in (0, 0, 2, 2)]))
    found = pattern.read(0, q, past, plan)
    for i, which in enumerate((0, 0, 2, 2)):
        inside = heap == which
        asked = q[:, :, i : i + 1], past.keys[:, :, inside], past.values[:, :, inside]
        assert_close(found[:, :, i : i + 1], attend_reference(*asked), **EXACT)


@pytest.mark.parametrize("mass, least", [(0.2, 0.0), (0.7, 0.0), (0.95, 0.0), (0.2, 0.5), (1e-6, 0.1)])
def test_clusters_are_read_until_they_hold_the_mass(mass, least):
    """No fewer than needed, and no more, but for the least share of them."""
    scores = normal(2, HEADS, 3, 20)
    share, read = scores.softmax(-1), SVG2(mass=mass, least=least).wanted(scores)
    held, count = (share * read).sum(-1), read.sum(-1)
    assert (held >= mass).all() and (count >= math.ceil(least * 20)).all()
    weakest = share.masked_fill(~read, torch.inf).amin(-1)
    assert ((held - weakest < mass) | (count == math.ceil(least * 20))).all()
    assert (share.masked_fill(read, 0).amax(-1) <= weakest).all()


def test_a_cluster_counts_as_often_as_what_it_stands_for():
    """Two heaps equally near, and only one is wanted: that whose keys stand for a thousand each."""
    past, heap = heaps(2, 16)
    bias = torch.where(heap == 1, math.log(1000.0), 0.0).double().expand(1, 1, -1)
    past = past._replace(bias=bias)
    pattern = SVG2(mass=0.9, least=0, queries=1, size=12, rounds=8)
    q = torch.zeros(1, HEADS, 3, WIDTH, dtype=torch.float64)
    assert torch.equal(pattern.choose(q, past, pattern.plan(0, past))[0, 0, 0], heap == 1)


def test_empty_slots_are_in_no_cluster_that_counts():
    past, heap = heaps(4)
    bias = torch.where(heap == 3, -torch.inf, 0.0).double().expand(1, 1, -1)
    past = past._replace(bias=bias)
    pattern = SVG2(mass=0.9999999, least=0, size=6, rounds=8)
    q = normal(1, HEADS, 5, WIDTH)
    found = pattern.read(0, q, past, pattern.plan(0, past))
    assert_close(found, attend_reference(q, past.keys, past.values, past.bias), rtol=0, atol=1e-5)


def test_too_few_keys_to_cluster_are_all_read():
    past, _ = heaps(4)
    pattern = SVG2(size=13)
    assert pattern.plan(0, past) is None
    assert pattern.choose(normal(1, HEADS, 8, WIDTH), past, None).all()


def test_what_is_planned_counts_as_memory():
    frames = film(24)
    plain, planned = Dense(1, ROPE), Dense(1, ROPE, pattern=SVG2(size=4), recent=2)
    play(plain, frames)
    play(planned, frames)
    assert planned.stats().bytes > plain.stats().bytes and planned.stats().kept == 24 * TOKENS


@pytest.mark.parametrize(
    "wrong, told", [({"mass": 0}, "shares, mass above 0"), ({"least": 2}, "shares"), ({"size": 0}, "counts")]
)
def test_clusters_of_nothing_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        SVG2(**wrong)


# ---- the oracle


def test_the_oracle_reads_what_is_read_most():
    """No other choice of as many keys of the past holds more of the attention."""
    memory = Dense(1, ROPE, pattern=TopK(keys=5))
    play(memory, film(9))
    (frame,) = film(1, seed=4)
    memory.attend(0, *frame)
    past, q = memory._past(0, 10 * TOKENS), ROPE(frame.q, frame.where)
    weight = (q @ past.keys.mT / WIDTH**0.5).softmax(-1)
    held = (weight * memory.pattern.choose(q, past, None))[..., : 9 * TOKENS].sum(-1)
    assert_close(held, weight[..., : 9 * TOKENS].topk(5).values.sum(-1), **EXACT)


def test_an_oracle_needs_a_key():
    with pytest.raises(ValueError, match="at least one key to read, got keys=0"):
        TopK(keys=0)

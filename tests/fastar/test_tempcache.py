"""TempCache keeps one entry per thing seen, exactly where things stay the same, within its budget always."""

import math
import shutil

import pytest
import torch
from frames import (
    HEADS,
    ROPE,
    TIMELESS,
    TOKENS,
    WIDTH,
    Frame,
    film,
    normal,
    play,
    playing,
    where,
)
from torch.testing import assert_close

from fastar import Dense, TempCache, WindowSink, tempcache
from fastar.attention import attend_reference
from fastar.window import REBASE

EXACT = dict(rtol=0, atol=1e-12)
NOTHING_MERGES = dict(threshold=1.5, floor=1.5)


def still_life(count: int) -> list[Frame]:
    """The same keys in every frame, with queries and values that change."""
    q, v = normal(2, count, 2, HEADS, TOKENS, WIDTH)
    k = normal(2, HEADS, TOKENS, WIDTH, seed=5)
    return [Frame(q[t], k, v[t], where(t)) for t in range(count)]


def arrow(time: int, degrees: float, value: float = 0.0, at: int = 0) -> Frame:
    """A frame of one token, whose key points `degrees` round from the first channel towards the next.

    `at` picks another pair of channels; keys of different pairs have nothing in common.
    """
    k = torch.zeros(1, 1, 1, WIDTH, dtype=torch.float64)
    k[..., 2 * at], k[..., 2 * at + 1] = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    v = torch.full((1, 1, 1, WIDTH), value, dtype=torch.float64)
    return Frame(normal(1, 1, 1, WIDTH, seed=time), k, v, torch.tensor([[float(time), 0.0, 0.0]]))


def arrows(*told: tuple[float, float, int]) -> list[Frame]:
    return [arrow(t, *each) for t, each in enumerate(told)]


def read_entries(now: Frame, whole: list[Frame], entries: list[tuple[Frame, float, int]]) -> torch.Tensor:
    """What a frame should read of whole frames and far entries, each (its frame, its mean, its count)."""
    keys = [*whole, now, *(frame for frame, _, _ in entries)]
    k = torch.cat([ROPE(frame.k, frame.where) for frame in keys], 2)
    means = [torch.full_like(now.v, mean) for _, mean, _ in entries]
    v = torch.cat([*(frame.v for frame in whole), now.v, *means], 2)
    counts = [1] * (len(whole) + 1) + [count for _, _, count in entries]
    bias = torch.tensor([counts], dtype=torch.float64).log()
    return attend_reference(ROPE(now.q, now.where), k, v, bias)


def counts(memory: TempCache) -> list[int]:
    """How many tokens each live far entry of the first game stands for, the largest first."""
    return sorted((int(m) for m in memory.count[0] if m > 0), reverse=True)


def alone(**options) -> TempCache:
    """Remembers one frame of one token whole; everything before it is far."""
    return TempCache(1, ROPE, **({"sink": 0, "recent": 1, "far": 8} | options))


# ---- exactness


def test_a_static_scene_is_remembered_exactly():
    """Lemma 5.1. Equal keys make one entry with log m and the mean value: the same as all of them."""
    memory, frames = TempCache(1, TIMELESS, sink=1, recent=2, far=2 * TOKENS), still_life(20)
    for a, b in zip(play(memory, frames), play(Dense(1, TIMELESS), frames), strict=True):
        assert_close(a, b, **EXACT)
    assert counts(memory) == [17] * TOKENS


def test_a_layer_behind_the_first_reads_every_token_once():
    """When the first layer commits, what leaves the window is folded for all: none sees it twice."""
    memory, frames = TempCache(2, TIMELESS, sink=1, recent=2, far=2 * TOKENS), still_life(20)
    for frame, expected in zip(frames, play(Dense(1, TIMELESS), frames), strict=True):
        for layer in range(2):
            assert_close(memory.attend(layer, *frame), expected, **EXACT)
            memory.commit(layer)


def test_a_static_scene_under_a_turn_in_time_is_not_exact():
    """The newest key represents the others, which were turned less: that is what merging costs."""
    frames = still_life(20)
    a, b = (
        play(TempCache(1, ROPE, sink=1, recent=2, far=2 * TOKENS), frames)[-1],
        play(Dense(1, ROPE), frames)[-1],
    )
    assert 1e-3 < (a - b).abs().max() < 1


@pytest.mark.parametrize("sink, recent", [(1, 2), (0, 1), (2, 3)])
def test_where_nothing_merges_it_is_dense(sink, recent):
    frames = film(14)
    memory = TempCache(1, ROPE, sink=sink, recent=recent, far=14 * TOKENS, **NOTHING_MERGES)
    for a, b in zip(play(memory, frames), play(Dense(1, ROPE), frames), strict=True):
        assert_close(a, b, **EXACT)


@pytest.mark.parametrize("far", [200, 1120])
def test_a_budget_hardly_used_is_read_in_full(far):
    """Wherever in a large far memory a token is put, the next frame reads it."""
    frames = film(8)
    memory = TempCache(1, ROPE, sink=0, recent=1, far=far, **NOTHING_MERGES)
    assert_close(play(memory, frames)[-1], play(Dense(1, ROPE), frames)[-1], **EXACT)


def test_a_full_budget_is_dense_no_more():
    frames = film(14)
    memory = TempCache(1, ROPE, sink=1, recent=2, far=6 * TOKENS, **NOTHING_MERGES)
    pairs = list(zip(play(memory, frames), play(Dense(1, ROPE), frames), strict=True))
    for a, b in pairs[:10]:
        assert_close(a, b, **EXACT)
    assert not torch.allclose(*pairs[10])


@pytest.mark.parametrize("sink, recent", [(1, 2), (2, 3), (0, 1)])
def test_sink_and_window_are_never_merged_or_evicted(sink, recent):
    """With values of zero for all that has left them, what is read is window + sink, scaled by its share.

    Channel 0 says the share: its values are 1 where they are not 0.
    """
    cache, window = (
        TempCache(1, ROPE, sink=sink, recent=recent, far=16),
        WindowSink(1, ROPE, sink=sink, recent=recent),
    )
    frames = film(20, stay=0.8)
    for t, frame in enumerate(frames):
        whole = t < sink or t >= len(frames) - 1 - recent
        frame.v.mul_(whole)[..., 0] = whole
    read, expected = play(cache, frames)[-1], play(window, frames)[-1]
    share = read[..., :1]
    assert ((0 < share) & (share < 1)).all()
    assert_close(read / share, expected, **EXACT)


# ---- the budget


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stay", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("far", [TOKENS, 16, 3 * TOKENS])
def test_every_token_seen_is_accounted_for(seed, stay, far):
    """Counts of far entries + evicted + whole tokens == tokens seen; and the budget holds, always."""
    memory = TempCache(1, ROPE, sink=1, recent=2, far=far, floor=0.3)
    for i, _ in enumerate(playing(memory, film(20, seed=seed, stay=stay)), 1):
        whole = min(i, 3) * TOKENS
        assert (memory.count.sum(-1) + memory.evicted + whole == i * TOKENS).all()
        assert ((memory.count > 0).sum(-1) <= far).all()
        assert memory.stats().seen == i * TOKENS
        assert memory.stats().kept <= whole + far


@pytest.mark.parametrize("stay", [0.0, 0.95])
def test_a_full_memory_stays_as_large_as_it_is(stay):
    memory = TempCache(1, ROPE, sink=1, recent=2, far=16)
    held = [memory.stats().bytes for _ in playing(memory, film(20, stay=stay))]
    assert len(set(held)) == 1


def test_a_budget_below_one_frame_is_refused():
    memory = TempCache(1, ROPE, far=TOKENS - 1)
    with pytest.raises(ValueError, match="at least one frame of 6 tokens, got far=5"):
        memory.attend(0, *film(1)[0])


@pytest.mark.parametrize("threshold", [0.9, 0.3])
def test_the_order_of_tokens_and_entries_means_nothing(threshold):
    """Frames told in another order of their tokens fill other entries, and read the same."""
    frames = film(12, stay=0.8)
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    mixed = [Frame(q[:, :, order], k[:, :, order], v[:, :, order], at[order]) for q, k, v, at in frames]
    memories = [TempCache(1, ROPE, sink=1, recent=2, far=12 * TOKENS, threshold=threshold) for _ in range(2)]
    for a, b in zip(play(memories[0], frames), play(memories[1], mixed), strict=True):
        assert_close(a[:, :, order], b, **EXACT)
    assert counts(memories[0]) == counts(memories[1]) != [1] * 8 * TOKENS


# ---- which key joins which entry


def test_the_newest_key_represents_and_the_mean_value_answers():
    """Three keys within 10 degrees, then one that resembles none: by hand."""
    frames = arrows((0, 1, 0), (5, 2, 0), (10, 6, 0), (0, -4, 1), (0, 7, 2))
    output = play(alone(), frames)[-1]
    assert_close(output, read_entries(frames[4], [frames[3]], [(frames[2], 3.0, 3)]), **EXACT)
    assert not torch.allclose(output, read_entries(frames[4], [frames[3]], [(frames[0], 3.0, 3)]))
    assert not torch.allclose(output, read_entries(frames[4], [frames[3]], [(frames[2], 6.0, 3)]))


def test_keys_below_the_threshold_stay_apart():
    memory = alone(threshold=math.cos(math.radians(20)))
    play(memory, arrows((0, 1, 0), (21, 2, 0), (40, 3, 0), (0, 4, 1)))
    assert counts(memory) == [2, 1]  # 19 degrees join, 21 do not


def test_the_drift_guard_splits_what_turns_slowly():
    """At 10 degrees a frame each key resembles the last one, but after 30 no longer the first one."""
    turning = arrows(*((10.0 * t, 0.0, 0) for t in range(24)), (0, 0, 1))
    guarded, free = alone(threshold=0.9, drift=0.8), alone(threshold=0.9, drift=-1.0)
    play(guarded, turning)
    play(free, turning)
    assert counts(guarded) == [4] * 6
    assert counts(free) == [24]


def test_an_entry_takes_one_token_a_frame():
    """Two tokens of a frame are two things, however alike: the more alike joins, the other is new."""
    memory = TempCache(1, AT_ONE_PLACE, sink=0, recent=1, far=4)
    thing, nearer, near = arrow(0, 0, 1.0), arrow(0, 2, 2.0), arrow(0, 4, 3.0)
    play(memory, [_row(thing, arrow(0, 0, at=1)), _row(near, nearer), _row(near, nearer)])
    assert counts(memory) == [2, 1, 1]
    expected = sorted([1.5, 3.0, 0.0])
    assert sorted(memory.mean[0, memory.count[0] > 0, 0, 0].tolist()) == pytest.approx(expected)


def test_of_two_tokens_equally_alike_one_joins():
    memory = TempCache(1, AT_ONE_PLACE, sink=0, recent=1, far=4)
    play(memory, [_row(arrow(0, 0), arrow(0, 0, at=1)), *[_row(arrow(0, 0), arrow(0, 0))] * 2])
    assert counts(memory) == [2, 1, 1]


def test_place_is_part_of_what_is_seen():
    """The same key elsewhere in the picture is another thing; at another time it is not."""
    here, there = arrow(0, 0, at=3), torch.tensor([[0.0, 3.0, 0.0]])
    memory = alone()
    play(memory, [here._replace(where=torch.tensor([[float(t), 0.0, 0.0]])) for t in range(4)])
    assert counts(memory) == [3]
    memory = alone()
    play(memory, [here, here._replace(where=there), here])
    assert counts(memory) == [1, 1]


AT_ONE_PLACE = type(ROPE)((8, 0, 0), bases=(1e12, 1.0, 1.0))


def _row(*tokens: Frame) -> Frame:
    """One frame of all these, at one place."""
    q, k, v = (torch.cat([getattr(frame, x) for frame in tokens], 2) for x in "qkv")
    return Frame(q, k, v, torch.zeros(len(tokens), 3))


@pytest.mark.parametrize("stay", [0.5, 0.95])
def test_heads_on_their_own_are_memories_of_one_head(stay):
    frames, options = film(20, stay=stay), dict(sink=1, recent=2, far=16, floor=0.3)
    together = play(TempCache(1, ROPE, per_head=True, **options), frames)
    for head in range(HEADS):
        one = slice(head, head + 1)
        alone = [Frame(f.q[:, one], f.k[:, one], f.v[:, one], f.where) for f in frames]
        for a, b in zip(together, play(TempCache(1, ROPE, **options), alone), strict=True):
            assert_close(a[:, one], b, **EXACT)


def test_each_layer_has_its_threshold():
    memory, frames = TempCache(2, TIMELESS, recent=1, far=60, threshold=[1.5, 0.9]), still_life(6)
    for frame in frames:
        for layer in range(2):
            memory.attend(layer, *frame)
            memory.commit(layer)
    never, always = (memory.count.unflatten(0, (2, -1))[layer, 0] for layer in range(2))
    assert never.max() == 1 and always.max() == 4
    with pytest.raises(ValueError, match="one for each of 2 layers; got 3"):
        TempCache(2, ROPE, threshold=[0.9] * 3)


@pytest.mark.parametrize("per_head", [False, True])
def test_each_layer_has_its_budget(per_head):
    """Side by side two layers of different budgets are what each of them is on its own."""
    frames = film(30, stay=0.7)
    settings = dict(sink=1, recent=2, threshold=0.9, floor=0.3, per_head=per_head)
    both = TempCache(2, ROPE, far=[8, 20], **settings)
    alone = [TempCache(1, ROPE, far=far, **settings) for far in (8, 20)]
    for frame in frames:
        for layer, single in enumerate(alone):
            assert_close(both.attend(layer, *frame), single.attend(0, *frame), **EXACT)
        for layer, single in enumerate(alone):
            both.commit(layer)
            single.commit(0)
    assert [int(x) for x in (both.count > 0).unflatten(0, (2, -1))[:, 0].sum(-1)] == [8, 20]


def test_a_budget_for_each_layer_or_one_for_all():
    with pytest.raises(ValueError, match="far is one number, or one for each of 2 layers; got 3"):
        TempCache(2, ROPE, far=[8, 8, 8])
    with pytest.raises(ValueError, match="at least one frame"):
        play(TempCache(1, ROPE, far=[TOKENS - 1]), film(1))


def test_a_key_between_two_entries_stays_apart():
    """4 degrees from one entry and 6 from another: which of the two it is, nobody can say."""
    told = [
        _row(arrow(0, 0), arrow(0, 10)),
        _row(arrow(1, 4), arrow(1, 0, at=1)),
        _row(arrow(2, 0), arrow(2, 0)),
    ]
    for margin, expected in ((0.0, [2, 1, 1]), (0.01, [1, 1, 1, 1])):
        memory = TempCache(1, AT_ONE_PLACE, sink=0, recent=1, far=8, margin=margin)
        play(memory, told)
        assert counts(memory) == expected


@pytest.mark.parametrize("cut, expected", [(0.5, [2, 1, 1]), (0.6, [1, 1, 1, 1])])
def test_when_the_scene_has_changed_nothing_joins(cut, expected):
    """One of two keys finds an entry: half of them."""
    memory = TempCache(1, AT_ONE_PLACE, sink=0, recent=1, far=8, cut=cut)
    play(memory, [_two(0, 0, 1), _two(1, 0, 2), _two(2, 0, 0)])
    assert counts(memory) == expected


@pytest.mark.parametrize("search", ["quant", "int8", "lsh"])
def test_entries_may_be_found_nearly(search):
    """Here every kind finds the same entries, so it remembers the same."""
    frames, options = film(20, stay=0.95), dict(sink=1, recent=2, far=16, floor=0.3)
    exact, near = TempCache(1, ROPE, **options), TempCache(1, ROPE, search=search, **options)
    for a, b in zip(play(exact, frames), play(near, frames), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="No search 'guess'; there is exact, lsh, "):
        TempCache(1, ROPE, search="guess")


# ---- long games


@pytest.mark.parametrize("per_head", [False, True])
def test_what_is_too_old_is_moved_to_the_edge_of_reach(per_head):
    """Seen at the start and never again: after any time it is read as if it had been `reach` frames ago."""
    reach, last = 70, 3 * REBASE
    frames = [*arrows((0, 1, 0)), *(arrow(t, 0, float(t), at=1) for t in range(1, last + 1))]
    memory = alone(reach=reach, per_head=per_head, half_life=1e9)
    output = play(memory, frames)[-1]
    moved = frames[0]._replace(where=torch.tensor([[float(last - reach), 0.0, 0.0]]))
    mean = sum(range(1, last - 1)) / (last - 2)
    entries = [(moved, 1.0, 1), (frames[last - 2], mean, last - 2)]
    assert_close(output, read_entries(frames[last], [frames[last - 1]], entries), rtol=0, atol=1e-9)


# ---- making room


def test_the_entry_seen_least_is_evicted():
    """Room for two: a thing seen three times and one seen once; a third makes the second go."""
    memory = alone(far=2)
    told = [(0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 5, 1), (0, 9, 2), (0, 0, 3), (50, 0, 3)]
    frames = arrows(*told)
    play(memory, frames[:-1])
    output = memory.attend(0, *frames[-1])
    assert memory.evicted.tolist() == [1]
    assert_close(
        output, read_entries(frames[6], [frames[5]], [(frames[2], 1.0, 3), (frames[4], 9.0, 1)]), **EXACT
    )


def test_an_entry_not_seen_for_long_is_evicted_sooner():
    """With a half-life of half a frame, three times in the past is worth less than once just now."""
    memory = alone(far=2, half_life=0.5)
    frames = arrows((0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 5, 1), (0, 9, 2), (0, 0, 3), (50, 0, 3))
    play(memory, frames[:-1])
    output = memory.attend(0, *frames[-1])
    assert memory.evicted.tolist() == [3]
    assert_close(
        output, read_entries(frames[6], [frames[5]], [(frames[3], 5.0, 1), (frames[4], 9.0, 1)]), **EXACT
    )


def test_room_is_made_by_merging_what_is_alike():
    """Two entries 30 degrees apart become one when a third thing needs room: nothing is lost."""
    memory = alone(far=2, threshold=0.99, floor=0.8)
    frames = arrows((0, 1, 0), (30, 5, 0), (0, 9, 1), (0, 0, 3), (50, 0, 3))
    play(memory, frames[:-1])
    output = memory.attend(0, *frames[-1])
    assert memory.evicted.tolist() == [0]
    assert_close(
        output, read_entries(frames[4], [frames[3]], [(frames[1], 3.0, 2), (frames[2], 9.0, 1)]), **EXACT
    )


@pytest.mark.parametrize("few", [0, 256], ids=["summed one by one", "in pairs"])
def test_where_several_become_one_at_once_none_is_lost(few, monkeypatch):
    """Three old entries are all most alike to the same newer one."""
    monkeypatch.setattr(tempcache, "FEW", few)
    memory = TempCache(1, AT_ONE_PLACE, sink=0, recent=1, far=6, threshold=0.9999, floor=0.8)
    told = [[(0, 1, 0), (3, 2, 0), (6, 3, 0)], [(5, 6, 0), (0, 0, 1), (0, 0, 2)], *([(0, 0, 3)] * 3,) * 2]
    frames = [_row(*(arrow(t, *each) for each in tokens)) for t, tokens in enumerate(told)]
    play(memory, frames)
    assert memory.evicted.tolist() == [0] and counts(memory) == [4, 1, 1, 1, 1, 1]
    assert memory.mean[0][memory.count[0] == 4].unique().tolist() == [3.0]


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile on a CPU needs g++")
@pytest.mark.parametrize("options", [{}, {"per_head": True}, {"packed": True}, {"margin": 0.01, "cut": 0.1}])
def test_compiled_it_remembers_the_same(options):
    frames = film(14, seed=2)
    plain, fused = (TempCache(1, ROPE, sink=1, recent=2, far=3 * TOKENS, **options) for _ in range(2))
    fused.fuse()
    with torch.no_grad():
        for one, other in zip(playing(plain, frames), playing(fused, frames), strict=True):
            assert_close(one, other, **EXACT)
    assert plain.evicted.sum() > 0


def test_room_is_made_by_evicting_what_is_not():
    memory = alone(far=2, threshold=0.99, floor=0.9)
    play(memory, arrows((0, 1, 0), (30, 5, 0), (0, 9, 1), (0, 0, 3)))
    assert memory.evicted.tolist() == [1]
    assert counts(memory) == [1, 1]


def test_an_entry_is_not_merged_into_an_older_one():
    """The newer key represents both, so where the least worth is newer it is evicted all the same."""
    memory = alone(far=2, threshold=0.99, floor=0.8)
    play(memory, arrows((0, 1, 0), (0, 1, 0), (0, 1, 0), (30, 5, 0), (0, 9, 1), (0, 0, 3)))
    assert memory.evicted.tolist() == [1]
    assert counts(memory) == [3, 1]


def test_an_entry_is_not_merged_into_one_that_began_elsewhere():
    """The drift guard holds here too: 26 degrees from the newest key, but 50 from the first."""
    memory = alone(far=2, threshold=0.9, floor=0.8)
    play(memory, arrows((0, 1, 0), (50, 5, 0), (24, 1, 0), (0, 9, 1), (0, 0, 3)))
    assert memory.evicted.tolist() == [1]
    assert counts(memory) == [2, 1]


def test_an_entry_that_a_token_joins_now_is_not_given_up():
    """In one frame, one token joins the least entry and the other needs room: another one goes."""
    frames = [
        _two(t, *tokens)
        for t, tokens in enumerate(
            [(0, 1), (0, 1), (0, 2), (2, 3), (0, 0)]  # after (0, 2): counts 0: 3, 1: 2, 2: 1
        )
    ]
    memory = TempCache(1, AT_ONE_PLACE, sink=0, recent=1, far=3)
    play(memory, frames)
    assert memory.evicted.tolist() == [2]  # thing 1, though 2 was seen once only
    assert counts(memory) == [3, 2, 1]


def _two(time: int, one: int, other: int) -> Frame:
    return _row(arrow(time, 0, at=one), arrow(time, 0, at=other))

"""The literal method: exact where keys are equal, complete always, and as large as the scene is new."""

import pytest
import torch
from frames import HEADS, ROPE, TIMELESS, TOKENS, WIDTH, Frame, film, normal, play, playing, where
from torch.testing import assert_close

from fastar import Dense
from fastar.tempcache_paper import TempCachePaper

EXACT = dict(rtol=0, atol=1e-12)
settings = pytest.mark.parametrize(
    "options", [{}, {"match": "key"}, {"represent": "mean"}, {"represent": "medoid"}], ids=str
)


def still_life(count: int) -> list[Frame]:
    """The same keys in every frame, with queries and values that change."""
    q, v = normal(2, count, 2, HEADS, TOKENS, WIDTH)
    k = normal(2, HEADS, TOKENS, WIDTH, seed=5)
    return [Frame(q[t], k, v[t], where(t)) for t in range(count)]


@settings
def test_a_static_scene_is_remembered_exactly(options):
    """Lemma 5.1, whatever represents a group: all its keys are equal."""
    memory, frames = TempCachePaper(1, TIMELESS, **({"match": "key"} | options)), still_life(12)
    if options.get("match") == "query":
        frames = [frame._replace(q=frame.k) for frame in frames]
    for a, b in zip(play(memory, frames), play(Dense(1, TIMELESS), frames), strict=True):
        assert_close(a, b, **EXACT)
    if memory.match == "key":
        assert memory.stats().kept == TOKENS


@settings
@pytest.mark.parametrize("stay", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("threshold", [0.9, 0.3])
def test_counts_add_up_to_what_was_seen(options, stay, threshold):
    memory = TempCachePaper(1, ROPE, threshold=threshold, **options)
    for i, _ in enumerate(playing(memory, film(20, stay=stay)), 1):
        assert (memory.counts[0].sum(-1) == i * TOKENS).all()
        assert memory.stats().seen == i * TOKENS and memory.stats().kept <= i * TOKENS


@settings
def test_above_any_cosine_it_is_dense(options):
    frames = film(14)
    memory = TempCachePaper(1, ROPE, threshold=1.5, **options)
    for a, b in zip(play(memory, frames), play(Dense(1, ROPE), frames), strict=True):
        assert_close(a, b, **EXACT)
    assert memory.stats().kept == 14 * TOKENS


def test_the_lower_the_threshold_the_less_is_kept():
    frames = film(30, stay=0.8)
    kept = []
    for threshold in (0.99, 0.9, 0.5):
        memory = TempCachePaper(1, ROPE, threshold=threshold)
        play(memory, frames)
        kept.append(memory.stats().kept)
    assert kept == sorted(kept, reverse=True) and kept[0] > kept[-1]


def token(time: int, key: tuple[float, float], value: float) -> Frame:
    k = torch.zeros(1, 1, 1, WIDTH, dtype=torch.float64)
    k[..., 0], k[..., 1] = key
    v = torch.full((1, 1, 1, WIDTH), value, dtype=torch.float64)
    return Frame(k, k, v, torch.tensor([[float(time), 0.0, 0.0]]))


@pytest.mark.parametrize(
    "represent, key", [("last", (1.2, 0.0)), ("mean", (1.1, 0.0)), ("medoid", (1.1, 0.0))]
)
def test_a_group_is_its_last_its_mean_or_its_medoid(represent, key):
    memory = TempCachePaper(1, TIMELESS, represent=represent, match="key")
    play(memory, [token(0, (1.0, 0.0), 1.0), token(1, (1.1, 0.0), 2.0), token(2, (1.2, 0.0), 6.0)])
    (m,), slot = memory.counts[0][memory.counts[0] > 0].tolist(), int(memory.counts[0][0].argmax())
    assert m == 3
    assert memory.values[0][0, 0, slot, 0].item() == pytest.approx(3.0)
    assert memory.keys[0][0, 0, slot, :2].tolist() == pytest.approx(key)


def test_several_tokens_may_join_one_group_at_once():
    """The most alike of them stands for all."""
    memory = TempCachePaper(1, TIMELESS, match="key", threshold=0.9)
    one = token(0, (1.0, 0.0), 1.0)
    two = [token(1, (1.0, 0.3), 4.0), token(1, (1.0, 0.1), 7.0)]
    pair = Frame(*(torch.cat([getattr(x, name) for x in two], 2) for name in "qkv"), torch.zeros(2, 3))
    play(memory, [one, pair])
    assert memory.counts[0][memory.counts[0] > 0].tolist() == [3]
    slot = int(memory.counts[0][0].argmax())
    assert memory.values[0][0, 0, slot, 0].item() == pytest.approx(4.0)
    assert memory.keys[0][0, 0, slot, :2].tolist() == pytest.approx((1.0, 0.1))


@pytest.mark.parametrize("saved_after", [1, 5, 12])
def test_a_saved_memory_goes_on_to_the_bit(saved_after):
    frames = film(20, stay=0.9)
    memory, other = TempCachePaper(1, ROPE), TempCachePaper(1, ROPE)
    play(memory, frames[:saved_after])
    other.load_state_dict(memory.state_dict())
    for a, b in zip(play(memory, frames[saved_after:]), play(other, frames[saved_after:]), strict=True):
        assert torch.equal(a, b)


def test_games_of_a_batch_are_independent():
    frames = film(20, stay=0.9)
    together = play(TempCachePaper(1, ROPE), frames)
    for game in range(2):
        one = slice(game, game + 1)
        alone = [Frame(f.q[one], f.k[one], f.v[one], f.where) for f in frames]
        for a, b in zip(together, play(TempCachePaper(1, ROPE), alone), strict=True):
            assert_close(a[one], b, **EXACT)


@pytest.mark.parametrize("search, options", [("quant", {"bits": 16}), ("lsh", {"bits": 512})])
def test_a_group_may_be_found_nearly(search, options):
    """In a static scene a good search finds what the exact one finds."""
    memory = TempCachePaper(1, TIMELESS, match="key", search=search, search_options=options)
    play(memory, still_life(8))
    assert memory.stats().kept == TOKENS

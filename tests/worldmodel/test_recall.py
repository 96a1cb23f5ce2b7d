"""What a memory is said to have kept is what it reads; nobody keeps more than all, and the oracle most."""

import numpy as np
import pytest
import torch
from tiny import TOKENS, world
from torch.testing import assert_close

from fastar import AnnSA, Dense, method
from worldmodel.evaluation.clips import Clips
from worldmodel.evaluation.fidelity import fidelity
from worldmodel.evaluation.merging import Reading, merging
from worldmodel.evaluation.recall import (
    Probabilities,
    TrackedTempCache,
    TrackedWindow,
    overlap,
    recall,
    tracked,
)
from worldmodel.evaluation.table import kept_by_paper, nearest, nearest_thresholds
from worldmodel.evaluation.tape import Tape, record

FRAMES, START, LAYERS = 26, 20, 2
SMALL = {"sink": 1, "recent": 2}
APART = {"threshold": 1.5, "floor": 1.5}  # nothing merges


@pytest.fixture(scope="module")
def tape() -> Tape:
    """Two games that show one picture half of the time."""
    random = np.random.default_rng(0)
    frames = random.integers(256, size=(2, FRAMES, 32, 48, 3), dtype=np.uint8)
    frames[:, ::2] = frames[:, :1]
    return record(world(), Clips(frames, random.integers(2, size=(2, FRAMES, 9)), ["", ""]), start=START)


ROPE = world().denoiser.rope
EVICT = {
    "window_sink": {"kind": "window_sink", **SMALL},
    "tempcache": {"kind": "tempcache", **SMALL, "far": 20, "threshold": 0.8, "floor": 0.9},
    "per head": {"kind": "tempcache", **SMALL, "far": 20, "threshold": 0.8, "floor": 0.9, "per_head": True},
    "apart": {"kind": "tempcache", **SMALL, "far": 40, **APART},
    "random": {"kind": "random", **SMALL, "far": 20},
    "uniform": {"kind": "uniform", **SMALL, "far": 20},
    "flowcache": {"kind": "flowcache", **SMALL, "far": 20},
}
EVERYTHING = {
    "dense": {"kind": "dense", "recent": 2},
    "window": {"kind": "window_sink", "sink": 1, "recent": FRAMES},
    "large": {"kind": "tempcache", **SMALL, "far": FRAMES * TOKENS, "threshold": 0.8},
    "paper": {"kind": "tempcache_paper", "threshold": 0.9, "match": "key"},
}
PATTERNS = {
    "whole": None,
    "buckets": {"kind": "annsa", "density": 0.3, "block": 3, "every": 2, "rest": False},
    "tiles": {"kind": "annsa", "density": 0.3, "block": 3, "every": 5, "rest": False, "tile": 4},
    "mass": {"kind": "annsa", "density": 0.6, "block": 3, "every": 1, "rest": False, "mass": 0.3},
    "means": {"kind": "annsa", "density": 0.3, "block": 3},
    "all buckets": {"kind": "annsa", "density": 1.0, "block": 3},
    "clusters": {"kind": "svg2", "mass": 0.5, "size": 4, "every": 2},
    "best": {"kind": "topk", "keys": 9},
}
SEEN = {  # not over merged keys
    "radial": {"kind": "radial", "block": 2, "decay": 0.5, "dense_layers": 1},
    "tiles": {"kind": "sta", "grid": [2, 3], "tile": [1, 1], "window": [9, 1, 1]},
    "heads": {"kind": "svg1", "density": 0.3},
}
APART_KINDS = ("window_sink", "random", "uniform", "flowcache")


def kinds(nodes):
    return pytest.mark.parametrize("node", nodes.values(), ids=nodes)


def patterns(nodes):
    return pytest.mark.parametrize("attn", nodes.values(), ids=nodes)


def made(node, attn=None):
    """A tracked memory."""
    return tracked(node, attn)(LAYERS, ROPE)


def oracle_of(keys):
    return made({"kind": "dense"}, {"kind": "topk", "keys": keys})


def questions(tape: Tape, *memories):
    """At each question: the layer, dense attention's probabilities, what it answers, and every answer."""
    players = (Probabilities(LAYERS, tape.rope), *memories)
    for (layer, event, probabilities), *others in zip(*(tape.ask(x) for x in players), strict=True):
        yield layer, event, probabilities, [answer for *_, answer in others]


def recalls(tape: Tape, memory) -> list[float]:
    return [recall(p, memory.kept(layer)) for layer, _, p, _ in questions(tape, memory)]


@kinds(EVERYTHING)
def test_recall_is_one_where_nothing_is_evicted(tape, node):
    found = recalls(tape, made(node))
    assert len(found) >= LAYERS * (FRAMES - START) and set(found) == {1.0}


@kinds({name: node for name, node in (EVICT | EVERYTHING).items() if name != "paper"})
@patterns(PATTERNS)
def test_recall_is_never_above_one_and_less_with_a_pattern(tape, node, attn):
    whole, found = (np.array(recalls(tape, made(node, x))) for x in (None, attn))
    assert (found > 0).all() and (found <= whole).all() and (whole <= 1).all()
    if attn is None or attn.get("density") == 1:
        assert (found == whole).all()


@pytest.mark.parametrize("sink, recent", [(0, 1), (1, 2), (2, 5)])
def test_a_windows_recall_is_the_mass_in_it(tape, sink, recent):
    memory = TrackedWindow(LAYERS, ROPE, sink=sink, recent=recent)
    for layer, event, mass, _ in questions(tape, memory):
        frames = mass.mean((0, 1, 2)).unflatten(0, (-1, TOKENS)).sum(1)
        assert len(frames) == int(event.where[0, 0]) + 1
        expected = frames[:sink].sum() + frames[-1 - recent :].sum()
        assert recall(mass, memory.kept(layer)) == pytest.approx(float(expected), abs=1e-6)


@kinds({"dense": EVERYTHING["dense"], "apart": EVICT["apart"]} | {x: EVICT[x] for x in APART_KINDS})
@patterns({name: attn for name, attn in PATTERNS.items() if name != "means"})
def test_what_is_kept_is_what_is_read(tape, node, attn):
    check_reads_what_it_keeps(tape, made(node, attn))


@kinds({"dense": EVERYTHING["dense"]} | {x: EVICT[x] for x in APART_KINDS})
@patterns(SEEN)
def test_what_is_kept_is_what_is_read_by_time_and_place(tape, node, attn):
    check_reads_what_it_keeps(tape, made(node, attn))
    for *_, (a, b) in questions(tape, method(node, attn).cache(LAYERS, ROPE), made(node, attn)):
        assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("keys", [1, 17, 1000])
def test_what_the_oracle_keeps_is_what_it_reads(tape, keys):
    check_reads_what_it_keeps(tape, oracle_of(keys))


def check_reads_what_it_keeps(tape, memory):
    """Where nothing merges, the answer is dense attention over the tokens kept."""
    dense = Dense(LAYERS, ROPE)
    for layer, _, mass, (answer, _) in questions(tape, memory, dense):
        kept = memory.kept(layer)
        assert kept.shape[-1] == mass.shape[-1] == dense.lengths[layer] + TOKENS
        weight = mass * kept
        weight = weight / weight.sum(-1, keepdim=True)
        assert_close(answer, weight @ dense.values[layer][:, :, : mass.shape[-1]], rtol=0, atol=1e-5)
        count = kept.expand(*mass.shape[:3], -1).sum(-1).double().mean()
        assert memory.keys_read(layer) == pytest.approx(float(count))


def test_buckets_read_as_their_mean_are_keys_read_and_not_recalled(tape):
    read, left = (made(EVERYTHING["dense"], PATTERNS["buckets"] | {"rest": rest}) for rest in (True, False))
    for layer, _, mass, _ in questions(tape, read, left):
        assert recall(mass, read.kept(layer)) == recall(mass, left.kept(layer)) < 1
        assert read.keys_read(layer) > left.keys_read(layer)


@kinds(EVICT | EVERYTHING)
@patterns(PATTERNS)
def test_to_be_tracked_changes_no_answer(tape, node, attn):
    plain = method(node, attn).cache(LAYERS, ROPE)
    for *_, (a, b) in questions(tape, plain, made(node, attn)):
        assert_close(a, b, rtol=0, atol=0)


MAKES_ROOM = {"kind": "tempcache", **SMALL, "far": 12, "threshold": 1.5, "floor": -1.0}  # by merging


@kinds({name: EVICT[name] for name in ("tempcache", "per head", "apart")} | {"makes room": MAKES_ROOM})
def test_tokens_are_where_the_counts_say(tape, node):
    memory = made(node)
    for _ in questions(tape, memory):
        for entry, count, evicted in zip(memory.entry, memory.count, memory.evicted, strict=True):
            assert torch.bincount(entry[entry >= 0], minlength=memory.far).tolist() == count.tolist()
            assert (entry < 0).sum() == evicted
    assert (memory.evicted > 0).all()
    assert (memory.count > 1).any() == (node is not EVICT["apart"])


def test_what_is_merged_to_make_room_is_still_kept(tape):
    strict, lax = (made(MAKES_ROOM | {"floor": floor}) for floor in (1.5, -1.0))
    for layer, _, mass, _ in questions(tape, strict, lax):
        assert recall(mass, lax.kept(layer)) > recall(mass, strict.kept(layer))
    assert (lax.evicted < strict.evicted).all()


def test_a_token_is_followed_also_through_a_saved_moment(tape):
    memory, again = made(EVICT["tempcache"]), made(EVICT["tempcache"])
    for _ in questions(tape, memory):
        again.load_state_dict(memory.state_dict())
    assert again.entry.tolist() == memory.entry.tolist()


# ---- the oracle


def test_an_oracle_of_all_keys_is_dense(tape):
    oracle = oracle_of(FRAMES * TOKENS)
    for layer, event, mass, (answer,) in questions(tape, oracle):
        assert_close(answer, event.answer, rtol=0, atol=1e-5)
        assert recall(mass, oracle.kept(layer)) == 1
        assert oracle.keys_read(layer) == mass.shape[-1]


@pytest.mark.parametrize("keys", [1, 18, 60])
def test_the_oracle_recalls_most_of_all_that_read_as_many_keys(tape, keys):
    """Of those that do not merge: an entry recalls all that it stands for."""
    oracle = oracle_of(keys)
    for layer, _, mass, _ in questions(tape, oracle):
        best = mass[..., :-TOKENS].topk(keys).values.sum(-1) + mass[..., -TOKENS:].sum(-1)
        assert recall(mass, oracle.kept(layer)) == pytest.approx(float(best.mean()), abs=1e-6)
        assert oracle.keys_read(layer) == keys + TOKENS


@kinds({name: EVICT[name] for name in ("apart", *APART_KINDS)})
def test_no_memory_beats_an_oracle_of_as_many_keys(tape, node):
    memory = made(node)
    list(questions(tape, memory))
    oracle = oracle_of(round(memory.keys_read(0)) - TOKENS)
    memory.reset()
    for layer, _, mass, _ in questions(tape, memory, oracle):
        assert recall(mass, memory.kept(layer)) < recall(mass, oracle.kept(layer)) < 1


# ---- errors, thresholds, likeness


def test_a_pattern_over_the_papers_groups_is_not_accounted_for(tape):
    with pytest.raises(NotImplementedError, match="use tempcache"):
        recalls(tape, made(EVERYTHING["paper"], PATTERNS["means"]))


def test_nothing_was_read_before_a_question():
    with pytest.raises(RuntimeError, match="call attend with a question first"):
        made(EVICT["window_sink"]).kept(0)


def test_the_axes_of_a_method_make_a_tracked_memory():
    make = tracked({"kind": "tempcache", "far": 30}, {"kind": "annsa", "density": 0.5})
    memory = make(LAYERS, ROPE)
    assert isinstance(memory, TrackedTempCache) and memory.far == 30
    assert isinstance(memory.pattern, AnnSA) and memory.pattern.density == 0.5


@pytest.mark.parametrize("wanted, best", [(-1, 0.015625), (0.5, 0.5), (0.3, 0.296875), (2, 0.984375)])
def test_the_nearest_threshold_is_found_by_halving(wanted, best):
    assert nearest(lambda x: x, wanted) == best


def test_the_paper_keeps_more_at_the_threshold_of_a_larger_budget(tape):
    small, large = nearest_thresholds(tape, {1: 5 * TOKENS, 2: 20 * TOKENS}).values()
    assert kept_by_paper(tape, small) < kept_by_paper(tape, large)


def test_fidelity_is_the_mean_of_frames():
    random = np.random.default_rng(0)
    dense = list(random.integers(256, size=(5, 2, 16, 24, 3), dtype=np.uint8))
    assert fidelity(dense, dense) == pytest.approx({"psnr": 100, "ssim": 1, "psnr@1": 100, "psnr@4": 100})
    off = [*dense[:3], 255 - dense[3], dense[4]]
    row = fidelity(off, dense)
    assert row["psnr@1"] == pytest.approx(100)
    assert row["psnr"] == pytest.approx((400 + row["psnr@4"]) / 5) and row["psnr@4"] < 20
    assert row["ssim"] < 1
    with pytest.raises(ValueError):
        fidelity(dense[:4], dense)


# ---- merging, as the paper does it


@pytest.mark.parametrize("options", [{}, {"represent": "mean"}, {"represent": "medoid"}], ids=str)
def test_a_token_is_found_in_its_group(tape, options):
    """As many tokens in each group as it counts; what is read of all tokens adds up to one."""
    memory = Reading(LAYERS, tape.rope, threshold=0.6, match="key", **options)
    for layer, _, expected, _ in questions(tape, memory):
        counts, group, read = memory.counts[layer], memory.group[layer], memory.read[layer]
        assert group.shape[1] == memory.seen[layer] and (counts > 1).any()
        held = torch.zeros_like(counts).scatter_add_(1, group, torch.ones(group.shape, dtype=counts.dtype))
        assert_close(held, counts)
        assert read.shape == expected.shape
        assert_close(read.sum(-1), torch.ones_like(read[..., 0]))


def test_nothing_merged_reads_as_dense_attention_does(tape):
    memory = Reading(LAYERS, tape.rope, threshold=1.5, match="key")
    for layer, _, expected, _ in questions(tape, memory):
        assert_close(memory.read[layer], expected)
        assert overlap(expected, memory.read[layer]) == pytest.approx(1, abs=1e-5)


def test_more_merging_overlaps_less(tape):
    settings = {str(x): {"threshold": x, "match": "key"} for x in (1.5, 0.7, 0.0)}
    rows = list(merging([tape], settings))
    assert [row["setting"] for row in rows] == list(settings)
    assert rows[0]["density"] == 1 and rows[0]["least"] == pytest.approx(1, abs=1e-5)
    for column in ("density", "overlap"):
        values = [row[column] for row in rows]
        assert values == sorted(values, reverse=True) and values[0] > values[-1]

"""The benchmark on the paper's shapes, on a transformer of two layers."""

import pytest
import torch

from fastar import AnnSA, method
from worldmodel.benchmarks.chunk import keys_of, listening, parts
from worldmodel.benchmarks.kernels import fastest, seconds_at_once
from worldmodel.benchmarks.paper import Best, Case, Nothing, in_chunks, replayed, run, summary, whole

WAN = dict(width=48, heads=2, layers=2, ffn=32, text_width=16)
BRANCHES = dict(wide=48, width=24, heads=1, ffn=16, layers=1)
CPU = torch.device("cpu")
PIPELINES = ["self-forcing", "rolling-forcing", "longvie"]


def case(pipeline: str = "self-forcing") -> Case:
    if pipeline == "longvie":
        return Case({**WAN, "taken": 36, "image": True}, pipeline, 4, 6, frames=96, branches=BRANCHES)
    return Case(WAN, pipeline, rows=4, columns=6, frames=96)


def opened(memory, pipeline: str = "self-forcing"):
    return case(pipeline).open(memory, CPU, torch.float32)


FAST_AR = {
    "cache": {"kind": "tempcache", "sink": 1, "recent": 1, "far": 2},
    "attn": {"kind": "annsa", "density": 0.5, "block": 4, "every": 1},
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_nothing_remembered_is_a_dense_memory_that_is_emptied(pipeline):
    """Chunk by chunk the same, as long as nothing is committed."""
    empty, dense = opened(Nothing, pipeline), opened(Best, pipeline)
    torch.testing.assert_close(empty.step(), dense.step(), rtol=0, atol=1e-5)
    assert (empty.step() - dense.step()).abs().max() > 2e-5
    assert empty.memory.stats().kept == 0


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_bounded_memory_is_run_and_its_rows_say_what_it_keeps(pipeline):
    axes = in_chunks({"cache": {"kind": "tempcache", "sink": 1, "recent": 1, "far": 2}}, case().tokens)
    rows = list(run(opened(method(**axes).cache, pipeline), 8, every=3))
    assert [row["chunk"] for row in rows] == [3, 6, 8]
    assert rows[-1]["seen"] == 8 * case().tokens and rows[-1]["kept"] <= 4 * case().tokens
    assert [row["frame"] for row in rows] == [36, 72, 96] and all(row["fps"] > 0 for row in rows)


@pytest.mark.parametrize("pipeline, reads", [("self-forcing", 10), ("rolling-forcing", 4), ("longvie", 20)])
def test_a_chunk_is_read_layer_by_layer_and_its_parts_take_time(pipeline, reads):
    forcing = opened(method(**in_chunks(FAST_AR, case(pipeline).tokens)).cache, pipeline)
    for _ in range(6):
        forcing.step()
    with listening(forcing) as calls:
        forcing.step()
    assert len(calls) == reads
    found = parts(forcing)
    assert set(found) == {"attention s", "floor of attention s", "remembering s"}
    assert min(found.values()) > 0


def test_what_a_pattern_leaves_out_is_not_counted():
    tokens = case().tokens
    forcing = opened(method(**in_chunks(FAST_AR, tokens)).cache)
    for _ in range(6):
        forcing.step()
    assert isinstance(forcing.memory.pattern, AnnSA)
    buckets = 2 * tokens // 4
    chosen = -(-buckets // 2)
    assert keys_of(forcing._reads[0], tokens) == 3 * tokens + 4 * chosen + buckets


def test_a_pipeline_has_its_branches_or_none():
    with pytest.raises(ValueError, match="No pipeline 'longvie' with branches=None"):
        Case(WAN, "longvie", 4, 6).open(Nothing, CPU, torch.float32)


def test_far_is_told_in_chunks():
    assert case().tokens == 3 * 2 * 3 and case().chunks == 8
    assert in_chunks({"cache": {"kind": "tempcache", "far": 2}, "attn": None}, 18)["cache"]["far"] == 36
    assert in_chunks({"cache": {"kind": "dense"}}, 18) == {"cache": {"kind": "dense"}}


@pytest.mark.parametrize(
    "pipeline, passes, layers",
    [
        ("self-forcing", [1] * 5, {2: 2}),
        ("rolling-forcing", [5, 1], {2: 2}),
        ("longvie", [1] * 5, {2: 2, 1: 2}),
    ],
)
def test_dense_is_put_together_from_one_layer(pipeline, passes, layers, monkeypatch):
    """Every pass, every layer of the transformer and its branches by their heads, how many chunks ask."""
    heard = []

    def counted(heads, width, queries, keys, forcing):
        heard.append((heads, queries, keys))
        return float(keys)

    monkeypatch.setattr("worldmodel.benchmarks.paper.attention", counted)
    (row,) = replayed(case(pipeline), opened(Nothing, pipeline), [4])
    n = case().tokens
    assert heard == [(h, x * n, (x + past) * n) for h in layers for x in passes for past in (0, 4)]
    more = row["s a chunk"] - row["s without attention to the past"]
    assert more == pytest.approx(len(passes) * sum(layers.values()) * 4 * n)


def test_kernels_take_time():
    q, k = torch.randn(1, 2, 4, 16), torch.randn(1, 2, 8, 16)
    assert fastest(q, k, k) > 0
    asked = []
    assert seconds_at_once(lambda: asked.append(1), CPU, tries=3) > 0 and len(asked) == 5


def test_a_whole_video_is_the_sum_of_its_chunks():
    rows = [{"how": "replayed", "chunk": n, "s a chunk": float(n)} for n in (1, 3)]
    assert whole(rows, 4) == 1 + 2 + 3 + 3
    ran = [{"how": "run", "chunk": n, "s a chunk": float(n), "s so far": 2.0 * n} for n in (1, 3)]
    assert whole(ran, 4) == 6 + 3 and whole(ran, 3) == 6
    dense = [{"memory": "dense", "s without attention to the past": 0.5, "fps": 4.0, **row} for row in rows]
    bounded = {"memory": "a", "how": "run", "chunk": 2, "s so far": 1.5, "s a chunk": 0.75, "fps": 16.0}
    told = {row["memory"]: row for row in summary([*dense, bounded], 4)}
    assert told["a"]["speed-up"] == 3 and told["a"]["ceiling"] == 4.5 and told["dense"]["speed-up"] == 1

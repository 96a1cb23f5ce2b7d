"""The benchmark on the paper's shapes, on a transformer of two layers."""

import pytest
import torch

from fastar import CACHES, method
from worldmodel.benchmarks.paper import Case, Nothing, attention, in_chunks, replayed, run, summary, whole

WAN = dict(width=48, heads=2, layers=2, ffn=32, text_width=16)
CPU = torch.device("cpu")


def case(pipeline: str = "self-forcing") -> Case:
    return Case(WAN, pipeline, rows=4, columns=6, frames=96)


def opened(memory, pipeline: str = "self-forcing"):
    return case(pipeline).open(memory, CPU, torch.float32)


@pytest.mark.parametrize("pipeline", ["self-forcing", "rolling-forcing"])
def test_nothing_remembered_is_a_dense_memory_that_is_emptied(pipeline):
    """Chunk by chunk the same, as long as nothing is committed."""
    empty, dense = opened(Nothing, pipeline), opened(CACHES["dense"], pipeline)
    torch.testing.assert_close(empty.step(), dense.step(), rtol=0, atol=1e-5)
    assert (empty.step() - dense.step()).abs().max() > 2e-5
    assert empty.memory.stats().kept == 0


@pytest.mark.parametrize("pipeline", ["self-forcing", "rolling-forcing"])
def test_a_bounded_memory_is_run_and_its_rows_say_what_it_keeps(pipeline):
    axes = in_chunks({"cache": {"kind": "tempcache", "sink": 1, "recent": 1, "far": 2}}, case().tokens)
    rows = list(run(opened(method(**axes).cache, pipeline), 8, every=3))
    assert [row["chunk"] for row in rows] == [3, 6, 8]
    assert rows[-1]["seen"] == 8 * case().tokens and rows[-1]["kept"] <= 4 * case().tokens
    assert rows[0]["s in all"] < rows[-1]["s in all"]


def test_far_is_told_in_chunks():
    assert case().tokens == 3 * 2 * 3 and case().chunks == 8
    assert in_chunks({"cache": {"kind": "tempcache", "far": 2}, "attn": None}, 18)["cache"]["far"] == 36
    assert in_chunks({"cache": {"kind": "dense"}}, 18) == {"cache": {"kind": "dense"}}


@pytest.mark.parametrize("pipeline, passes", [("self-forcing", [1] * 5), ("rolling-forcing", [5, 1])])
def test_dense_is_put_together_from_one_layer(pipeline, passes, monkeypatch):
    """Every pass, every layer, and how many chunks ask."""
    heard = []

    def counted(wan, queries, keys, dtype):
        heard.append((queries, keys))
        return float(keys)

    monkeypatch.setattr("worldmodel.benchmarks.paper.attention", counted)
    (row,) = replayed(case(pipeline), opened(Nothing, pipeline), [4])
    n = case().tokens
    assert heard == [(x * n, (x + past) * n) for x in passes for past in (0, 4)]
    more = row["s a chunk"] - row["s without attention to the past"]
    assert more == pytest.approx(len(passes) * 2 * 4 * n)


def test_attention_of_one_layer_takes_time():
    assert attention(opened(Nothing).wan, 4, 8, torch.float32, tries=1) > 0


def test_a_whole_video_is_the_sum_of_its_chunks():
    rows = [{"chunk": 1, "s a chunk": 1.0}, {"chunk": 3, "s a chunk": 3.0}]
    assert whole(rows, 4) == 1 + 2 + 3 + 3
    dense = [{"memory": "dense", "s without attention to the past": 0.5, **row} for row in rows]
    told = {
        row["memory"]: row for row in summary([*dense, {"memory": "a", "chunk": 2, "s a chunk": 0.75}], 4)
    }
    assert told["a"]["speed-up"] == 3 and told["a"]["ceiling"] == 4.5 and told["dense"]["speed-up"] == 1

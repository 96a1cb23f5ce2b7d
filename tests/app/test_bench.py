"""`run.py bench` says what it can measure, and takes the words of configs/bench.yaml."""

import pytest

from app import bench
from app.errors import UsageError


@pytest.mark.parametrize("words", [(), ("speed",), ("rollout", "table")])
def test_one_thing_is_measured(words):
    with pytest.raises(UsageError, match="Say what to measure, one of attention, rollout, .*player"):
        bench.settings(words)


def test_quick_is_at_fewer_lengths():
    what, slow = bench.settings(["rollout", "rollout.steps=2"])
    _, quick = bench.settings(["rollout", "--quick"])
    assert what == "rollout" and slow.rollout.steps == 2
    assert list(quick.lengths) == list(slow.quick) and len(slow.lengths) > len(quick.lengths)


def test_memories_are_those_that_are_evaluated():
    _, cfg = bench.settings(["table"])
    assert {"dense", "tempcache", "fast-ar", "svg2"} < set(cfg.memories)
    for part in ("attention", "rollout", "table"):
        assert set(cfg[part].memories) <= set(cfg.memories)

"""Ways of remembering at equal budgets, asked the same questions in real play."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastar import TempCachePaper, method

from ..world import MakeMemory
from .explained import Explained
from .recall import Probabilities, recall, tracked
from .tape import Event, Tape

SINK, RECENT = 1, 16
TRIES = 6  # thresholds tried for a budget


class Rival(NamedTuple):
    """A way of remembering: `plain` is timed, `tracked` accounts for what it reads; and what else to tell."""

    plain: MakeMemory
    tracked: MakeMemory
    notes: dict[str, Any]


def rivals(
    frames: int, tokens: int, threshold: float, suits: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Rival]:
    """Those that read, besides the sink and the recent frames, about as much as `frames` frames more.

    `threshold` is the paper's, `suits` are options of TempCache.
    """
    whole, far = {"sink": SINK, "recent": RECENT}, frames * tokens
    paper = {"kind": "tempcache_paper", "threshold": threshold, "match": "key"}  # a tape holds no other query
    ours = {"kind": "tempcache", **whole, **suits}
    evicting = {
        kind: _rival({"kind": kind, **whole, "far": far}) for kind in ("random", "uniform", "flowcache")
    }
    return {
        "window_sink": _rival({"kind": "window_sink", "sink": SINK, "recent": RECENT + frames}),
        **evicting,
        "tempcache_paper": _rival(paper, threshold=threshold),
        "tempcache": _rival({**ours, "far": far}),
        "tempcache + annsa": _rival({**ours, "far": 4 * far}, {"kind": "annsa", "density": 0.25}),
        "top-k oracle": _rival({"kind": "dense"}, {"kind": "topk", "keys": budget(frames, tokens)}),
    }


def budget(frames: int, tokens: int) -> int:
    """Tokens of the past that each of the rivals reads."""
    return (SINK + RECENT + frames) * tokens


def _rival(cache: dict[str, Any], attn: dict[str, Any] | None = None, **notes: Any) -> Rival:
    return Rival(method(cache, attn).cache, tracked(cache, attn), notes)


class Score:
    """What is found of a rival; a row of the table once all is in."""

    def __init__(self, layers: int) -> None:
        self.layers = [Explained() for _ in range(layers)]
        self.seconds: list[float] = []
        self.recall: list[float] = []
        self.density: list[float] = []

    def row(self) -> dict[str, float]:
        shares = [layer.share for layer in self.layers]
        frames = np.reshape(self.seconds, (-1, len(self.layers))).sum(1)
        return {
            "density": float(np.mean(self.density)),
            "recall": float(np.mean(self.recall)),
            "explained": float(np.mean(shares)),
            "least": min(shares),
            "ms": 1e3 * float(np.median(frames)),
        }


@torch.no_grad()
def compare(
    tapes: Sequence[Tape],
    budgets: Sequence[int],
    others: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    suits: Mapping[str, Any] = MappingProxyType({}),
    look: Callable[[MakeMemory], dict[str, float]] | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for dense attention and each of the `others`, then for every rival at every budget of far frames.

    others     axes of further methods, which read as much as they will
    suits      options of TempCache that suit the network, but for its size
    look       what else is found of each, but for dense attention
    density    keys that a query reads, of those that dense attention reads
    recall     see `recall.py`
    explained  see `explained.py`: the mean over layers, and the least of them
    ms         to commit the frame before a question and answer the question, all layers: the median. The
               rivals of a budget take turns, layer by layer, so that all meet the same machine
    """
    tokens = tapes[0].events[0][0].k.shape[2]
    thresholds = nearest_thresholds(tapes[0], {n: budget(n, tokens) for n in budgets})
    groups: dict[int | str, dict[str, Rival]] = {"all": {"dense": _rival({"kind": "dense"})}}
    groups["all"] |= {name: _rival(x["cache"], x.get("attn")) for name, x in others.items()}
    groups |= {n: rivals(n, tokens, thresholds[n], suits) for n in budgets}
    for size, group in groups.items():
        scores = {name: Score(tapes[0].layers) for name in group}
        for tape in tapes:
            answer(tape, group, scores)
            account(tape, group, scores)
        for name, rival in group.items():
            seen = look(rival.plain) if look and name != "dense" else {}
            yield {"budget": size, "memory": name, **scores[name].row(), **seen, **rival.notes}


def answer(tape: Tape, group: dict[str, Rival], scores: dict[str, Score]) -> None:
    """Ask all of a group in turns, and take their time."""
    asked = [timed(tape.ask(rival.plain(tape.layers, tape.rope))) for rival in group.values()]
    for question in zip(*asked, strict=True):
        for score, (seconds, layer, event, output) in zip(scores.values(), question, strict=True):
            assert event.answer is not None
            score.layers[layer].add(output, event.answer)
            score.seconds.append(seconds)


def timed(asked: Iterator[tuple[int, Event, Tensor]]) -> Iterator[tuple[float, int, Event, Tensor]]:
    """The same, with the seconds from when it was asked for to the answer."""
    while True:
        start = time.perf_counter()
        found = next(asked, None)
        if found is None:
            return
        if found[2].is_cuda:
            torch.cuda.synchronize()
        yield time.perf_counter() - start, *found


def account(tape: Tape, group: dict[str, Rival], scores: dict[str, Score]) -> None:
    """Hold what all of a group read against dense attention's probabilities."""
    memories: list[Any] = [rival.tracked(tape.layers, tape.rope) for rival in group.values()]
    asked = [tape.ask(memory) for memory in (Probabilities(tape.layers, tape.rope), *memories)]
    for (layer, _, probabilities), *_ in zip(*asked, strict=True):
        for memory, score in zip(memories, scores.values(), strict=True):
            score.recall.append(recall(probabilities, memory.kept(layer)))
            score.density.append(memory.keys_read(layer) / probabilities.shape[-1])


def nearest_thresholds(tape: Tape, budgets: dict[int, int]) -> dict[int, float]:
    """For each budget in tokens, the threshold at which `TempCachePaper` keeps nearest to it in the end."""
    kept = functools.cache(functools.partial(kept_by_paper, tape.shown))
    return {name: nearest(kept, tokens) for name, tokens in budgets.items()}


def nearest(found: Callable[[float], float], wanted: float, low: float = 0.0, high: float = 1.0) -> float:
    """Of the thresholds tried by halving, the one that finds nearest to what is wanted; higher find more."""
    tried = []
    for _ in range(TRIES):
        tried.append((low + high) / 2)
        low, high = (low, tried[-1]) if found(tried[-1]) > wanted else (tried[-1], high)
    return min(tried, key=lambda x: abs(found(x) - wanted))


def kept_by_paper(tape: Tape, threshold: float) -> float:
    """Groups it has in the end, the mean over layers and games."""
    memory = TempCachePaper(tape.layers, tape.rope, threshold=threshold, match="key")
    for _ in tape.ask(memory):
        pass
    return float(np.mean([float((counts > 0).sum(-1).double().mean()) for counts in memory.counts]))

"""What attention alone costs and reads, at some lengths of the past, on the keys and queries of real play."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from fastar import Memory

from ..evaluation.explained import Explained
from ..evaluation.recall import Probabilities, recall
from ..evaluation.results import Row
from ..evaluation.tape import Event, Tape
from ..world import MakeMemory
from .kernels import seconds_queued
from .recorded import idle

COMMITS = 16  # whose time is taken, the last before a question; of them every pattern plans at two


def attention(
    tape: Tape, lengths: Sequence[int], plain: MakeMemory, tracked: MakeMemory | None
) -> Iterator[Row]:
    """A row for each length of the past at which something is asked; `plain` is timed, `tracked` accounts.

    ms                of all layers, for the question of a frame: the median. A GPU's is its own time: see
                      `seconds_queued`
    ms of commit      of all layers, for remembering a frame and for what a pattern plans: the mean of 16
    GFLOP/s           what the products of the kept keys come to in that time
    cache MB          of all layers
    density           keys that a query reads, of those that dense attention reads
    recall            see `evaluation/recall.py`
    explained, least  see `evaluation/explained.py`: mean over layers, and the least of them

    Without one that accounts there is only the time.
    """
    costs = timed(tape, lengths, plain(tape.layers, tape.rope))
    found = accounted(tape, lengths, tracked(tape.layers, tape.rope)) if tracked else {}
    for length, cost in costs.items():
        row = found.get(length, {})
        if row:
            queries = tape.events[0][-1].v  # as many as a frame has keys
            cost["GFLOP/s"] = 4 * row.pop("keys") * queries.numel() * tape.layers / cost["ms"] / 1e6
        yield {"frame": length, **cost, **row}


@torch.no_grad()
def timed(tape: Tape, lengths: Sequence[int], memory: Memory) -> dict[int, Row]:
    """What questions and commits take."""
    asked: dict[int, list[float]] = {}
    kept: list[float] = []
    rows: dict[int, Row] = {}
    for moment in zip(*tape.events, strict=True):
        question = moment[0].answer is not None
        took = 0.0
        if planning(lengths, len(kept)):
            took = sum(lap(memory, layer, event) for layer, event in enumerate(moment))
        else:
            with idle(memory):
                for layer, event in enumerate(moment):
                    ask(memory, layer, event)
        if not question:
            kept.append(took)
            continue
        length = nearest(lengths, len(kept))
        asked.setdefault(length, []).append(took)
        rows[length] = {
            "ms": 1e3 * float(np.median(asked[length])),
            "ms of commit": 1e3 * float(np.mean(kept[-COMMITS:])),
            "cache MB": memory.stats().bytes / 1e6,
        }
    return rows


def lap(memory: Memory, layer: int, event: Event) -> float:
    return seconds_queued(lambda: ask(memory, layer, event), event.k.device)


def ask(memory: Memory, layer: int, event: Event) -> Tensor:
    """The answer to it, which is remembered unless it is a question."""
    answer = memory.attend(layer, *event[:4])
    if event.answer is None:
        memory.commit(layer)
    return answer


@torch.no_grad()
def accounted(tape: Tape, lengths: Sequence[int], memory: Memory) -> dict[int, Row]:
    """What is read, and what comes of it, beside dense attention."""
    dense, known = Probabilities(tape.layers, tape.rope), memory
    scores: dict[int, dict[str, list[float]]] = {}
    layers: dict[int, list[Explained]] = {}
    for (layer, _, weights), (*_, output) in zip(tape.ask(dense), asked(tape, lengths, memory), strict=True):
        length = nearest(lengths, dense.commits[layer])
        values = dense.values[layer]
        assert values is not None
        answer = weights.to(values.dtype) @ values[:, :, : weights.shape[-1]]
        layers.setdefault(length, [Explained() for _ in range(tape.layers)])[layer].add(output, answer)
        score = scores.setdefault(length, {"keys": [], "density": [], "recall": []})
        keys = known.keys_read(layer)  # pyright: ignore[reportAttributeAccessIssue]
        score["keys"].append(keys)
        score["density"].append(keys / weights.shape[-1])
        score["recall"].append(recall(weights, known.kept(layer)))  # pyright: ignore[reportAttributeAccessIssue]
    rows: dict[int, Row] = {}
    for length, score in scores.items():
        shares = [layer.share for layer in layers[length]]
        rows[length] = {name: float(np.mean(x)) for name, x in score.items()}
        rows[length] |= {"explained": float(np.mean(shares)), "least": min(shares)}
    return rows


def asked(tape: Tape, lengths: Sequence[int], memory: Memory) -> Iterator[tuple[int, Event, Tensor]]:
    """`tape.ask`, with a pattern that plans only where somebody is about to ask."""
    frames = 0
    for moment in zip(*tape.events, strict=True):
        for layer, event in enumerate(moment):
            with nullcontext() if planning(lengths, frames) else idle(memory):
                answer = ask(memory, layer, event)
            if event.answer is not None:
                yield layer, event, answer
        frames += moment[0].answer is None


def planning(lengths: Sequence[int], frames: int) -> bool:
    """Whether one of the lengths is near after so many frames, or was just reached."""
    return any(length - COMMITS <= frames < length + COMMITS for length in lengths)


def nearest(lengths: Sequence[int], frames: int) -> int:
    """The length that a question after so many frames belongs to."""
    return max(length for length in lengths if length <= frames + 1)

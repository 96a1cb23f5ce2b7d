"""Which threshold suits each layer of a network: measured once on real play, then kept beside the weights.

Layers remember on their own, so one look at each threshold tells what it does in every layer. The error
bound of `fastar/bound.py` orders the layers as well, from fewer frames, but it is a worst case.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fastar.bound import thresholds

from ..world import MakeMemory
from .explained import explained
from .tape import Tape


class Suits(NamedTuple):
    """Per layer the threshold that explains most of dense attention's output, and how much."""

    thresholds: list[float]
    explained: list[float]


def calibrate(tapes: Sequence[Tape], make: Callable[[float], MakeMemory], grid: Sequence[float]) -> Suits:
    """Try every threshold of the grid in every layer; of equal ones the first. `make` makes a memory."""
    found = explained(tapes, {str(threshold): make(threshold) for threshold in grid})
    layers = list(zip(*(found[str(threshold)] for threshold in grid), strict=True))
    best = [max(range(len(grid)), key=shares.__getitem__) for shares in layers]
    return Suits([grid[i] for i in best], [shares[i] for i, shares in zip(best, layers, strict=True)])


def bounded(tape: Tape, target: float, gap: int, frames: int = 64) -> list[float]:
    """Per layer the threshold at which the error bound meets `target`, from the first questions of a tape.

    `gap` is in frames, as in `fastar.bound.thresholds`.
    """
    asked = [[event for event in events if event.answer is not None][:frames] for events in tape.events]
    return thresholds([[(e.q, e.k, e.where) for e in events] for events in asked], tape.rope, target, gap)

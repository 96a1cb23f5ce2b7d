"""One of several memories that dream the same game, with a clock of its own.

Panes take turns on one machine, so what a wall clock says of one depends on the others. A pane's clock
therefore counts the seconds of its own computing alone.
"""

import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from worldmodel.openings import Opening

from . import chain
from .frame import Stats

AMPLIFIED = 4  # how often a difference is shown stronger than it is
SMOOTH = 15  # frames that a frame rate is the median of


class Contender(Protocol):
    """As much of a World as it takes to be compared."""

    prompt: str

    @property
    def memory(self) -> str: ...
    def reset(self, opening: Opening, seed: int = 0) -> np.ndarray: ...
    def step(self, keys: np.ndarray) -> Any: ...
    def decode(self, latent: Any) -> np.ndarray: ...
    def say(self, text: str) -> Sequence[str]: ...
    def stats(self) -> Stats: ...


class Costs:
    """What each frame of a pane's game cost. It only grows, so other threads may look while it does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds, self.ends, self.fps = array("d"), array("d"), array("d")  # a number for each frame
        self.bytes, self.kept, self.seen = array("q"), array("q"), array("q")

    def add(self, took: float, stats: Stats) -> None:
        self.ends.append(self.clock + took)
        self.seconds.append(took)
        self.fps.append(1 / float(np.median(self.seconds[-SMOOTH:])))
        self.bytes.append(stats.bytes)
        self.kept.append(stats.kept)
        self.seen.append(stats.seen)  # last, since `index` counts it

    @property
    def index(self) -> int:
        """Frames dreamt."""
        return len(self.seen)

    @property
    def remembers(self) -> bool:
        """Whether there is a memory to measure; the real game has none."""
        return not self.seen or self.seen[-1] > 0

    @property
    def clock(self) -> float:
        """Seconds of computing that they took."""
        return self.ends[-1] if self.ends else 0.0

    def reached(self, clock: float) -> int:
        """Frames dreamt by the time the clock said this."""
        return bisect_right(self.ends, clock)

    def until(self, clock: float) -> "Costs":
        """Those of the frames dreamt by the time the clock said this."""
        count, costs = self.reached(clock), Costs(self.name)
        for series in ("seconds", "ends", "fps", "bytes", "kept", "seen"):
            getattr(costs, series).extend(getattr(self, series)[:count])
        return costs

    def behind(self, leader: "Costs") -> int:
        """Frames fewer than another had dreamt in the same time of its own; negative is ahead."""
        clock = min(self.clock, leader.clock)
        return leader.reached(clock) - self.reached(clock)


class Pane:
    """A world, what it dreamt last and what every frame of it cost."""

    def __init__(self, world: Contender) -> None:
        self.world, self.costs = world, Costs(world.memory)

    def begin(self, opening: Opening, seed: int, prompt: str | None = None) -> None:
        self.picture = self.world.reset(opening, seed=seed)
        self.costs, self.link = Costs(self.world.memory), chain.BEGINNING
        self._say(prompt)

    def dream(self, keys: np.ndarray, prompt: str | None = None) -> np.ndarray:
        """The next frame, from the keys held and the prompt in force."""
        self._say(prompt)
        began = time.perf_counter()
        self.picture = self.world.decode(self.world.step(keys))
        self.costs.add(time.perf_counter() - began, self.world.stats())
        self.link = chain.link(self.link, self.picture)
        return self.picture

    def _say(self, prompt: str | None) -> None:
        if prompt is not None and prompt != self.world.prompt:
            self.world.say(prompt)


def difference(picture: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How far two pictures uint8 [h, w, 3] are apart, channel by channel, made stronger to be seen."""
    apart = abs(picture.astype(np.int16) - other)
    return (AMPLIFIED * apart).clip(0, 255).astype(np.uint8)

"""How fast and how big: frames per second as a person feels them, and the memory of this process."""

import time
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np
import psutil


class Meter:
    """Frame rate of the last second, and of the whole run."""

    def __init__(self) -> None:
        self.seconds = array("d")
        self._recent: deque[float] = deque()

    def tick(self, took: float | None) -> None:
        """Count a frame by the time since the one before it; None after a pause, which has no such time."""
        if took is None:
            self._recent.clear()
            return
        self.seconds.append(took)
        self._recent.append(took)
        while len(self._recent) > 1 and sum(self._recent) - self._recent[0] > 1:
            self._recent.popleft()

    @property
    def fps(self) -> float | None:
        """Median over the last second."""
        return 1 / float(np.median(self._recent)) if self._recent else None


class Evened:
    """The time of a frame where a world dreams several at a time: the mean over as many of them.

    None until there are as many since the last pause: whose chunk came first is not told.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._lately: deque[float] = deque(maxlen=at_once)

    def __call__(self, took: float | None) -> float | None:
        if took is None:  # after a pause
            self._lately.clear()
            return None
        self._lately.append(took)
        whole = len(self._lately) == self._lately.maxlen
        return sum(self._lately) / len(self._lately) if whole else None


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Frames per second: p1 is the rate that 99 % of the frames reach, p50 the median."""
    if not seconds:
        return {}
    slow, middle, fast = np.percentile(seconds, [99, 50, 1])
    return {"p1": round(1 / slow, 2), "p50": round(1 / middle, 2), "p99": round(1 / fast, 2)}


class ProcessMemory:
    """Resident bytes of this process, read at most twice a second: asking costs more than it seems."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._bytes, self._asked = 0, float("-inf")

    def __call__(self) -> int:
        if time.monotonic() - self._asked > 0.5:
            self._bytes, self._asked = self._process.memory_info().rss, time.monotonic()
        return self._bytes

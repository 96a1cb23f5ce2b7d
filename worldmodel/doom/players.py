"""Players that know nothing of the map: what hands on a keyboard do when nobody plans.

A player is asked once per frame, 17.5 times a second, and answers with the keys it holds. Counts
below are in frames.
"""

from typing import Protocol

import numpy as np

from ..actions import KEYS, action
from .engine import Observation


class Player(Protocol):
    """Whoever holds the keys."""

    def act(self, seen: Observation) -> np.ndarray:
        """The key vector to hold until the next frame."""
        ...


class Uniform:
    """Presses every key on its own with a fixed chance: short, contradictory, rare combinations."""

    def __init__(self, rng: np.random.Generator, chance: float = 0.3) -> None:
        self.rng, self.chance = rng, chance

    def act(self, seen: Observation) -> np.ndarray:
        return (self.rng.random(len(KEYS)) < self.chance).astype(np.uint8)


class Macro:
    """Holds one pattern of keys for a while, then another; now and then walks back along its own trail."""

    PATTERNS = (  # chance, keys of which one group is drawn, shortest and longest hold
        (0.42, ("forward",), 8, 35),
        (0.20, ("forward+turn_left", "forward+turn_right"), 3, 12),
        (0.16, ("turn_left", "turn_right"), 3, 20),
        (0.10, ("strafe_left", "strafe_right", "forward+strafe_left", "forward+strafe_right"), 4, 15),
        (0.05, ("back",), 4, 12),
        (0.07, ("",), 2, 10),
    )
    RUN, FIRE = 0.3, 0.15

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.keys, self.left = action(), 0
        self.trail: list[tuple[float, float]] = []
        self.retrace: list[tuple[float, float]] = []
        self.until_retrace, self.patience, self.stuck = self._pause(), 0, 0
        self.last = (0.0, 0.0)

    def act(self, seen: Observation) -> np.ndarray:
        self._notice(seen)
        if self.stuck > 4:
            self._free()
        if self.left == 0 and self.retrace:
            return self._walk_back(seen)
        if self.left == 0:
            self._draw()
        self.left -= 1
        return self.keys

    def _notice(self, seen: Observation) -> None:
        here = seen.pose[:2]
        pushing = self.keys[0] and distance(here, self.last) < 3
        self.stuck = self.stuck + 1 if pushing else max(0, self.stuck - 1)
        self.last = here
        if not self.trail or distance(here, self.trail[-1]) > 24:
            self.trail = [*self.trail[-399:], here]
        self.until_retrace -= 1
        if self.until_retrace <= 0:
            steps = int(self.rng.integers(15, 120))
            self.retrace, self.patience, self.until_retrace = self.trail[-steps:], 350, self._pause()

    def _pause(self) -> int:
        return int(self.rng.integers(175, 450))

    def _draw(self) -> None:
        chances = np.array([pattern[0] for pattern in self.PATTERNS])
        _, groups, low, high = self.PATTERNS[self.rng.choice(len(chances), p=chances / chances.sum())]
        names = {name for name in str(self.rng.choice(groups)).split("+") if name}
        names |= {"run"} if self.rng.random() < self.RUN else set()
        names |= {"fire"} if self.rng.random() < self.FIRE else set()
        self.keys, self.left = action(names), int(self.rng.integers(low, high + 1))

    def _free(self) -> None:
        names = {"turn_left" if self.rng.random() < 0.5 else "turn_right"}
        names |= {"use"} if self.rng.random() < 0.5 else set()
        names |= {"back"} if self.rng.random() < 0.3 else set()
        self.keys, self.left, self.stuck = action(names), int(self.rng.integers(3, 12)), 0

    def _walk_back(self, seen: Observation) -> np.ndarray:
        """Head for the latest trail point not yet reached, skipping ahead where several are near."""
        for skip in range(min(6, len(self.retrace)), 0, -1):
            if distance(seen.pose, self.retrace[-skip]) < 40:
                del self.retrace[-skip:]
                break
        self.patience -= 1
        if self.patience <= 0:
            self.retrace = []
        if not self.retrace:
            return action()
        error = bearing(seen.pose, self.retrace[-1])
        names = {"forward"} if abs(error) < 35 else set()
        if abs(error) > 6:
            names.add("turn_left" if error > 0 else "turn_right")
        self.keys = action(names)
        return self.keys


class Idle:
    """Stands and watches for seconds at a time, while everything else moves; then stirs for a moment."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.hands = Macro(rng)
        self.still, self.busy = self._pause(), 0

    def act(self, seen: Observation) -> np.ndarray:
        keys = self.hands.act(seen) if self.busy else action()
        if self.busy:
            self.busy -= 1
            self.still = self.still if self.busy else self._pause()
        elif self.still:
            self.still -= 1
            self.busy = 0 if self.still else int(self.rng.integers(8, 40))
        return keys

    def _pause(self) -> int:
        return int(self.rng.integers(40, 201))


def distance(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Between two points or poses on the floor, in map units."""
    return ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5


def bearing(pose: tuple[float, ...], point: tuple[float, ...]) -> float:
    """Degrees to turn left, -180..180, to face a point."""
    heading = np.degrees(np.arctan2(point[1] - pose[1], point[0] - pose[0]))
    return float((heading - pose[3] + 180) % 360 - 180)

"""Keys for a frame when nobody is at the keyboard: walk, look around, step aside, shoot, stand still."""

import random

import numpy as np

from worldmodel.actions import action

# What it may do next, and how often. Mostly forward, and often turning while at it.
MOVES = {
    ("forward",): 6,
    ("forward", "turn_left"): 3,
    ("forward", "turn_right"): 3,
    ("forward", "run"): 2,
    ("turn_left",): 2,
    ("turn_right",): 2,
    ("forward", "strafe_left"): 1,
    ("forward", "strafe_right"): 1,
    ("strafe_left",): 1,
    ("strafe_right",): 1,
    ("back",): 1,
    ("fire",): 1,
    ("forward", "fire"): 1,
    ("use",): 1,
    (): 2,
}
SHORTEST, LONGEST = 4, 20  # frames a move lasts; a use is one push of a button


class Autopilot:
    """A script that grows as it is read. The keys of frame i depend on the seed and i alone."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._script: list[tuple[str, ...]] = []

    def __call__(self, index: int) -> np.ndarray:
        """Key vector of the index-th frame after a reset."""
        while len(self._script) <= index:
            (move,) = self._random.choices(list(MOVES), list(MOVES.values()))
            lasts = 1 if move == ("use",) else self._random.randint(SHORTEST, LONGEST)
            self._script += [move] * lasts
        return action(self._script[index])

"""Looking with the mouse, in a game that knows only turn keys: pressed for just so many frames.

A turn key turns by a fixed angle each frame, and by half of it for the first few. What the mouse asks for
is added up, and the key is held until no more than half a frame's turn is owed.
"""

import numpy as np

from worldmodel.actions import KEYS, SLOW
from worldmodel.actions import TURN as PACE

PIXEL = 0.12  # degrees that a pixel asks for
MOST = 60.0  # degrees that may be owed: a hand that stops is not to be followed for long
LEFT, RIGHT, RUN = (KEYS.index(name) for name in ("turn_left", "turn_right", "run"))


class MouseLook:
    def __init__(self) -> None:
        self.owed = 0.0  # degrees to the right
        self._held = 0  # frames for which a turn key has been down

    def move(self, pixels: float) -> None:
        self.owed = min(MOST, max(-MOST, self.owed + PIXEL * pixels))

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        """The keys of the next frame, with a turn among them where one is owed. Keys that turn come first."""
        if keys[LEFT] or keys[RIGHT]:
            self.owed, self._held = 0.0, self._held + 1
            return keys
        turn = self._turn(bool(keys[RUN]))
        if 2 * abs(self.owed) < turn:
            self._held = 0
            return keys
        keys = keys.copy()
        keys[RIGHT if self.owed > 0 else LEFT] = 1
        self.owed -= turn if self.owed > 0 else -turn
        self._held += 1
        return keys

    def _turn(self, run: bool) -> float:
        """Degrees by which a turn key would turn in the next frame."""
        slow = min(1.0, max(0.0, SLOW - self._held))
        return PACE * (slow * 0.5 + (1 - slow) * (1 + run))

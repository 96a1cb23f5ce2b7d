"""The nine keys of the game, and a vector of them: what a person holds during one frame."""

from collections.abc import Iterable

import numpy as np

KEYS = ("forward", "back", "turn_left", "turn_right", "strafe_left", "strafe_right", "fire", "use", "run")
FPS = 17.5  # two tics of 1/35 s per frame
TURN = 2 * 640 * 360 / 65536  # degrees that a turn key turns in a frame; running doubles it
SLOW = 2.5  # frames for which the game turns at half pace after a turn key goes down: 5 tics of 2 a frame


def action(held: Iterable[str] = ()) -> np.ndarray:
    """Key vector, uint8 [9], 1 where a key of `KEYS` is held. Raises ValueError on an unknown name."""
    held = set(held)
    if unknown := held - set(KEYS):
        raise ValueError(f"No such key: {', '.join(sorted(unknown))}. Keys are {', '.join(KEYS)}.")
    return np.array([key in held for key in KEYS], np.uint8)


def held(keys: np.ndarray) -> tuple[str, ...]:
    """The names in a key vector; the inverse of `action`."""
    return tuple(name for name, down in zip(KEYS, keys, strict=True) if down)

"""The real game in the place of a world: beside a dream, from the same opening and with the same keys.

It has no memory that could be measured. What it shows is the truth for as long as the dream has not moved
the player somewhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldmodel.openings import Opening

from .errors import PackageError


@dataclass
class Nothing:
    """What the real game remembers of what it showed."""

    kept: int = 0
    seen: int = 0
    bytes: int = 0


class RealGame:
    """As much of a World as a pane needs."""

    memory = "real game"

    def __init__(self, tell: Callable[[str], None]) -> None:
        """`tell` hears what the real game cannot do. Raises PackageError where there is none."""
        from worldmodel.doom import engine

        try:
            engine.load_vizdoom()
        except ImportError as error:
            raise PackageError(str(error)) from None
        self._start, self._tell, self._doom = engine.Doom, tell, None
        self.prompt = ""

    def reset(self, opening: Opening, seed: int = 0) -> np.ndarray:
        """Play all the keys that led to the opening; the dream's seed is none of its business."""
        self.close()
        self._picture, self.prompt = opening.frames[-1], opening.prompt
        if "world" not in opening.meta:
            self._tell("The real game does not know this scene.")
            return self._picture
        self._doom = self._start(opening.meta["world"], opening.engine_seed, opening.meta["monsters"])
        self._picture = self._doom.first.frame
        for keys in opening.prefix[1:]:
            self.step(keys)
        return self._picture

    def step(self, keys: np.ndarray) -> np.ndarray:
        seen = self._doom.step(keys) if self._doom else None
        if seen is not None:
            self._picture = seen.frame
        elif self._doom:
            self._tell("The real game has ended here; its last picture stays.")
            self.close()
        return self._picture

    def decode(self, latent: Any) -> np.ndarray:
        return latent

    def say(self, text: str) -> Sequence[str]:
        """It is told, and stays what it is."""
        self.prompt = text
        return ()

    def stats(self) -> Nothing:
        return Nothing()

    def close(self) -> None:
        if self._doom:
            self._doom.close()
        self._doom = None

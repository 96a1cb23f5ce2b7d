"""Who plays: a person, or the autopilot. They take turns when asked to."""

from collections.abc import Callable

import numpy as np

Player = Callable[[int], np.ndarray]  # from a frame's index to the keys held while it is dreamt


class Players:
    """Asks one of some players, by name, for the keys of each frame. The first one begins."""

    def __init__(self, **players: Player) -> None:
        self._players = players
        self.now = next(iter(players))

    def next(self) -> str:
        """Hand over to the one after; returns its name."""
        names = list(self._players)
        self.now = names[(names.index(self.now) + 1) % len(names)]
        return self.now

    def to(self, name: str) -> None:
        """Hand over to the one of this name."""
        if name not in self._players:
            raise ValueError(f"No player {name!r}; there is {', '.join(self._players)}.")
        self.now = name

    def __call__(self, index: int) -> np.ndarray:
        return self._players[self.now](index)

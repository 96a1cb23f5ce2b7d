"""Made-up play in a square room: a player who stands at home, goes away, and comes back."""

from pathlib import Path

import numpy as np

from worldmodel.actions import KEYS
from worldmodel.episodes import Episode, EpisodeWriter

CELL, SIDE = 96, 6  # the room is 4 x 4 cells inside a border of rock
GRID = np.pad(np.zeros((SIDE - 2, SIDE - 2), int), 1, constant_values=-1).tolist()
WORLD = {"grid": GRID, "cell": CELL}
HOME = (150.0, 150.0, 0.0, 180.0)  # before the west wall
AWAY = (430.0, 430.0, 0.0, 0.0)  # before the east wall, in the opposite corner


def path(*stays: tuple[tuple[float, ...], int]) -> np.ndarray:
    """Poses [n, 4] of so many frames at each place."""
    return np.concatenate([np.tile(place, (frames, 1)) for place, frames in stays]).astype(np.float32)


def play(folder: Path, pose: np.ndarray, *, size: tuple[int, int] = (32, 48)) -> Episode:
    """An episode with these poses. Equal poses show equal pictures."""
    writer = EpisodeWriter(folder, {"world": WORLD})
    for place in pose:
        random = np.random.default_rng(abs(place.astype(int)))
        picture = np.full((*size, 3), random.integers(256, size=3), np.uint8)
        picture[:, : size[1] // 2] = random.integers(256, size=3)
        keys = random.integers(2, size=len(KEYS))
        writer.add(picture, keys, pose=place.tolist())
    writer.close()
    return Episode(folder)

"""What a player looks at, by the floor plan: a ray through the middle of every column of the picture."""

from typing import NamedTuple

import numpy as np

from ..control import FOCAL
from ..episodes import WIDTH
from .maze import SOLID, World


class Sight(NamedTuple):
    """Of poses [n, 4], for each column [n, columns].

    wall      number of the wall behind it: one side of one cell of rock
    distance  to it, in map units along the view (as the picture has it, not along the ray)
    room      number of the sector before it
    """

    wall: np.ndarray
    distance: np.ndarray
    room: np.ndarray


def sight(world: World, pose: np.ndarray, columns: int) -> Sight:
    """Where the rays end. Each goes from line to line of the grid until it meets rock."""
    grid, size = np.array(world["grid"]), world["cell"]
    right = (2 * np.arange(columns) + 1 - columns) / columns * WIDTH / 2  # pixels from the middle
    angle = np.radians(pose[:, 3:].astype(float)) - np.arctan(right / FOCAL[0])
    ray = np.stack([np.cos(angle), np.sin(angle)])  # [xy, n, columns]
    ray[ray == 0] = 1e-9
    start = pose.T[:2, :, None].astype(float)
    way, cell = np.sign(ray).astype(int), np.broadcast_to(start // size, ray.shape).astype(int)
    line = ((cell + (way > 0)) * size - start) / ray  # how far the next line is, across either axis
    wall, room = np.full(angle.shape, -1), np.full(angle.shape, -1)
    distance = np.zeros(angle.shape)
    while (seeking := wall < 0).any():
        crossed = line.argmin(0)
        over = seeking & np.stack([crossed == 0, crossed == 1])
        before = grid[cell[1], cell[0]]
        cell, far = cell + way * over, line.min(0)
        line = line + np.where(over, size / np.abs(ray), 0)
        place = cell[1] * grid.shape[1] + cell[0]
        side = 2 * crossed + (np.where(crossed == 0, way[0], way[1]) > 0)
        met = seeking & (grid.ravel()[place] == SOLID)
        wall, room = np.where(met, 4 * place + side, wall), np.where(met, before, room)
        distance = np.where(met, far, distance)
    return Sight(wall, distance * np.cos(np.arctan(right / FOCAL[0])), room)

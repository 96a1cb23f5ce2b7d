"""When what a frame shows was last in sight: by where the player stood, and wall by wall.

Two poses within 48 units and 30 degrees show the same view. That alone says little of what must be
remembered: on the way to a view most of it comes into sight from elsewhere. So walls are followed too:
a ray through the middle of every column of tokens finds the wall behind it.
"""

import numpy as np

from ..control import FOCAL
from ..doom.maze import SOLID, World
from ..episodes import WIDTH, Episode
from ..training.latents import NEAR, SAME_WAY, earlier_views


def misfit(pose: np.ndarray, i: int) -> np.ndarray:
    """How far every pose [n, 4] is from the i-th [n]: 0 the same pose, below 1 the same view."""
    apart = np.abs(pose[:, :2] - pose[i, :2]).max(-1) / NEAR
    turned = np.abs((pose[:, 3] - pose[i, 3] + 180) % 360 - 180) / SAME_WAY
    return np.maximum(apart, turned)


def returns(pose: np.ndarray, *, lead: int = 8, away: int = 60) -> np.ndarray:
    """For each frame that comes back to a view, the latest frame 10 s or more before with that view; else -1.

    It comes back if none of the `away` frames that end `lead` frames before it shows the view. A frame is
    given those few frames to get there, since a view is reached by walking and turning.
    """
    earlier = earlier_views(pose, len(pose))
    for i in np.nonzero(earlier >= 0)[0].tolist():
        if (misfit(pose, i)[_before(i, lead, away)] < 1).any():
            earlier[i] = -1
    return earlier


def track(episode: Episode, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The poses [n, 4] of an episode and the walls in sight [n, columns].

    Raises ValueError for an episode without poses or a floor plan.
    """
    world: World = episode.meta.get("world", {})
    if "grid" not in world or episode.pose is None:
        raise ValueError(
            f"{episode.folder} has no floor plan and poses, so nobody knows when a wall was in sight. "
            "`python run.py collect held_out=true` plays episodes that have them."
        )
    return episode.pose, walls(world, episode.pose, columns)


def walls(world: World, pose: np.ndarray, columns: int) -> np.ndarray:
    """The walls behind the middles of the columns of the picture at poses [n, 4], as numbers [n, columns].

    A wall is one side of one cell of rock. A ray goes from line to line of the grid until it meets one.
    """
    grid, size = np.array(world["grid"]), world["cell"]
    right = (2 * np.arange(columns) + 1 - columns) / columns * WIDTH / 2  # pixels from the middle
    angle = np.radians(pose[:, 3:].astype(float)) - np.arctan(right / FOCAL[0])
    ray = np.stack([np.cos(angle), np.sin(angle)])  # [xy, n, columns]
    ray[ray == 0] = 1e-9
    start = pose.T[:2, :, None].astype(float)
    way, cell = np.sign(ray).astype(int), np.broadcast_to(start // size, ray.shape).astype(int)
    line = ((cell + (way > 0)) * size - start) / ray  # how far the next line is, across either axis
    wall = np.full(angle.shape, -1)
    while (seeking := wall < 0).any():
        crossed = line.argmin(0)
        over = seeking & np.stack([crossed == 0, crossed == 1])
        cell, line = cell + way * over, line + np.where(over, size / np.abs(ray), 0)
        place = cell[1] * grid.shape[1] + cell[0]
        side = 2 * crossed + (np.where(crossed == 0, way[0], way[1]) > 0)
        wall = np.where(seeking & (grid.ravel()[place] == SOLID), 4 * place + side, wall)
    return wall


def last_sight(wall: np.ndarray) -> np.ndarray:
    """For the walls of frames [n, columns], the latest earlier frame with each in any column, or -1."""
    latest: dict[int, int] = {}
    sight = np.full(wall.shape, -1)
    for i, row in enumerate(wall.tolist()):
        sight[i] = [latest.get(w, -1) for w in row]
        latest.update(dict.fromkeys(row, i))
    return sight


def remembered(wall: np.ndarray, i: int, *, start: int = 0, lead: int = 8, away: int = 60) -> float:
    """Share of the columns of frame i whose wall was in sight since `start`, but not lately.

    Lately: in the `away` frames that end `lead` frames before it.
    """
    lately = _before(i, lead, away)
    known, fresh = (np.isin(wall[i], part) for part in (wall[start : lately.start], wall[lately]))
    return float((known & ~fresh).mean())


def _before(i: int, lead: int, away: int) -> slice:
    end = i - lead + 1
    return slice(max(0, end - away), max(0, end))

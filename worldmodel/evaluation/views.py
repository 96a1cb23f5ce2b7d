"""When what a frame shows was last in sight: by where the player stood, and wall by wall.

Two poses within 48 units and 30 degrees show the same view. That alone says little of what must be
remembered: on the way to a view most of it comes into sight from elsewhere. So walls are followed too:
a ray through the middle of every column of tokens finds the wall behind it.
"""

import numpy as np

from ..doom.maze import World
from ..doom.rays import sight
from ..episodes import Episode
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
    return episode.pose, sight(world, episode.pose, columns).wall


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

"""A picture as points in space, and how far what a camera sees of them is from it.

How far each pixel of the picture is may be known. Else it is a plain prior: flat ground below the horizon,
which is the middle row, and a wall far away above it. The same prior stands wherever the camera looks past
the points, so it goes on for ever.

Lengths are metres. x is to the right, y down, z ahead of the camera at the start.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

BEHIND = 0.05  # metres before the camera from which on a point is seen
SPREAD = 32  # pixels, at most, of a point that has come nearer
SMALL = 3  # halvings of the picture after which a hole is no longer small


class Camera(NamedTuple):
    """Where it stands, and how far it has turned to the right, in radians."""

    x: float = 0.0
    z: float = 0.0
    turned: float = 0.0

    def sees(self, points: np.ndarray) -> np.ndarray:
        """Points [n, 3] of the world as the camera has them: to its right, below it, ahead of it."""
        x, y, z = points.T - np.array([[self.x], [0.0], [self.z]])
        sine, cosine = np.sin(self.turned), np.cos(self.turned)
        return np.stack([cosine * x - sine * z, y, sine * x + cosine * z], -1)

    def places(self, points: np.ndarray) -> np.ndarray:
        """The inverse of `sees`."""
        x, y, z = points.T
        sine, cosine = np.sin(self.turned), np.cos(self.turned)
        return np.stack([cosine * x + sine * z + self.x, y, cosine * z - sine * x + self.z], -1)

    def moved(self, ahead: float, right: float, turn: float) -> "Camera":
        """After a turn by so many radians, and then a step."""
        turned = self.turned + turn
        sine, cosine = np.sin(turned), np.cos(turned)
        x, z = self.x + sine * ahead + cosine * right, self.z + cosine * ahead - sine * right
        return Camera(float(x), float(z), float(turned))


@dataclass(frozen=True)
class Optics:
    """What a camera makes pictures with, and the prior of what it sees.

    height, width  of its pictures, in pixels
    field          degrees that a picture shows from left to right
    eye            metres from the ground to the camera
    near, far      metres at which a picture of depth is white, and black
    """

    height: int
    width: int
    field: float = 70.0
    eye: float = 1.6
    near: float = 1.5
    far: float = 20.0

    @property
    def focal(self) -> float:
        """Pixels that a metre at the distance of a metre has."""
        return self.width / 2 / np.tan(np.radians(self.field) / 2)

    @cached_property
    def rays(self) -> np.ndarray:
        """What each pixel shows at the depth of a metre, [h, w, 3]."""
        rows, columns = np.mgrid[: self.height, : self.width].astype(float)
        x, y = (columns - (self.width - 1) / 2) / self.focal, (rows - (self.height - 1) / 2) / self.focal
        return np.stack([x, y, np.ones_like(x)], -1)

    @cached_property
    def prior(self) -> np.ndarray:
        """Depth where nothing is known, [h, w]: the ground, and the wall above it."""
        return self.eye / np.maximum(self.rays[..., 1], self.eye / self.far)

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Index in a flattened picture, -1 out of sight, and depth of points [n, 3] as a camera sees them."""
        x, y, z = points.T
        ahead = np.maximum(z, BEHIND)
        columns = np.rint(x / ahead * self.focal + (self.width - 1) / 2)
        rows = np.rint(y / ahead * self.focal + (self.height - 1) / 2)
        within = (z > BEHIND) & (0 <= columns) & (columns < self.width) & (0 <= rows) & (rows < self.height)
        return np.where(within, rows * self.width + columns, -1).astype(np.int64), z

    def nearness(self, depth: np.ndarray) -> np.ndarray:
        """1 at `near` and 0 at `far`, even in 1 / depth as the published signals are."""
        return np.clip((1 / depth - 1 / self.far) / (1 / self.near - 1 / self.far), 0, 1)

    def depth(self, nearness: np.ndarray) -> np.ndarray:
        """The inverse of `nearness`."""
        return 1 / (1 / self.far + nearness * (1 / self.near - 1 / self.far))


class Cloud:
    """The points of a picture, seen by a camera at the origin."""

    def __init__(self, optics: Optics, nearness: np.ndarray | None = None) -> None:
        """`nearness` [h, w] of each pixel from 0 to 1, see `Optics.nearness`; None is the prior."""
        self.optics = optics
        depth = optics.prior if nearness is None else optics.depth(nearness)
        self.points = (optics.rays * depth[..., None]).reshape(-1, 3)

    def depth(self, camera: Camera) -> np.ndarray:
        """Of each pixel that a camera sees, metres [h, w]."""
        optics = self.optics
        index, z = optics.project(camera.sees(self.points))
        seen = index >= 0
        index, z, first = index[seen], z[seen], self.points[seen, 2]
        nearest = np.full(optics.height * optics.width, np.inf)
        # a point that has come nearer stands for as much more of the picture
        sizes = np.clip(np.ceil(first / z - 1e-6), 1, SPREAD).astype(int)
        for size in np.unique(sizes):
            drawn, offsets = sizes == size, np.arange(size) - size // 2
            rows, columns = np.divmod(index[drawn], optics.width)
            rows = np.clip(rows[:, None, None] + offsets[:, None], 0, optics.height - 1)
            columns = np.clip(columns[:, None, None] + offsets, 0, optics.width - 1)
            flat = (rows * optics.width + columns).reshape(len(rows), -1)
            np.minimum.at(nearest, flat, z[drawn, None])
        known = np.where(np.isinf(nearest), 0, nearest).reshape(optics.height, optics.width)
        filled = without_holes(known, SMALL)
        return np.where(filled > 0, filled, optics.prior)


def without_holes(depth: np.ndarray, halvings: int) -> np.ndarray:
    """Depth [h, w] in which 0 is a hole; small ones take the farthest of what is seen around them."""
    if not halvings or depth.all():
        return depth
    height, width = depth.shape
    even = np.pad(depth, ((0, height % 2), (0, width % 2)))
    coarse = even.reshape(len(even) // 2, 2, -1, 2).max((1, 3))
    around = without_holes(coarse, halvings - 1).repeat(2, 0).repeat(2, 1)[:height, :width]
    return np.where(depth > 0, depth, around)

"""Keys to the two signals that LongVie 2 reads, before there are any frames: depth, and tracks of points.

A camera moves as the keys say among the points of the opening picture. What it would see is drawn: how far
away everything is, and a grid of points as coloured discs, each of which keeps its colour as long as it is
seen. Where one leaves, by the edge or behind something, another begins. That is our addition: the published
model reads both signals from videos that exist already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..actions import held
from .cloud import Camera, Cloud

DARKEST = 55  # of a disc, beside black where there is none
HIDDEN = 1.1  # a point is out of sight where something is nearer by more than this factor


@dataclass(frozen=True)
class Pace:
    """What keys do: metres and degrees a second, times `run` with its key; and pictures a second."""

    walk: float = 1.4
    turn: float = 45.0
    run: float = 2.0
    fps: float = 16.0

    def move(self, camera: Camera, keys: np.ndarray) -> Camera:
        """Where keys [9] that are held for one picture bring a camera."""
        down = held(keys)
        step = (self.run if "run" in down else 1.0) / self.fps
        return camera.moved(
            self.walk * step * way(down, "back", "forward"),
            self.walk * step * way(down, "strafe_left", "strafe_right"),
            np.radians(self.turn) * step * way(down, "turn_left", "turn_right"),
        )


def way(down: Sequence[str], less: str, more: str) -> int:
    return (more in down) - (less in down)


class Drive:
    """A camera, and the tracks it sees.

    every   pixels from one track to the next when they begin
    radius  of a disc, in pixels
    """

    def __init__(self, cloud: Cloud, pace: Pace, *, every: int = 16, radius: int = 3) -> None:
        self.cloud, self.pace, self.every, self.radius = cloud, pace, every, radius
        self.camera = Camera()
        self.tracks, self.colours = np.empty((0, 3)), np.empty((0, 3), np.uint8)

    def go(self, keys: np.ndarray) -> None:
        """On to the next picture with these keys [9] held."""
        self.camera = self.pace.move(self.camera, keys)

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        """What is seen now: depth, near is bright, and tracks; RGB uint8 [h, w, 3] each."""
        depth = self.cloud.depth(self.camera)
        nearness = self.cloud.optics.nearness(depth)
        grey = np.rint(255 * nearness).astype(np.uint8)
        self._follow(depth, nearness)
        return np.repeat(grey[..., None], 3, -1), self._draw()

    def state_dict(self) -> dict[str, Any]:
        tracks, colours = torch.from_numpy(self.tracks), torch.from_numpy(self.colours)
        return {"camera": list(self.camera), "tracks": tracks, "colours": colours}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.camera = Camera(*state["camera"])
        self.tracks, self.colours = (state[name].cpu().numpy() for name in ("tracks", "colours"))

    def _follow(self, depth: np.ndarray, nearness: np.ndarray) -> None:
        """Let go of tracks that are out of sight, and begin some where there are none."""
        optics = self.cloud.optics
        index, z = optics.project(self.camera.sees(self.tracks))
        seen = (index >= 0) & (z <= HIDDEN * depth.reshape(-1)[index])
        self.tracks, self.colours, index = self.tracks[seen], self.colours[seen], index[seen]

        across = -(-optics.width // self.every)
        rows, columns = np.divmod(index, optics.width)
        cells = set((rows // self.every * across + columns // self.every).tolist())
        rows, columns = np.mgrid[: -(-optics.height // self.every), :across].reshape(2, -1)
        free = np.array([cell not in cells for cell in range(len(rows))])
        rows = np.minimum(rows[free] * self.every + self.every // 2, optics.height - 1)
        columns = np.minimum(columns[free] * self.every + self.every // 2, optics.width - 1)
        begun = self.camera.places(optics.rays[rows, columns] * depth[rows, columns, None])
        shades = np.stack([columns / optics.width, rows / optics.height, nearness[rows, columns]], -1)
        colours = np.rint(DARKEST + (255 - DARKEST) * shades).astype(np.uint8)
        self.tracks = np.concatenate([self.tracks, begun])
        self.colours = np.concatenate([self.colours, colours])

    def _draw(self) -> np.ndarray:
        """The discs on black, near ones over far ones."""
        optics, reach = self.cloud.optics, np.arange(-self.radius, self.radius + 1)
        index, z = optics.project(self.camera.sees(self.tracks))
        order = np.argsort(-z, kind="stable")
        rows, columns = np.divmod(index[order], optics.width)
        down, right = np.nonzero(reach[:, None] ** 2 + reach**2 <= self.radius**2)
        rows = np.clip(rows[:, None] + reach[down], 0, optics.height - 1)
        columns = np.clip(columns[:, None] + reach[right], 0, optics.width - 1)
        picture = np.zeros((optics.height, optics.width, 3), np.uint8)
        picture[rows, columns] = self.colours[order, None]  # where discs meet the last one stays
        return picture

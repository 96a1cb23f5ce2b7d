"""What this frame's keys say about how the picture moves: LongVie 2's two control signals, live.

LongVie 2 reads a depth video and point tracks from files. A player has neither, only keys, so both
signals are computed from the keys of the frame alone:

dense   a flow field: where every cell of the picture came from. Exact for turning, since that does
        not depend on depth; for walking, the depth of a floor 41 units below the eye and a ceiling
        87 above it stands in for the scene.
sparse  a handful of points carried by the same motion and splatted where they land, plus the keys.
"""

import torch
from torch import Tensor, nn

from .actions import KEYS, TURN

FOCAL = (80.0, 96.0)  # pixels, horizontal and vertical: 90 degrees over 160 pixels, Doom's tall pixels
EYE, CEILING = 41.0, 87.0  # map units from the eye down to the floor and up to a ceiling of 128
WALK, STRAFE = 14.4, 13.8  # map units per frame; running doubles both
POINTS = (3, 4)  # rows and columns of sparse points
DENSE_CHANNELS, SPARSE_CHANNELS = 8, 3 + len(KEYS)


def motion(keys: Tensor) -> Tensor:
    """Keys [..., 9] -> (turn left in radians, forward, right) per frame [..., 3]; units of the map."""
    forward, back, turn_left, turn_right, left, right, _, _, run = keys.unbind(-1)
    pace = 1 + run
    turn = (turn_left - turn_right) * pace * (TURN * torch.pi / 180)
    return torch.stack([turn, (forward - back) * pace * WALK, (right - left) * pace * STRAFE], -1)


def carried(points: Tensor, motion: Tensor, horizon: float) -> Tensor:
    """How far a point of the picture moves during the frame, in pixels.

    points [n, 2] (column - centre, row), motion [..., 3] -> displacement [..., n, 2] (right, down).
    """
    right, down = points[:, 0] / FOCAL[0], (points[:, 1] - horizon) / FOCAL[1]  # the ray at depth 1
    plane = torch.where(down > 0, torch.full_like(down, EYE), torch.full_like(down, CEILING))
    depth = (plane / down.abs().clamp_min(0.04)).clamp(max=1024.0)
    turn, forward, aside = (x[..., None] for x in motion.unbind(-1))
    x, z = right * depth - aside, depth - forward  # the player moves, so the scene moves the other way
    cos, sin = turn.cos(), turn.sin()
    x, z = x * cos + z * sin, z * cos - x * sin
    z = z.clamp_min(8.0)
    moved = torch.stack([FOCAL[0] * x / z, FOCAL[1] * down * depth / z + horizon], -1)
    return (moved - points).clamp(-80.0, 80.0)


class EgoMotion(nn.Module):
    """The two control signals on a grid of tokens. No parameters; the geometry is fixed.

    grid  rows and columns of tokens, `cell` pixels wide and high
    """

    def __init__(self, grid: tuple[int, int], cell: int = 16) -> None:
        super().__init__()
        rows, columns = grid
        self.grid, self.cell = grid, cell
        self.horizon = rows * cell / 2
        half = cell / 2
        y = torch.arange(2 * rows) * half + half / 2
        x = torch.arange(2 * columns) * half + half / 2 - columns * cell / 2
        quarters = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1)  # 2 rows, 2 columns, (x, y)
        quarters = quarters.unflatten(1, (columns, 2)).unflatten(0, (rows, 2)).transpose(1, 2)
        self.quarters: Tensor
        self.points: Tensor
        self.register_buffer("quarters", quarters.reshape(-1, 2), persistent=False)
        y = (torch.arange(POINTS[0]) + 0.5) * rows * cell / POINTS[0]
        x = (torch.arange(POINTS[1]) + 0.5) * columns * cell / POINTS[1] - columns * cell / 2
        points = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1).flatten(0, 1)
        self.register_buffer("points", points, persistent=False)

    def dense(self, keys: Tensor) -> Tensor:
        """Keys [..., 9] -> flow at the four quarters of each token, in tokens [..., rows * columns, 8]."""
        flow = carried(self.quarters, motion(keys.float()), self.horizon) / self.cell
        return flow.unflatten(-2, (-1, 4)).flatten(-2)

    def sparse(self, keys: Tensor) -> Tensor:
        """Keys [..., 9] -> splatted (mass, flow right, flow down) and keys [..., rows * columns, 12]."""
        keys = keys.float()
        flow = carried(self.points, motion(keys), self.horizon) / self.cell
        landed = self.points / self.cell + flow
        rows, columns = self.grid
        y = torch.arange(rows, device=keys.device) + 0.5
        x = torch.arange(columns, device=keys.device) + 0.5 - columns / 2
        near_x = (1 - (landed[..., 0:1] - x).abs()).clamp_min(0)  # bilinear weights [..., points, columns]
        near_y = (1 - (landed[..., 1:2] - y).abs()).clamp_min(0)
        weight = (near_y[..., :, None] * near_x[..., None, :]).flatten(-2)  # [..., points, tokens]
        carried_by = torch.cat([torch.ones_like(flow[..., :1]), flow], -1)
        splat = weight.mT @ carried_by
        return torch.cat([splat, keys[..., None, :].expand(*splat.shape[:-1], len(KEYS))], -1)

"""Rotary positions over time, row and column, and over where the camera stands.

Each axis owns its share of a head's width, so keys can be turned in space alone: what TempCache
compares, because the same content at the same place is the same key at any time before the turn in
time, and no longer after it.
"""

from collections import deque
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels import usable
from .kernels.turning import settle, settle_reference, settles, turn


class AxialRope:
    """Rotates q and k [..., n, d] by their positions, `where` [..., n, axes], of which time comes first.

    `widths` splits d over the axes (even numbers): time, row and column, or as many as there are `bases`,
    the longest wavelengths over 2 pi. Pairs are (i, i + d/2). Rotating by the negative position undoes it.
    """

    def __init__(
        self,
        widths: Sequence[int] = (24, 20, 20),
        bases: Sequence[float] = (2000.0, 30.0, 30.0),
    ) -> None:
        if any(width % 2 for width in widths):
            raise ValueError(f"Every axis turns pairs of channels, so widths must be even, got {widths}.")
        axes = [i for i, width in enumerate(widths) for _ in range(width // 2)]
        rates = [
            base ** -(2 * j / width)
            for width, base in zip(widths, bases, strict=True)
            for j in range(width // 2)
        ]
        self.width = sum(widths)
        with torch.device("cpu"):  # also where a network is only sketched, on the meta device
            self._rates = torch.zeros(len(widths), self.width // 2, dtype=torch.float64)
            self._rates[axes, range(self.width // 2)] = torch.tensor(rates, dtype=torch.float64)
        self._on: dict[torch.device, Tensor] = {}
        self._tables: deque = deque(maxlen=8)

    def angles(self, where: Tensor) -> Tensor:
        """Positions [..., n, 3] to angles in radians [..., n, d/2]."""
        rates = self._on.get(where.device)
        if rates is None:  # once a device: what a CUDA graph records may not copy from the host
            precision = torch.float32 if where.device.type == "mps" else torch.float64
            rates = self._on[where.device] = self._rates.to(where.device, precision)
        return where.to(rates.dtype) @ rates

    def __call__(self, x: Tensor, where: Tensor) -> Tensor:
        if not x.shape[-2]:
            return x  # nobody asks
        return turn(x, *self._table(where, x.dtype, in_space=False))

    def settle(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q, rotated; k, rotated, and v [b, h, n, d] go to where a memory keeps them."""
        by_kernel = usable(q, k, v) and settles(q, k, v, keys, values)
        table = self._table(where, q.dtype, in_space=False)
        return (settle if by_kernel else settle_reference)(q, k, v, *table, keys, values)

    def in_space(self, x: Tensor, where: Tensor) -> Tensor:
        """Rotate by all axes but time, as if every token were at time 0."""
        return turn(x, *self._table(where, x.dtype, in_space=True))

    def in_time(self, x: Tensor, frames: Tensor) -> Tensor:
        """Move what has been rotated already by so many frames, [..., n] or one number, forward in time."""
        angles = self.angles(F.pad(frames[..., None], (0, len(self._rates) - 1)))
        return turn(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))

    def forget(self) -> None:
        """Compute the next tables anew."""
        self._tables.clear()

    def _table(self, where: Tensor, dtype: torch.dtype, *, in_space: bool) -> tuple[Tensor, Tensor]:
        """Cosines and sines. The layers of a pass ask with the same tensor, so the last few are kept."""
        for known, as_dtype, space, table in self._tables:
            if known is where and as_dtype == dtype and space == in_space:
                return table
        still = torch.cat([torch.zeros_like(where[..., :1]), where[..., 1:]], -1) if in_space else where
        angles = self.angles(still)
        table = angles.cos().to(dtype), angles.sin().to(dtype)
        self._tables.append((where, dtype, in_space, table))
        return table


def positions(start: int | Tensor, grid: Sequence[int], device: torch.device) -> Tensor:
    """Time, row and column [n, 3] of every token of frames, rows and columns, from time `start` [] on."""
    axes = (torch.arange(size, device=device) for size in grid)
    where = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2).double()
    where[:, 0] += start
    return where

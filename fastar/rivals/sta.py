"""STA, sliding tile attention: a tile of tokens reads the tiles around it in time and space.

arXiv 2502.04507. The window slides by whole tiles and stops at the borders, so that a query at the edge reads
as much as one in the middle. The present frame is the last there is, so in time the window is the last
frames.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .masked import Seen


class SlidingTiles(Seen):
    """Read the last `window[0]` frames, of each `window[1]` by `window[2]` tiles around the query's own.

    grid    rows and columns of tokens in a frame
    tile    rows and columns of tokens in a tile; tiles at the last row and column may be smaller
    window  frames, the present one included, and odd numbers of rows and columns of tiles
    sink    first frames that are read in the same way, however long ago: not in the original

    A window over everything is attention over everything. The original's tiles are several frames deep and
    its windows searched for each head and step; ours are one frame deep, as a frame is dreamt at a time, and
    all alike. Without a sink nothing older than the window is read: `window_sink` may forget it, and memory
    is bounded.
    """

    def __init__(
        self,
        *,
        grid: Sequence[int],
        tile: Sequence[int],
        window: Sequence[int],
        sink: int = 0,
        dense_layers: int = 0,
        dense_steps: int = 0,
    ) -> None:
        if min(*grid, *tile, *window) < 1 or window[1] % 2 == 0 or window[2] % 2 == 0:
            raise ValueError(
                f"Grid, tile and window are at least 1, a window of tiles odd; got {grid}, {tile}, {window}."
            )
        super().__init__(dense_layers=dense_layers, dense_steps=dense_steps)
        self.grid, self.tile, self.window, self.sink = tuple(grid), tuple(tile), tuple(window), sink

    def within(self, age: Tensor, frame: Tensor, place: Tensor, n: int) -> Tensor:
        if n != self.grid[0] * self.grid[1]:
            raise ValueError(
                f"Frames of {n} tokens are no grid of {self.grid[0]} by {self.grid[1]}; set grid."
            )
        mine = torch.arange(n, device=place.device)
        late = (age < self.window[0]) | (frame < self.sink)
        rows = self._near(mine // self.grid[1], place // self.grid[1], 0)
        columns = self._near(mine % self.grid[1], place % self.grid[1], 1)
        return rows & columns & late[..., None, :]

    def _near(self, query: Tensor, key: Tensor, axis: int) -> Tensor:
        """Whether a key at rows or columns [..., m] is in the window of queries [n]: bool [..., n, m]."""
        tiles, half = -(-self.grid[axis] // self.tile[axis]), self.window[1 + axis] // 2
        last = max(half, tiles - 1 - half)
        centre = (query // self.tile[axis]).clamp(min(half, last), last)
        return (key[..., None, :] // self.tile[axis] - centre[:, None]).abs() <= half

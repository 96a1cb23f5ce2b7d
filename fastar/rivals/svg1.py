"""SVG1, Sparse VideoGen: a head looks either at the last frames or at its own place in all of them.

arXiv 2502.01776. Which of the two a head does is found as it goes: a few queries are answered both
ways and exactly, and the way that errs less serves all queries.
"""

import math

import torch
from torch import Tensor

from ..attention import attend_reference, attend_where
from ..memory import Past
from .masked import Seen, apart


class SVG1(Seen):
    """Read a share `density` of the past: spatial heads the last frames and the first, temporal ones a strip.

    rows  queries of a frame that are answered both ways

    density 1 is attention over everything. The original takes random rows, and for a temporal head reorders
    tokens in memory; ours takes evenly spaced rows, so that the same question has the same answer, and a
    mask. A head of each game is judged by itself, anew at every pass.
    """

    def __init__(
        self, *, density: float = 0.25, rows: int = 16, dense_layers: int = 0, dense_steps: int = 0
    ) -> None:
        if not 0 < density <= 1 or rows < 1:
            raise ValueError(
                f"density is a share above 0 and up to 1, rows at least 1; got {density}, {rows}."
            )
        super().__init__(dense_layers=dense_layers, dense_steps=dense_steps)
        self.density, self.rows = density, rows

    def choose(self, q: Tensor, past: Past, plan: object) -> Tensor:
        spatial, temporal = super().choose(q, past, plan).unbind()
        return torch.where(self.is_temporal(q, past, spatial, temporal)[..., None, None], temporal, spatial)

    def within(self, age: Tensor, frame: Tensor, place: Tensor, n: int) -> Tensor:
        """The two ways [2, b or 1, h or 1, n, m]."""
        near = apart(place, n)
        spatial = (age < self.frames(age.shape[-1] / n) - 1) | (frame == 0)
        return torch.stack([spatial[..., None, :].expand_as(near), near <= self.width(n)])

    def frames(self, held: float) -> int:
        """Frames that a spatial head reads of so many: the first and the last, the present in any case."""
        return max(2, round(self.density * held))

    def width(self, n: int) -> int:
        """Tokens to either side that a temporal head reads of each frame.

        Within w of n tokens lies a share of about 1 - (1 - w / n)^2.
        """
        return round(n * (1 - math.sqrt(1 - self.density)))

    def is_temporal(self, q: Tensor, past: Past, spatial: Tensor, temporal: Tensor) -> Tensor:
        """Which heads are answered better by the temporal way [b, h]."""
        n = q.shape[2]
        rows = torch.arange(min(self.rows, n), device=q.device) * n // min(self.rows, n)
        asked = q[:, :, rows], past.keys, past.values, past.bias
        exact = attend_reference(*asked)
        wrong = [
            (attend_where(way[:, :, rows], *asked) - exact).square().sum((2, 3))
            for way in (spatial, temporal)
        ]
        return wrong[1] < wrong[0]

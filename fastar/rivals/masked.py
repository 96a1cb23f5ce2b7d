"""What patterns share that say of each query which keys it reads.

They are run by a mask: that shows what a pattern reads and what it costs in likeness, and saves no time.
Their originals protect only what their rule does, so what a memory lets a pattern leave out, `Past.far`, is
no matter here.
"""

import torch
from torch import Tensor

from ..attention import attend, attend_where
from ..memory import Past


class Masked:
    """A pattern that reads what `choose` says.

    dense_layers  first layers that read everything
    dense_steps   first passes of a frame that do; whole numbers, for a share of two passes would be none
    """

    every: int | None = None
    numbered = False

    def __init__(self, *, dense_layers: int = 0, dense_steps: int = 0) -> None:
        self.dense_layers, self.dense_steps = dense_layers, dense_steps

    def choose(self, q: Tensor, past: Past, plan: object) -> Tensor:
        """Which keys each of the rotated queries q [b, h, n, d] reads: bool [b or 1, h or 1, n or 1, m].

        q are those of the present frame, in order.
        """
        raise NotImplementedError

    def tag(self, layer: int, k: Tensor) -> None:
        return None

    def plan(self, layer: int, past: Past) -> object:
        return None

    def read(self, layer: int, q: Tensor, past: Past, plan: object, step: int = 0) -> Tensor:
        """Attention of rotated q [b, h, n, d] over the past."""
        reads = self.reads(layer, q, past, plan, step)
        if reads is None:
            return attend(q, past.keys, past.values, past.bias)
        return attend_where(reads, q, past.keys, past.values, past.bias)

    def reads(self, layer: int, q: Tensor, past: Past, plan: object, step: int) -> Tensor | None:
        """What `choose` says, or None for everything."""
        if not q.shape[2] or layer < self.dense_layers or step < self.dense_steps:
            return None
        return self.choose(q, past, plan)


class Seen(Masked):
    """A pattern that goes by when and where each key was seen."""

    numbered = True

    def choose(self, q: Tensor, past: Past, plan: object) -> Tensor:
        assert past.number is not None
        n = q.shape[2]
        frame, place = past.number // n, past.number % n
        age = frame[..., past.present.start, None] - frame
        return self.within(age, frame, place, n)

    def within(self, age: Tensor, frame: Tensor, place: Tensor, n: int) -> Tensor:
        """Which keys are read by the n queries of a frame, [b or 1, h or 1, n or 1, m].

        Of each key [b or 1, h or 1, m]: how many frames ago it was seen, in which, and which token of it it
        was.
        """
        raise NotImplementedError


def apart(place: Tensor, n: int) -> Tensor:
    """By how many tokens each key [..., m] lies before or after each of n queries of a frame [..., n, m]."""
    return (place[..., None, :] - torch.arange(n, device=place.device)[:, None]).abs()

"""The oracle: what a number of keys could explain at best, if one knew beforehand which will be read."""

import torch
from torch import Tensor

from ..attention import logits
from ..memory import Past
from .masked import Masked


class TopK(Masked):
    """Every query of every head reads the `keys` of the past it gives most weight, and the present.

    The choice is per query, not per frame: a bound on every way to choose keys, at any grain. It is no bound
    on merging, where one key stands for many. It reads everything to choose, so its time means nothing.
    """

    def __init__(self, *, keys: int, dense_layers: int = 0, dense_steps: int = 0) -> None:
        if keys < 1:
            raise ValueError(f"The oracle needs at least one key to read, got keys={keys}.")
        super().__init__(dense_layers=dense_layers, dense_steps=dense_steps)
        self.keys = keys

    def choose(self, q: Tensor, past: Past, plan: object) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        weight = logits(q.to(wide), past.keys.to(wide), past.bias)
        present = weight[..., past.present].shape[-1]
        weight[..., past.present] = torch.inf
        best = weight.topk(min(self.keys + present, weight.shape[-1]), sorted=False).indices
        return torch.zeros_like(weight, dtype=torch.bool).scatter_(3, best, True)

"""What a number of keys could explain at best, if one knew beforehand which of them will be read."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fastar import AxialRope, Past
from fastar.attention import logits

from .recall import TrackedDense


class TopK(TrackedDense):
    """Every query of every head reads the `keys` tokens of the past it gives most weight, and the present.

    The choice is per query, not per frame: a bound on every way to choose keys, at any grain. It is no
    bound on merging, where one key stands for many. It reads everything to choose, so its time means nothing.
    """

    def __init__(self, layers: int, rope: AxialRope, *, keys: int) -> None:
        if keys < 1:
            raise ValueError(f"The oracle needs at least one key to read, got keys={keys}.")
        self.most = keys
        super().__init__(layers, rope)

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        if not q.shape[2]:
            return q
        seen = past.keys.shape[2] - self._present[layer]
        best = (
            logits(q.float(), past.keys.float())[..., :seen].topk(min(self.most, seen), sorted=False).indices
        )
        read = torch.ones(*q.shape[:3], past.keys.shape[2], dtype=torch.bool, device=q.device)
        read[..., :seen] = False
        self._in_full[layer] = read.scatter_(3, best, True)
        return F.scaled_dot_product_attention(q, past.keys, past.values, attn_mask=read)

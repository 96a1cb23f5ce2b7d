"""AnnSA as the paper has it: a query reads only keys that are about the same word of the prompt.

The bucket of a token is the prompt token that its cross-attention gives most weight to (arXiv 2602.01801
finds it by the nearest-neighbour search of its AnnCA). Self-attention comes before cross-attention in a
block, so a layer uses the buckets of the layer before it, and the first reads everything. A key keeps its
bucket while it is remembered; a merged entry has that of its newest key. The last frames, the sink and the
present are always read. It needs a prompt that tells things apart; `AnnSA` makes buckets of its own.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .attention import attend, attend_where, logits
from .memory import Past

if TYPE_CHECKING:
    from .method import Cross


class PromptBuckets:
    """Self-attention within the buckets of the prompt, by a mask: it shows what is read, and saves no time.

    It has to hear the cross-attention of the same network, see `listen`.

    dense_layers  first layers that read everything, at least one
    dense_steps   first passes of a frame that do (the paper: 30 % of them)
    """

    every = None  # nothing is planned: keys bring their buckets with them
    numbered = False

    def __init__(self, *, dense_layers: int = 1, dense_steps: int = 0) -> None:
        if dense_layers < 1:
            raise ValueError(
                f"The first layer has no buckets yet, so dense_layers must be at least 1, got {dense_layers}."
            )
        self.dense_layers, self.dense_steps = dense_layers, dense_steps
        self._heard: Tensor | None = None  # buckets of all tokens of the pass [b, h, f n]
        self._told = 0  # how many of them the memory of the next layer knows

    def listen(self, cross: "Cross") -> "Cross":
        """The same cross-attention, overheard."""
        return Overheard(cross, self)

    def hear(self, q: Tensor, k: Tensor, bias: Tensor) -> None:
        """What the cross-attention of a layer is asked: it gives the buckets of the next layer."""
        self._heard, self._told = logits(q, k, bias).argmax(-1).short(), 0

    def tag(self, layer: int, k: Tensor) -> Tensor:
        """The buckets [b, h, n] of the frame whose keys these are; the frames of a pass come in order."""
        b, h, n, _ = k.shape
        if layer == 0 or self._heard is None:
            return torch.zeros(b, h, n, dtype=torch.short, device=k.device)
        self._told += n
        return self._heard[:, :, self._told - n : self._told]

    def plan(self, layer: int, past: Past) -> None:
        return None

    def read(self, layer: int, q: Tensor, past: Past, plan: None, step: int = 0) -> Tensor:
        """Attention of rotated q [b, h, n, d], of all tokens of the present frame, over the past."""
        reads = self.reads(layer, past, step)
        if reads is None or not q.shape[2]:
            return attend(q, past.keys, past.values, past.bias)
        return attend_where(reads, q, past.keys, past.values, past.bias)

    def reads(self, layer: int, past: Past, step: int) -> Tensor | None:
        """Which keys each token of the present frame reads, bool [b, h, n, m]; None for all of them."""
        if layer < self.dense_layers or step < self.dense_steps or past.tags is None:
            return None
        free = torch.ones(past.tags.shape[-1], dtype=torch.bool, device=past.tags.device)
        free[past.far] = False
        return (past.tags[:, :, past.present, None] == past.tags[:, :, None]) | free


class Overheard:
    """Cross-attention that tells a pattern what it is asked."""

    def __init__(self, cross: "Cross", pattern: PromptBuckets) -> None:
        self.cross, self.pattern = cross, pattern

    def read(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        self.pattern.hear(q, k, bias)
        return self.cross.read(q, k, v, bias)

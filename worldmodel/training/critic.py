"""The critic of adversarial post-training: it judges frames by what the base network sees in them.

The base network, trained at every noise level, already knows what a frame is made of at every scale.
`frozen`, it is kept as it is, and small heads on the features of all its blocks learn to tell (LADD,
arXiv 2403.12015). Otherwise it learns too, with one head on its last block.
"""

import copy

import torch
from torch import Tensor, nn

from ..denoiser import Denoiser


class Critic(nn.Module):
    """Realness of frames after a history. The network is copied; `hidden` is the width of the heads."""

    def __init__(self, network: Denoiser, *, frozen: bool, hidden: int = 128) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(not frozen)
        width, heads = network.out.in_features, len(network.blocks) if frozen else 1
        self.heads = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1))
            for _ in range(heads)
        )

    def forward(self, seen: list[Tensor], judged: int) -> Tensor:
        """Realness [b, judged] of the last frames, from what each block made of all [b, f, n, width]."""
        verdicts = [
            head(x[:, -judged:]) for head, x in zip(self.heads, seen[-len(self.heads) :], strict=True)
        ]
        return torch.stack(verdicts).float().mean((0, 3, 4))

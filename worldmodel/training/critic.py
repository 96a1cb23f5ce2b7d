"""The critic of adversarial post-training: it judges frames by what the base network sees in them.

The base network, trained at every noise level, already knows what a frame is made of at every scale.
`frozen`, it is kept as it is, and small heads on its features learn to tell (LADD, arXiv 2403.12015).
Otherwise it learns with them.
"""

import copy

import torch
from torch import Tensor, nn

from ..denoiser import Denoiser


class Critic(nn.Module):
    """Realness of frames after a history. The network is copied; `hidden` is the width of the heads.

    frozen  only the heads learn
    deep    a head on every block, not on the last alone
    local   a verdict for every token, not one for the frame
    """

    def __init__(
        self,
        network: Denoiser,
        *,
        frozen: bool = False,
        deep: bool = False,
        local: bool = False,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(not frozen)
        self.local = local
        width, heads = network.out.in_features, len(network.blocks) if deep else 1
        self.heads = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1))
            for _ in range(heads)
        )
        self.learnt = [x for x in self.parameters() if x.requires_grad]

    def learning(self, on: bool) -> None:
        """Whether what it has learnt takes gradients."""
        for x in self.learnt:
            x.requires_grad_(on)

    def forward(self, seen: list[Tensor], judged: int) -> Tensor:
        """Verdicts [b, judged, verdicts] on the last frames; `seen` as the denoiser fills it."""
        verdicts = torch.cat(
            [head(x[:, -judged:]) for head, x in zip(self.heads, seen[-len(self.heads) :], strict=True)], -1
        ).float()
        return verdicts.flatten(2) if self.local else verdicts.mean((2, 3))[..., None]

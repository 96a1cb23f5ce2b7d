"""FlowCache: a cache that keeps what is looked at and is unlike the rest, and passes that are not run again.

arXiv 2602.10825. Its two halves are kinds on two axes. As a cache, R1-KV: what leaves the window is worth
more the more the newest queries look at it and the less it resembles the others. As a step: TeaCache's rule,
with the noisy frame itself as what must have changed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..memory import Past, Pattern
from ..rope import AxialRope
from .evicting import Evicting
from .teacache import Accumulated


class R1KV(Evicting):
    """Evict by  looked * pool(attention) - (1 - looked) * likeness,  for each head.

    looked   share of the worth that is attention, the rest is being unlike
    pool     neighbours in time order over which attention spreads, by its maximum; an odd number
    queries  of the newest frame, at most, whose attention counts

    Attention is the mean over queries of their softmax over what may be evicted; likeness the softmax of a
    key's mean cosine with all others, computed from the sum of all, not from all pairs. The original evicts
    chunks' worth of tokens when its budget is full and protects the chunks in flight; ours a frame's worth
    each frame, and protects window and sink like all caches here. Where a layer commits a frame that it was
    not asked for, as the last layer of a network may, the frame's keys stand in for its queries.
    """

    _state = (*Evicting._state, "asked")

    def __init__(
        self,
        layers: int,
        rope: AxialRope,
        *,
        sink: int = 1,
        recent: int = 16,
        reach: int | None = None,
        far: int = 1120,
        looked: float = 0.07,
        pool: int = 7,
        queries: int = 256,
        pattern: Pattern | None = None,
    ) -> None:
        if not 0 <= looked <= 1 or pool % 2 == 0 or queries < 1:
            raise ValueError(
                f"looked is a share, pool odd and queries at least 1; got {looked}, {pool} and {queries}."
            )
        self.looked, self.pool, self.queries = looked, pool, queries
        super().__init__(layers, rope, sink=sink, recent=recent, reach=reach, far=far, pattern=pattern)

    def reset(self) -> None:
        super().reset()
        self.asked = torch.empty(0)  # rotated queries of the present frame [l, b, h, r, d]

    def _allocate(self, k: Tensor) -> None:
        super()._allocate(k)
        rows = min(self.queries, self.tokens)
        self.asked = k.new_zeros(self.layers, *k.shape[:2], rows, k.shape[3])

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        asked, rows = q if q.shape[2] else past.keys[:, :, past.present], self.asked.shape[3]
        self.asked[layer] = asked[:, :, torch.arange(rows, device=q.device) * asked.shape[2] // rows]
        return super()._read(layer, q, past)

    def _worth(self, layer: int, number: Tensor, place: Tensor) -> Tensor:
        order = number.argsort(-1)  # in time: neighbours were seen side by side
        wide = torch.promote_types(self.keys.dtype, torch.float32)
        keys = self.keys[layer][:, :, place].to(wide)
        keys = keys.gather(2, order[..., None].expand_as(keys))
        there = number.gather(2, order) >= 0
        worth = worths(self.asked[layer].to(wide), keys, there, self.looked, self.pool)
        return torch.zeros_like(worth).scatter_(2, order, worth)


def worths(q: Tensor, k: Tensor, there: Tensor, looked: float, pool: int) -> Tensor:
    """What keys [b, h, m, d] in time order are worth to queries [b, h, n, d]: [b, h, m].

    Those that are not `there` [b, h, m] count for nothing.
    """
    nothing = ~there
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(nothing[:, :, None], -torch.inf)
    attention = F.max_pool1d(scores.softmax(-1).mean(2), pool, 1, pool // 2)

    unit = F.normalize(k, dim=-1) * there[..., None]
    others = there.sum(-1, keepdim=True).clamp_min(1)
    cosine = (unit * (unit.sum(2, keepdim=True) - unit)).sum(-1) / others
    likeness = cosine.masked_fill(nothing, -torch.inf).softmax(-1)
    return looked * attention - (1 - looked) * likeness


class FlowCacheSteps(Accumulated):
    """The signal is the noisy tokens as the network takes them in: what passes are told depends on the frame.

    The original has a sum for each chunk of frames in flight, which are at different noise levels; a frame is
    dreamt at a time here, so there is one, and one for each game of a batch. The original's noise is drawn
    once a frame, and its threshold is near .01; where each pass draws its own, as ours do, that alone moves
    the signal by about 1, and so must thresholds.
    """

    def signal(self, level: Tensor, tokens: Tensor) -> Tensor:
        return tokens

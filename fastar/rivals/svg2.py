"""SVG2: queries and keys that mean alike are put together; groups of queries read the groups they attend to.

arXiv 2505.18875. k-means on either side, for each head; each cluster of queries reads clusters of
keys until they hold a share `mass` of its attention, judged by the clusters' means, each counted as often as
the keys in it. What it does not read is left out: not even its mean is.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import logits
from ..memory import Past
from .masked import Masked


class Clusters(NamedTuple):
    """Of a layer's keys: means [b, h, c, d], and to which of them the far ones belong [b, h, f].

    The far ones begin at `start`; other keys belong to the mean that is nearest when they are read.
    """

    start: int
    centre: Tensor
    member: Tensor


class SVG2(Masked):
    """Read the clusters of keys that hold most of the attention of a cluster of queries.

    mass       share of the attention that they hold together
    least      share of the clusters that is read in any case
    queries    clusters of queries in a frame
    size       keys to a cluster, in the mean
    rounds     of k-means, on either side
    every      frames from one clustering of keys to the next

    mass 1 or least 1 is attention over everything. The original begins k-means with random keys and goes on
    from the clusters of the pass before; ours begins anew with evenly spread ones, so that a pattern has no
    state. What the original's kernel pads, a mask need not: clusters are as large as they are.
    """

    def __init__(
        self,
        *,
        mass: float = 0.9,
        least: float = 0.1,
        queries: int = 8,
        size: int = 64,
        rounds: int = 2,
        every: int = 8,
        dense_layers: int = 0,
        dense_steps: int = 0,
    ) -> None:
        if not 0 < mass <= 1 or not 0 <= least <= 1:
            raise ValueError(f"mass and least are shares, mass above 0; got {mass} and {least}.")
        if min(queries, size, rounds, every) < 1:
            raise ValueError(f"All counts are at least 1, got {queries}, {size}, {rounds}, {every}.")
        super().__init__(dense_layers=dense_layers, dense_steps=dense_steps)
        self.mass, self.least, self.queries, self.size = mass, least, queries, size
        self.rounds, self.every = rounds, every

    def plan(self, layer: int, past: Past) -> Clusters | None:
        """Cluster all keys but the present; None while they are too few to make two clusters."""
        keys, weight = (
            torch.cat([x[:, :, : past.present.start], x[:, :, past.present.stop :]], 2)
            for x in (past.keys, counts(past))
        )
        if keys.shape[2] < 2 * self.size:
            return None
        centre = means(keys, weight, keys.shape[2] // self.size, self.rounds)
        return Clusters(past.far.start, centre, nearest(past.keys[:, :, past.far], centre))

    def choose(self, q: Tensor, past: Past, plan: object) -> Tensor:
        if not isinstance(plan, Clusters):
            return torch.ones(1, 1, 1, past.keys.shape[2], dtype=torch.bool, device=q.device)
        member, weight = members(past, plan), counts(past)
        size = weight.new_zeros(plan.centre.shape[:3]).scatter_add_(2, member, weight)
        groups = means(q, torch.ones_like(q[..., 0]), min(self.queries, q.shape[2]), self.rounds)
        scores = logits(groups.to(weight.dtype), plan.centre.to(weight.dtype), size.log())
        read = self.wanted(scores)  # [b, h, groups, c]
        mine = nearest(q, groups)[..., None].expand(-1, -1, -1, read.shape[-1])
        return read.gather(2, mine).gather(3, member[:, :, None].expand(-1, -1, q.shape[2], -1))

    def wanted(self, scores: Tensor) -> Tensor:
        """Clusters of scores [..., c] that are read: the best, until they hold the mass; at least `least`."""
        share, order = scores.softmax(-1).sort(-1, descending=True)
        place = torch.arange(share.shape[-1], device=share.device)
        first = place < math.ceil(self.least * share.shape[-1])
        enough = (share.cumsum(-1) - share < self.mass) | (self.mass >= 1) | first
        return torch.zeros_like(enough).scatter(-1, order, enough)


def members(past: Past, plan: Clusters) -> Tensor:
    """The cluster of every key [b, h, m]."""
    stop = plan.start + plan.member.shape[2]
    before, after = (nearest(x, plan.centre) for x in (past.keys[:, :, : plan.start], past.keys[:, :, stop:]))
    return torch.cat([before, plan.member, after], 2)


def counts(past: Past) -> Tensor:
    """How many tokens each key stands for [b, h, m]; 0 for an empty slot."""
    b, h, m, _ = past.keys.shape
    wide = torch.promote_types(past.keys.dtype, torch.float32)
    return past.keys.new_ones(b, h, m, dtype=wide) if past.bias is None else past.bias.exp().expand(-1, h, -1)


def means(x: Tensor, weight: Tensor, count: int, rounds: int) -> Tensor:
    """k-means of x [b, h, m, d], each counted by its weight [b, h, m]: so many means [b, h, count, d].

    It begins with x spread evenly; a mean that nothing is nearest to stays where it is.
    """
    centre, weight = x[:, :, torch.arange(count, device=x.device) * x.shape[2] // count], weight.to(x.dtype)
    for _ in range(rounds):
        member = x.new_zeros(*x.shape[:2], count, x.shape[2])
        member.scatter_(2, nearest(x, centre)[:, :, None], weight[:, :, None])
        total = member.sum(-1, keepdim=True)
        centre = torch.where(total > 0, member @ x / total.clamp_min(1e-9), centre)
    return centre


def nearest(x: Tensor, centre: Tensor) -> Tensor:
    """Which centre [b, h, i, d] is nearest to each x [b, h, m, d]: [b, h, m]."""
    return (x @ centre.mT - 0.5 * centre.square().sum(-1)[:, :, None]).argmax(-1)

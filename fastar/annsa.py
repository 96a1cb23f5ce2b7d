"""AnnSA: each frame reads in full only the part of a large memory that means something to it.

What may be left out is sorted into buckets of alike keys, now and then, as the memory changes; the queries of
a frame choose the buckets that hold most of their attention, judged by the buckets' mean keys, each
counted as often as the keys it stands for (arXiv 2602.01801; the choice by weighted centroids as in
SVG2, arXiv 2505.18875). A bucket that is not chosen is read as one key: its mean, with the mean value and
log m, so that attention spread over everything keeps its weight. Recent frames, the sink and the present are
always read in full. The paper takes its buckets from the prompt; a game is mostly steered by keys, so ours
come from the memory itself.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .attention import attend, logits
from .memory import Past


class Buckets(NamedTuple):
    """Keys `start` to `start + f` of a layer, in the order of their buckets.

    order   [b, h, f] of the keys, counted from `start`; bucket i holds i block to (i + 1) block
    centre  [b, h, i, d], mean key of each bucket, and
    value   [b, h, i, d], mean value, both over the tokens it stands for
    weight  [b, h, i], log of how many these are; -inf where it is empty
    """

    start: int
    order: Tensor
    centre: Tensor
    value: Tensor
    weight: Tensor


class AnnSA:
    """Reads about a share `density` of what may be left out in full, by buckets of `block` keys.

    mass          buckets are read in full until they hold this share of the attention, if that comes first
    rest          read the other buckets as one key each; else not at all
    tile          queries that choose together; all of a frame by default
    every         frames from one sorting to the next
    rounds        of k-means at each
    dense_layers  first layers that read everything
    dense_steps   first passes of a frame that do (the paper: 30 % of them)

    density 1 with mass 1 is attention over everything.
    """

    def __init__(
        self,
        *,
        density: float = 0.25,
        block: int = 64,
        mass: float = 1.0,
        rest: bool = True,
        tile: int | None = None,
        every: int = 8,
        rounds: int = 2,
        dense_layers: int = 0,
        dense_steps: int = 0,
    ) -> None:
        if not 0 < density <= 1 or not 0 < mass <= 1:
            raise ValueError(f"density and mass are shares above 0 and up to 1, got {density} and {mass}.")
        self.density, self.block, self.mass, self.rest, self.tile = density, block, mass, rest, tile
        self.every, self.rounds = every, rounds
        self.dense_layers, self.dense_steps = dense_layers, dense_steps

    def tag(self, layer: int, k: Tensor) -> None:
        return None

    def plan(self, layer: int, past: Past) -> Buckets | None:
        """Sort what may be left out; None while that is too little to be worth it."""
        count = (past.far.stop - past.far.start) // self.block
        if layer < self.dense_layers or self._wanted(count) >= count:
            return None
        far = slice(past.far.start, past.far.start + count * self.block)
        keys, values, bias = past.keys[:, :, far], past.values[:, :, far], _biases(past)[..., far]
        order = self._cluster(keys, bias, count).argsort(dim=-1, stable=True)
        sizes = _take(bias.exp(), order).unflatten(2, (count, -1))
        total = sizes.sum(-1)
        share = (sizes / total[..., None].clamp_min(1e-9))[..., None, :].to(keys.dtype)
        centre, value = (
            (share @ _take(x, order).unflatten(2, (count, -1))).squeeze(-2) for x in (keys, values)
        )
        return Buckets(far.start, order, centre, value, total.log())

    def read(self, layer: int, q: Tensor, past: Past, plan: Buckets | None, step: int = 0) -> Tensor:
        """Attention of rotated q [b, h, n, d] over the past."""
        if plan is None or not q.shape[2] or step < self.dense_steps:
            return attend(q, past.keys, past.values, past.bias)
        tile = self.tile or q.shape[2]
        tiles = [self._read(part, past, plan) for part in q.split(tile, 2)]
        return torch.cat(tiles, 2) if len(tiles) > 1 else tiles[0]

    def _read(self, q: Tensor, past: Past, plan: Buckets) -> Tensor:
        return attend(q, *self.gather(q, past.keys, past.values, _biases(past), plan))

    def gather(
        self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, plan: Buckets
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the queries read: keys and values [b, h, j, d], bias [b, h, j]."""
        chosen, useful = self.choose(q, plan)
        rows = _take(plan.order.unflatten(2, (-1, self.block)), chosen).flatten(2)
        keys, values, bias = (_joined(x, plan, rows) for x in (keys, values, bias))
        bias[..., -rows.shape[2] :].masked_fill_(~useful.repeat_interleave(self.block, -1), -torch.inf)
        if not self.rest:
            return keys, values, bias
        read = torch.zeros_like(plan.weight, dtype=torch.bool).scatter_(2, chosen, useful)
        rest = plan.centre, plan.value, plan.weight.masked_fill(read, -torch.inf)
        keys, values, bias = (torch.cat(pair, 2) for pair in zip((keys, values, bias), rest, strict=True))
        return keys, values, bias

    def fuse(self) -> None:
        """Gather by a few compiled kernels from here on: to be called once shapes change no more."""
        self.gather = torch.compile(self.gather, dynamic=False)

    def choose(self, q: Tensor, plan: Buckets) -> tuple[Tensor, Tensor]:
        """Buckets [b, h, j] that the queries read most, and which of them they need [b, h, j]."""
        scores = logits(q, plan.centre.to(q.dtype), plan.weight)
        share, chosen = scores.float().softmax(-1).mean(2).topk(self._wanted(scores.shape[-1]))
        return chosen, share.cumsum(-1) - share < (self.mass if self.mass < 1 else math.inf)

    def _wanted(self, count: int) -> int:
        return math.ceil(self.density * count)

    def _cluster(self, keys: Tensor, bias: Tensor, count: int) -> Tensor:
        """The cluster of each key [b, h, f], by k-means from evenly spread keys; empty slots come last."""
        centre = keys[:, :, :: keys.shape[2] // count][:, :, :count]
        size = bias.exp().to(keys.dtype)
        cluster = _nearest(keys, centre)
        for _ in range(self.rounds - 1):
            member = torch.zeros_like(size[:, :, None].expand(-1, -1, count, -1)).scatter_(
                2, cluster[:, :, None], size[:, :, None]
            )
            weight = member.sum(-1, keepdim=True)
            centre = torch.where(weight > 0, member @ keys / weight.clamp_min(1e-9), centre)
            cluster = _nearest(keys, centre)
        return cluster.masked_fill_(size == 0, count)


def _biases(past: Past) -> Tensor:
    """The bias of every key of every head [b, h, m]."""
    b, h, m = past.keys.shape[:3]
    wide = torch.promote_types(past.keys.dtype, torch.float32)
    bias = past.keys.new_zeros(b, 1, m, dtype=wide) if past.bias is None else past.bias
    return bias.expand(-1, h, -1)


def _nearest(x: Tensor, centre: Tensor) -> Tensor:
    """Which centre [b, h, i, d] is nearest to each x [b, h, f, d]."""
    return (x @ centre.mT - 0.5 * centre.square().sum(-1)[:, :, None]).argmax(-1)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x [b, h, m, ...] at index [b, h, j] -> [b, h, j, ...]."""
    b, h, m = x.shape[:3]
    offset = m * torch.arange(b * h, device=x.device).view(b, h, 1)
    return x.flatten(0, 2).index_select(0, (index + offset).flatten()).unflatten(0, index.shape)


def _joined(x: Tensor, plan: Buckets, rows: Tensor) -> Tensor:
    """Everything of x [b, h, m, ...] outside the buckets, then these rows of what is inside [b, h, j]."""
    end = plan.start + plan.order.shape[2]
    return torch.cat([x[:, :, : plan.start], x[:, :, end:], _take(x, rows + plan.start)], 2)

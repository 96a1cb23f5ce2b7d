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

import torch
from torch import Tensor

from .attention import attend, sampled
from .kernels import usable
from .kernels.buckets import (
    Buckets,
    Choice,
    choose,
    choose_reference,
    fits,
    gathered,
    lay_out,
    of_heads,
    read,
    take,
)
from .kernels.match import nearest
from .memory import Past
from .search import many


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

    numbered = False

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
        keys, values, bias = (
            past.keys[:, :, far],
            past.values[:, :, far],
            of_heads(past.keys, past.bias)[..., far],
        )
        cluster = self._cluster(keys, bias, count)
        # a GPU sorts by digits, of which short numbers have fewer
        order = (cluster.short() if count < 2**15 else cluster).argsort(dim=-1, stable=True)
        sizes = take(bias.exp(), order).unflatten(2, (count, -1))
        total = sizes.sum(-1)
        share = (sizes / total[..., None].clamp_min(1e-9))[..., None, :].to(keys.dtype)
        centre, value = (
            (share @ take(x, order).unflatten(2, (count, -1))).squeeze(-2) for x in (keys, values)
        )
        return Buckets(far.start, order, centre, value, total.log())

    def read(self, layer: int, q: Tensor, past: Past, plan: Buckets | None, step: int = 0) -> Tensor:
        """Attention of rotated q [b, h, n, d] over the past.

        In full where a plan was made for more than there is: by a memory that is fixed, for one that is not.
        """
        if plan is None or plan.end > past.keys.shape[2] or not q.shape[2] or step < self.dense_steps:
            return attend(q, past.keys, past.values, past.bias)
        tile = self.tile or q.shape[2]
        tiles = [self._read(part, past, plan) for part in q.split(tile, 2)]
        return torch.cat(tiles, 2) if len(tiles) > 1 else tiles[0]

    def _read(self, q: Tensor, past: Past, plan: Buckets) -> Tensor:
        choice = self.choose(q, plan)
        asked = past.keys, past.values, past.bias, plan, choice
        if self._by_kernel(q, plan):
            return read(q, *asked)
        by_kernel = usable(q, past.keys) and q.shape[-1] in (64, 128)
        return attend(q, *(lay_out if by_kernel else gathered)(*asked))

    def choose(self, q: Tensor, plan: Buckets) -> Choice:
        """Buckets that the queries read most, and which of them they need."""
        q = sampled(q)
        by = choose if self._by_kernel(q, plan) else choose_reference
        choice = by(q, plan, self._wanted(plan.weight.shape[-1]), self.mass)
        return choice if self.rest else choice._replace(rest=None)

    def keys_read(self, among: int, plan: Buckets) -> int:
        """How many keys a query reads among so many."""
        count = plan.weight.shape[-1]
        return among - (count - self._wanted(count)) * self.block + (count if self.rest else 0)

    def _by_kernel(self, q: Tensor, plan: Buckets) -> bool:
        return usable(q, plan.centre) and fits(q, plan)

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


def _nearest(x: Tensor, centre: Tensor) -> Tensor:
    """Which centre [b, h, i, d] is nearest to each x [b, h, f, d]."""
    half = 0.5 * centre.square().sum(-1)
    rows, centres = x.flatten(0, 1), centre.flatten(0, 1)
    if many(rows, centres):
        return nearest(rows, centres, offset=-half.flatten(0, 1).float())[1].view(x.shape[:3])
    return (x @ centre.mT - half[:, :, None]).argmax(-1)

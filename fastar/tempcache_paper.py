"""TempCache as the paper states it (arXiv 2602.01801), for its ablations.

Every token that is committed looks for its nearest key among those remembered; above a threshold it joins
that key's group, else it is remembered on its own. Nothing is protected and nothing is evicted, so the
memory is as large as the scene is new. Differs from `TempCache` in all that `TempCache` adds.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from .memory import Beside, Dense, Past, Pattern, Stats, rows
from .rope import AxialRope
from .search import SEARCHES, across_heads


class TempCachePaper(Dense):
    """Groups of matching tokens, each read as one key with the mean value and log m.

    threshold  cosine of rotated keys, the mean over heads, above which a token joins
    represent  the key of a group: its last, the mean of all, or the member nearest to the mean
    match      find the group by the token's query or by its key; joining is always by keys
    search     how it is found, with its options

    Always: the counts of the groups add up to the tokens seen. The room of groups that have moved on is given
    back when it is more than the rest.
    """

    merges = True
    _state = (*Dense._state, "counts", "sums", "seen")

    def __init__(
        self,
        layers: int,
        rope: AxialRope,
        *,
        threshold: float = 0.9,
        represent: Literal["last", "mean", "medoid"] = "last",
        match: Literal["query", "key"] = "query",
        search: str = "exact",
        search_options: dict[str, Any] | None = None,
        pattern: Pattern | None = None,
    ) -> None:
        self.threshold, self.represent, self.match = threshold, represent, match
        self.search = SEARCHES[search](**(search_options or {}))
        super().__init__(layers, rope, pattern=pattern)

    def reset(self) -> None:
        super().reset()
        self.counts: list[Any] = [None] * self.layers  # m of the group in each slot, 0 for none [b, slots]
        self.sums: list[Any] = [None] * self.layers  # of the keys of its members [b, h, slots, d]
        self.seen = [0] * self.layers
        self._query: list[Tensor | None] = [None] * self.layers

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor, beside: Beside | None = None
    ) -> Tensor:
        own = q[:, :, : k.shape[2]]
        self._query[layer] = self.rope(own, where) if own.shape[2] == k.shape[2] else None
        return super().attend(layer, q, k, v, where, beside)

    def commit(self, layer: int) -> None:
        start, query = self.lengths[layer], self._query[layer]
        fresh = slice(start, start + self._present[layer])
        keys, values = self.keys[layer], self.values[layer]
        if keys is not None and self._present[layer]:
            self._admit(layer, keys[:, :, fresh])
            if start:
                asked = keys[:, :, fresh] if self.match == "key" or query is None else query
                self._join(layer, keys, values, asked, fresh)
        super().commit(layer)
        self._compact(layer)

    def stats(self) -> Stats:
        counts = self.counts[-1]
        live = 0 if counts is None else int((counts > 0).sum(-1).max())
        return Stats(live, self.seen[-1], self._bytes())

    def _past(self, layer: int, end: int) -> Past:
        past, counts = super()._past(layer, end), self.counts[layer]
        bias = past.keys.new_zeros(
            len(past.keys), 1, end, dtype=torch.promote_types(past.keys.dtype, torch.float32)
        )
        if counts is not None:
            bias[:, 0, : counts.shape[1]] = counts[:, :end].log()
        return past._replace(bias=bias)

    def _admit(self, layer: int, keys: Tensor) -> None:
        """The present tokens begin as groups of one."""
        ones = keys.new_ones(len(keys), keys.shape[2], dtype=torch.promote_types(keys.dtype, torch.float32))
        before = self.counts[layer], self.sums[layer]
        self.counts[layer] = ones if before[0] is None else torch.cat([before[0], ones], 1)
        sums = keys.to(ones.dtype)
        self.sums[layer] = sums if before[1] is None else torch.cat([before[1], sums], 2)
        self.seen[layer] += keys.shape[2]

    def _join(self, layer: int, keys: Tensor, values: Any, asked: Tensor, fresh: slice) -> None:
        """Move each group that tokens join to the slot of the most alike of them."""
        counts, sums, old = self.counts[layer], self.sums[layer], slice(0, fresh.start)
        live = counts[:, old] > 0
        codes = [self.search.encode(across_heads(x)[:, 0]) for x in (asked, keys[:, :, old])]
        _, group = self.search.nearest(codes[0], codes[1], live)  # [b, n]
        looks = across_heads(keys[:, :, : fresh.stop])[:, 0]
        alike = (looks[:, fresh] * rows(looks, group)).sum(-1)
        joins = alike >= self.threshold
        claims = torch.where(joins, alike, -torch.inf)
        together = (group[:, :, None] == group[:, None]) & joins[:, :, None] & joins[:, None]  # [b, n, n]
        rank = claims.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        leads = joins & ~(together & (rank[:, None] < rank[:, :, None])).any(-1)

        members = together.to(counts.dtype)  # of the group that a token leads
        moved = torch.where(leads, counts.gather(1, group), 0.0)
        total = torch.where(leads, moved + members.sum(-1), torch.where(joins, 0.0, 1.0))
        for x, mean in ((values, True), (sums, False)):
            new = x[:, :, fresh].to(counts.dtype)
            met = torch.einsum("bij,bhjd->bhid", members, new)
            past = rows(x.transpose(1, 2), group).transpose(1, 2).to(counts.dtype)
            joint = met + past * (moved[:, None, :, None] if mean else leads[:, None, :, None])
            joint = joint / total.clamp_min(1)[:, None, :, None] if mean else joint
            x[:, :, fresh] = torch.where(leads[:, None, :, None], joint, new).to(x.dtype)
        self._represent(layer, keys, group, leads, total, fresh)
        left = torch.zeros_like(counts[:, old]).scatter_add_(1, group, leads.to(counts.dtype)) > 0
        counts[:, old] = counts[:, old].masked_fill(left, 0.0)
        counts[:, fresh] = total

    def _represent(
        self, layer: int, keys: Tensor, group: Tensor, leads: Tensor, total: Tensor, fresh: slice
    ) -> None:
        """Give the moved groups their key; it is the newest member's already."""
        if self.represent == "last":
            return
        mean = (self.sums[layer][:, :, fresh] / total.clamp_min(1)[:, None, :, None]).to(keys.dtype)
        chosen = leads[:, None, :, None]
        if self.represent == "medoid":  # of the medoid so far and the newest
            before = rows(keys.transpose(1, 2), group).transpose(1, 2)
            far = [(x - mean).square().sum((1, 3)) for x in (before, keys[:, :, fresh])]
            chosen, mean = chosen & (far[0] < far[1])[:, None, :, None], before
        keys[:, :, fresh] = torch.where(chosen, mean, keys[:, :, fresh])

    def _compact(self, layer: int) -> None:
        """Give back the room of groups that have moved on, when it is more than what is left."""
        counts = self.counts[layer]
        live = int((counts > 0).sum(-1).max())
        if live * 2 > counts.shape[1]:
            return
        order = (counts == 0).to(torch.int8).argsort(dim=1, stable=True)[:, :live]
        self.counts[layer] = counts.gather(1, order)
        tags = self.tags[layer]
        if tags is not None:
            self.tags[layer] = rows(tags.transpose(1, 2), order).transpose(1, 2)
        for kept in (self.keys, self.values, self.sums):
            x: Any = kept[layer]
            packed = rows(x.transpose(1, 2), order).transpose(1, 2)
            if kept is self.sums:
                kept[layer] = packed
            else:
                x[:, :, :live] = packed
        self.lengths[layer] = live
        self.plans[layer] = None

"""Attention recall: the share of what dense attention reads that lies on tokens a memory still stands for.

A token counts when it is kept whole, or merged into an entry, and that key is read in full. It does not when
it was evicted, or a pattern leaves it out or reads it as part of a mean. The tokens of the present frame are
like all others: there are patterns that leave out some of these.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastar import AnnSA, Dense, Past, TempCache, TempCachePaper, WindowSink, method
from fastar.attention import logits
from fastar.memory import Remembering
from fastar.rivals import R1KV, RandomEviction, UniformFrames
from fastar.rivals.evicting import Evicting
from fastar.rivals.masked import Masked

from ..world import MakeMemory


class Probabilities(Dense):
    """Dense attention that answers with its probabilities [b, h, n, past and present], in float32."""

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        return logits(q.float(), past.keys.float()).softmax(-1)


def recall(probabilities: Tensor, kept: Tensor) -> float:
    """Mean over queries and heads of the probability on tokens that are kept.

    probabilities [b, h, n, seen + n] of dense attention; kept bool, broadcast to the same.
    """
    return 1 - float((probabilities * ~kept).sum(-1).mean())


class Tracked(Remembering):
    """A memory, for one mixed into it, that accounts for what each layer's last question read."""

    def reset(self) -> None:
        super().reset()
        self._in_full: list[Tensor | None] = [None] * self.layers
        self._means = [0.0] * self.layers
        self._now = [slice(0)] * self.layers  # where the present frame was

    def kept(self, layer: int) -> Tensor:
        """The tokens committed and present that are read in full, bool [b or 1, h or 1, n or 1, seen + n]."""
        slots, read = self.slots(layer)[:, :, None], self._asked(layer)
        games, heads, *_ = torch.broadcast_shapes(slots.shape[:3], read.shape[:3])
        index = slots.clamp_min(0).expand(games, heads, read.shape[2], -1)
        read = read.expand(games, heads, -1, -1)
        return torch.cat([read.gather(3, index) & (slots >= 0), read[..., self._now[layer]]], 3)

    def keys_read(self, layer: int) -> float:
        """Keys that a query read, the mean over queries and heads; the present frame's are among them."""
        return float(self._asked(layer).sum(-1).double().mean()) + self._means[layer]

    def slots(self, layer: int) -> Tensor:
        """Where in the layer's past each committed token is [b or 1, h or 1, seen]; -1 if it is gone."""
        raise NotImplementedError

    def _asked(self, layer: int) -> Tensor:
        read = self._in_full[layer]
        if read is None:
            raise RuntimeError("Nothing was read yet: call attend with a question first.")
        return read

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        if q.shape[2]:
            self._in_full[layer], self._means[layer] = self._account(layer, q, past)
            self._now[layer] = past.present
        return super()._read(layer, q, past)

    def _account(self, layer: int, q: Tensor, past: Past) -> tuple[Tensor, float]:
        """Which keys each query reads in full [b or 1, h or 1, n or 1, m], and how many means beside them."""
        m, plan = past.keys.shape[2], self.plans[layer]
        if isinstance(self.pattern, AnnSA) and self.steps[layer] < self.pattern.dense_steps:
            plan = None
        live = torch.ones(1, 1, m, dtype=torch.bool, device=q.device)
        live = (live if past.bias is None else past.bias > -torch.inf)[:, :, None]
        if isinstance(self.pattern, Masked):
            reads = self.pattern.reads(layer, q, past, plan, self.steps[layer])
            return live if reads is None else live & reads, 0.0
        if plan is None:
            return live, 0.0
        assert isinstance(self.pattern, AnnSA)
        chosen = _chosen(self.pattern, q, plan)
        read = torch.ones(*q.shape[:3], m, dtype=torch.bool, device=q.device)
        order = (plan.start + plan.order)[:, :, None].expand(-1, -1, q.shape[2], -1)
        read.scatter_(3, order, chosen.repeat_interleave(self.pattern.block, -1))
        means = (plan.weight > -torch.inf)[:, :, None] & ~chosen
        return live & read, float(means.sum(-1).double().mean()) if self.pattern.rest else 0.0


def _chosen(pattern: AnnSA, q: Tensor, plan: Any) -> Tensor:
    """The buckets that each query reads in full, bool [b, h, n, i]."""
    parts = []
    for tile in q.split(pattern.tile or q.shape[2], 2):
        choice = pattern.choose(tile, plan)
        buckets = torch.zeros_like(plan.weight, dtype=torch.bool).scatter_(2, choice.bucket, choice.useful)
        parts.append(buckets[:, :, None].expand(-1, -1, tile.shape[2], -1))
    return torch.cat(parts, 2)


class TrackedDense(Tracked, Dense):
    def slots(self, layer: int) -> Tensor:
        return torch.arange(self.lengths[layer], device=self._asked(layer).device)[None, None]


class TrackedWindow(Tracked, WindowSink):
    def slots(self, layer: int) -> Tensor:
        device, frames = self._asked(layer).device, self.committed[layer]
        frame = torch.arange(frames, device=device)
        kept = (frame < self.sink) | (frame >= frames - self.recent)
        start = torch.tensor([self._slot(i).start for i in range(frames)], dtype=torch.long, device=device)
        slots = start[:, None] + torch.arange(self.tokens, device=device)
        return slots.masked_fill(~kept[:, None], -1).view(1, 1, -1)


class TrackedEvicting(TrackedWindow, Evicting):
    """Knows the number of every token that it keeps."""

    def slots(self, layer: int) -> Tensor:
        number = self.far_number[layer, :, :, : self._held(layer)]
        far = self._whole + torch.arange(number.shape[2], device=number.device)
        slots = super().slots(layer).repeat(*number.shape[:2], 1)
        return slots.scatter_(2, number, far.expand(number.shape))


class TrackedRandom(TrackedEvicting, RandomEviction):
    pass


class TrackedUniform(TrackedEvicting, UniformFrames):
    pass


class TrackedR1KV(TrackedEvicting, R1KV):
    pass


class TrackedTempCache(TrackedWindow, TempCache):
    """Follows every token that leaves the window from entry to entry."""

    _state = (*TempCache._state, "entry")

    def reset(self) -> None:
        super().reset()
        self.entry = torch.empty(0)  # where each token that left the window is [r, tokens]; -1: evicted

    def slots(self, layer: int) -> Tensor:
        slots = super().slots(layer)
        if not self.entry.numel():
            return slots
        games = self.keys.shape[1]
        entry = self.entry.view(self.layers, games, -1, self.entry.shape[-1])[layer]
        groups = entry.shape[1]
        first = self.sink * self.tokens
        slots = slots.repeat(games, groups, 1)
        slots[..., first : first + entry.shape[-1]] = torch.where(entry < 0, -1, self._whole + entry)
        return slots

    def _write(self, entry: Tensor, *what: Tensor) -> None:
        super()._write(entry, *what)
        self.entry = torch.cat([self.entry, entry], 1) if self.entry.numel() else entry

    def _empty(self, victims: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        merges, target = super()._empty(victims, wanted)
        moved = torch.where(wanted, torch.where(merges, target, -1), victims)
        stay = torch.arange(self.far, device=victims.device).repeat(len(victims), 1)
        now = stay.scatter(1, victims, moved).gather(1, self.entry.clamp_min(0))
        self.entry = torch.where(self.entry < 0, -1, now)
        return merges, target


class TrackedPaper(Tracked, TempCachePaper):
    """Evicts nothing: whatever it merges, its recall is 1 by definition. Its error shows elsewhere.

    Follows every token from group to group, for `overlap`.
    """

    _state = (*TempCachePaper._state, "group")

    def reset(self) -> None:
        super().reset()
        self.group: list[Tensor] = [torch.empty(0)] * self.layers  # the slot of each token [b, seen]

    def kept(self, layer: int) -> Tensor:
        if self.pattern is not None:
            raise NotImplementedError(
                "Which tokens a pattern leaves out of a tempcache_paper memory is not known; use tempcache."
            )
        present = self._now[layer].stop - self._now[layer].start
        everything = self.seen[layer] + present
        return torch.ones(1, 1, 1, everything, dtype=torch.bool, device=self._asked(layer).device)

    def probabilities(self, layer: int, q: Tensor, past: Past) -> Tensor:
        """What it reads of each token seen and of the present [b, h, n, seen + n], alike in a group."""
        assert past.bias is not None
        weight = (logits(q.float(), past.keys.float()) + past.bias.float()[:, :, None]).softmax(-1)
        b, h, n, _ = weight.shape
        group, present = self.group[layer], past.keys.shape[2] - self.lengths[layer]
        each = (weight / past.bias.float().exp()[:, :, None]).nan_to_num(0.0)
        old = each.gather(3, group[:, None, None].expand(b, h, n, -1))
        return torch.cat([old, weight[..., weight.shape[-1] - present :]], -1)

    def _admit(self, layer: int, keys: Tensor) -> None:
        super()._admit(layer, keys)
        fresh = torch.arange(keys.shape[2], device=keys.device) + self.lengths[layer]
        known, fresh = self.group[layer], fresh.expand(len(keys), -1)
        self.group[layer] = torch.cat([known, fresh], 1) if known.numel() else fresh

    def _represent(
        self, layer: int, keys: Tensor, group: Tensor, leads: Tensor, total: Tensor, fresh: slice
    ) -> None:
        super()._represent(layer, keys, group, leads, total, fresh)
        slots, known = torch.arange(fresh.stop, device=keys.device).repeat(len(keys), 1), self.group[layer]
        moved = slots.scatter(1, torch.where(leads, group, slots[:, fresh]), slots[:, fresh])
        joined = moved.gather(1, group)  # where the group that a token joins is now
        newest = torch.where(total > 0, known[:, -group.shape[1] :], joined)
        self.group[layer] = torch.cat([moved.gather(1, known[:, : -group.shape[1]]), newest], 1)

    def _compact(self, layer: int) -> None:
        before = self.counts[layer]
        super()._compact(layer)
        if self.counts[layer].shape[1] < before.shape[1]:
            place = (before > 0).cumsum(1) - 1
            self.group[layer] = place.gather(1, self.group[layer])


def overlap(a: Tensor, b: Tensor) -> float:
    """The probability that two ways of reading the same tokens have in common: 1 - total variation."""
    return float(torch.minimum(a, b).sum(-1).mean())


TRACKED: dict[str, type[Any]] = {
    "dense": TrackedDense,
    "window_sink": TrackedWindow,
    "tempcache": TrackedTempCache,
    "tempcache_paper": TrackedPaper,
    "random": TrackedRandom,
    "uniform": TrackedUniform,
    "flowcache": TrackedR1KV,
}


def tracked(cache: Mapping[str, Any], attn: Mapping[str, Any] | None = None, cross: Any = None) -> MakeMemory:
    """Makes the memory of a `fastar.method` with these axes, tracked."""
    return method(cache, attn, cross, caches=TRACKED).cache

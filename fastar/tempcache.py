"""TempCache: a far memory that keeps one entry per thing seen, not one per frame.

Neighbouring frames show the same surfaces, so most keys that leave the recent window nearly equal a
key that is remembered already. Such a key joins that entry: the newest key represents it, its value
is the mean of all, and log m is added to its logit. With equal keys this is exact (Lemma 5.1 of
arXiv 2602.01801). Ours differs from the paper where measurements said so: the last frames and a sink
stay whole, an entry accepts a key only while it is also near its first key (drift guard), and the
budget is fixed: when it is full, entries that resemble another one are merged into it, else the
least valuable are evicted.
"""

import torch
from torch import Tensor

from .memory import Stats
from .rope import AxialRope
from .window import WindowSink


class TempCache(WindowSink):
    """Window + sink, and a far memory of at most `far` entries per layer for what leaves the window.

    threshold  cosine above which a key joins an entry; compared turned in space, not in time, averaged over heads
    drift      the same cosine, against the entry's first key
    floor      cosine above which an old entry may be merged into another to make room; below, it is evicted
    half_life  frames after which an entry that nothing joins counts half when room is needed

    Always: counts of the far entries + evicted + whole tokens == tokens seen.
    """

    _state = (*WindowSink._state, "look", "looks", "far_look", "first_look", "mean", "count", "time", "evicted")

    def __init__(
        self,
        rope: AxialRope,
        *,
        sink: int = 1,
        recent: int = 16,
        far: int = 1120,
        threshold: float = 0.9,
        drift: float = 0.8,
        floor: float = 0.7,
        half_life: float = 500.0,
    ) -> None:
        self.far, self.threshold, self.drift, self.floor, self.half_life = far, threshold, drift, floor, half_life
        super().__init__(rope, sink=sink, recent=recent)

    def reset(self) -> None:
        super().reset()
        for name in ("look", "looks", "far_look", "first_look", "mean", "count", "time", "evicted"):
            setattr(self, name, torch.empty(0))

    def stats(self) -> Stats:
        whole = super().stats()
        entries = int((self.count > 0).sum(-1).max()) if self.tokens else 0
        return Stats(whole.kept + entries, whole.seen, whole.bytes)

    def _extra(self) -> int:
        return self.far

    def _used(self) -> int:
        left = max(0, self.frames - self.sink - self.recent)  # frames that went through the far memory
        return super()._used() + min(self.far, left * self.tokens)

    def _allocate(self, k: Tensor) -> None:
        super()._allocate(k)
        b, h, n, d = k.shape
        self.bias[:, self._whole :] = -torch.inf
        if self.far < n:
            raise ValueError(f"The far memory must hold at least one frame of {n} tokens, got far={self.far}.")
        self.look = k.new_zeros(b, n, h * d)
        self.looks = k.new_zeros(b, 1 + self.sink + self.recent, n, h * d)
        self.far_look, self.first_look = (k.new_zeros(b, self.far, h * d) for _ in range(2))
        wide = self.bias.dtype
        self.mean = torch.zeros(b, h, self.far, d, device=k.device, dtype=wide)
        self.count = torch.zeros(b, self.far, device=k.device, dtype=wide)
        self.time = torch.full((b, self.far), -1, device=k.device, dtype=torch.long)
        self.evicted = torch.zeros(b, device=k.device, dtype=wide)

    def _look(self, k: Tensor, where: Tensor) -> None:
        """How the present keys look at their place at any time: [b, n, h * d], of unit length."""
        turned = self.rope.in_space(k, where)
        unit = turned / turned.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        self.look = unit.transpose(1, 2).flatten(2) * k.shape[1] ** -0.5

    def _keep(self, slot: int) -> None:
        super()._keep(slot)
        self.looks[:, slot] = self.look

    def _leave(self, slot: int) -> None:
        """Fold the oldest recent frame into the far memory."""
        n = self.tokens
        whole = slice(slot * n, (slot + 1) * n)
        look, key, value = self.looks[:, slot], self.keys[:, :, whole], self.values[:, :, whole]
        joins, owner = self._match(look)
        room = self._make_room(owner, joins)
        fresh = (~joins).cumsum(-1) - 1
        entry = torch.where(joins, owner, room.gather(1, fresh.clamp_min(0)))
        self._write(entry, joins, look, key, value)

    def _match(self, look: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens join an entry, and which entry [b, n]. An entry takes one token a frame, the most alike."""
        alike = (look @ self.far_look.mT).masked_fill(self.count[:, None] == 0, -1.0)
        best, owner = alike.max(-1)
        near_first = (look * _rows(self.first_look, owner)).sum(-1) >= self.drift
        joins = (best >= self.threshold) & near_first
        claims = torch.where(joins, best, -torch.inf)
        rivals = (owner[:, :, None] == owner[:, None, :]) & joins[:, None, :]
        better = claims[:, None, :] > claims[:, :, None]
        order = torch.arange(look.shape[1], device=look.device)
        first_of_equals = (claims[:, None, :] == claims[:, :, None]) & (order[None, None, :] < order[None, :, None])
        return joins & ~(rivals & (better | first_of_equals)).any(-1), owner

    def _make_room(self, owner: Tensor, joins: Tensor) -> Tensor:
        """Entries [b, n] that new tokens may overwrite, their content merged into others or evicted.

        Only as many as there are tokens that join nothing are emptied; the rest of the list is padding.
        """
        b, n = owner.shape
        age = self.frames - self.time
        worth = torch.where(self.count > 0, self.count.clamp_min(1).log2() - age / self.half_life, -torch.inf)
        worth = worth.scatter_reduce(1, owner, torch.where(joins, torch.inf, -torch.inf).to(worth.dtype), "amax")
        victims = worth.topk(n, largest=False).indices
        wanted = torch.arange(n, device=owner.device) < (~joins).sum(-1, keepdim=True)
        held = self.count.gather(1, victims)
        leaving = torch.zeros_like(self.count, dtype=torch.bool).scatter_(1, victims, wanted)
        stays = (self.count > 0) & ~leaving

        look = _rows(self.far_look, victims)
        alike = (look @ self.far_look.mT).masked_fill(~stays[:, None], -1.0)
        best, target = alike.max(-1)
        merges = wanted & (held > 0) & (best >= self.floor)
        merges &= (look * _rows(self.first_look, target)).sum(-1) >= self.floor
        merges &= self.time.gather(1, target) >= self.time.gather(1, victims)  # the newer key represents both

        moved = torch.where(merges, held, 0.0)
        total = self.count.scatter_add(1, target, moved)
        weighted = self.mean * self.count[:, None, :, None]
        index = target[:, None, :, None].expand(-1, *self.mean.shape[1:2], -1, self.mean.shape[-1])
        weighted = weighted.scatter_add(2, index, _columns(self.mean, victims) * moved[:, None, :, None])
        changed = torch.zeros_like(leaving).scatter_reduce(1, target, merges, "amax")
        self.mean = torch.where(changed[:, None, :, None], weighted / total.clamp_min(1)[:, None, :, None], self.mean)
        self.evicted = self.evicted + torch.where(wanted & ~merges, held, 0.0).sum(-1)
        self.count = torch.where(leaving, 0.0, total)
        return victims

    def _write(self, entry: Tensor, joins: Tensor, look: Tensor, key: Tensor, value: Tensor) -> None:
        """Put each token [b, n] in its entry: the newest key, the mean value, one more in count."""
        before = torch.where(joins, self.count.gather(1, entry), 0.0)
        old = _columns(self.mean, entry)
        mean = torch.where(joins[:, None, :, None], old, 0.0)
        mean = mean + (value.to(mean.dtype) - mean) / (before + 1)[:, None, :, None]

        rows = entry[..., None].expand(-1, -1, look.shape[-1])
        self.first_look = self.first_look.scatter(
            1, rows, torch.where(joins[..., None], _rows(self.first_look, entry), look)
        )
        self.far_look = self.far_look.scatter(1, rows, look)
        columns = entry[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[-1])
        self.mean = self.mean.scatter(2, columns, mean)
        self.count = self.count.scatter(1, entry, before + 1)
        self.time = self.time.scatter(1, entry, self.frames)

        self.keys[:, :, self._whole :].scatter_(2, columns, key)
        self.values[:, :, self._whole :] = self.mean.to(self.values.dtype)
        self.bias[:, self._whole :] = self.count.log()  # log 0 = -inf: an empty slot


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x [b, m, c] at index [b, n] -> [b, n, c]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _columns(x: Tensor, index: Tensor) -> Tensor:
    """x [b, h, m, d] at index [b, n] -> [b, h, n, d]."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))

"""TempCache: a far memory that keeps one entry per thing seen, not one per frame.

Neighbouring frames show the same surfaces, so most keys that leave the recent window nearly equal a
key that is remembered already. Such a key joins that entry: the newest key represents it, its value
is the mean of all, and log m is added to its logit. With equal keys this is exact (Lemma 5.1 of
arXiv 2602.01801). Ours differs from the paper where measurements said so: the last frames and a sink
stay whole, an entry accepts a key only while it is also near its first key (drift guard), and the
budget is fixed: when it is full, entries that resemble another one are merged into it, else the
least valuable are evicted.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from .kernels.match import nearest
from .memory import Past, Pattern, Stats, rows
from .packed import Packed, pack
from .rope import AxialRope
from .search import SEARCHES, Search, across_heads, many
from .window import WindowSink

FEW = 256  # tokens of a frame up to which pairs are soon compared, and sums so are the same every time


class TempCache(WindowSink):
    """Window + sink, and a far memory of at most `far` entries per layer for what leaves the window.

    far        entries; one number, or one a layer, since some layers look back further than others
    threshold  cosine above which a key joins an entry, turned in space but not in time; one, or one a layer
    drift      the same cosine, against the entry's first key
    margin     by how much the best entry must be nearer than the second best; else the key stays apart
    cut        share of a frame's keys that must find an entry; below, the scene has changed and none joins
    floor      cosine above which an old entry may be merged into another to make room; below, it is evicted
    half_life  frames after which an entry that nothing joins counts half when room is needed
    per_head   heads remember on their own, `far` entries each; else they agree by the mean of their cosines
    search     how the entry most alike is found, a name in `SEARCHES`; cosines are then taken exactly
    packed     keys and values of far entries are kept as int8: half of their bytes, a little slower to read

    Always: counts of the far entries + evicted + whole tokens == tokens seen.

    What leaves the window is folded for all layers at once, when the first of them commits: the same few
    operations serve them all. The others see it folded, not twice, until they commit in their turn.
    """

    merges = True
    _state = (
        *WindowSink._state,
        "times",
        "look",
        "code",
        "first_look",
        "mean",
        "count",
        "time",
        "now",
        "evicted",
        "far_keys",
        "far_values",
    )

    def __init__(
        self,
        layers: int,
        rope: AxialRope,
        *,
        sink: int = 1,
        recent: int = 16,
        reach: int | None = None,
        far: int | Sequence[int] = 1120,
        threshold: float | Sequence[float] = 0.9,
        drift: float = 0.7,
        margin: float = 0.0,
        cut: float = 0.0,
        floor: float = 0.3,
        half_life: float = 100.0,
        per_head: bool = False,
        search: str = "exact",
        packed: bool = False,
        pattern: Pattern | None = None,
    ) -> None:
        self.fars, self.thresholds = _each(far, layers, "far"), _each(threshold, layers, "threshold")
        self.far, self.drift, self.margin = max(self.fars), drift, margin
        self.cut, self.floor, self.half_life, self.per_head = cut, floor, half_life, per_head
        self.packed, self.fixed = packed, False
        if search not in SEARCHES:
            raise ValueError(f"No search {search!r}; there is {', '.join(SEARCHES)}.")
        self.search: Search | None = None if search == "exact" else SEARCHES[search]()
        super().__init__(layers, rope, sink=sink, recent=recent, reach=reach, pattern=pattern)

    def reset(self) -> None:
        super().reset()
        nothing = torch.empty(0)
        self.times = nothing  # of the tokens of whole frames [b or 1, 1, m]
        # A row r is a layer of a game, or one of its heads; g are the rows of a layer of a game.
        # Of far entries [r, far, ...]: how the newest key looks, its code, how the first one looked; the mean
        # value, count, last frame.
        self.look, self.code, self.first_look, self.mean, self.count, self.time = (nothing for _ in range(6))
        self.now = nothing  # frames committed, on the device
        self.evicted = nothing  # tokens [r]
        # If `packed`, [l, b, h, far, d] in place of the end of the buffers.
        self.far_keys: Packed | None = None
        self.far_values: Packed | None = None
        self._threshold = self._room_of = nothing  # of each row [r, 1]
        self._far: list[Tensor | Packed] = []  # keys and values of far entries, views [r, far, heads, d]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.tokens and self.packed != (self.far_keys is not None):
            raise ValueError(
                f"The far entries of this state are {'not ' * self.packed}packed, but packed is "
                f"{str(self.packed).lower()} in these settings. Load it with the settings it was saved with."
            )
        if self.tokens:
            self._prepare()

    def span(self, layer: int, ahead: int = 0) -> int:
        return self.committed[layer] + ahead + 1  # entries count for all that they stand for

    def phase(self) -> Hashable | None:
        """Once the far memory is full too, or is read as if it were."""
        return super().phase() if self.fixed or self._folded >= self.far else None

    def stats(self) -> Stats:
        whole = super().stats()
        entries = float((self.count > 0).sum(-1).double().mean()) if self.tokens else 0.0
        return Stats(whole.kept + math.ceil(entries), whole.seen, whole.bytes)

    def _room(self) -> int:
        return self._whole + self.far

    @property
    def _full(self) -> bool:
        """Whether one more frame may not fit into the far memory of every layer, or is treated as if not."""
        return self.fixed or self._folded + self.tokens > min(self.fars)

    @property
    def _folded(self) -> int:
        """Tokens that have left the window."""
        return max(0, self.committed[0] - self.sink - self.recent) * self.tokens

    def _used(self, layer: int) -> int:
        whole, far = super()._used(layer), self.fars[layer]
        if self.fixed and whole == self._whole:
            return whole + far
        return whole + min(far, self._folded)

    def _allocate(self, k: Tensor) -> None:
        super()._allocate(k)
        b, h, n, d = k.shape
        if min(self.fars) < n:
            raise ValueError(
                f"The far memory must hold at least one frame of {n} tokens, got far={min(self.fars)}."
            )
        groups = h if self.per_head else 1
        rows, width, wide = self.layers * b * groups, h // groups * d, self.bias.dtype
        self.bias = self.bias.repeat(1, 1, groups, 1)
        self.bias[..., self._whole :] = -torch.inf
        self.look, self.first_look = (k.new_zeros(rows, self.far, width) for _ in range(2))
        self.mean = torch.zeros(rows, self.far, h // groups, d, device=k.device, dtype=wide)
        self.count, self.evicted = k.new_zeros(rows, self.far, dtype=wide), k.new_zeros(rows, dtype=wide)
        self.time = torch.full((rows, self.far), -1, device=k.device)
        self.now = torch.tensor(self.sink + self.recent, device=k.device)  # when the first frame leaves
        self._prepare()
        if self.packed:
            both = self.keys, self.values
            self.far_keys, self.far_values = (pack(x[..., self._whole :, :]) for x in both)
            self.keys, self.values = (x[..., : self._whole, :].clone() for x in both)
        if self.search:
            self.code = self.search.encode(self.look)

    def _see(self, layer: int, slot: slice, where: Tensor) -> None:
        if layer == 0:
            if not self.times.numel():
                games = len(where) if where.dim() == 4 else 1
                self.times = self.bias.new_zeros(games, 1, self._whole)
            self.times[..., slot] = where[..., 0]

    def _leave(self, layer: int, slot: slice) -> None:
        if layer == 0:
            self._fold(slot)
        self.bias[layer, ..., slot] = 0  # to be read again once the next frame is there

    def _fold(self, slot: slice) -> None:
        """Put the frame of every layer in this slot into its far memory, and read it there from here on."""
        if len(set(self.committed)) > 1:
            raise RuntimeError(
                f"Every layer must commit a frame before any commits the next, got {self.committed}."
            )
        keys, values = (x[:, :, :, slot].clone() for x in (self.keys, self.values))
        both = self.far_keys or self.keys, self.far_values or self.values
        self._far = [self._entries(buffer) for buffer in both]
        entry = self._join(keys, values, self.times[..., slot], self._full)
        if self.tags.numel():
            self._put(self._entries(self.tags), entry, self._rows(self.tags)[:, :, slot].transpose(1, 2))
        self.bias[..., slot] = -torch.inf
        counts = self.bias[..., self._whole :]
        counts.copy_(self.count.log().view_as(counts))  # log m; an empty slot has log 0
        self.now += 1

    def fix(self) -> None:
        self.fixed = True

    def fuse(self) -> None:
        self._join = torch.compile(self._join, dynamic=False)

    def _join(self, keys: Tensor, values: Tensor, times: Tensor, full: bool) -> Tensor:
        """Put a frame's keys and values [l, b, h, n, d], seen at `times`, into far entries: which [r, n].

        Nothing here depends on which frame it is, so that it can be compiled.
        """
        look = self._looks(keys, times)
        code = look if self.search is None else self.search.encode(look)
        joins, owner = self._match(look, code)
        room = self._least_worth(owner, joins)
        wanted = torch.arange(self.tokens, device=look.device) < (~joins).sum(-1, keepdim=True)
        if full:  # before that, the least worth are empty slots
            self._empty(room, wanted)
        fresh = (~joins).cumsum(-1) - 1
        entry = torch.where(joins, owner, room.gather(1, fresh.clamp_min(0)))
        key, value = (self._rows(x).transpose(1, 2) for x in (keys, values))
        self._write(entry, joins, look, code, key, value)
        return entry

    def _looks(self, keys: Tensor, times: Tensor) -> Tensor:
        """How the keys of a frame look at their places at any time [r, n, c], of unit length, heads alike."""
        keys = self.rope.in_time(keys, -times)
        groups = len(self.count) // (self.layers * keys.shape[1])
        return across_heads(keys.flatten(0, 1), groups).flatten(0, 1)

    def _match(self, look: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens join an entry, and which [r, n]. An entry takes one token a frame, the most alike."""
        best, owner = self._most_alike(look, code, self.count > 0)
        joins = (best >= self._threshold) & (self._from_first(look, owner) >= self.drift)
        if self.margin:
            joins &= best - self._second(look, owner) >= self.margin
        if self.cut:
            joins &= joins.to(best.dtype).mean(-1, keepdim=True) >= self.cut
        return joins & ~self._outdone(torch.where(joins, best, -torch.inf), owner), owner

    def _most_alike(self, look: Tensor, code: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and index of the `valid` entry [r, far] that each look is nearest to, [r, n] each.

        `code` is what the search knows looks by.
        """
        if self.search is None and many(look, self.look):
            similarity, entry = nearest(look, self.look, valid)
            return similarity, entry
        if self.search is None:
            return (look @ self.look.mT).masked_fill_(~valid[:, None], -1.0).max(-1)
        _, entry = self.search.nearest(code, self.code, valid)
        cosine = (look * rows(self.look, entry)).sum(-1)
        return cosine.masked_fill_(~valid.gather(1, entry), -1.0), entry

    def _second(self, look: Tensor, best: Tensor) -> Tensor:
        """Cosine of the second best entry [r, n]."""
        alike = (look @ self.look.mT).masked_fill_(self.count[:, None] == 0, -1.0)
        return alike.scatter_(2, best[..., None], -1.0).amax(-1)

    def _prepare(self) -> None:
        """What is set for each layer, for each row [r, 1]; now, since a CUDA graph may not copy it."""
        each = len(self.count) // self.layers
        self._threshold, self._room_of = (
            self.count.new_tensor(settings).repeat_interleave(each)[:, None]
            for settings in (self.thresholds, self.fars)
        )

    def _outdone(self, claims: Tensor, owner: Tensor) -> Tensor:
        """Tokens [r, n] whose entry another token claims with a better cosine, or an equal one first."""
        best = claims.new_full((len(owner), self.far), -torch.inf).scatter_reduce(1, owner, claims, "amax")
        order = torch.arange(self.tokens, device=owner.device).expand_as(owner)
        leads = torch.where(claims == best.gather(1, owner), order, self.tokens)
        first = order.new_full(best.shape, self.tokens).scatter_reduce(1, owner, leads, "amin")
        return first.gather(1, owner) != order

    def _least_worth(self, owner: Tensor, joins: Tensor) -> Tensor:
        """Entries [r, n] to give up first, empty slots before all; never one that a token joins now."""
        age = self.now - self.time
        slot = torch.arange(self.far, device=age.device, dtype=torch.float64)
        worth = (
            self.count.clamp_min(1).log2() - age / self.half_life + 1e-9 * slot
        )  # no two are worth the same
        worth = torch.where(self.count > 0, worth, slot - 1e6)  # in order: what is used is a prefix
        worth = worth.masked_fill(slot >= self._room_of, torch.inf)
        joined = torch.where(joins, torch.inf, -torch.inf).to(worth.dtype)
        worth = worth.scatter_reduce(1, owner, joined, "amax")
        return worth.topk(self.tokens, largest=False).indices

    def _empty(self, victims: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Empty the `wanted` ones [r, n] of these entries: merged into the entry most alike, or evicted.

        Returns which of them may merge, and each one's entry most alike [r, n].
        """
        held = torch.where(wanted, self.count.gather(1, victims), 0.0)
        leaving = torch.zeros_like(self.count, dtype=torch.bool).scatter_(1, victims, wanted)
        stays = (self.count > 0) & ~leaving
        look = rows(self.look, victims)
        code = look if self.search is None else rows(self.code, victims)
        best, target = self._most_alike(look, code, stays)
        merges = (best >= self.floor) & (self._from_first(look, target) >= self.floor)
        merges &= self.time.gather(1, target) >= self.time.gather(1, victims)  # the newer key represents both

        moved = torch.where(merges, held, 0.0)
        self.count.masked_fill_(leaving, 0.0).scatter_add_(1, target, moved)
        share = (moved / self.count.gather(1, target).clamp_min(1))[..., None, None]
        shift = share * (rows(self.mean, victims) - rows(self.mean, target))
        self._shift(target, shift)
        self._put(self._far[1], target, rows(self.mean, target))
        self.evicted += (held - moved).sum(-1)
        return merges, target

    def _shift(self, target: Tensor, shift: Tensor) -> None:
        """Add shifts [r, n, heads, d] to the means of these entries [r, n], of which some may be the same."""
        if self.tokens <= FEW:  # each writes the sum of all: the same, whoever is last
            together = (target[:, :, None] == target[:, None]).to(shift.dtype)
            shift = (together @ shift.flatten(2)).view_as(shift)
            self.mean[_index(target)] = rows(self.mean, target) + shift
            return
        means, shift = self.mean.flatten(2), shift.flatten(2)
        means.scatter_add_(1, target[:, :, None].expand_as(shift), shift)

    def _write(
        self, entry: Tensor, joins: Tensor, look: Tensor, code: Tensor, key: Tensor, value: Tensor
    ) -> None:
        """Put each token [r, n] in its entry: the newest key, the mean value, one more in count."""
        before = torch.where(joins, self.count.gather(1, entry), 0.0)
        mean = torch.where(joins[..., None, None], rows(self.mean, entry), 0.0)
        mean += (value.to(mean.dtype) - mean) / (before + 1)[..., None, None]

        self.first_look[_index(entry)] = torch.where(joins[..., None], rows(self.first_look, entry), look)
        self.look[_index(entry)] = look
        if self.search:
            self.code[_index(entry)] = code
        self.mean[_index(entry)] = mean
        self.count.scatter_(1, entry, before + 1)
        self.time.scatter_(1, entry, self.now.expand_as(entry))
        self._put(self._far[0], entry, key)
        self._put(self._far[1], entry, mean)

    def _from_first(self, look: Tensor, entry: Tensor) -> Tensor:
        """Cosine of looks [r, n, c] with the first key of their entries [r, n]."""
        return (look * rows(self.first_look, entry)).sum(-1)

    def _entries(self, buffer: Tensor | Packed) -> Tensor | Packed:
        """The far entries of a buffer, a view [r, far, heads, d]."""
        if isinstance(buffer, Packed):
            return Packed(*(self._rows(part).transpose(1, 2) for part in buffer))
        return self._rows(buffer)[:, :, self._whole :].transpose(1, 2)

    def _put(self, far: Tensor | Packed, entry: Tensor, rows: Tensor) -> None:
        """Write rows [r, n, heads, d] to these of the far entries [r, n]."""
        parts = zip(far, pack(rows), strict=True) if isinstance(far, Packed) else [(far, rows)]
        for part, numbers in parts:
            part[_index(entry)] = numbers.to(part.dtype)

    def _past(self, layer: int) -> Past:
        past = super()._past(layer)
        if self.far_keys is None or self.far_values is None or past.bias is None:
            return past
        far = past.bias.shape[-1] - self._whole
        keys, values = (
            torch.cat([x, Packed(*(y[layer, :, :, :far] for y in z)).read(x.dtype)], 2)
            for x, z in ((past.keys, self.far_keys), (past.values, self.far_values))
        )
        return past._replace(keys=keys, values=values)

    def _rows(self, buffer: Tensor) -> Tensor:
        """A view of keys or values [l, b, h, room, d] as [r, heads, room, d]."""
        l, b, h = buffer.shape[:3]
        rows = len(self.count)
        return buffer.view(rows, l * b * h // rows, *buffer.shape[3:])

    def _rebase(self, layer: int, reach: int) -> None:
        """Also the far entries, by the age of their newest key."""
        super()._rebase(layer, reach)
        rows = self.time.unflatten(0, (self.layers, -1))[layer]
        overdue = self._overdue(rows - self.recent, self.committed[layer], reach) * (rows >= 0)
        if self.far_keys is None:
            far = self._rows(self.keys).unflatten(0, (self.layers, -1))[layer, :, :, self._whole :]
            far.copy_(self.rope.in_time(far, overdue[:, None]))
            return
        kept = Packed(*(self._rows(x).unflatten(0, (self.layers, -1))[layer] for x in self.far_keys))
        moved = pack(self.rope.in_time(kept.read(self.keys.dtype), overdue[:, None]))
        for part, numbers in zip(kept, moved, strict=True):
            part.copy_(numbers)


def _each(setting: Any, layers: int, name: str) -> list[Any]:
    """One number for all layers, or one for each, as one for each."""
    numbers = list(setting) if isinstance(setting, Sequence) else [setting] * layers
    if len(numbers) != layers:
        raise ValueError(f"{name} is one number, or one for each of {layers} layers; got {len(numbers)}.")
    return numbers


def _index(entry: Tensor) -> tuple[Tensor, Tensor]:
    """Index of entries [r, n] of x [r, m, ...], to read or write x[_index(entry)] [r, n, ...]."""
    return torch.arange(len(entry), device=entry.device)[:, None], entry

"""What caches that evict share: a window and a sink, and of what leaves the window the tokens worth most.

Nothing is merged, so every key is one token and no bias is needed. A cache of this kind is a way to say what
a token is worth; it has the budget of `TempCache`: sink, recent frames and so many far tokens.
"""

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor

from ..memory import Past, Pattern, Stats
from ..rope import AxialRope
from ..window import WindowSink


class Evicting(WindowSink):
    """Window + sink, and the `far` tokens worth most of those that left the window, for each head.

    With room for all that leave it, this is dense attention; with far 0, window + sink.
    """

    _state = (*WindowSink._state, "far_number", "leaves")

    def __init__(
        self,
        layers: int,
        rope: AxialRope,
        *,
        sink: int = 1,
        recent: int = 16,
        reach: int | None = None,
        far: int = 1120,
        pattern: Pattern | None = None,
    ) -> None:
        if far < 0:
            raise ValueError(f"The far memory holds far >= 0 tokens, got {far}.")
        self.far = far
        super().__init__(layers, rope, sink=sink, recent=recent, reach=reach, pattern=pattern)

    def _worth(self, layer: int, number: Tensor, place: Tensor) -> Tensor:
        """What each token is worth [b, h, j]; those worth least are evicted. No two should be worth the same.

        number  [b, h, j] which token of the game it is, -1 for an empty place, whose worth means nothing
        place   [j] where in the buffers of the layer its key and value are
        """
        raise NotImplementedError

    def reset(self) -> None:
        super().reset()
        self.far_number = torch.empty(0)  # which token of the game each far one is [l, b, h, far]; -1: empty
        self.leaves = torch.empty(0)  # the frame that leaves the window next [l], on the device

    def span(self, layer: int, ahead: int = 0) -> int:
        far = min(self.far, self._folded(self.committed[layer] + ahead))
        return super().span(layer, ahead) + -(-far // max(1, self.tokens))

    def stats(self) -> Stats:
        whole = super().stats()
        return replace(whole, kept=whole.kept + self._held(-1))

    def phase(self) -> Hashable | None:
        """Once the far memory is full too."""
        return super().phase() if self._folded(self.committed[0]) >= self.far else None

    def _folded(self, committed: int) -> int:
        """Tokens that have left the window after so many frames."""
        return max(0, committed - self.sink - self.recent) * self.tokens

    def _held(self, layer: int) -> int:
        """Far tokens of a layer."""
        return min(self.far, self._folded(self.committed[layer]))

    def _used(self, layer: int) -> int:
        return super()._used(layer) + self._held(layer)

    def _room(self) -> int:
        return self._whole + self.far

    def _allocate(self, k: Tensor) -> None:
        super()._allocate(k)
        self.far_number = torch.full((self.layers, *k.shape[:2], self.far), -1, device=k.device)
        self.leaves = torch.full((self.layers,), self.sink, device=k.device)

    def _past(self, layer: int) -> Past:
        return super()._past(layer)._replace(bias=None)  # what is used is full

    def _number(self, layer: int) -> Tensor:
        whole = super()._number(layer)
        far = self.far_number[layer, :, :, : self._held(layer)]
        return torch.cat([whole.expand(*far.shape[:2], -1), far], 2)

    def _leave(self, layer: int, slot: slice) -> None:
        """Of the far tokens and those in this slot, evict as many as a frame has.

        Evicted far tokens give their places to those of the slot that stay; evicted tokens of the slot remain
        where they are, to be overwritten by the next frame.
        """
        room = min(self.far, self._folded(self.committed[layer]) + self.tokens)
        device, frame = self.keys.device, torch.arange(self.tokens, device=self.keys.device)
        place = torch.cat([torch.arange(self._whole, self._whole + room, device=device), slot.start + frame])
        far = self.far_number[layer]
        fresh = (self.leaves[layer] * self.tokens + frame).expand(*far.shape[:2], -1)
        number = torch.cat([far[..., :room], fresh], 2)

        worth = self._worth(layer, number, place)
        least = -torch.inf if worth.is_floating_point() else torch.iinfo(worth.dtype).min
        worth = worth.masked_fill(number < 0, least)
        evicted = worth.topk(self.tokens, largest=False).indices.sort().values  # far ones first
        gone = torch.zeros_like(number, dtype=torch.int8).scatter_(2, evicted, 1)[..., room:]
        taker = room + gone.argsort(dim=2, stable=True)  # those that stay first: as many as far ones go

        far[..., :room] = number.scatter(2, evicted, number.gather(2, taker))[..., :room]
        for kept in (self.keys, self.values, *([self.tags] if self.tags.numel() else [])):
            x, width = kept[layer], (-1, -1, -1, kept.shape[-1])
            rows = x.gather(2, place[taker][..., None].expand(width))
            x.scatter_(2, place[evicted][..., None].expand(width), rows)
        self.leaves[layer] += 1

    def _rebase(self, layer: int, reach: int) -> None:
        """Also the far tokens, by the frame they were seen in."""
        super()._rebase(layer, reach)
        number, far = self.far_number[layer], self.keys[layer, :, :, self._whole :]
        overdue = self._overdue(number // self.tokens, self.committed[layer], reach) * (number >= 0)
        far.copy_(self.rope.in_time(far, overdue))

"""Window + sink: the first frames and the last ones, nothing between. The rival at an equal budget."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from .memory import Beside, Past, Pattern, Remembering, Stats
from .rope import AxialRope

REBASE = 64  # frames between two moves of what has grown too old


class WindowSink(Remembering):
    """Keep the first `sink` frames and the last `recent` frames whole.

    One buffer of fixed size holds, in this order, the sink, a ring of the recent frames with room for the
    present one, and whatever a subclass keeps beyond them, so that what is in use is always a prefix of it
    and a frame that is committed stays where it is. A bias of -inf marks what is not to be read. What is
    older than `reach` frames is moved forward in time now and then, so that distances stay near those the
    network was trained on, however long the game.
    """

    _state = (*Remembering._state, "keys", "values", "tags", "bias", "committed", "tokens")

    def __init__(
        self,
        layers: int,
        rope: AxialRope,
        *,
        sink: int = 1,
        recent: int = 16,
        reach: int | None = None,
        pattern: Pattern | None = None,
    ) -> None:
        if sink < 0 or recent < 1:
            raise ValueError(f"A window needs sink >= 0 and recent >= 1 frames, got {sink} and {recent}.")
        if reach is not None and reach < recent + REBASE:
            raise ValueError(f"reach must be at least recent + {REBASE} = {recent + REBASE}, got {reach}.")
        self.layers, self.rope, self.sink, self.recent = layers, rope, sink, recent
        self.reach, self.pattern = reach, pattern
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.keys = self.values = self.bias = torch.empty(0)  # [l, b, h, room, d] twice, [l, b, 1, room]
        self.tags = torch.empty(0)  # [l, b, h, room, 1], if the pattern has something to say
        self.committed = [0] * self.layers  # frames
        self.tokens = 0  # per frame
        self._present = [False] * self.layers  # whether attend saw a frame since the last commit

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor, beside: Beside | None = None
    ) -> Tensor:
        if not self.tokens:
            self._allocate(k)
        if k.shape[-2] != self.tokens:
            raise ValueError(
                f"This memory holds frames of {self.tokens} tokens but was given {k.shape[-2]}; reset it."
            )
        q, more = q[:, :, : self.tokens], q[:, :, self.tokens :]
        slot = self._slot(self.committed[layer])
        q = self.rope.settle(q, k, v, where, *(x[layer, :, :, slot] for x in (self.keys, self.values)))
        tag = self._tag(layer, k)
        if tag is not None:
            if not self.tags.numel():
                self.tags = tag.new_zeros(*self.keys.shape[:3], self._room(), 1)
            self.tags[layer, :, :, slot, 0] = tag
        self._see(layer, slot, where)
        self._present[layer] = True
        past = self._past(layer)
        if beside is not None:
            past, more = self._beside(past, more, beside)
            q = torch.cat([q, more], 2)
        return self._read(layer, q, past)

    def commit(self, layer: int) -> None:
        if not self._present[layer]:
            raise RuntimeError("Nothing to commit: call attend with the frame to remember first.")
        frame = self.committed[layer]
        if frame >= self.sink + self.recent:
            self._leave(layer, self._slot(frame + 1))
        self._present[layer] = False
        self.committed[layer] += 1
        if self.reach is not None and self.committed[layer] % REBASE == 0:
            self._rebase(layer, self.reach)
        self.steps[layer] = 0
        if self._due(self.committed[layer]):
            self._replan(layer, self._past(layer))

    def _past(self, layer: int) -> Past:
        used = self._used(layer)
        far = slice(min(used, self._whole), used)
        keys, values, bias = (x[layer] for x in (self.keys, self.values, self.bias))
        read = bias[..., :used] if used > self._whole else None
        tags = self.tags[layer, :, :, :used, 0] if self.tags.numel() else None
        present = self._slot(self.committed[layer])
        number = self._number(layer) if self._numbered else None
        return Past(keys[:, :, :used], values[:, :, :used], read, far, present, tags, number)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.tokens and self.bias.shape[3] != self._room():
            raise ValueError(
                f"This state has room for {self.bias.shape[3]} tokens, these settings for {self._room()}. "
                "Load it with the settings it was saved with."
            )

    def span(self, layer: int, ahead: int = 0) -> int:
        return min(self.committed[layer] + ahead, self.sink + self.recent) + 1

    def stats(self) -> Stats:
        frames = self.committed[-1]
        return Stats(min(frames, self.sink + self.recent) * self.tokens, frames * self.tokens, self._bytes())

    def phase(self) -> Hashable | None:
        """Once the window is full and planned for: the next slot, and whether there will be a new plan.

        Never for a numbered pattern: a key is one frame older each time.
        """
        frame = self.committed[0]
        moves = self.reach is not None and (frame + 1) % REBASE == 0
        if frame < self.sink + self.recent or moves or self._numbered or len(set(self.committed)) > 1:
            return None
        if not self._settled([self._used(layer) for layer in range(self.layers)]):
            return None
        return (frame - self.sink) % (self.recent + 1), self._due(frame + 1)

    def advance(self) -> None:
        self.committed = [frame + 1 for frame in self.committed]

    def _slot(self, frame: int) -> slice:
        """Where in the buffer the frame with this number is."""
        slot = frame if frame < self.sink else self.sink + (frame - self.sink) % (self.recent + 1)
        return slice(slot * self.tokens, (slot + 1) * self.tokens)

    def _number(self, layer: int) -> Tensor:
        """Which token of the game is in each place that is used for whole frames [1, 1, m]."""
        now, ring = self.committed[layer], self.recent + 1
        slots = range(1 + min(now, self.sink + self.recent))
        frames = [i if i < self.sink else now - (now - i) % ring for i in slots]
        first = torch.tensor(frames, device=self.keys.device)[:, None] * self.tokens
        return (first + torch.arange(self.tokens, device=self.keys.device)).view(1, 1, -1)

    @property
    def _whole(self) -> int:
        """Tokens of the part that holds whole frames, the present one included."""
        return (1 + self.sink + self.recent) * self.tokens

    def _used(self, layer: int) -> int:
        """Tokens of the buffer that a layer reads."""
        return (1 + min(self.committed[layer], self.sink + self.recent)) * self.tokens

    def _allocate(self, k: Tensor) -> None:
        b, h, self.tokens, d = k.shape
        self.keys, self.values = (k.new_zeros(self.layers, b, h, self._room(), d) for _ in range(2))
        wide = torch.promote_types(k.dtype, torch.float32)
        self.bias = torch.zeros(self.layers, b, 1, self._room(), device=k.device, dtype=wide)

    def _room(self) -> int:
        return self._whole

    def _see(self, layer: int, slot: slice, where: Tensor) -> None:
        """The present frame of a layer is in this slot now, and its tokens at these positions."""

    def _leave(self, layer: int, slot: slice) -> None:
        """A layer is about to give the slot of this frame to the next one."""

    def _rebase(self, layer: int, reach: int) -> None:
        """Move the sink of a layer forward in time, so that it lies no farther back than `reach`."""
        sink = slice(self.sink * self.tokens)
        first = torch.arange(self.sink, device=self.keys.device).repeat_interleave(self.tokens)
        keys = self.keys[layer, :, :, sink]
        keys.copy_(self.rope.in_time(keys, self._overdue(first, self.committed[layer], reach)))

    @staticmethod
    def _overdue(frame: Tensor, now: int, reach: int) -> Tensor:
        """By how many frames to move what was seen at `frame`; the last move is REBASE frames ago."""
        return (now - reach - frame).clamp_min(0) - (now - REBASE - reach - frame).clamp_min(0)

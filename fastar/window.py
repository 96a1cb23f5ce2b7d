"""Window + sink: the first frames and the last ones, nothing between. The rival at an equal budget."""

import torch
from torch import Tensor

from .attention import attend
from .memory import Remembering, Stats
from .rope import AxialRope, turn


class WindowSink(Remembering):
    """Keep the first `sink` frames and the last `recent` frames whole.

    One buffer of fixed size holds, in this order, the present frame, the sink, a ring of recent frames
    and whatever a subclass keeps beyond them, so that what is in use is always a prefix of it.
    """

    _state = ("keys", "values", "bias", "frames", "tokens")

    def __init__(self, rope: AxialRope, *, sink: int = 1, recent: int = 16) -> None:
        if sink < 0 or recent < 1:
            raise ValueError(f"A window needs sink >= 0 and recent >= 1 frames, got {sink} and {recent}.")
        self.rope, self.sink, self.recent = rope, sink, recent
        self.reset()

    def reset(self) -> None:
        self.keys: Tensor = torch.empty(0)
        self.values: Tensor = torch.empty(0)
        self.bias: Tensor = torch.empty(0)
        self.frames = 0  # committed so far
        self.tokens = 0  # per frame
        self._ready = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        if not self.tokens:
            self._allocate(k)
        if k.shape[-2] != self.tokens:
            raise ValueError(f"This memory holds frames of {self.tokens} tokens but was given {k.shape[-2]}; reset it.")
        angles = self.rope.angles(where)
        self.keys[:, :, : self.tokens] = turn(k, angles)
        self.values[:, :, : self.tokens] = v
        self._ready = True
        self._look(k, where)
        used = self._used()
        bias = self.bias[:, :used] if used > self._whole else None
        return attend(turn(q, angles), self.keys[:, :, :used], self.values[:, :, :used], bias)

    def commit(self) -> None:
        if not self._ready:
            raise RuntimeError("Nothing to commit: call attend with the frame to remember first.")
        self._ready = False
        slot = self._slot(self.frames)
        if self.frames >= self.sink + self.recent:
            self._leave(slot)
        self._keep(slot)
        self.frames += 1

    def stats(self) -> Stats:
        kept = min(self.frames, self.sink + self.recent) * self.tokens
        return Stats(kept, self.frames * self.tokens, self._bytes())

    def _slot(self, frame: int) -> int:
        """Where in the buffer, counted in frames, the frame with this number is kept."""
        return 1 + (frame if frame < self.sink else self.sink + (frame - self.sink) % self.recent)

    @property
    def _whole(self) -> int:
        """Tokens of the part that holds whole frames, the present one included."""
        return (1 + self.sink + self.recent) * self.tokens

    def _used(self) -> int:
        return (1 + min(self.frames, self.sink + self.recent)) * self.tokens

    def _extra(self) -> int:
        """Entries a subclass keeps beyond the whole frames."""
        return 0

    def _allocate(self, k: Tensor) -> None:
        b, h, self.tokens, d = k.shape
        room = self._whole + self._extra()
        self.keys, self.values = (k.new_zeros(b, h, room, d) for _ in range(2))
        self.bias = torch.zeros(b, room, device=k.device, dtype=torch.promote_types(k.dtype, torch.float32))

    def _look(self, k: Tensor, where: Tensor) -> None:
        """What a subclass wants to know of the present frame before its keys are turned in time."""

    def _keep(self, slot: int) -> None:
        """Move the present frame to a slot."""
        n = self.tokens
        for buffer in (self.keys, self.values):
            buffer[:, :, slot * n : (slot + 1) * n] = buffer[:, :, :n]

    def _leave(self, slot: int) -> None:
        """The frame in this slot is about to be overwritten."""

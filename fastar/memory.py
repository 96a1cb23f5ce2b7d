"""What one attention layer remembers of earlier frames, and how the present frame reads it.

Two verbs instead of a mode flag: `attend` reads the past together with the frame's own keys and
leaves the past alone, however often it is called; `commit` makes what `attend` saw last part of the
past. A denoising pass attends; a clean pass attends and commits.

Axes: b batch, h heads, n tokens of the present frame, d head width.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .attention import attend
from .rope import AxialRope, turn


@dataclass(frozen=True)
class Stats:
    """Tokens per layer now `kept` as entries, tokens ever `seen`, and the `bytes` held for them."""

    kept: int
    seen: int
    bytes: int

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(self.kept + other.kept, self.seen + other.seen, self.bytes + other.bytes)


class Memory(Protocol):
    """One layer's past. q and k come un-rotated, [b, h, n, d]; `where` [n, 3] are their (t, y, x)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor: ...

    def commit(self) -> None: ...

    def reset(self) -> None: ...

    def stats(self) -> Stats: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Remembering:
    """State handling shared by the memories: every attribute named in `_state` is saved and restored."""

    _state: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        return {name: _copy(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self._state):
            raise ValueError(
                f"This {type(self).__name__} memory was given the state of another kind: got {sorted(state)}, "
                f"expected {sorted(self._state)}. Load it with the memory it was saved from."
            )
        for name, value in state.items():
            setattr(self, name, _copy(value))

    def _bytes(self) -> int:
        held = (getattr(self, name) for name in self._state)
        return sum(x.numel() * x.element_size() for x in held if isinstance(x, Tensor))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class Dense(Remembering):
    """Keep every token for ever: the definition that every other memory is measured against.

    The buffer doubles when it is full, so a pass never copies the past; the present frame's keys sit
    in its tail, where the next `attend` overwrites them and `commit` keeps them.
    """

    _state = ("keys", "values", "length")

    def __init__(self, rope: AxialRope) -> None:
        self.rope = rope
        self.reset()

    def reset(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.length = 0
        self._present = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        self._present = k.shape[-2]
        end = self.length + self._present
        keys, values = self._reserve(k, v, end)
        angles = self.rope.angles(where)
        keys[:, :, self.length : end] = turn(k, angles)
        values[:, :, self.length : end] = v
        return attend(turn(q, angles), keys[:, :, :end], values[:, :, :end])

    def commit(self) -> None:
        if not self._present:
            raise RuntimeError("Nothing to commit: call attend with the frame to remember first.")
        self.length += self._present
        self._present = 0

    def stats(self) -> Stats:
        return Stats(self.length, self.length, self._bytes())

    def _reserve(self, k: Tensor, v: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None:
            self.keys, self.values = (torch.empty_like(x).repeat(1, 1, 16, 1) for x in (k, v))
        while self.keys.shape[2] < tokens:
            self.keys, self.values = (torch.cat([x, torch.empty_like(x)], 2) for x in (self.keys, self.values))
        return self.keys, self.values

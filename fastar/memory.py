"""What a network remembers of earlier frames, and how each of its layers reads it.

Two verbs instead of a mode flag: `attend` reads the past together with the frame's own keys and
leaves the past alone, however often it is called; `commit` makes what `attend` saw last part of the
past. A denoising pass attends; a clean pass attends and commits, layer after layer.

Axes: l layers, b batch, h heads, n tokens of the present frame, d head width.
"""

import copy
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import attend
from .rope import AxialRope


@dataclass(frozen=True)
class Stats:
    """Tokens a layer keeps as entries, the mean over layers; tokens it has ever seen; bytes of all layers."""

    kept: int
    seen: int
    bytes: int


class Past(NamedTuple):
    """What a layer may read: keys, rotated, and values [b, h, m, d]; bias [b, h or 1, m] if there is one.

    `far` are the keys that a pattern may leave out. The `present` frame, the last ones and the sink are not.
    `tags` [b, h, m] are what the pattern said of each key when it was new, if it says anything.
    `number` [b or 1, h or 1, m], for a pattern that asks: which token of the game each key is, from 0.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None
    far: slice
    present: slice = slice(0)
    tags: Tensor | None = None
    number: Tensor | None = None


class Beside(NamedTuple):
    """More tokens of the pass that ask, are read, and are not kept: k, v [b, h, j, d], their positions."""

    k: Tensor
    v: Tensor
    where: Tensor


class Pattern(Protocol):
    """Which part of its past a frame reads. Stateless: what it plans, the memory keeps.

    `plan` is asked for every `every` frames, never where that is None; `read` is attention of rotated q,
    under the plan of last time. `step` is how often this layer was asked since it last committed: the pass of
    a frame's denoising. A `numbered` pattern asks which token of the game each key is, so it takes frames of
    one size and no memory whose keys stand for several.
    """

    @property
    def numbered(self) -> bool: ...

    @property
    def every(self) -> int | None: ...

    def tag(self, layer: int, k: Tensor) -> Tensor | None:
        """A word [b, h, n], int16, for each key of the present frame, to be kept with it; None for none."""
        ...

    def plan(self, layer: int, past: Past) -> Any: ...

    def read(self, layer: int, q: Tensor, past: Past, plan: Any, step: int) -> Tensor: ...


class Memory(Protocol):
    """The past of every layer. q and k come un-rotated, [b, h, n, d]; `where` [n, axes] their positions.

    With tokens `beside` those that may be kept, q has their queries, too, after the others.
    """

    layers: int
    rope: AxialRope

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor, beside: Beside | None = None
    ) -> Tensor: ...

    def commit(self, layer: int) -> None: ...

    def reset(self) -> None: ...

    def span(self, layer: int, ahead: int = 0) -> int:
        """Frames that the next `attend` of a layer is spread over, or that after `ahead` commits."""
        ...

    def stats(self) -> Stats: ...

    def phase(self) -> Hashable | None:
        """Which way bookkeeping on the host goes in the next frame, or None where it goes no way again.

        Two frames of one phase do the same to the same tensors, but for what is in them: a CUDA graph of
        the one is good for the other, followed by `advance`.
        """
        ...

    def advance(self) -> None:
        """Do on the host what attending to a frame in every layer and committing it does there."""
        ...

    def fix(self) -> None:
        """Be read, as soon as the window is full, as if what lies beyond it were: empty places and all.

        Then shapes stay from there on, so that graphs need not wait. Nothing else changes.
        """

    def fuse(self) -> None:
        """Compile what can be, for a GPU, where small kernels take the time."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Remembering:
    """What memories share. Every attribute named in `_state` is saved and restored.

    `merges` says whether one key may stand for many tokens.
    """

    merges = False
    _state: tuple[str, ...] = ("plans", "steps")
    layers: int
    rope: AxialRope
    pattern: Pattern | None

    def state_dict(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self._state):
            raise ValueError(
                f"This {type(self).__name__} memory was given the state of another kind: "
                f"got {sorted(state)}, expected {sorted(self._state)}. "
                "Load it with the memory it was saved from."
            )
        self.reset()
        for name, value in state.items():
            setattr(self, name, copy.deepcopy(value))

    def reset(self) -> None:
        self.plans: list[Any] = [None] * self.layers
        self.steps = [0] * self.layers  # questions since the last commit
        self._planned = [-1] * self.layers  # keys there were when a layer last planned

    def phase(self) -> Hashable | None:
        return None  # what grows never does the same twice

    def advance(self) -> None:
        raise RuntimeError("This memory has no phase to advance in.")

    def fix(self) -> None:
        pass

    def fuse(self) -> None:
        pass

    def _beside(self, past: Past, q: Tensor, beside: Beside) -> tuple[Past, Tensor]:
        """The past with what is beside it, and rotated q with the queries that q [b, h, j, d] asks there."""
        if past.tags is not None or past.number is not None:
            raise ValueError(
                f"{type(self.pattern).__name__} goes by words, or by when a key was seen, which is not known "
                "of tokens beside a frame; take another pattern, or none."
            )
        joined = past._replace(
            keys=torch.cat([past.keys, self.rope(beside.k, beside.where)], 2),
            values=torch.cat([past.values, beside.v], 2),
            bias=None if past.bias is None else F.pad(past.bias, (0, beside.k.shape[2])),
        )
        return joined, self.rope(q, beside.where)

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        """Attention of rotated q over the past, or over the part that the pattern chooses."""
        if self.pattern is None:
            return attend(q, past.keys, past.values, past.bias)
        step = self.steps[layer]
        self.steps[layer] += q.shape[2] > 0
        return self.pattern.read(layer, q, past, self.plans[layer], step)

    def _due(self, frame: int) -> bool:
        """Whether the pattern wants a new plan now that so many frames are committed."""
        return self.pattern is not None and self.pattern.every is not None and frame % self.pattern.every == 0

    def _replan(self, layer: int, past: Past) -> None:
        assert self.pattern is not None
        self._planned[layer] = past.keys.shape[2]
        before, plan = self.plans[layer], self.pattern.plan(layer, past)
        known, new = _tensors(before), _tensors(plan)
        if known and [x.shape for x in known] == [x.shape for x in new]:
            torch._foreach_copy_(known, new)  # pyright: ignore[reportPrivateImportUsage]
        else:
            self.plans[layer] = plan

    def _settled(self, keys: list[int]) -> bool:
        """Whether each layer has a plan for so many keys: then the next one will be of the same shape."""
        return self.pattern is None or self.pattern.every is None or self._planned == keys

    def _tag(self, layer: int, k: Tensor) -> Tensor | None:
        return None if self.pattern is None else self.pattern.tag(layer, k)

    @property
    def _numbered(self) -> bool:
        return self.pattern is not None and self.pattern.numbered

    def _bytes(self) -> int:
        return sum(x.nbytes for name in self._state for x in _tensors(getattr(self, name)))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, list | tuple):
        return [x for part in value for x in _tensors(part)]
    return [value] if isinstance(value, Tensor) else []


def rows(x: Tensor, index: Tensor) -> Tensor:
    """x [r, m, ...] at index [r, n] -> [r, n, ...]."""
    return x[torch.arange(len(x), device=x.device)[:, None], index]


class Dense(Remembering):
    """Keep every token for ever: the definition that every other memory is measured against.

    A layer's buffer doubles when it is full, so a pass never copies the past; the present frame's keys
    sit in its tail, where the next `attend` overwrites them and `commit` keeps them. A pattern may leave out
    what is older than `recent` passes, but for the first.
    """

    _state = (*Remembering._state, "keys", "values", "tags", "lengths", "commits")

    def __init__(
        self, layers: int, rope: AxialRope, *, pattern: Pattern | None = None, recent: int = 16
    ) -> None:
        self.layers, self.rope, self.pattern, self.recent = layers, rope, pattern, recent
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.keys: list[Tensor | None] = [None] * self.layers
        self.values: list[Tensor | None] = [None] * self.layers
        self.tags: list[Tensor | None] = [None] * self.layers
        self.lengths = [0] * self.layers
        self.commits = [0] * self.layers
        self._present = [0] * self.layers

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor, beside: Beside | None = None
    ) -> Tensor:
        q, more = q[:, :, : k.shape[2]], q[:, :, k.shape[2] :]
        start = self.lengths[layer]
        self._present[layer] = k.shape[-2]
        end = start + k.shape[-2]
        keys, values = self._reserve(layer, k, v, end)
        q = self.rope.settle(q, k, v, where, *(x[:, :, start:end] for x in (keys, values)))
        tag, before = self._tag(layer, k), self.tags[layer]
        if tag is not None:
            self.tags[layer] = tag if before is None else torch.cat([before[:, :, :start], tag], 2)
        past = self._past(layer, end)
        if beside is not None:
            past, more = self._beside(past, more, beside)
            q = torch.cat([q, more], 2)
        return self._read(layer, q, past)

    def commit(self, layer: int) -> None:
        if not self._present[layer]:
            raise RuntimeError("Nothing to commit: call attend with the frame to remember first.")
        self.lengths[layer] += self._present[layer]
        self._present[layer] = 0
        self.commits[layer] += 1
        self.steps[layer] = 0
        if self._due(self.commits[layer]):
            self._replan(layer, self._past(layer, self.lengths[layer]))

    def _past(self, layer: int, end: int) -> Past:
        keys, values, tags = self.keys[layer], self.values[layer], self.tags[layer]
        assert keys is not None and values is not None
        frame = self.lengths[layer] // max(1, self.commits[layer])
        far = slice(min(end, frame), max(min(end, frame), self.lengths[layer] - self.recent * frame))
        present = slice(self.lengths[layer], end)
        number = torch.arange(end, device=keys.device)[None, None] if self._numbered else None
        return Past(keys[:, :, :end], values[:, :, :end], None, far, present, tags, number)

    def span(self, layer: int, ahead: int = 0) -> int:
        return self.commits[layer] + ahead + 1

    def stats(self) -> Stats:
        return Stats(self.lengths[-1], self.lengths[-1], self._bytes())

    def _reserve(self, layer: int, k: Tensor, v: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None:
            b, h, n, d = k.shape
            keys, values = k.new_empty(b, h, 16 * n, d), v.new_empty(b, h, 16 * n, d)
        while keys.shape[2] < tokens:
            keys, values = (torch.cat([x, torch.empty_like(x)], 2) for x in (keys, values))
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

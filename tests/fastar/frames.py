"""Made-up frames of two rows of three tokens, and how a memory plays them. All in float64."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fastar import AxialRope, Dense, Memory, TempCache, WindowSink
from fastar.rivals import R1KV, RandomEviction, UniformFrames

HEADS, WIDTH, TOKENS = 2, 8, 6
ROPE = AxialRope((4, 2, 2))
TIMELESS = AxialRope((0, 4, 4))  # does not turn in time, so equal keys stay equal

MAKERS = {
    "dense": lambda layers=1: Dense(layers, ROPE),
    "window_sink": lambda layers=1: WindowSink(layers, ROPE, sink=1, recent=2),
    "tempcache": lambda layers=1: TempCache(layers, ROPE, sink=1, recent=2, far=16),
    "random": lambda layers=1: RandomEviction(layers, ROPE, sink=1, recent=2, far=16),
    "uniform": lambda layers=1: UniformFrames(layers, ROPE, sink=1, recent=2, far=16),
    "flowcache": lambda layers=1: R1KV(layers, ROPE, sink=1, recent=2, far=16),
}


class Frame(NamedTuple):
    """What a layer hands its memory: q, k, v [b, h, n, d] and positions [n, 3]."""

    q: Tensor
    k: Tensor
    v: Tensor
    where: Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def where(time: int, rows: int = 2, columns: int = 3) -> Tensor:
    y, x = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    return torch.stack([torch.full_like(y, time), y, x], -1).float()


def film(count: int, *, seed: int = 0, batch: int = 2, stay: float = 0.5) -> list[Frame]:
    """A scene in which each token has changed from one frame to the next with probability 1 - `stay`."""
    shape = (batch, HEADS, TOKENS, WIDTH)
    q, v, fresh, shiver = normal(4, count, *shape, seed=seed)
    same = torch.rand(count, batch, 1, TOKENS, 1, generator=torch.Generator().manual_seed(seed)) < stay
    frames, k = [], fresh[0]
    for t in range(count):
        k = torch.where(same[t], k + 0.02 * shiver[t], fresh[t])
        frames.append(Frame(q[t], k, v[t], where(t)))
    return frames


def play(memory: Memory, frames: list[Frame]) -> list[Tensor]:
    return list(playing(memory, frames))


def playing(memory: Memory, frames: list[Frame]) -> Iterator[Tensor]:
    """Attend and commit, frame by frame; the state may be looked at between the outputs."""
    for frame in frames:
        output = memory.attend(0, *frame)
        memory.commit(0)
        yield output


def softmax_over(now: Frame, past: list[Frame], rope: AxialRope) -> Tensor:
    """The definition: what a frame reads with all of these frames and its own before it."""
    seen = [*past, now]
    k = torch.cat([rope(frame.k, frame.where) for frame in seen], 2)
    v = torch.cat([frame.v for frame in seen], 2)
    return (rope(now.q, now.where) @ k.mT / WIDTH**0.5).softmax(-1) @ v

"""What a frame costs, and how far it is from dense attention's, at some lengths of the past.

Every method is given the same past of a `recorded` game, then dreams some frames itself; they are timed, and
held against those that dense attention dreams from there with the same seed and keys. A few more are dreamt
with a clock at every part. Lengths in between are not measured and not guessed.

Machines are busy at times, for minutes. So every frame is dreamt in turns with one of the same world with a
window of 32 frames, and what it costs is told in these, too: that ratio can be compared between methods.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from fastar import WindowSink

from ..evaluation.fidelity import fidelity
from ..evaluation.pace import typical
from ..evaluation.results import Row
from ..world import World
from .recorded import Filling, Recording

WARM, TIMED, BLOCKS, SPLIT = 2, 8, 3, 4  # frames at each length; so many blocks of the timed ones
SETTLED = 2 * TIMED  # frames without a new graph, after which none is to come: at times every eighth has one
PATIENCE = 20.0  # seconds of timed frames after which no further block begins
PARTS = ("linear", "attention", "search", "commit", "prompt", "decode")


def rollout(
    world: World,
    recording: Recording,
    lengths: Sequence[int],
    dense: Mapping[int, np.ndarray] | None = None,
    keep: Callable[[int, np.ndarray], None] = lambda length, frames: None,
    judge: Callable[[np.ndarray], float] | None = None,
) -> Iterator[Row]:
    """A row for each length. `dense` are the frames to hold against, `keep` is given ours.

    fps        from keys to picture: by the mean of eight frames, since something is planned every eighth, and
               the median of some such means
    cost       the same in frames with a window, dreamt in turns
    ms of ...  the parts of a frame, each without what is counted as another: see `Split`
    psnr, ssim of the first ten frames against dense attention's, their mean
    frechet    what `judge` says of them: how far they are from the game's own pictures
    """
    window = world.beside(partial(WindowSink, recent=32))
    worlds = [(x, Filling(x.memory, recording, x.dtype)) for x in (window, world)]
    for length in sorted(lengths):
        for each, filling in worlds:
            filling.fill(length - 1)  # the last frame is remembered with the next
            each.load_state_dict(recording.moments[length])
        frames, took, known, last = [], [], recorded(worlds), 0
        while len(took) < max(WARM, last + SETTLED * world.graphs):
            took.append([lap(each, recording, frames) for each, _ in worlds])
            if recorded(worlds) > known:
                known, last = recorded(worlds), len(took)
        warm = len(took)
        while not enough(took[warm:]):
            took.append([lap(each, recording, frames) for each, _ in worlds])
        beside, ours = (typical(each, TIMED) for each in zip(*took[warm:], strict=True))
        frames = frames[1::2][: WARM + TIMED]
        stats, pictures = world.stats(), np.stack(frames)
        keep(length, pictures)
        row: Row = {"frame": length, "fps": 1 / float(ours), "cost": float(ours / beside)}
        row |= {f"ms of {part}": ms for part, ms in split(world, recording, SPLIT).items()}
        row |= {"kept": stats.kept, "seen": stats.seen, "cache MB": stats.bytes / 1e6}
        if dense is not None:
            found = fidelity(pictures, list(dense[length]))
            row |= {name: found[name] for name in ("psnr", "ssim")}
        if judge is not None:
            row["frechet"] = judge(pictures)
        for each, filling in worlds:
            filling.frames = each.frame_index - 1
        yield row


def recorded(worlds: Sequence[tuple[World, Filling]]) -> int:
    """Graphs so far: a frame that has none yet takes many times as long."""
    return sum(len(each._graphs.known) for each, _ in worlds if each._graphs)


def enough(took: Sequence[Sequence[float]]) -> bool:
    """Whether all blocks are whole, or as many as there is patience for."""
    blocks, inside = divmod(len(took), TIMED)
    return blocks >= 1 and not inside and (blocks == BLOCKS or float(np.sum(took)) > PATIENCE)


def lap(world: World, recording: Recording, frames: list[np.ndarray]) -> float:
    """Seconds from the keys to the picture of one frame, which is added to the others."""
    held = recording.keys(world.frame_index)
    start = time.perf_counter()
    frames.append(world.decode(world.step(held)))
    return time.perf_counter() - start


def split(world: World, recording: Recording, frames: int) -> dict[str, float]:
    """Milliseconds of each part of a frame, the mean over some."""
    with Split(world).watching() as clock:
        for i in range(-TIMED if world.graphs else 0, frames):
            if i == 0:  # before, what was in graphs is compiled to be launched one by one
                clock.forget()
            world.decode(world.step(recording.keys(world.frame_index)))
    return {part: 1e3 * clock.spent[part] / frames for part in PARTS}


class Split:
    """A clock at the parts of a frame, each without the parts that are called by it.

    Search is finding the entries most alike, and sorting and choosing buckets. Linear is all that has no
    other name: the layers between their reads, the odometer, what the host does.
    """

    def __init__(self, world: World) -> None:
        memory, pattern = world.memory, getattr(world.memory, "pattern", None)
        self.world, self.device = world, world.device
        self.forget()
        self._inside: list[float] = []  # seconds of the parts within each part that is running
        self.watched: list[tuple[Any, str, str]] = [
            (world, "step", "linear"),
            (world, "decode", "decode"),
            (world.cross, "read", "prompt"),
            (memory, "attend", "attention"),
            (memory, "commit", "commit"),
            (memory, "_most_alike", "search"),
            (pattern, "plan", "search"),
            (pattern, "choose", "search"),
        ]

    def forget(self) -> None:
        self.spent: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def watching(self) -> Iterator["Split"]:
        with ExitStack() as stack:
            stack.callback(setattr, self.world, "_graphs", self.world._graphs)
            self.world._graphs = None
            for thing, name, part in self.watched:
                if hasattr(thing, name):
                    setattr(thing, name, self._timed(getattr(thing, name), part))
                    stack.callback(delattr, thing, name)
            yield self

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @torch.compiler.disable  # what is compiled may call a part, and no clock can be
        def timed(*arguments: Any, **options: Any) -> Any:
            start = self._now()
            self._inside.append(0.0)
            found = function(*arguments, **options)
            took = self._now() - start
            self.spent[part] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took
            return found

        return timed

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

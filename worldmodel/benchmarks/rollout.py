"""What a frame costs, and how far it is from dense attention's, at some lengths of the past.

Every method is given the same past of a `recorded` game, then dreams some frames itself; they are timed, and
held against those that dense attention dreams from there with the same seed and keys. A few more are dreamt
with a clock at every part. Lengths in between are not measured and not guessed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ..evaluation.quality import psnr, ssim
from ..evaluation.results import Row
from ..world import World
from .recorded import Filling, Recording

WARM, TIMED, SPLIT = 2, 8, 4  # frames at each length
PARTS = ("linear", "attention", "search", "commit", "prompt", "decode")


def rollout(
    world: World,
    recording: Recording,
    lengths: Sequence[int],
    dense: Mapping[int, np.ndarray] | None = None,
    keep: Callable[[int, np.ndarray], None] = lambda length, frames: None,
) -> Iterator[Row]:
    """A row for each length. `dense` are the frames to hold against, `keep` is given ours.

    fps        from keys to picture, by the mean of eight frames: what is planned every eighth is in it
    ms of ...  the parts of a frame, each without what is counted as another: see `Split`
    psnr, ssim of the frames against dense attention's, their mean
    """
    filling = Filling(world.memory, recording, world.dtype)
    for length in sorted(lengths):
        filling.fill(length - 1)  # the last frame is remembered with the next
        world.load_state_dict(recording.moments[length])
        frames, took = [], []
        for _ in range(WARM + TIMED):
            held = recording.keys(world.frame_index)
            start = time.perf_counter()
            frames.append(world.decode(world.step(held)))
            took.append(time.perf_counter() - start)
        stats, pictures = world.stats(), np.stack(frames)
        keep(length, pictures)
        row: Row = {"frame": length, "fps": 1 / float(np.mean(took[WARM:]))}
        row |= {f"ms of {part}": ms for part, ms in split(world, recording, SPLIT).items()}
        row |= {"kept": stats.kept, "seen": stats.seen, "cache MB": stats.bytes / 1e6}
        if dense is not None:
            row["psnr"] = float(psnr(pictures, dense[length]).mean())
            row["ssim"] = float(
                np.mean([ssim(a, b).mean() for a, b in zip(pictures, dense[length], strict=True)])
            )
        filling.frames = world.frame_index - 1
        yield row


def split(world: World, recording: Recording, frames: int) -> dict[str, float]:
    """Milliseconds of each part of a frame, the mean over some."""
    with Split(world).watching() as clock:
        for _ in range(frames):
            world.decode(world.step(recording.keys(world.frame_index)))
    return {part: 1e3 * clock.spent[part] / frames for part in PARTS}


class Split:
    """A clock at the parts of a frame, each without the parts that are called by it.

    Search is finding the entries most alike, and sorting and choosing buckets. Linear is all that has no
    other name: the layers between their reads, the odometer, what the host does.
    """

    def __init__(self, world: World) -> None:
        memory, pattern = world.memory, getattr(world.memory, "pattern", None)
        self.device = world.device
        self.spent: dict[str, float] = dict.fromkeys(PARTS, 0.0)
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

    @contextmanager
    def watching(self) -> Iterator["Split"]:
        with ExitStack() as stack:
            for thing, name, part in self.watched:
                if hasattr(thing, name):
                    setattr(thing, name, self._timed(getattr(thing, name), part))
                    stack.callback(delattr, thing, name)
            yield self

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
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

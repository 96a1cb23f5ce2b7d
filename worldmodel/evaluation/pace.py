"""What a frame costs as play goes on: time, tokens, memory."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import torch

from ..world import World
from .clips import Clips


def pace(
    world: World, clips: Clips, *, frames: int, history: int = 16, every: int = 100
) -> Iterator[dict[str, Any]]:
    """Play one game for so many frames, its keys repeated; a row every `every` frames, and for the last.

    ms is the `typical` time of the frames since the last row, from keys to picture. On a GPU the most memory
    it has held until then is told, too.
    """
    cuda = world.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begin(world, clips, history)
    process = psutil.Process()
    took = []
    for i in range(1, frames + 1):
        took.append(lap(world, clips))
        if i % every == 0 or i == frames:
            stats = world.stats()
            seconds = typical(took)
            row = {
                "frame": i,
                "ms": 1e3 * seconds,
                "fps": 1 / seconds,
                "kept": stats.kept,
                "seen": stats.seen,
                "cache MB": stats.bytes / 1e6,
                "rss MB": process.memory_info().rss / 1e6,
            }
            yield row | ({"peak MB": torch.cuda.max_memory_allocated() / 1e6} if cuda else {})
            took = []


def in_turns(
    old: World, fresh: World, clips: Clips, *, frames: int = 100, fill: int = 60, history: int = 16
) -> dict[str, float]:
    """A long game and a fresh one, frame by frame in turns, so that both meet the same machine.

    The fresh one first plays `fill` frames, until its budget is full. Returns the median time of either.
    """
    begin(fresh, clips, history)
    for _ in range(fill):
        lap(fresh, clips)
    took = np.array([(lap(old, clips), lap(fresh, clips)) for _ in range(frames)])
    late, early = 1e3 * np.median(took, 0)
    return {
        "frame": old.frame_index,
        "ms": float(late),
        "ms of a fresh game": float(early),
        "flat": float(early / late),
    }


def typical(took: Sequence[float], together: int = 8) -> float:
    """The median of the means of so many frames in a row, since something is planned every eighth."""
    blocks = len(took) // together
    return float(np.median(np.reshape(took[: blocks * together], (blocks, -1)).mean(1) if blocks else took))


def begin(world: World, clips: Clips, history: int) -> None:
    world.reset(clips.frames[:1, :history], clips.keys[:1, :history], clips.prompts[:1])


def lap(world: World, clips: Clips) -> float:
    """Seconds from the clip's keys to the picture of one frame."""
    keys = clips.keys[0, world.frame_index % clips.keys.shape[1]]
    start = time.perf_counter()
    world.decode(world.step(keys))
    return time.perf_counter() - start

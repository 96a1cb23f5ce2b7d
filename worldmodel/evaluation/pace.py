"""What a frame costs as play goes on: time, tokens, memory."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from ..world import World
from .clips import Clips


def pace(
    world: World, clips: Clips, *, frames: int, history: int = 16, every: int = 100
) -> Iterator[dict[str, Any]]:
    """Play one game for so many frames, its keys repeated; a row every `every` frames.

    ms is the median time of the frames since the last row, from keys to picture.
    """
    world.reset(clips.frames[:1, :history], clips.keys[:1, :history], clips.prompts[:1])
    process = psutil.Process()
    took = []
    for i in range(1, frames + 1):
        keys = clips.keys[0, (history + i) % clips.keys.shape[1]]
        start = time.perf_counter()
        world.decode(world.step(keys))
        took.append(time.perf_counter() - start)
        if i % every == 0:
            stats = world.stats()
            yield {
                "frame": i,
                "ms": 1e3 * float(np.median(took)),
                "fps": 1 / float(np.median(took)),
                "kept": stats.kept,
                "seen": stats.seen,
                "cache MB": stats.bytes / 1e6,
                "rss MB": process.memory_info().rss / 1e6,
            }
            took = []

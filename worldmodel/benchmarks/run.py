"""A game played from its first frame to its last, for what no sample can show: that nothing builds up."""

import time
from collections.abc import Iterator

import numpy as np
import torch

from ..evaluation.clips import Clips
from ..evaluation.results import Row
from ..world import World
from .recorded import HISTORY

MEDIAN = 200  # frames before a row's, whose median it tells


def run(world: World, clips: Clips, frames: int, every: int) -> Iterator[Row]:
    """A row every so many frames: FPS from keys to picture, and the most memory a GPU has held until then."""
    world.reset(clips.frames[:1, :HISTORY], clips.keys[:1, :HISTORY], clips.prompts[:1])
    cuda = world.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    took = []
    for frame in range(1, frames + 1):
        held = clips.keys[:1, frame % clips.keys.shape[1]]
        start = time.perf_counter()
        world.decode(world.step(held))
        took.append(time.perf_counter() - start)
        if frame % every == 0 or frame == frames:
            stats = world.stats()
            row: Row = {"frame": frame, "fps": 1 / float(np.median(took[-MEDIAN:]))}
            row |= {"kept": stats.kept, "seen": stats.seen, "cache MB": stats.bytes / 1e6}
            if cuda:
                row["peak MB"] = torch.cuda.max_memory_allocated() / 1e6
            yield row

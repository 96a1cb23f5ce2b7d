"""A long game, played once: any memory can be given its past, and any world its moments.

Filling a memory with keys and values costs a hundredth of dreaming them, so methods are compared at frame
3,000 without any of them playing up to there. The game is played with a window of whole frames, whose cost
does not grow: real frames while there are any, dreams after that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fastar import Memory, WindowSink
from fastar.prompt_buckets import PromptBuckets

from ..evaluation.clips import Clips
from ..evaluation.tape import Tape, recording
from ..world import World

HISTORY = 16  # real frames before the first step


@dataclass
class Recording:
    """tape: what each layer remembers, and questions at the moments; moments: states by frame, no memory."""

    tape: Tape
    moments: dict[int, dict[str, Any]]
    clips: Clips

    def keys(self, frame: int):
        """Held [b, 9] when this frame comes; the clip's, again and again."""
        return self.clips.keys[:, frame % self.clips.keys.shape[1]]


class Filling:
    """A memory that is given the past of a recording piece by piece.

    Its pattern plans nothing meanwhile, only from the next commit on: sorting the keys of every eighth frame
    of thousands that nobody reads would take most of the time.
    """

    def __init__(self, memory: Memory, recording: Recording, dtype: torch.dtype) -> None:
        self.memory, self.dtype, self.frames = memory, dtype, 0
        self.past = list(zip(*recording.tape.shown.events, strict=True))

    def fill(self, frames: int) -> None:
        """Up to so many frames; those that it has already, dreamt ones too, stay."""
        with idle(self.memory):
            for moment in self.past[self.frames : frames]:
                for layer, event in enumerate(moment):
                    q, k, v = (x.to(self.dtype) for x in event[:3])
                    self.memory.attend(layer, q, k, v, event.where)
                    self.memory.commit(layer)
        self.frames = max(self.frames, frames)


@contextmanager
def idle(memory: Any) -> Iterator[None]:
    """The memory without its pattern. One that names every key as it comes must stay."""
    pattern = getattr(memory, "pattern", None)
    if pattern is None or isinstance(pattern, PromptBuckets):
        yield
        return
    memory.pattern = None
    try:
        yield
    finally:
        memory.pattern = pattern


@torch.no_grad()
def play(world: World, clips: Clips, lengths: Sequence[int], questions: int, window: int = 32) -> Recording:
    """Play until the longest of the lengths. `questions` frames are asked after each."""
    world = world.beside(recording(partial(WindowSink, recent=window)))
    recorder: Any = world.memory
    world.reset(clips.frames[:, :HISTORY], clips.keys[:, :HISTORY], clips.prompts)
    found = Recording(recorder.tape(), {}, clips)
    while world.frame_index < max(lengths) + questions:
        now = world.frame_index
        if now in lengths:
            found.moments[now] = {k: x for k, x in world.state_dict().items() if k != "memory"}
        recorder.listening = any(length <= now < length + questions for length in lengths)
        world.step(found.keys(now))
        if now < clips.frames.shape[1]:
            world.see(clips.frames[:, now])
    found.tape = recorder.tape()
    return found

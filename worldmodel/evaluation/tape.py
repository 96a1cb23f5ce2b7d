"""What a memory was asked in real play, recorded once, so that any other memory can be asked the same.

The past is real and read by dense attention, so every memory is judged on equal queries, keys and values,
and none pays for the network again.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastar import AxialRope, Beside, Dense, Memory

from ..world import World
from .clips import Clips


class Event(NamedTuple):
    """A frame that a layer remembers from here on, or, with a dense `answer` to it, a question."""

    q: Tensor
    k: Tensor
    v: Tensor
    where: Tensor
    answer: Tensor | None


class Recorder(Dense):
    """Dense attention that writes down what each layer remembers, and what it is asked while `listening`."""

    def __init__(self, layers: int, rope: AxialRope) -> None:
        super().__init__(layers, rope)
        self.listening = False
        self.events: list[list[Event]] = [[] for _ in range(layers)]
        self._last: list[Event | None] = [None] * layers

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor, beside: Beside | None = None
    ) -> Tensor:
        self.settle(layer)
        answer = super().attend(layer, q, k, v, where, beside)
        self._last[layer] = Event(q.clone(), k.clone(), v.clone(), where, answer)
        return answer

    def commit(self, layer: int) -> None:
        super().commit(layer)
        last = self._last[layer]
        assert last is not None
        nobody = last.q[:, :, :0]
        self.events[layer].append(Event(nobody, last.k, last.v, last.where, None))
        self._last[layer] = None

    def settle(self, layer: int) -> None:
        """What was asked and not committed was a question."""
        last = self._last[layer]
        if self.listening and last is not None and last.q.shape[2]:
            self.events[layer].append(last)
        self._last[layer] = None


class Tape:
    """A recording: the events of every layer, and the rope of its keys."""

    def __init__(self, events: list[list[Event]], rope: AxialRope) -> None:
        self.events, self.rope = events, rope

    @property
    def layers(self) -> int:
        return len(self.events)

    def ask(self, memory: Memory) -> Iterator[tuple[int, Event, Tensor]]:
        """Play the recording to a memory: at each question the layer, the question and the answer."""
        for moment in zip(*self.events, strict=True):
            for layer, event in enumerate(moment):
                answer = memory.attend(layer, *event[:4])
                if event.answer is None:
                    memory.commit(layer)
                else:
                    yield layer, event, answer


@torch.no_grad()
def record(world: World, clips: Clips, *, start: int, history: int = 16) -> Tape:
    """Play clips on real frames; questions are heard from frame `start` on. The world keeps its memory."""
    before = world.make_memory
    world.use(Recorder)
    recorder: Any = world.memory
    world.reset(clips.frames[:, :history], clips.keys[:, :history], clips.prompts)
    for i in range(history, clips.frames.shape[1]):
        recorder.listening = i >= start
        world.step(clips.keys[:, i])
        world.see(clips.frames[:, i])
    for layer in range(recorder.layers):
        recorder.settle(layer)
    world.use(before)
    return Tape(recorder.events, world.denoiser.rope)

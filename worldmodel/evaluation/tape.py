"""What a memory was asked in real play, recorded once, so that any other memory can be asked the same.

The past is real and read by dense attention, so every memory is judged on equal queries, keys and values,
and none pays for the network again.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastar import AxialRope, Beside, Dense, Memory

from ..world import MakeMemory, World
from .clips import Clips


class Event(NamedTuple):
    """A frame that a layer remembers from here on, or, with a dense `answer` to it, a question."""

    q: Tensor
    k: Tensor
    v: Tensor
    where: Tensor
    answer: Tensor | None


class Recorder:
    """A memory that writes down what each layer remembers, and what it is asked while `listening`."""

    def __init__(self, memory: Memory, layers: int) -> None:
        self.memory, self.rope, self.layers = memory, memory.rope, layers
        self.listening = False
        self.events: list[list[Event]] = [[] for _ in range(layers)]
        self._last: list[Event | None] = [None] * layers
        self._heard = [False] * layers

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor, beside: Beside | None = None
    ) -> Tensor:
        self._settle(layer)
        answer = self.memory.attend(layer, q, k, v, where, beside)
        self._last[layer] = Event(q.clone(), k.clone(), v.clone(), where, answer)
        self._heard[layer] = self.listening and q.shape[2] > 0
        return answer

    def commit(self, layer: int) -> None:
        self.memory.commit(layer)
        last = self._last[layer]
        assert last is not None
        nobody = last.q[:, :, :0]
        self.events[layer].append(Event(nobody, last.k, last.v, last.where, None))
        self._last[layer] = None

    def phase(self) -> None:
        """Writing grows: no frame does what another did."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)  # the rest of what a memory does, it does

    def tape(self) -> "Tape":
        """What was written down so far."""
        for layer in range(self.layers):
            self._settle(layer)
        return Tape(self.events, self.rope)

    def _settle(self, layer: int) -> None:
        """What was asked and not committed was a question."""
        last = self._last[layer]
        if last is not None and self._heard[layer]:
            self.events[layer].append(last)
        self._last[layer] = None


class Tape:
    """A recording: the events of every layer, and the rope of its keys."""

    def __init__(self, events: list[list[Event]], rope: AxialRope) -> None:
        self.events, self.rope = events, rope

    @property
    def layers(self) -> int:
        return len(self.events)

    @property
    def shown(self) -> "Tape":
        """Only what is remembered, without the questions."""
        return Tape([[e for e in events if e.answer is None] for events in self.events], self.rope)

    def ask(self, memory: Memory) -> Iterator[tuple[int, Event, Tensor]]:
        """Play the recording to a memory: at each question the layer, the question and the answer."""
        for moment in zip(*self.events, strict=True):
            for layer, event in enumerate(moment):
                answer = memory.attend(layer, *event[:4])
                if event.answer is None:
                    memory.commit(layer)
                else:
                    yield layer, event, answer


def recording(memory: MakeMemory) -> MakeMemory:
    """Makes such a memory, and a recorder around it."""

    def make(layers: int, rope: AxialRope) -> Any:
        return Recorder(memory(layers, rope), layers)

    return make


@torch.no_grad()
def record(world: World, clips: Clips, *, start: int, history: int = 16) -> Tape:
    """Play clips on real frames with dense attention; questions are heard from frame `start` on."""
    world = world.beside(recording(Dense))
    recorder: Any = world.memory
    world.reset(clips.frames[:, :history], clips.keys[:, :history], clips.prompts)
    for i in range(history, clips.frames.shape[1]):
        recorder.listening = i >= start
        world.step(clips.keys[:, i])
        world.see(clips.frames[:, i])
    return recorder.tape()

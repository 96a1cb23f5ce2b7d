"""How much of dense attention's output a bounded memory explains, layer by layer, on real play."""

from typing import Any

from torch import Tensor

from fastar import Dense, Memory, Stats

from ..world import World
from .clips import Clips


class Beside:
    """Answers as Dense does, and measures how far another memory would have been off.

    Explained output of a layer = 1 - sum |o - o_dense|^2 / sum |o_dense - mean|^2 over all queries.
    """

    def __init__(self, dense: Dense, memory: Memory) -> None:
        self.dense, self.memory = dense, memory
        self.counting = False
        self._sums: dict[int, list[Any]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        truth = self.dense.attend(layer, q, k, v, where)
        other = self.memory.attend(layer, q, k, v, where)
        if self.counting:
            t, o = (x.double().transpose(1, 2).flatten(0, 1).flatten(1) for x in (truth, other))  # [b n, h d]
            sums = self._sums.setdefault(layer, [0.0, 0.0, 0.0, 0])
            for i, x in enumerate(((o - t).square().sum(), t.square().sum(), t.sum(0), len(t))):
                sums[i] = sums[i] + x
        return truth

    def commit(self, layer: int) -> None:
        self.dense.commit(layer)
        self.memory.commit(layer)

    def reset(self) -> None:
        self.dense.reset()
        self.memory.reset()

    def stats(self) -> Stats:
        return self.memory.stats()

    def state_dict(self) -> dict[str, Any]:
        return {"dense": self.dense.state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.dense.load_state_dict(state["dense"])
        self.memory.load_state_dict(state["memory"])

    def explained(self) -> list[float]:
        """Per layer."""
        return [
            float(1 - error / (energy - total.square().sum() / count))
            for _, (error, energy, total, count) in sorted(self._sums.items())
        ]


def explained(world: World, make: Any, clips: Clips, *, start: int, history: int = 16) -> list[float]:
    """Explained output of the memory that `make` makes, over the frames of the clips from `start` on.

    The past is real: each dreamt frame is replaced by the true one before the next. The world is left
    with the memory it had.
    """
    before = world.make_memory
    beside: list[Beside] = []

    def both(layers: int, rope: Any) -> Beside:
        beside.append(Beside(Dense(layers, rope), make(layers, rope)))
        return beside[0]

    world.use(both)
    world.reset(clips.frames[:, :history], clips.keys[:, :history], clips.prompts)
    for i in range(history, clips.frames.shape[1]):
        beside[0].counting = i >= start
        world.step(clips.keys[:, i])
        world.see(clips.frames[:, i])
    world.use(before)
    return beside[0].explained()

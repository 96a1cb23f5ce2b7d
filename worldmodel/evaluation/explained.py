"""How much of dense attention's output a bounded memory explains, layer by layer, on real play."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..world import MakeMemory
from .tape import Tape


class Explained:
    """1 - sum |o - dense|^2 / sum |dense - mean|^2, over the answers that were added [b, h, n, d]."""

    def __init__(self) -> None:
        self.error, self.energy, self.count = 0.0, 0.0, 0
        self.total: Tensor | float = 0.0

    def add(self, answer: Tensor, dense: Tensor) -> None:
        o, t = (x.double().transpose(1, 2).flatten(0, 1).flatten(1) for x in (answer, dense))  # [b n, h d]
        self.error += float((o - t).square().sum())
        self.energy += float(t.square().sum())
        self.total, self.count = self.total + t.sum(0), self.count + len(t)

    @property
    def share(self) -> float:
        mean_energy = float(torch.as_tensor(self.total).square().sum()) / self.count
        return 1 - self.error / (self.energy - mean_energy)


@torch.no_grad()
def explained(tapes: Iterable[Tape], makers: Mapping[str, MakeMemory]) -> dict[str, list[float]]:
    """Explained output of every layer of each kind of memory, over all recordings."""
    found: dict[str, list[Explained]] = {}
    for tape in tapes:
        for name, make in makers.items():
            layers = found.setdefault(name, [Explained() for _ in range(tape.layers)])
            for layer, event, answer in tape.ask(make(tape.layers, tape.rope)):
                assert event.answer is not None
                layers[layer].add(answer, event.answer)
    return {name: [layer.share for layer in layers] for name, layers in found.items()}

"""What merging costs, for TempCache as the paper states it: its ablations (arXiv 2602.01801).

By threshold, by the key that represents a group, and by the precision of the search for it.

The paper counts recall: attention on what is kept. Here every token is kept, in some group, so what is
counted is the overlap of the two distributions over tokens: dense attention's, and the one that reads every
member of a group alike.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastar import AxialRope, Past

from .explained import Explained
from .recall import Probabilities, TrackedPaper, overlap
from .tape import Tape


class Reading(TrackedPaper):
    """Also knows what each layer's last question read, token by token [b, h, n, seen + n]."""

    def __init__(self, layers: int, rope: AxialRope, **options: Any) -> None:
        self.read: list[Tensor] = [torch.empty(0)] * layers
        super().__init__(layers, rope, **options)

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        if q.shape[2]:
            self.read[layer] = self.probabilities(layer, q, past)
        return super()._read(layer, q, past)


@torch.no_grad()
def merging(tapes: Iterable[Tape], settings: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each setting, by its name the options of `TempCachePaper`.

    density    groups that are read, of the tokens that dense attention reads
    overlap    see `recall.py`: the mean over layers
    explained  see `explained.py`: the mean over layers, and the least of them
    """
    known: dict[str, tuple[list[Explained], list[float], list[float]]] = {}
    for tape in tapes:
        for name, options in settings.items():
            new = [Explained() for _ in range(tape.layers)], [], []
            layers, overlaps, densities = known.setdefault(name, new)
            memory = Reading(tape.layers, tape.rope, **options)
            dense = tape.ask(Probabilities(tape.layers, tape.rope))
            for (layer, event, expected), (*_, output) in zip(dense, tape.ask(memory), strict=True):
                assert event.answer is not None
                layers[layer].add(output, event.answer)
                overlaps.append(overlap(expected, memory.read[layer]))
                groups = (memory.counts[layer] > 0).sum(-1).double().mean()
                tokens = event.k.shape[2]
                densities.append(float(groups + tokens) / (memory.seen[layer] + tokens))
    for name, (layers, overlaps, densities) in known.items():
        shares = [layer.share for layer in layers]
        row = {"density": np.mean(densities), "overlap": np.mean(overlaps)}
        yield {
            "setting": name,
            **{k: float(x) for k, x in row.items()},
            "explained": float(np.mean(shares)),
            "least": min(shares),
        }

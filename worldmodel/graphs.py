"""A frame as one CUDA graph: launched at once, where launching its thousand kernels one by one takes longer.

A graph is a recording: it reads and writes the same addresses each time, and whatever Python decided while it
was recorded stays decided. So all that is told comes in tensors, which are copied to where the graph
reads them, and there is one graph for each way in which the memory's own bookkeeping can go.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from fastar import Memory


class Graphs:
    """Calls `imagine(last, told, noise)` by graphs where the memory is in a steady state, else as it is.

    With `fuse` the memory is compiled, too, once it is steady; its first steady frame does that.
    """

    def __init__(self, memory: Memory, imagine: Callable[..., Tensor], *, fuse: bool = False) -> None:
        self.memory, self.imagine, self.fuse = memory, imagine, fuse
        self.forget()

    def forget(self) -> None:
        """What the graphs read and write is no more."""
        self.known: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.told: Any = None
        self.result: Tensor | None = None
        self.pool: Any = None

    def __call__(self, *told: Any) -> Tensor:
        phase = self.memory.phase()
        if phase is None:
            return self.imagine(*told)
        if self.fuse:
            self.memory.fuse()
            self.fuse = False
            return self.imagine(*told)
        if self.told is None:
            self.told = cloned(told)
            self.result = torch.empty_like(told[0])
            self.pool = torch.cuda.graph_pool_handle()
        torch._foreach_copy_(leaves(self.told), leaves(told))  # pyright: ignore[reportPrivateImportUsage]
        if phase in self.known:
            self.memory.advance()
        else:
            self.known[phase] = self._record()
        self.known[phase].replay()
        assert self.result is not None
        return self.result.clone()

    def _record(self) -> torch.cuda.CUDAGraph:
        """Nothing is computed yet, but the memory's bookkeeping goes on as if it were."""
        assert self.result is not None
        graph = torch.cuda.CUDAGraph()
        self.memory.rope.forget()  # its tables were computed outside, for another frame
        with torch.cuda.graph(graph, pool=self.pool):
            self.result.copy_(self.imagine(*self.told))
        self.memory.rope.forget()
        return graph


def leaves(x: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples, in order."""
    return [x] if isinstance(x, Tensor) else [leaf for part in x for leaf in leaves(part)]


def cloned(x: Any) -> Any:
    """The same nest with tensors of its own."""
    if isinstance(x, Tensor):
        return x.clone()
    parts = [cloned(part) for part in x]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)

"""A frame as one CUDA graph: launched at once, where launching its thousand kernels one by one takes longer.

A graph is a recording: it reads and writes the same addresses each time, and whatever Python decided while it
was recorded stays decided. So all that is told comes in tensors, which are copied to where the graph
reads them, and what it finds is copied before the next one runs.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastar import Memory


class Graphs:
    """Calls `imagine` by graphs where the memories are in a steady state, else as it is.

    There is one graph for each way in which the memories' own bookkeeping can go.
    """

    def __init__(self, memories: Sequence[Memory], imagine: Callable[..., Any]) -> None:
        self.memories, self.imagine = memories, imagine
        for memory in memories:
            memory.fix()
        self.forget()

    def forget(self) -> None:
        """What the graphs read and write is no more."""
        self.known: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self.told: Any = None
        self.pool: Any = None
        self.steady = False

    def __call__(self, *told: Any) -> Any:
        phase = tuple(memory.phase() for memory in self.memories)
        if None in phase:
            return self.imagine(*told)
        if not self.steady:  # what is launched for the first time is compiled, which no graph may hold
            self.steady = True
            return self.imagine(*told)
        if self.told is None:
            self.told = cloned(told)
            self.pool = torch.cuda.graph_pool_handle()
        torch._foreach_copy_(leaves(self.told), leaves(told))  # pyright: ignore[reportPrivateImportUsage]
        if phase in self.known:
            for memory in self.memories:
                memory.advance()
        else:
            self.known[phase] = self._record()
        graph, found = self.known[phase]
        graph.replay()
        return cloned(found)

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Any]:
        """Nothing is computed yet, but the memories' bookkeeping goes on as if it were."""
        self._forget_turns()  # computed outside, for another frame
        recorded = record(lambda: self.imagine(*self.told), self.pool)
        self._forget_turns()
        return recorded

    def _forget_turns(self) -> None:
        for memory in self.memories:
            memory.rope.forget()


class Recorded:
    """A function of one tensor to another: one graph, from the second call with a shape on."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self.compute = compute
        self.known: dict[torch.Size, tuple[Tensor, torch.cuda.CUDAGraph, Tensor] | None] = {}

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape not in self.known:  # libraries choose how to compute it, which no graph may hold
            self.known[x.shape] = None
            return self.compute(x)
        known = self.known[x.shape]
        if known is None:
            told = x.clone()
            known = self.known[x.shape] = (told, *record(lambda: self.compute(told)))
        told, graph, found = known
        told.copy_(x)
        graph.replay()
        return found.clone()


def record(compute: Callable[[], Any], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of this, and where it leaves what it computes. Other threads may go on meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        found = compute()
    return graph, found


def leaves(x: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples, in order."""
    return [x] if isinstance(x, Tensor) else [leaf for part in x for leaf in leaves(part)]


def cloned(x: Any) -> Any:
    """The same nest with tensors of its own."""
    if isinstance(x, Tensor):
        return x.clone()
    parts = [cloned(part) for part in x]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)

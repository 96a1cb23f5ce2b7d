"""Where the time of a chunk goes, of a memory that is full: attention, remembering, and the rest.

Each part is run by itself, in the shapes that it has in a chunk, at once where CUDA graphs can.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from fastar import AnnSA, WindowSink
from fastar.attention import attend

from ..backbones.forcing import Forcing, Recall
from ..backbones.longvie import LongVie
from ..evaluation.results import Row
from .kernels import seconds_at_once

Call = tuple[Recall, tuple[Tensor, ...]]
WAITS = ("Synchronize", "aten::item", "aten::_local_scalar_dense")


@torch.no_grad()
def parts(forcing: Forcing) -> Row:
    """Seconds of the parts of a chunk, and of attention as few keys, dense, would take: its floor."""
    with listening(forcing) as calls:
        forcing.step()
    device = forcing.device

    def read() -> None:
        for memory in forcing.memories:
            memory.rope.forget()  # a graph may not hold tables from outside
        for recall, told in calls:
            recall(*told)

    def remember() -> None:
        for memory in forcing.memories:
            assert isinstance(memory, WindowSink)
            memory._present = [True] * memory.layers  # as if the chunk had been read once more
            for layer in range(memory.layers):
                memory.commit(layer)

    return {
        "attention s": seconds_at_once(read, device),
        "floor of attention s": floor(calls),
        "remembering s": seconds_at_once(remember, device),
    }


@contextmanager
def listening(forcing: Forcing) -> Iterator[list[Call]]:
    """Whatever is read in here, with drawn queries, keys and values of the same shapes; no graph is used."""
    calls: list[Call] = []
    drawn: dict[torch.Size, Tensor] = {}
    lists = [forcing._reads] + ([forcing._control_reads] if isinstance(forcing, LongVie) else [])
    graphs, forcing._graphs = forcing._graphs, None

    def heard(recall: Recall) -> Callable[..., Tensor]:
        def read(*told: Tensor) -> Tensor:
            *asked, where = told
            for x in asked:
                if x.shape not in drawn:
                    drawn[x.shape] = torch.randn_like(x)
            calls.append((recall, (*(drawn[x.shape] for x in asked), where)))
            return recall(*told)

        return read

    kept = [list(reads) for reads in lists]
    for reads in lists:
        reads[:] = [cast(Recall, heard(recall)) for recall in reads]
    try:
        yield calls
    finally:
        forcing._graphs = graphs
        for reads, before in zip(lists, kept, strict=True):
            reads[:] = before


def floor(calls: Sequence[Call]) -> float:
    """Seconds of dense attention to as many keys as each call reads, by the kernel that it uses."""
    known: dict[tuple[int, ...], float] = {}
    total = 0.0
    for recall, (q, k, *_) in calls:
        many = (len(q), q.shape[1], q.shape[2], keys_of(recall, k.shape[2]), q.shape[3])
        if many not in known:
            b, h, n, m, d = many
            keys, bias = q.new_empty(b, h, m, d).normal_(), torch.zeros(b, m, device=q.device)
            told = q, keys, keys, bias
            known[many] = seconds_at_once(lambda told=told: attend(*told), q.device)
        total += known[many]
    return total


def keys_of(recall: Recall, own: int) -> int:
    """Keys that each query of a layer reads, `own` of which the pass brings."""
    memory, layer = recall.memory, recall.layer
    assert isinstance(memory, WindowSink)
    used = memory._used(layer) + own - recall.kept
    plan = memory.plans[layer]
    if plan is None or not isinstance(memory.pattern, AnnSA):
        return used
    return memory.pattern.keys_read(used, plan)


def trace(forcing: Forcing) -> Row:
    """What a profiler sees of a chunk on a GPU: kernels run, and how often the host waits for the device."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function("chunk"):
            forcing.step()
        torch.cuda.synchronize()
    events = profiler.events()
    assert events is not None
    chunk = next(event.time_range for event in events if event.name == "chunk")
    host = [event for event in events if event.device_type == DeviceType.CPU]
    waits = [event.time_range for event in host if any(name in event.name for name in WAITS)]
    inside = [wait for wait in waits if chunk.start <= wait.start and wait.end <= chunk.end]
    return {"kernels": len(events) - len(host), "host waits": len(inside)}

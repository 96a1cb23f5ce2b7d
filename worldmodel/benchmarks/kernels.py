"""Seconds of work on a device, launched at once where it can be."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastar.attention import attend
from fastar.kernels import flashinfer

from ..graphs import record

QUEUE = 10_000_000  # cycles that the device waits while the host launches: some 5 ms


def seconds(compute: Callable[[], Any], device: torch.device, tries: int = 5) -> float:
    """The median of some calls, after one that may compile."""
    took = []
    for _ in range(tries + 1):
        start = time.perf_counter()
        compute()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return float(np.median(took[1:]))


def seconds_at_once(compute: Callable[[], Any], device: torch.device, tries: int = 5) -> float:
    """`seconds` of a CUDA graph of it, so that the time of launching is not in it."""
    compute()
    if device.type != "cuda":
        return seconds(compute, device, tries)
    graph, _ = record(compute)
    return seconds(graph.replay, device, tries)


def seconds_queued(compute: Callable[[], Any], device: torch.device) -> float:
    """Of one call. A GPU begins when all of it is launched, unless the call itself waits for the device."""
    start = time.perf_counter()
    if device.type != "cuda":
        compute()
        return time.perf_counter() - start
    begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(QUEUE)
    begun.record()
    compute()
    done.record()
    done.synchronize()
    return begun.elapsed_time(done) / 1e3


@torch.no_grad()
def fastest(q: Tensor, k: Tensor, v: Tensor) -> float:
    """Seconds of dense attention by the fastest kernel here: ours to choose, or FlashInfer's fa3."""
    kernels: list[Callable[[Tensor, Tensor, Tensor], Any]] = [attend]
    if flashinfer.INSTALLED and q.is_cuda:
        kernels.append(flashinfer.dense)
    return min(seconds(lambda kernel=kernel: kernel(q, k, v), q.device) for kernel in kernels)

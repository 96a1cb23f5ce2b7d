"""GPU kernels in Triton, each in one file with its definition in plain torch.

Triton comes with torch's CUDA wheels and not with its CPU wheels. Without it every file here can still be
imported and every definition works; only the call of a kernel fails, and says what to install.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

KNOWN = 4096  # results that are held of each constant: a past that grows asks for ever new ones

if TYPE_CHECKING:
    triton: Any  # kernels are written in Triton's language, whose types are not Python's
    tl: Any
else:
    try:
        import triton
        import triton.language as tl
    except ModuleNotFoundError:
        triton = tl = None


def jit(**options: Any) -> Callable[[Callable], Any]:
    """`triton.jit`, or nothing at all where there is no Triton."""
    return lambda kernel: triton.jit(**options)(kernel) if triton else kernel


def require_triton() -> None:
    """Raise unless kernels can be called here."""
    if triton is None:
        raise ModuleNotFoundError(
            "This kernel needs Triton, which is not installed. torch's CUDA wheels bring it: "
            "pip install torch --index-url https://download.pytorch.org/whl/cu130. "
            "To try kernels on a CPU, pip install triton and set TRITON_INTERPRET=1 before Python starts."
        )


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can be called on these here; they have no gradient."""
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return triton is not None and all(x.is_cuda for x in tensors) and not learning


def on(device: torch.device) -> AbstractContextManager:
    """Launch there: Triton launches on the current device, whatever its tensors are on."""
    if device.type != "cuda" or torch.compiler.is_compiling():  # a compiler sees to it by itself
        return nullcontext()
    return nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def movable(*tensors: Tensor) -> bool:
    """Whether the tensor memory accelerator (TMA) can read these: all steps are multiples of 16 bytes."""
    return all(_movable(x.data_ptr(), [stride * x.itemsize for stride in x.stride()[:-1]]) for x in tensors)


def _movable(address: int, steps: list[int]) -> bool:
    return steps[-1] > 0 and not any(x % 16 for x in (address, *steps))


def allocate_descriptors(device: torch.device) -> None:
    """Let this thread's Triton programs have the few bytes in which they describe their tensors to TMA."""

    def allocate(size: int, alignment: int, stream: int | None) -> Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)


def precision(x: Tensor) -> str:
    """Of a kernel's products of what is like x."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def constant(compute: Callable[..., int]) -> Callable[..., int]:
    """Computed once for the same arguments, and a constant to a compiler, which looks through `lru_cache`."""
    known: dict[tuple, int] = {}

    @torch.compiler.assume_constant_result
    @wraps(compute)
    def computed(*arguments: Any) -> int:
        if arguments not in known:
            if len(known) == KNOWN:
                known.clear()
            known[arguments] = compute(*arguments)
        return known[arguments]

    return computed


@constant
def multiprocessors(device: torch.device) -> int:
    """One where the interpreter runs."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@constant
def splits(programs: int, steps: int, slots: int, numbers: int) -> int:
    """Parts into which programs of `steps` tiles each should be split to end soonest on `slots` places.

    A step counts a microsecond and a program 3 more. A second launch that merges `numbers` of fp32 a part
    takes 4, and reads and writes 4 MB a microsecond.
    """

    def microseconds(parts: int) -> float:
        merging = 4 + parts * numbers * 8 / 4e6 if parts > 1 else 0
        return -(-programs * parts // slots) * (3 + -(-steps // parts)) + merging

    return min(range(1, min(steps, 64) + 1), key=microseconds)

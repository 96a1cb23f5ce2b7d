"""Where to dream and in what precision, found by a quick try rather than by name."""

import shutil
import time
from pathlib import Path

import torch

from .errors import DeviceError, UsageError

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
CLEARLY = 1.3  # below this, bfloat16 on a CPU is not worth its rounding; only AMX-like units pass


def pick_device(wanted: str = "auto") -> str:
    """cuda, else mps, else cpu; or the one asked for, if it works."""
    if wanted != "auto":
        if reason := unusable(wanted):
            raise DeviceError(reason)
        return wanted
    return next(device for device in ("cuda", "mps", "cpu") if not unusable(device))


def unusable(device: str) -> str:
    """Why a device cannot be used and what to do about it; empty if it can."""
    family = device.partition(":")[0]
    if family not in ("cuda", "mps", "cpu"):
        return f"No device {device!r}; there is auto, cpu, cuda (or cuda:1 and so on) and mps."
    if family == "cuda" and not torch.cuda.is_available():
        if torch_without_cuda() and nvidia_present():
            return (
                f"An NVIDIA GPU is here, but torch {torch.__version__} is built without CUDA. "
                "Install a CUDA build (https://pytorch.org/get-started), or use --device cpu."
            )
        return "No CUDA device: torch sees none. Check the driver with nvidia-smi, or use --device cpu."
    if family == "mps" and not torch.backends.mps.is_available():
        return "No usable Apple GPU: torch sees no MPS device. Use --device cpu."
    try:
        torch.ones(8, device=device).sum().item()
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().partition("\n")[0]
        return f"{device} does not work: {first}. Use --device cpu, or a device that exists."
    return ""


def nvidia_present() -> bool:
    """Whether a driver of NVIDIA is here, whatever torch makes of it."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def torch_without_cuda() -> bool:
    return torch.version.cuda is None


def pick_dtype(wanted: str, device: str) -> str:
    """The name of a torch dtype: the one asked for, or the fastest that costs nothing to the eye."""
    if wanted != "auto":
        if wanted not in DTYPES:
            raise UsageError(f"No dtype {wanted!r}; there is auto, {', '.join(DTYPES)}.")
        return DTYPES[wanted]
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device == "cpu" and speed_of_bfloat16() > CLEARLY:
        return "bfloat16"
    return "float32"


def speed_of_bfloat16() -> float:
    """How many times faster this CPU multiplies in bfloat16 than in float32, at a layer's size."""
    return seconds(torch.float32) / seconds(torch.bfloat16)


def seconds(dtype: torch.dtype, tries: int = 7) -> float:
    """The best time of one 320 x 512 by 512 x 1536 product."""
    x, w = torch.randn(320, 512).to(dtype), torch.randn(1536, 512).to(dtype)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(tries):
            start = time.perf_counter()
            torch.nn.functional.linear(x, w)
            best = min(best, time.perf_counter() - start)
    return best


def gpu_bytes() -> int | None:
    """Memory this process holds on its GPU; None where it uses none."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.memory_reserved()
    if torch.backends.mps.is_available():
        return torch.mps.driver_allocated_memory()
    return None

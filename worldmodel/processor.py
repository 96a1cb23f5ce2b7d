"""What computes, by name."""

import platform
from pathlib import Path

import torch


def processor(device: str) -> str:
    """Of a device, with the threads of a CPU: where this and all else is the same, so is what is computed."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    named = [line for line in lines if line.startswith("model name")]
    name = named[0].partition(":")[2].strip() if named else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"

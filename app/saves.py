"""A moment of a game on disk: everything the next frame depends on besides the weights, and its picture.

A save belongs to the weights and the memory it was made with. It is written whole or not at all.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastar.kernels.buckets import Buckets

from .errors import SaveError

VERSION = 1


def write(path: Path, belongs: dict[str, Any], moment: dict[str, Any]) -> int:
    """Save a moment that belongs to a kind of world. Returns its bytes; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    try:
        torch.save({"version": VERSION, "belongs": belongs, "moment": moment}, fresh)
        fresh.replace(path)
    except (RuntimeError, OSError) as error:  # torch says RuntimeError where a disk is full
        fresh.unlink(missing_ok=True)
        raise error if isinstance(error, OSError) else OSError(str(error).splitlines()[0]) from error
    return path.stat().st_size


def read(path: Path, belongs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The moment in a save. Raises SaveError where there is none, or it belongs to another kind of world."""
    if not path.exists():
        raise SaveError("Nothing is saved yet; <save> saves.")
    try:
        with torch.serialization.safe_globals([Buckets]):
            saved = torch.load(path, map_location=device, weights_only=True)
        version, known, moment = saved["version"], saved["belongs"], saved["moment"]
    except Exception as error:  # a damaged file raises whatever its bytes make of it
        raise SaveError(f"{path} is damaged ({type(error).__name__}); <save> saves anew.") from error
    if version != VERSION:
        raise SaveError(f"{path} is of version {version}, this game reads {VERSION}; <save> saves anew.")
    for what, now in belongs.items():
        if known.get(what) != now:
            raise SaveError(
                f"This save has {what} {known.get(what)}, the game {now}; start it with the former."
            )
    return moment


def tensor(picture: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(picture))

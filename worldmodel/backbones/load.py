"""The published files of Self-Forcing and Rolling Forcing, put together to what makes videos of prompts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fastar import Method

from .checkpoints import CheckpointError, filled, forcing_generator, read_checkpoint, sizes
from .forcing import Forcing, RollingForcing, SelfForcing
from .text import load_text_encoder
from .vae import StreamingDecoder, load_decoder
from .wan import Wan

ENCODER = "models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZER = "google/umt5-xxl"
DECODER = "Wan2.1_VAE.pth"


class Backbone(NamedTuple):
    """How a backbone makes videos, and the file with its transformer."""

    kind: Callable[..., Forcing]
    checkpoint: str


BACKBONES = {
    "self-forcing": Backbone(SelfForcing, "self_forcing_dmd.pt"),
    "rolling-forcing": Backbone(RollingForcing, "rolling_forcing_dmd.pt"),
}


def find(folder: Path, names: Sequence[str]) -> list[Path]:
    """Where these files lie, anywhere below a folder. Raises CheckpointError that names all that do not."""
    found = {name: sorted(folder.rglob(name)) for name in names}
    if missing := [name for name, paths in found.items() if not paths]:
        raise CheckpointError(
            f"Below {folder} there is no {', no '.join(missing)}; wanted: {', '.join(names)}."
        )
    return [paths[0] for paths in found.values()]


def features(folder: Path, prompts: Sequence[str], device: str, dtype: torch.dtype) -> list[Tensor]:
    """Of prompts [l, width] each. The encoder, which is large, is there only meanwhile."""
    tokenizer, weights = find(folder, [TOKENIZER, ENCODER])
    return load_text_encoder(tokenizer, weights, device, dtype)(prompts)


def open_forcing(
    name: str, folder: Path, chosen: Method, device: str, dtype: torch.dtype, *, fuse: bool = False
) -> Forcing:
    """A backbone with the memory of a method, whose frames are its chunks; `fuse` as in `Forcing`."""
    backbone = BACKBONES[name]
    (path,) = find(folder, [backbone.checkpoint])
    published = forcing_generator(read_checkpoint(path))
    wan = filled(Wan, sizes(published), published, device, dtype)
    return backbone.kind(wan, chosen.cache, cross=chosen.cross, graphs=True, fuse=fuse)


def open_decoder(folder: Path, device: str, dtype: torch.dtype) -> StreamingDecoder:
    (path,) = find(folder, [DECODER])
    return load_decoder(path, device, dtype)

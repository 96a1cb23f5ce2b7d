"""The published files of LongVie 2, and of the image-to-video Wan 2.1 that it is built on, put together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastar import Method

from .checkpoints import CheckpointError, check_names, count, filled, read_checkpoint, sizes
from .clip import ImageEncoder, load_image_encoder
from .load import DECODER, ENCODER, TOKENIZER, find
from .longvie import DualControl, LongVie
from .text import TextEncoder, load_text_encoder
from .vae import load_autoencoder
from .wan import Wan

BASE = "diffusion_pytorch_model*.safetensors"  # Wan2.1-I2V-14B-480P, in shards
TUNED = "dit.safetensors"  # what LongVie 2 changed of it
CONTROL = "control.safetensors"  # its branches
IMAGE = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"
FILES = (BASE, TUNED, CONTROL, DECODER, ENCODER, TOKENIZER, IMAGE)  # wanted below a folder

OF_BRANCHES, OF_WAN = "pipe.dual_controller.", "pipe.dit."  # beginnings of names in LongVie's files
HEAD = 128  # channels of a head, of both


def open_longvie(
    folder: Path, chosen: Method, device: str, dtype: torch.dtype, *, steps: int = 8, fuse: bool = False
) -> LongVie:
    """LongVie 2 with the memory of a method, whose frames are its chunks. Raises CheckpointError.

    steps  passes of a chunk, evenly from noise on; the one that remembers it comes on top
    fuse   as in `Forcing`
    """
    wan = open_wan(folder, device, dtype)
    branches = open_branches(folder, device, dtype)
    wide, width = branches.control_text_linear.in_features, wan.patch_embedding.out_channels
    if wide != width:
        raise CheckpointError(
            f"The branches of {CONTROL} are for a transformer of width {wide}, that of {BASE} has {width}."
        )
    levels = [1000 * (1 - i / steps) for i in range(steps)]
    how = {"steps": levels, "graphs": True, "fuse": fuse}
    return LongVie(wan, branches, chosen.cache, cross=chosen.cross, **how)


def open_wan(folder: Path, device: str, dtype: torch.dtype) -> Wan:
    """The base, with what LongVie 2 changed of it."""
    published: dict[str, Tensor] = {}
    for shard in shards(folder):  # one after the other: all of them in fp32 would not fit everywhere
        published |= {name: x.to(dtype) for name, x in read_checkpoint(shard).items()}
    (path,) = find(folder, [TUNED])
    tuned = {name.removeprefix(OF_WAN): x.to(dtype) for name, x in read_checkpoint(path).items()}
    check_names(path, f"a part of {BASE}", [], sorted(set(tuned) - set(published)))
    published |= tuned
    shape = sizes(published, HEAD)
    if not shape["image"]:
        raise CheckpointError(f"{BASE} in {folder} reads no image: Wan2.1-I2V-14B-480P is wanted.")
    return filled(Wan, shape, published, device, dtype)


def shards(folder: Path) -> list[Path]:
    """Of the base. Raises CheckpointError where there are none, or those of two models."""
    find(folder, [BASE])
    found = sorted(folder.rglob(BASE))
    if len(places := sorted({str(path.parent) for path in found})) > 1:
        raise CheckpointError(
            f"{BASE} lies in {', '.join(places)}. Leave only that of Wan2.1-I2V-14B-480P below {folder}."
        )
    return found


def open_branches(folder: Path, device: str, dtype: torch.dtype) -> DualControl:
    (path,) = find(folder, [CONTROL])
    published = read_checkpoint(path)
    check_names(
        path, "the branches of LongVie 2", [], [x for x in published if not x.startswith(OF_BRANCHES)]
    )
    published = {name.removeprefix(OF_BRANCHES): x for name, x in published.items()}
    return filled(DualControl, branch_sizes(published, path), published, device, dtype)


def branch_sizes(published: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """The arguments of the `DualControl` that has such tensors. Raises CheckpointError."""
    try:
        width, wide = published["control_initial_combine_linear_dense.weight"].shape
        ffn = len(published["control_blocks_dense.0.ffn.0.weight"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is not the branches of LongVie 2: it has no {error}.") from None
    return dict(
        wide=wide,
        width=width,
        heads=width // HEAD,
        ffn=ffn,
        layers=count(published, "control_combine_linears."),
        image="control_blocks_dense.0.cross_attn.k_img.weight" in published,
    )


def open_text_encoder(folder: Path, device: str, dtype: torch.dtype) -> TextEncoder:
    """Kept, and not as `features` has it: a prompt may change while playing."""
    tokenizer, weights = find(folder, [TOKENIZER, ENCODER])
    return load_text_encoder(tokenizer, weights, device, dtype)


def open_image_encoder(folder: Path, device: str, dtype: torch.dtype) -> ImageEncoder:
    (path,) = find(folder, [IMAGE])
    return load_image_encoder(path, device, dtype)


def open_autoencoder(folder: Path, device: str, dtype: torch.dtype) -> Any:
    (path,) = find(folder, [DECODER])
    return load_autoencoder(path, device, dtype)

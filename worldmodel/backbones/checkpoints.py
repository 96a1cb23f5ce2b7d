"""Published checkpoints: what their files hold, put into our transformers strictly or not at all.

Wan 2.1 pairs channels (2i, 2i + 1) of a head when it turns them; fastar pairs (i, i + d/2). Attention does
not care in which order channels come, so the rows of q and k, and the norms over them, are reordered once.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

TURNED = re.compile(r"self_attn\.(q\.(weight|bias)|k\.(weight|bias)|norm_[qk]\.weight)$")
Net = TypeVar("Net", bound=nn.Module)
SHOWN = 12  # names of a list that an error shows


class CheckpointError(RuntimeError):
    """A file is missing, is none, or is of another model. Says which, and what was expected."""


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors or .pt file, or of all shards in a folder."""
    if path.is_dir():
        shards = sorted(path.glob("*.safetensors"))
        if not shards:
            raise CheckpointError(f"No .safetensors files in {path}.")
        return {name: x for shard in shards for name, x in read_checkpoint(shard).items()}
    if not path.exists():
        raise CheckpointError(f"No checkpoint at {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from error


def forcing_generator(checkpoint: Mapping[str, object]) -> dict[str, Tensor]:
    """The transformer in a checkpoint of Self-Forcing or Rolling Forcing: its average if there is one."""
    for name in ("generator_ema", "generator"):
        found = checkpoint.get(name)
        if isinstance(found, Mapping):
            return {
                key.replace("_fsdp_wrapped_module.", "").removeprefix("model."): x for key, x in found.items()
            }
    raise CheckpointError(f"Expected 'generator_ema' or 'generator' in it, got {_listed(checkpoint)}.")


DIFFUSERS = {  # beginnings and parts of names in the layout of diffusers -> ours, the published one
    "condition_embedder.time_embedder.linear_1.": "time_embedding.0.",
    "condition_embedder.time_embedder.linear_2.": "time_embedding.2.",
    "condition_embedder.time_proj.": "time_projection.1.",
    "condition_embedder.text_embedder.linear_1.": "text_embedding.0.",
    "condition_embedder.text_embedder.linear_2.": "text_embedding.2.",
    "condition_embedder.image_embedder.norm1.": "img_emb.proj.0.",
    "condition_embedder.image_embedder.ff.net.0.proj.": "img_emb.proj.1.",
    "condition_embedder.image_embedder.ff.net.2.": "img_emb.proj.3.",
    "condition_embedder.image_embedder.norm2.": "img_emb.proj.4.",
    ".attn1.": ".self_attn.",
    ".attn2.": ".cross_attn.",
    ".to_out.0.": ".o.",
    ".to_q.": ".q.",
    ".to_k.": ".k.",
    ".to_v.": ".v.",
    ".add_k_proj.": ".k_img.",
    ".add_v_proj.": ".v_img.",
    ".norm_added_k.": ".norm_k_img.",
    ".norm2.": ".norm3.",
    ".ffn.net.0.proj.": ".ffn.0.",
    ".ffn.net.2.": ".ffn.2.",
    ".scale_shift_table": ".modulation",
    "proj_out.": "head.head.",
}


def from_diffusers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A `WanTransformer3DModel` of diffusers under the published names."""
    found = {}
    for name, x in weights.items():
        name = "head.modulation" if name == "scale_shift_table" else name
        for theirs, ours in DIFFUSERS.items():
            name = name.replace(theirs, ours)
        found[name] = x
    return found


def sizes(published: Mapping[str, Tensor], head: int = 128) -> dict[str, Any]:
    """The arguments of the `Wan` that has such tensors, of heads so wide. Raises CheckpointError."""
    try:
        width, taken, *patch = published["patch_embedding.weight"].shape
        return dict(
            width=width,
            heads=width // head,
            layers=count(published, "blocks."),
            ffn=len(published["blocks.0.ffn.0.weight"]),
            taken=taken,
            given=len(published["head.head.weight"]) // math.prod(patch),
            patch=tuple(patch),
            text_width=published["text_embedding.0.weight"].shape[1],
            image=any(name.startswith("img_emb.") for name in published),
        )
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"This checkpoint is not a transformer of Wan: it has no {error}.") from None


def count(published: Iterable[str], beginning: str) -> int:
    """Layers there are of those that are numbered after such a beginning of their names."""
    found = (name.removeprefix(beginning) for name in published if name.startswith(beginning))
    return 1 + max((int(name.partition(".")[0]) for name in found), default=-1)


def filled(
    kind: Callable[..., Net],
    shape: Mapping[str, Any],
    published: Mapping[str, Tensor],
    device: str,
    dtype: torch.dtype,
) -> Net:
    """The network of these arguments with published tensors, see `load_into`."""
    with torch.device("meta"):
        network = kind(**shape)
    network = network.to(dtype).to_empty(device=device)
    load_into(network, published, shape["heads"])
    return network.eval()


def load_into(network: nn.Module, published: Mapping[str, Tensor], heads: Mapping[str, int] | int) -> None:
    """Copy published tensors into a network with the same names. Raises CheckpointError unless all fit.

    heads  of the attention whose channels are turned; where parts differ, by the beginning of their names
    """
    wanted = network.state_dict()
    missing, strange = (sorted(set(a) - set(b)) for a, b in ((wanted, published), (published, wanted)))
    shapes = _misshapen(published, wanted)
    found = {"missing": missing, "not expected": strange, "of another shape": shapes}
    _refuse("This checkpoint is not for this transformer", found)
    network.load_state_dict({name: _in_halves(name, x, heads) for name, x in published.items()})


def check_names(path: Path, what: str, missing: Sequence[str], strange: Sequence[str]) -> None:
    """Raise CheckpointError if either list, of what a checkpoint lacks and has too much, is not empty."""
    _refuse(f"{path} is not {what}", {"missing": missing, "not expected": strange})


def check_shapes(path: Path, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError that names the tensors of a checkpoint that have another shape than is wanted."""
    _refuse(f"{path} is of another model", {"of another shape": _misshapen(given, wanted)})


def _misshapen(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    return [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in wanted
        if name in given and given[name].shape != wanted[name].shape
    ]


def _refuse(why: str, found: Mapping[str, Sequence[str]]) -> None:
    """Raise CheckpointError with these lists of names, unless all are empty."""
    if told := "; ".join(f"{len(names)} {how}: {_listed(names)}" for how, names in found.items() if names):
        raise CheckpointError(f"{why}: {told}.")


def _in_halves(name: str, x: Tensor, heads: Mapping[str, int] | int) -> Tensor:
    """Even channels of each head first, then odd ones, where q and k are made or normed."""
    if not TURNED.search(name):
        return x
    if not isinstance(heads, int):
        heads = next(count for start, count in heads.items() if name.startswith(start))
    return torch.cat([part for part in x.unflatten(0, (heads, -1, 2)).split(1, 2)], 1).flatten(0, 2)


def _listed(found: Iterable[object]) -> str:
    names = [str(name) for name in found]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more

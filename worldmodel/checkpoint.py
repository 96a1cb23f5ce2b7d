"""Weights on disk: a folder with a manifest and safetensors shards, checked before anything is built.

The denoiser's matrices are int8 with one scale a row (the denoising loss moves by less than .1 dB);
everything else is fp16. The manifest, weights.json, holds the constructor arguments of both networks,
the vocabulary, how to sample, the recipe, and a SHA-256 for every shard.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .autoencoder import Autoencoder
from .denoiser import Denoiser
from .vocabulary import Vocabulary

SHARD = 15_500_000  # bytes; hosts warn about files much larger
MANIFEST = "weights.json"


class WeightsError(Exception):
    """Weights that are missing, damaged or of another shape; the text says what to do."""


@dataclass
class Weights:
    """Both networks on the CPU in fp32, and what the manifest says about using them."""

    autoencoder: Autoencoder
    denoiser: Denoiser
    vocabulary: Vocabulary
    manifest: dict[str, Any]
    folder: Path

    def suit(self, kind: str, options: dict[str, Any]) -> None:
        """Keep beside the weights what options of a kind of memory suit them, with those known before."""
        self.manifest.setdefault("suits", {}).setdefault(kind, {}).update(options)
        fresh = (self.folder / MANIFEST).with_suffix(".new")
        fresh.write_text(json.dumps(self.manifest, indent=1))
        fresh.replace(self.folder / MANIFEST)

    @property
    def hash(self) -> str:
        """A short name for exactly these weights in exactly these networks."""
        told = {name: self.manifest[name] for name in ("autoencoder", "denoiser", "files")}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def save_weights(
    folder: Path,
    autoencoder: Autoencoder,
    denoiser: Denoiser,
    vocabulary: Vocabulary,
    manifest: dict[str, Any],
) -> None:
    """Write a weights folder. The manifest must hold both networks' constructor arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    networks = {"autoencoder": halved(autoencoder.state_dict()), "denoiser": quantised(denoiser.state_dict())}
    for name, tensors in networks.items():
        for i, shard in enumerate(_shards(tensors)):
            path = folder / f"{name}-{i}.safetensors"
            save_file(shard, path)
            files[path.name] = _sha256(path)
    text = {**manifest, "vocabulary": list(vocabulary.words), "files": files}
    (folder / MANIFEST).write_text(json.dumps(text, indent=1))


def load_weights(folder: Path) -> Weights:
    """Read and check a weights folder. Raises WeightsError."""
    path = folder / MANIFEST
    if not path.exists():
        raise WeightsError(
            f"No weights at {path}. `python run.py train` makes them; `git checkout -- assets` restores ours."
        )
    try:
        manifest = json.loads(path.read_text())
    except ValueError as error:
        raise WeightsError(
            f"{path} cannot be read ({error}). Restore it with `git checkout -- {folder}`."
        ) from None
    tensors: dict[str, dict[str, Tensor]] = {"autoencoder": {}, "denoiser": {}}
    for name, expected in manifest["files"].items():
        shard = folder / name
        if not shard.exists():
            raise WeightsError(
                f"{shard} is missing; the manifest lists it. Restore it with `git checkout -- {folder}`."
            )
        if (found := _sha256(shard)) != expected:
            raise WeightsError(
                f"{shard} is damaged or from other weights: SHA-256 starts {found[:12]}, "
                f"expected {expected[:12]}. Restore it with `git checkout -- {folder}`."
            )
        try:
            tensors[name.split("-")[0]].update(load_file(shard))
        except SafetensorError as error:
            raise WeightsError(
                f"{shard} cannot be read ({error}). Restore it with `git checkout -- {folder}`."
            ) from None
    autoencoder, denoiser = Autoencoder(**manifest["autoencoder"]), Denoiser(**manifest["denoiser"])
    try:
        autoencoder.load_state_dict(restored(tensors["autoencoder"]))
        denoiser.load_state_dict(restored(tensors["denoiser"]))
    except RuntimeError as error:
        raise WeightsError(
            f"The shards in {folder} do not fit the networks its manifest describes: {error}"
        ) from None
    return Weights(autoencoder.eval(), denoiser.eval(), Vocabulary(manifest["vocabulary"]), manifest, folder)


def quantised(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices to int8 (name.int8) with an fp32 scale per row (name.scale), the rest to fp16."""
    tensors = {}
    for name, x in state.items():
        if x.ndim == 2 and x.is_floating_point():
            scale = x.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
            tensors[f"{name}.int8"] = (x.float() / scale).round().to(torch.int8).cpu()
            tensors[f"{name}.scale"] = scale.cpu()
        else:
            tensors |= halved({name: x})
    return tensors


def halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: (v.half() if v.is_floating_point() else v).cpu().contiguous() for k, v in state.items()}


def restored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `quantised` and `halved`, in fp32."""
    state = {}
    for name, x in tensors.items():
        if name.endswith(".int8"):
            state[name.removesuffix(".int8")] = x.float() * tensors[f"{name.removesuffix('.int8')}.scale"]
        elif not name.endswith(".scale"):
            state[name] = x.float() if x.is_floating_point() else x
    return state


def _shards(tensors: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, x in tensors.items():
        if shard and size + x.nbytes > SHARD:
            yield shard
            shard, size = {}, 0
        shard[name] = x
        size += x.nbytes
    yield shard


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

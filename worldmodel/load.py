"""From a weights folder to a World that can be played."""

import copy
from pathlib import Path
from typing import Any

import torch

from fastar import Method, method

from .checkpoint import Weights, load_weights
from .world import World


def load_world(
    weights: Path | Weights,
    memory: str,
    memories: dict[str, dict[str, Any]],
    *,
    steps: int = 1,
    device: str = "cpu",
    dtype: str = "float32",
    graphs: bool = False,
    fuse: bool = False,
) -> World:
    """Build a world with one of `memories`, each the axes of a `fastar.method`; the weights stay as they are.

    `steps` is the number of denoising passes a frame; the weights say at which noise levels. On a GPU,
    `graphs` launch a frame at once, and `fuse` compiles what the layers do, see `Denoiser.fuse`. Raises
    WeightsError for bad weights and ValueError for settings that these weights or memories do not have.
    """
    if memory not in memories:
        raise ValueError(f"No memory {memory!r}; there is {', '.join(memories)}.")
    if not isinstance(weights, Weights):
        weights = load_weights(weights)
    schedules = weights.manifest["levels"]
    if str(steps) not in schedules:
        raise ValueError(f"These weights dream in {' or '.join(schedules)} steps a frame, not in {steps}.")
    try:
        chosen = method_of(weights, memories[memory])
        chosen.cache(len(weights.denoiser.blocks), weights.denoiser.rope)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The settings of memory {memory} do not fit it: {error}") from None
    how = {"device": torch.device(device), "dtype": getattr(torch, dtype)}
    denoiser = copy.deepcopy(weights.denoiser).to(**how).requires_grad_(False)
    return World(
        copy.deepcopy(weights.autoencoder).to(**how).requires_grad_(False),
        denoiser,
        weights.vocabulary,
        chosen.cache,
        cross=chosen.cross,
        passes=chosen.step,
        levels=schedules[str(steps)],
        context_level=weights.manifest.get("context_level", 0.0),
        graphs=graphs,
        fuse=fuse,
    )


def method_of(weights: Weights, axes: dict[str, Any]) -> Method:
    """The method of these axes, as it suits the weights."""
    return method(**suited(axes, weights.manifest))


def suited(axes: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """The axes of a method, with what was measured to suit the weights where nothing else is asked for."""
    cache = axes["cache"]
    return {**axes, "cache": {**manifest.get("suits", {}).get(cache["kind"], {}), **cache}}

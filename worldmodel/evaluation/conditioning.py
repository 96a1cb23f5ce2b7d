"""Whether the world listens: to keys, to both control branches, to the prompt."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..actions import action
from ..denoiser import Denoiser
from ..diffusion import noised
from ..training.latents import Batch, Library
from ..training.twostream import TwoStream
from ..world import World
from .clips import Clips
from .quality import LUMA

LEVELS = (0.3, 0.6, 0.8, 1.0)


@torch.no_grad()
def ablation(
    network: Denoiser, library: Library, *, clips: int = 32, recent: int = 8, far: int = 4, batch: int = 8
) -> dict[str, float]:
    """Denoising loss (mean square error of the velocity) with everything, and with one condition removed.

    The same clips and the same noise each time. `no keys` removes them from the adaptive norms and from
    both branches, `no keys (norms)` from the norms alone.
    """
    streams = TwoStream(network.grid[0] * network.grid[1], recent + far, recent, library.latents.device)
    losses: dict[str, list[float]] = {}
    for seed in range(clips // batch):
        plan = library.plan(
            np.random.default_rng(seed), batch, recent=recent, far=far, reach=500, returns=0.5
        )
        clip = library.fetch(plan)
        loss = partial(_loss, network, streams, clip, seed)
        keys, words = clip.keys, clip.words
        idle, wordless = torch.zeros_like(keys), torch.zeros_like(words)
        for name, value in {
            "nothing": loss(keys, words, network.control(keys)),
            "keys": loss(idle, words, network.control(idle)),
            "keys (norms)": loss(idle, words, network.control(keys)),
            "dense branch": loss(keys, words, network.control(keys, dense=0.0)),
            "sparse branch": loss(keys, words, network.control(keys, sparse=0.0)),
            "prompt": loss(keys, wordless, network.control(keys)),
        }.items():
            losses.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in losses.items()}


def _loss(
    network: Denoiser,
    streams: TwoStream,
    clip: Batch,
    seed: int,
    keys: Tensor,
    words: Tensor,
    controls: list[Tensor],
) -> float:
    """Of the recent frames, at fixed levels and noise, after their clean history."""
    truth = clip.latents[:, -streams.noisy :]
    device, (b, f) = truth.device, truth.shape[:2]
    noise = torch.randn(truth.shape, generator=torch.Generator(device).manual_seed(seed), device=device)
    level = torch.tensor(LEVELS, device=device).repeat(-(-f // len(LEVELS)))[:f].expand(b, -1)
    history = clip.latents, torch.zeros(b, streams.history, device=device)
    dream = noised(truth, level, noise), level
    prompt = network.read_prompt(words)
    velocity = streams(network, history, dream, keys, clip.times, prompt, controls, places=clip.places)
    return float((velocity - (noise - truth)).square().mean())


def turning(world: World, clips: Clips, *, frames: int = 8, history: int = 16) -> float:
    """Share of dreams in which the picture moves the way the turn key says, over both keys."""
    right = 0
    for key, way in (("turn_left", 1), ("turn_right", -1)):
        world.reset(clips.frames[:, :history], clips.keys[:, :history], clips.prompts)
        before = clips.frames[:, history - 1]
        moved = np.zeros(clips.games)
        for _ in range(frames):
            after = world.decode(world.step(action([key])))
            moved += [shift(a, b) for a, b in zip(before, after, strict=True)]
            before = after
        right += int((np.sign(moved) == way).sum())
    return right / (2 * clips.games)


def shift(before: np.ndarray, after: np.ndarray, most: int = 28) -> int:
    """How many pixels the middle of the picture moved to the right: the shift that fits best."""
    rows = slice(before.shape[0] // 4, before.shape[0] * 5 // 8)  # above the weapon
    a, b = before[rows] @ LUMA, after[rows] @ LUMA
    width = a.shape[1]

    def misfit(s: int) -> float:
        return float(
            np.abs(a[:, max(0, -s) : width - max(0, s)] - b[:, max(0, s) : width + min(0, s)]).mean()
        )

    return min(range(-most, most + 1), key=misfit)

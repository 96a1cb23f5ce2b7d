"""Stage 2: the base denoiser, by flow matching in the two-stream layout.

A clip is `far` scattered frames of history, a share of them around an earlier view of where it ends,
and `recent` consecutive frames; the recent ones are dreamt. The history is degraded as a dream
degrades it, and the network is told the level (LongVie 2's degradation-aware training): noise, round
trips through the autoencoder, colour drift. The prompt and either control branch are dropped now and
then, and the dense signal is weakened, so that none drowns the others.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..autoencoder import Autoencoder
from ..denoiser import Denoiser
from ..diffusion import context_levels, noised, training_levels
from .latents import Batch, Library
from .loop import Average, Run, adamw, muon, rank, rate, update
from .twostream import TwoStream, compile_network

# Map units by which an odometer errs: by chance, growing with the root of the number of frames, and one way.
# Together the median is 15 after 16 frames, 107 after 256; measured on held-out games: 16 and 99.
WANDER, STRAY = 3.0, 0.3


def train_flow(
    library: Library,
    autoencoder: Autoencoder,
    network: Denoiser,
    folder: Path,
    *,
    batch: int = 32,
    recent: int = 20,
    far: int = 20,
    reach: int = 2000,
    returns: float = 0.4,
    swaps: float = 0.0,
    blank: float = 0.0,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 1e-3,
    warmup: int = 500,
    degraded: int = 2,
    orthogonal: bool = False,
    log_every: int = 100,
    save_every: int = 2000,
) -> Denoiser:
    """Train the network in place of its own; returns its averaged weights. `orthogonal` is for Muon.

    A share `blank` of the clips has no history but noise, so that the prompt says all there is to know.
    """
    device = library.latents.device
    if network.odometer is not None and library.places.isnan().any():
        raise ValueError("Places are learnt from episodes with poses, but some of these have none.")
    run = Run(folder, "flow", minutes=minutes, steps=steps)
    average = Average(network, 0.999)
    how: Any = dict(betas=(0.9, 0.95), decay=0.02)
    learn = muon(network, network.blocks, lr, **how) if orthogonal else adamw(network, lr, **how)
    run.resume(network=network, average=average, learn=learn)
    streams = TwoStream(network.grid[0] * network.grid[1], far + recent, recent, device)
    if device.type == "cuda":
        compile_network(network)
    plan: Any = dict(recent=recent, far=far, reach=reach, returns=returns, swaps=swaps)
    clips = draw(library, batch, seed=run.step, **plan)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    for progress in run.laps():
        clip = next(clips)
        with mixed:
            lived = degrade(clip, autoencoder, network.grid, degraded)
            loss = flow_loss(network, streams, lived, clip, blank)
        norm = update(learn, loss, lr * rate(progress, run.step, warmup=warmup, hold=0.6))
        average.update(network)
        if run.step % log_every == 0:
            run.log(loss=loss, gradient=norm)
        if run.step % save_every == save_every - 1:
            run.save(network=network, average=average, learn=learn)
    run.save(network=network, average=average, learn=learn)
    return average.module


def flow_loss(
    network: Denoiser, streams: TwoStream, history: Tensor, clip: Batch, blank: float = 0.0
) -> Tensor:
    """Mean square error of the velocity of the recent frames, each at a level of its own."""
    b, f = clip.keys.shape[:2]
    device = clip.latents.device
    truth = clip.latents[:, -streams.noisy :]
    told, level = context_levels((b, f), device), training_levels((b, streams.noisy), device)
    told = torch.where(torch.rand(b, 1, device=device) < blank, 1.0, told)
    noise = torch.randn_like(truth)
    velocity = streams(
        network,
        (noised(history, told, torch.randn_like(history)), told),
        (noised(truth, level, noise), level),
        clip.keys,
        clip.times,
        network.read_prompt(clip.words),
        controls(network, clip.keys),
        places=wander(clip),
    )
    return (velocity - (noise - truth)).square().mean()


def wander(clip: Batch) -> Tensor:
    """The clip's places [b, f, 3] as an odometer knows them: its north is anywhere, and its errors grow."""
    places, gaps = clip.places, clip.times.diff(dim=1).flip(1).float()
    b, f = clip.times.shape
    error = WANDER * gaps.sqrt()[..., None] * torch.randn(b, f - 1, 2, device=places.device)
    stray = STRAY * torch.randn(b, 1, 2, device=places.device) * clip.times[..., None]
    at = places[..., :2] + F.pad(error.cumsum(1), (0, 0, 1, 0)).flip(1) + stray  # none at the last frame
    north = 2 * torch.pi * torch.rand(b, 1, device=places.device)
    cos, sin = north.cos(), north.sin()
    x, y = at.unbind(-1)
    return torch.stack([x * cos - y * sin, x * sin + y * cos, places[..., 2] + north], -1)


def controls(network: Denoiser, keys: Tensor) -> list[Tensor]:
    """Both branches, each dropped in a tenth of the clips, the dense one weakened in another tenth."""
    b, device = len(keys), keys.device
    weaker = torch.where(
        torch.rand(b, 1, 1, 1, device=device) < 0.1, 0.8 + 0.4 * torch.rand(b, 1, 1, 1, device=device), 1.0
    )
    return network.control(keys, keep(b, 0.9, device) * weaker, keep(b, 0.9, device))


def keep(batch: int, share: float, device: torch.device) -> Tensor:
    """1 for a share of the clips, 0 for the others [b, 1, 1, 1]."""
    return (torch.rand(batch, 1, 1, 1, device=device) < share).float()


@torch.no_grad()
def degrade(clip: Batch, autoencoder: Autoencoder, grid: tuple[int, int], clips: int) -> Tensor:
    """The clip's latents, the first `clips` of them after a trip through tinted pixels and back."""
    if not clips:
        return clip.latents
    some = clip.latents[:clips].flatten(0, 1)
    frames = autoencoder.decode(some, grid).clamp(-1, 1)
    tint = 0.1 * torch.randn(clips, 1, 3, 1, 1, device=some.device)
    tint = tint.expand(-1, clip.latents.shape[1], -1, -1, -1).flatten(0, 1)
    worn = autoencoder.encode(((frames + 1) * (1 + tint) - 1).clamp(-1, 1)).to(clip.latents.dtype)
    return torch.cat([worn.unflatten(0, (clips, -1)), clip.latents[clips:]])


def draw(library: Library, batch: int, *, seed: int = 0, ahead: int = 4, **plan: Any) -> Iterator[Batch]:
    """Clips without end; the next ones are planned while the present one is learnt."""
    rng = np.random.default_rng((seed, rank()))
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future] = [pool.submit(library.plan, rng, batch, **plan) for _ in range(ahead)]
        while True:
            ready = waiting.pop(0).result()
            waiting.append(pool.submit(library.plan, rng, batch, **plan))
            yield library.fetch(ready)

"""Stage `odometer`: teach a network with places to know its steps, before it learns what they are for."""

from pathlib import Path
from typing import Any

import torch

from ..denoiser import Denoiser
from ..odometer import odometry_loss
from .flow import draw
from .latents import Library
from .loop import Average, Run, adamw, rate, update

RUN = 8  # frames in a row; each but the first two and the last teaches


def train_odometer(
    library: Library,
    network: Denoiser,
    folder: Path,
    *,
    batch: int = 128,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 1e-3,
    noise: float = 0.1,
    log_every: int = 200,
) -> Denoiser:
    """Teach the network's odometer, in place, on latents with some `noise`, since in play they are dreamt."""
    if network.odometer is None:
        raise ValueError("This network has no odometer: its rope has no widths for places.")
    if library.places.isnan().any():
        raise ValueError("An odometer learns from episodes with poses, but some of these have none.")
    run = Run(folder, "odometer", minutes=minutes, steps=steps)
    odometer = network.odometer
    average = Average(odometer, 0.998)
    learn = adamw(odometer, lr, betas=(0.9, 0.95), decay=0.05)
    run.resume(odometer=odometer, average=average, learn=learn)
    plan: Any = dict(recent=RUN, far=0, reach=0, returns=0.0)
    clips = draw(library, batch, seed=2 + run.step, **plan)
    for progress in run.laps():
        clip = next(clips)
        level = noise * torch.rand(batch, 1, 1, 1, device=clip.latents.device)
        seen = clip.latents + level * torch.randn_like(clip.latents)
        loss = odometry_loss(odometer, seen, clip.keys, clip.places)
        update(learn, loss, lr * rate(progress, run.step, warmup=100, hold=0.5))
        average.update(odometer)
        if run.step % log_every == 0:
            run.log(loss=loss)
    odometer.load_state_dict(average.module.state_dict())
    run.save(odometer=odometer, average=average, learn=learn)
    return network

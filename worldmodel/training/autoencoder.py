"""Stage 1: the autoencoder, by pixels, by texture, and against a critic.

L1 on pixels and on their differences draws the picture but keeps only half of its sharpness: where the
latents do not say how a texture runs, the likeliest pixel is a grey one. `texture` therefore asks for as
much change in each neighbourhood as the real frame has there, at two scales. From `critic_from` of the
way on, a patch critic judges each frame beside its reconstruction (relativistic loss with a
finite-difference gradient penalty), weighted so that its pull on the picture is `critic_pull` of the
others' pull. The decoder sees noisy latents throughout, since in play they come from a dream.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autoencoder import Autoencoder, Critic, to_frames, to_tokens
from ..episodes import Episode
from .latents import Reels, read
from .loop import Average, Run, adamw, rate, update


def train_autoencoder(
    found: list[Episode],
    folder: Path,
    device: torch.device,
    *,
    model: dict[str, Any],
    start: Autoencoder | None = None,
    frames: int = 160_000,
    batch: int = 192,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 6e-4,
    noise: float = 0.1,
    texture: float = 1.0,
    critic_from: float = 0.3,
    critic_pull: float = 0.3,
    critic_lr: float = 2e-4,
    critic_width: int = 64,
    workers: int = 0,
    log_every: int = 200,
) -> Autoencoder:
    """Train on `frames` evenly spread over the episodes; returns the averaged weights, latents normalised.

    From a `start`, only its decoder goes on: latents stay what a denoiser has learnt to dream.
    """
    run = Run(folder, "autoencoder", minutes=minutes, steps=steps)
    net = copy.deepcopy(start) if start else Autoencoder(**model).to(device)
    net.encoder.requires_grad_(start is None)
    critic = Critic(critic_width).to(device)
    average = Average(net, 0.998)
    learn = adamw(net, lr, betas=(0.9, 0.95), decay=0.01)
    learn_critic = adamw(critic, critic_lr, betas=(0.5, 0.95), decay=0.0)
    run.resume(net=net, critic=critic, average=average, learn=learn, learn_critic=learn_critic)
    pictures = _pictures(found, frames, workers).to(device)

    def reconstruct(x: Tensor) -> tuple[Tensor, Tensor]:
        latent = net.encoder(x)
        level = noise * torch.rand(len(x), 1, 1, 1, device=device) * latent.detach().std()
        return latent, net.decoder(latent + level * torch.randn_like(latent))

    forward = torch.compile(reconstruct, dynamic=False) if device.type == "cuda" else reconstruct
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    for progress in run.laps():
        figures = {}
        now = lr * rate(progress, run.step, warmup=200, hold=0.5)
        x = to_frames(pictures[torch.randint(len(pictures), (batch,), device=device)])
        x = x.contiguous(memory_format=torch.channels_last)
        with mixed:
            latent, y = forward(x)
        latent, y = latent.float(), y.float()
        picture = y.detach().requires_grad_()
        pixels = (picture - x).abs().mean()
        pixels = pixels + 0.5 * _apart(edges(picture), edges(x))
        pixels = pixels + texture * _apart(_texture(picture), _texture(x))
        (pull,) = torch.autograd.grad(pixels, picture)
        if progress >= critic_from:
            with mixed:
                fooled, real = critic(picture).float(), critic(x).float().detach()
            (push,) = torch.autograd.grad(F.softplus(real - fooled).mean(), picture)
            pull = pull + critic_pull * pull.norm() / push.norm().clamp_min(1e-12) * push
        loss = (y * pull).sum() + 1e-3 * latent.square().mean()  # its gradient in y is `pull`
        update(learn, loss, now)
        average.update(net)
        if progress >= critic_from - 0.05:  # a little earlier, so that the critic has something to say
            critic_loss, gap = _criticise(critic, x, y.detach(), mixed)
            update(learn_critic, critic_loss, critic_lr)
            figures = {"critic": critic_loss, "gap": gap}
        if run.step % log_every == 0:
            psnr = -10 * ((y.clamp(-1, 1) - x) / 2).square().mean().log10()
            run.log(pixels=pixels, psnr=psnr, sharp=sharpness(y) / sharpness(x), **figures)
    if start is None:
        _normalise(average.module, pictures, mixed)
    run.save(net=net, critic=critic, average=average, learn=learn, learn_critic=learn_critic)
    return average.module


def _criticise(
    critic: Critic, real: Tensor, fake: Tensor, mixed: Any, step: float = 0.05
) -> tuple[Tensor, Tensor]:
    """Relativistic loss of the critic with its gradient penalty, and how far it tells real from fake."""
    both = torch.cat([real, fake])
    with mixed:
        scores = critic(both).float()
        nearby = critic(both + step * torch.randn_like(both)).float()
    gap = scores[: len(real)] - scores[len(real) :]
    return F.softplus(-gap).mean() + 10 * (nearby - scores).square().mean(), gap.mean()


def _pictures(found: list[Episode], frames: int, workers: int) -> Tensor:
    """uint8 [about `frames`, h, w, 3] evenly spread over the episodes."""
    stride = max(1, sum(episode.meta["frames"] for episode in found) // frames)
    return torch.cat([reel["frames"] for reel in read(Reels(found, stride=stride), workers)])


def edges(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def _texture(x: Tensor) -> list[Tensor]:
    """How much the picture changes in each neighbourhood of 8 x 8 pixels, at full and at half size."""
    return [F.avg_pool2d(edge.abs(), 8, 4) for y in (x, F.avg_pool2d(x, 2)) for edge in edges(y)]


def _apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """Sum of the mean absolute differences."""
    return torch.stack([(a - b).abs().mean() for a, b in zip(ours, theirs, strict=True)]).sum()


def sharpness(x: Tensor) -> Tensor:
    """Mean |dx| + |dy| of luma of frames [n, 3, h, w]."""
    luma = (x.clamp(-1, 1) * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)
    return sum((edge.abs().mean() for edge in edges(luma)), start=x.new_zeros(()))


@torch.no_grad()
def _normalise(net: Autoencoder, pictures: Tensor, mixed: Any) -> None:
    """Set the mean and spread that give the tokens of these pictures unit variance."""
    some = pictures[
        torch.linspace(0, len(pictures) - 1, min(len(pictures), 8192), device=pictures.device).long()
    ]
    with mixed:
        tokens = torch.cat(
            [to_tokens(net.encoder(to_frames(part)), net.patch).float() for part in some.split(256)]
        )
    net.mean.copy_(tokens.mean((0, 1)))
    net.std.copy_(tokens.std((0, 1)))

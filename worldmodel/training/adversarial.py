"""Stage 3: few steps without blur or drift, by adversarial post-training in the two-stream layout.

Flow matching at few steps gives the mean of what may come: it blurs, then flattens. Here the
student dreams a frame in one pass from level 1, .6 or .3, and a discriminator, a copy of the base
network with one number per token, reads the same history and judges the frame beside the true one
(relativistic loss; its gradient penalised by finite differences). Every second step, much of the
history is the student's own dreams, every fourth twice dreamt: that is what stops drift.
"""

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..denoiser import Denoiser
from ..diffusion import clean_of, noised
from .flow import draw
from .latents import Batch, Library
from .loop import Average, Run, adamw, update
from .twostream import TwoStream, compile_network

LEVELS = (1.0, 1.0, 0.6, 0.3)  # where the student dreams from; level 1 twice as often
SHOWN = 0.02  # the level at which the discriminator is shown a frame
NUDGE = 0.1  # the step of its gradient penalty


def train_adversarial(
    library: Library,
    network: Denoiser,
    folder: Path,
    *,
    batch: int = 16,
    recent: int = 24,
    far: int = 8,
    reach: int = 2000,
    returns: float = 0.4,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 6e-5,
    critic_lr: float = 1e-4,
    warmup: int = 60,
    penalty: float = 10.0,
    truth: float = 0.25,
    history_level: float = 0.15,
    log_every: int = 50,
    save_every: int = 400,
) -> Denoiser:
    """Post-train the network; returns its averaged weights. The critic alone learns for `warmup` steps."""
    device = library.latents.device
    run = Run(folder, "adversarial", minutes=minutes, steps=steps)
    critic = judge_of(network).to(device)
    average = Average(network, 0.995)
    learn = adamw(network, lr, betas=(0.3, 0.95), decay=0.0)
    learn_critic = adamw(critic, critic_lr, betas=(0.3, 0.95), decay=0.0)
    parts = dict(network=network, critic=critic, average=average, learn=learn, learn_critic=learn_critic)
    run.resume(**parts)
    streams = TwoStream(network.grid[0] * network.grid[1], far + recent, recent, device)
    if device.type == "cuda":
        compile_network(network)
        compile_network(critic)
    clips = draw(library, batch, recent=recent, far=far, reach=reach, returns=returns, seed=1 + run.step)

    for _ in run.laps():
        scene = Scene(next(clips), streams, history_level)
        history = scene.clip.latents
        if run.step % 2:
            with torch.no_grad():
                history = scene.relived(network, twice=run.step % 4 == 3)
        level = scene.constant(torch.tensor(LEVELS)[torch.randint(4, (batch, 1))])

        with torch.no_grad():
            dreamt = scene.dream(network, history, level)
        real, fake = scene.judge(critic, scene.truth), scene.judge(critic, dreamt)
        steep = (scene.judge(critic, nudged(scene.truth)) - real).square().mean()
        steep = steep + (scene.judge(critic, nudged(dreamt)) - fake).square().mean()
        gap = real - fake
        update(learn_critic, F.softplus(-gap).mean() + penalty * steep, critic_lr)

        if run.step >= warmup:
            dreamt = scene.dream(network, history, level)
            with torch.no_grad():
                real = scene.judge(critic, scene.truth)
            fooling = F.softplus(real - scene.judge(critic, dreamt)).mean()
            error = (dreamt - scene.truth).square().mean()
            norm = update(learn, fooling + truth * error, lr)
            average.update(network)
            if run.step % log_every == 0:
                run.log(fooling=fooling, error=error, gap=gap.mean(), steep=steep, gradient=norm)
        elif run.step % 20 == 0:
            run.log(gap=gap.mean(), steep=steep)
        if run.step % save_every == save_every - 1:
            run.save(**parts)
    run.save(**parts)
    return average.module


class Scene:
    """One batch of clips, and what the student and the critic make of it."""

    def __init__(self, clip: Batch, streams: TwoStream, history_level: float) -> None:
        self.clip, self.streams = clip, streams
        self.truth = clip.latents[:, -streams.noisy :]
        b, f = clip.keys.shape[:2]
        self.told = (history_level * torch.rand(b, 1, device=clip.keys.device)).expand(b, f)
        self.noise = torch.randn_like(clip.latents)  # of the history, the same for real and fake

    def constant(self, level: Tensor | float) -> Tensor:
        """One level a clip, [b, 1] or a number, for all dreamt frames."""
        b, f = self.truth.shape[:2]
        return torch.as_tensor(level, device=self.truth.device, dtype=torch.float32).expand(b, f).contiguous()

    def dream(self, network: Denoiser, history: Tensor, level: Tensor) -> Tensor:
        """The student's clean frames in one pass from true frames at a level."""
        x = noised(self.truth, level, torch.randn_like(self.truth))
        return clean_of(x, level, self._run(network, history, x, level))

    def judge(self, critic: Denoiser, frames: Tensor) -> Tensor:
        """Realness of each frame [b, f] after the true history."""
        return self._run(critic, self.clip.latents, frames, self.constant(SHOWN)).mean((2, 3))

    def relived(self, network: Denoiser, *, twice: bool) -> Tensor:
        """The history, a share of its recent frames (another in every clip) replaced by dreams of them."""
        history = self.clip.latents
        share = torch.rand(len(history), 1, 1, 1, device=history.device)
        for _ in range(1 + twice):
            dreamt = self.dream(network, history, self.constant(1.0))
            swap = torch.rand(*dreamt.shape[:2], 1, 1, device=dreamt.device) < share
            recent = torch.where(swap, dreamt, self.truth)
            history = torch.cat([self.clip.latents[:, : -self.streams.noisy], recent], 1)
        return history

    def _run(self, network: Denoiser, history: Tensor, frames: Tensor, level: Tensor) -> Tensor:
        clip = self.clip
        seen = noised(history, self.told, self.noise)
        with torch.autocast(frames.device.type, torch.bfloat16, enabled=frames.is_cuda):
            controls, prompt = network.control(clip.keys), network.read_prompt(clip.words)
            return self.streams(
                network, (seen, self.told), (frames, level), clip.keys, clip.times, prompt, controls
            )


def judge_of(network: Denoiser) -> Denoiser:
    """A copy of the network that says one number per token."""
    critic = copy.deepcopy(network)
    critic.out = nn.Linear(critic.out.in_features, 1)
    nn.init.normal_(critic.out.weight, std=0.02)
    nn.init.zeros_(critic.out.bias)
    return critic


def nudged(x: Tensor) -> Tensor:
    return x + NUDGE * torch.randn_like(x)

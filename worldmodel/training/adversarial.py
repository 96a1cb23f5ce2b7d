"""Stage 3: few steps without blur or drift, by adversarial post-training in the two-stream layout.

Flow matching at few steps gives the mean of what may come: it blurs, then flattens. Here the
student dreams a frame in one pass from level 1, .6 or .3, and a discriminator, a copy of the base
network with one number per token, reads the same history and judges the frame beside the true one
(relativistic loss; its gradient penalised by finite differences). What stops drift is the history:
in a third of the steps it is real, in a third many of its frames are the student's dreams of them, and
in a third it comes from a game that the student has been dreaming on its own.
"""

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..autoencoder import Autoencoder
from ..denoiser import Denoiser
from ..diffusion import clean_of, noised
from ..vocabulary import Vocabulary
from .flow import draw
from .latents import Batch, Library
from .loop import Average, Run, adamw, update
from .rollout import Alone, rollouts
from .twostream import TwoStream, compile_network

LEVELS = (1.0, 1.0, 0.6, 0.3)  # where the student dreams from; level 1 twice as often
SHOWN = 0.02  # the level at which the discriminator is shown a frame
NUDGE = 0.1  # the step of its gradient penalty
FORGIVEN = 16.0  # frames after which a dream on its own is held to the truth half as much


def train_adversarial(
    library: Library,
    autoencoder: Autoencoder,
    vocabulary: Vocabulary,
    network: Denoiser,
    folder: Path,
    *,
    batch: int = 16,
    recent: int = 24,
    far: int = 8,
    reach: int = 2000,
    returns: float = 0.4,
    games: int = 64,
    alone: int = 128,
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
    """Post-train the network; returns its averaged weights. The critic alone learns for `warmup` steps.

    The student plays `games` games of `alone` frames at a time on its own.
    """
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
    own = rollouts(
        average.module, library, autoencoder, vocabulary,
        batch=batch, length=far + recent, games=games, alone=alone, seed=run.step,
    )  # fmt: skip

    for _ in run.laps():
        kind = run.step % 3
        scene = Scene(next(own if kind == 2 else clips), streams, history_level)
        history = scene.lived
        if kind == 1:
            with torch.no_grad():
                history = scene.relived(network, twice=run.step % 2 == 1)
        level = scene.constant(torch.tensor(LEVELS)[torch.randint(4, (batch, 1))])

        with torch.no_grad():
            dreamt = scene.dream(network, history, level)
        real, fake = scene.judge_real(critic), scene.judge(critic, dreamt)
        steep = (scene.judge_real(critic, NUDGE) - real).square().mean()
        steep = steep + (scene.judge(critic, dreamt, NUDGE) - fake).square().mean()
        gap = real - fake
        update(learn_critic, F.softplus(-gap).mean() + penalty * steep, critic_lr)

        if run.step >= warmup:
            dreamt = scene.dream(network, history, level)
            with torch.no_grad():
                real = scene.judge_real(critic)
            fooling = F.softplus(real - scene.judge(critic, dreamt)).mean()
            error = scene.error(dreamt)
            norm = update(learn, fooling + truth * error, lr)
            average.update(network)
            if run.step % log_every == 0:
                run.log(
                    history=kind, fooling=fooling, error=error, gap=gap.mean(), steep=steep, gradient=norm
                )
        elif run.step % 20 == 0:
            run.log(gap=gap.mean(), steep=steep)
        if run.step % save_every == save_every - 1:
            run.save(**parts)
    run.save(**parts)
    return average.module


class Scene:
    """One batch of clips, and what the student and the critic make of it.

    In clips of games on its own the student has lived something else than what truly happened. There the
    critic reads what belongs to the frame it judges, real or dreamt, blurred by noise: seen clearly it
    would give the dream away, whatever the frame.
    """

    def __init__(self, clip: Batch | Alone, streams: TwoStream, history_level: float) -> None:
        self.clip, self.streams = clip.clip if isinstance(clip, Alone) else clip, streams
        latents = self.clip.latents
        (b, f), device = latents.shape[:2], latents.device
        self.truth = latents[:, -streams.noisy :]
        self.told = (history_level * torch.rand(b, 1, device=device)).expand(b, f)
        self.noise = torch.randn_like(latents)  # of the history, the same for real and fake
        self.lived, self.blur, self.trust = latents, self.told, torch.ones((), device=device)
        if isinstance(clip, Alone):
            self.lived = clip.dreamt
            self.blur = (0.3 + 0.7 * torch.rand(b, 1, device=device)).expand(b, f)
            self.trust = 0.5 ** (clip.age[:, -streams.noisy :] / FORGIVEN)

    def constant(self, level: Tensor | float) -> Tensor:
        """One level a clip, [b, 1] or a number, for all dreamt frames."""
        b, f = self.truth.shape[:2]
        return torch.as_tensor(level, device=self.truth.device, dtype=torch.float32).expand(b, f).contiguous()

    def dream(self, network: Denoiser, history: Tensor, level: Tensor) -> Tensor:
        """The student's clean frames in one pass from what was lived, at a level."""
        x = noised(self.lived[:, -self.streams.noisy :], level, torch.randn_like(self.truth))
        return clean_of(x, level, self._run(network, history, self.told, x, level))

    def judge(self, critic: Denoiser, dreamt: Tensor, nudge: float = 0.0) -> Tensor:
        """Realness [b, f] of dreamt frames after what was lived."""
        return self._judge(critic, self.lived, dreamt, nudge)

    def judge_real(self, critic: Denoiser, nudge: float = 0.0) -> Tensor:
        """Realness [b, f] of the true frames after the true history."""
        return self._judge(critic, self.clip.latents, self.truth, nudge)

    def error(self, dreamt: Tensor) -> Tensor:
        """Mean square error to what truly happened, as far as it can be known."""
        return (self.trust * (dreamt - self.truth).square().mean((2, 3))).mean()

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

    def _judge(self, critic: Denoiser, history: Tensor, frames: Tensor, nudge: float) -> Tensor:
        shown = frames + nudge * torch.randn_like(frames) if nudge else frames
        return self._run(critic, history, self.blur, shown, self.constant(SHOWN)).mean((2, 3))

    def _run(self, network: Denoiser, history: Tensor, told: Tensor, frames: Tensor, level: Tensor) -> Tensor:
        clip = self.clip
        seen = noised(history, told, self.noise)
        with torch.autocast(frames.device.type, torch.bfloat16, enabled=frames.is_cuda):
            controls, prompt = network.control(clip.keys), network.read_prompt(clip.words)
            return self.streams(
                network, (seen, told), (frames, level), clip.keys, clip.times, prompt, controls
            )


def judge_of(network: Denoiser) -> Denoiser:
    """A copy of the network that says one number per token."""
    critic = copy.deepcopy(network)
    critic.out = nn.Linear(critic.out.in_features, 1)
    nn.init.normal_(critic.out.weight, std=0.02)
    nn.init.zeros_(critic.out.bias)
    return critic

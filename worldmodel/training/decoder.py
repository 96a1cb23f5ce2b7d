"""Stage 4: the decoder, on what the world dreams, against a critic of pictures.

A latent does not say how a texture runs, and where that is open the likeliest pixel is a grey one; and what
is dreamt is never quite a latent of a real frame. So the decoder learns on dreams: games that the student
plays on from real openings, as in play. The truth binds it at the opening and less with every frame after
it; a critic of neighbourhoods (hinge loss, spectral normalisation, arXiv 1802.05957) asks that every picture
look like a real one, and what the critic sees in a picture is bound to the truth as well (feature matching,
arXiv 1711.11585). Encoder and latents stay, so the denoiser need not learn anything again.
"""

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from ..autoencoder import Autoencoder, conv, to_frames
from ..denoiser import Denoiser
from ..episodes import Episode
from ..vocabulary import Vocabulary
from .autoencoder import edges, sharpness
from .latents import Batch, Library
from .loop import Average, Run, adamw, share, update
from .rollout import play_on

TRUSTED = 4.0  # dreamt frames after which the truth binds half as much


class Critic(nn.Module):
    """Frames [n, 3, h, w] -> verdicts on neighbourhoods at full and half size, and what is seen."""

    def __init__(self, width: int = 64, scales: int = 2) -> None:
        super().__init__()
        self.scales = nn.ModuleList(_scale(width) for _ in range(scales))

    def forward(self, frames: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Verdicts [n, m], of which real frames should get more than 1 and others less than -1; features."""
        verdicts, seen = [], []
        for layers in self.scales:
            assert isinstance(layers, nn.ModuleList)
            x = F.pixel_unshuffle(frames, 2)
            for layer in layers[:-1]:
                x = F.leaky_relu(layer(x), 0.2)
                seen.append(x)
            verdicts.append(layers[-1](x).flatten(1))
            frames = F.avg_pool2d(frames, 2)
        return torch.cat(verdicts, 1), seen


def _scale(width: int) -> nn.ModuleList:
    sizes = [(12, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2), (4 * width, 4 * width, 1)]
    layers = [spectral_norm(conv(a, b, stride=stride)) for a, b, stride in sizes]
    return nn.ModuleList([*layers, spectral_norm(conv(4 * width, 1))])


class Dreams(NamedTuple):
    """Frames of games: latents [k, n, c], what really was seen uint8 [k, h, w, 3], how true it is [k]."""

    latents: Tensor
    frames: Tensor
    trust: Tensor


def train_decoder(
    found: Sequence[Episode],
    library: Library,
    autoencoder: Autoencoder,
    vocabulary: Vocabulary,
    network: Denoiser,
    folder: Path,
    *,
    batch: int = 64,
    games: int = 64,
    alone: int = 32,
    uses: int = 100,
    warm: int = 200,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 1e-4,
    critic_lr: float = 4e-4,
    width: int = 64,
    adversarial: float = 0.2,
    matching: float = 2.0,
    log_every: int = 100,
) -> Autoencoder:
    """The autoencoder with another decoder: the average of what it was on the way.

    Of every `games` games of `alone` dreamt frames, `uses` batches of frames are shown. In the first `warm`
    steps the critic learns alone.
    """
    device = library.latents.device
    run = Run(folder, "decoder", minutes=minutes, steps=steps)
    net = copy.deepcopy(autoencoder).requires_grad_(False).train()
    net.decoder.requires_grad_(True)
    critic = share(Critic(width).to(device))
    average = Average(net, 0.999)
    learn = adamw(net.decoder, lr, betas=(0.5, 0.9), decay=0.0)
    learn_critic = adamw(critic, critic_lr, betas=(0.5, 0.9), decay=0.0)
    parts = dict(net=net, critic=critic, average=average, learn=learn, learn_critic=learn_critic)
    run.resume(**parts)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    shown = dreams(
        found, library, autoencoder, vocabulary, network,
        batch=batch, games=games, alone=alone, uses=uses, seed=run.step,
    )  # fmt: skip

    for _ in run.laps():
        latents, real, trust = next(shown)
        real = to_frames(real)
        with mixed:
            drawn = net.decode(latents, network.grid).float()
            scores, seen = critic(torch.cat([real, drawn.detach()]))
        of_real, of_drawn = scores.float().chunk(2)
        update(learn_critic, F.relu(1 - of_real).mean() + F.relu(1 + of_drawn).mean(), critic_lr)

        if run.step < warm:
            continue
        critic.requires_grad_(False)
        with mixed:
            verdicts, looks = critic(drawn)
            wanted = [x.detach().chunk(2)[0] for x in seen]
        critic.requires_grad_(True)
        fooling = -verdicts.float().mean()
        pixels = _apart(drawn, real, trust) + 0.5 * _apart_all(edges(drawn), edges(real), trust)
        looks_like = _apart_all(looks, wanted, trust) / len(looks)
        update(learn, pixels + matching * looks_like + adversarial * fooling, lr)
        average.update(net)
        if run.step % log_every == 0:
            right = ((of_real > 0).float().mean() + (of_drawn < 0).float().mean()) / 2
            sharp = sharpness(drawn) / sharpness(real)
            run.log(pixels=pixels, matching=looks_like, fooling=fooling, right=right, sharp=sharp)
    run.save(**parts)
    return average.module.eval()


def dreams(
    found: Sequence[Episode],
    library: Library,
    autoencoder: Autoencoder,
    vocabulary: Vocabulary,
    network: Denoiser,
    *,
    batch: int,
    games: int,
    alone: int,
    uses: int,
    opening: int = 16,
    seed: int = 0,
) -> Iterator[Dreams]:
    """Batches of frames from games that the student plays on after real openings."""
    rng, device = np.random.default_rng(seed), library.latents.device
    frames = opening + alone
    age = (torch.arange(frames) - opening + 1).clamp_min(0)
    trust = (0.5 ** (age / TRUSTED)).repeat(games).to(device)

    def pictures(indices: np.ndarray) -> Tensor:
        numbers = library.episode[indices[:, 0]]
        firsts = indices[:, 0] - library.starts[numbers]
        clips = [found[i].frames(a, a + frames) for i, a in zip(numbers, firsts, strict=True)]
        return torch.from_numpy(np.concatenate(clips))

    with ThreadPoolExecutor(1) as reader:
        while True:
            plan = library.plan(rng, games, recent=frames, far=0, reach=0, returns=0.0)
            real = reader.submit(pictures, plan.frames)
            clip: Batch = library.fetch(plan)
            latents, _ = play_on(network, autoencoder, vocabulary, clip, opening, int(rng.integers(2**31)))
            latents, seen = latents.flatten(0, 1), real.result().to(device)
            for _ in range(uses):
                at = torch.randint(len(latents), (batch,), device=device)
                yield Dreams(latents[at], seen[at], trust[at])


def _apart(ours: Tensor, theirs: Tensor, trust: Tensor) -> Tensor:
    """Mean absolute difference, each frame as much as it is trusted."""
    return (trust * (ours - theirs).abs().mean((1, 2, 3))).mean()


def _apart_all(ours: Sequence[Tensor], theirs: Sequence[Tensor], trust: Tensor) -> Tensor:
    pairs = zip(ours, theirs, strict=True)
    return torch.stack([_apart(a.float(), b.float(), trust) for a, b in pairs]).sum()

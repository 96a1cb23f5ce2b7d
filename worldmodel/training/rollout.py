"""Clips from games that the student has been dreaming on its own, for the histories it meets in play.

What a dream gets wrong, its later frames must live with. Real histories never show that, so the student
plays on from real openings with the real keys, by the same `World` as in play, and clips are cut
anywhere from what it made (self-forcing, arXiv 2506.08009).
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fastar import WindowSink

from ..autoencoder import Autoencoder
from ..denoiser import Denoiser
from ..vocabulary import Vocabulary
from ..world import World
from .flow import draw
from .latents import Batch, Library


@dataclass
class Alone:
    """What truly happened in some clips, what was dreamt instead [b, f, n, c], and for how long.

    age [b, f] counts the frames since the last real one: 0 for real frames.
    """

    clip: Batch
    dreamt: Tensor
    age: Tensor


def rollouts(
    student: Denoiser,
    library: Library,
    autoencoder: Autoencoder,
    vocabulary: Vocabulary,
    watch: Callable[..., None] = lambda **sharp: None,
    *,
    batch: int,
    length: int,
    games: int,
    alone: int,
    opening: int = 16,
    uses: int = 8,
    seed: int = 0,
) -> Iterator[Alone]:
    """Without end: `uses` batches of clips of `length` frames from every `games` games of the student's.

    A game is `opening` real frames and `alone` dreamt ones. The student plays as it is when asked. `watch` is
    told how sharp the games are beside the real ones, after 1, 4, 16, 64, ... dreamt frames.
    """
    frames = opening + alone
    if frames < length:
        raise ValueError(f"A clip of {length} frames needs games as long, got {opening} + {alone} frames.")
    openings = draw(library, games, ahead=1, seed=seed, recent=frames, far=0, reach=0, returns=0.0)
    device = library.latents.device
    since = (torch.arange(frames, device=device) - opening + 1).clamp_min(0)
    while True:
        real = next(openings)
        dreamt, places = play_on(student, autoencoder, vocabulary, real, opening, seed)
        seed += 1
        watch(**sharpness_by_age(autoencoder, student.grid, real.latents, dreamt, opening))
        for _ in range(uses):
            game = torch.randint(games, (batch, 1), device=device)
            first = torch.randint(frames - length + 1, (batch, 1), device=device)
            at = first + torch.arange(length, device=device)
            times = (at - at[:, -1:]).expand(batch, -1)
            words = real.words[game[:, 0]]
            clip = Batch(real.latents[game, at], real.keys[game, at], times, words, places[game, at])
            yield Alone(clip, dreamt[game, at], since[at])


@torch.no_grad()
def play_on(
    student: Denoiser,
    autoencoder: Autoencoder,
    vocabulary: Vocabulary,
    clip: Batch,
    opening: int,
    seed: int,
    window: int = 32,
) -> tuple[Tensor, Tensor]:
    """Latents of the clip with all frames after the `opening` dreamt in one pass each, as play does it.

    And the places [b, f, 3] where the student believed to be.
    """
    half = torch.bfloat16 if clip.latents.is_cuda else torch.float32
    memory = partial(WindowSink, recent=window)
    world = World(autoencoder, copy.deepcopy(student).to(half).eval(), vocabulary, memory)
    keys = clip.keys.byte().cpu().numpy()
    prompts = [vocabulary.text(words) for words in clip.words.tolist()]
    world.reset_latents(clip.latents[:, :opening], keys[:, :opening], prompts, seed)
    places = world.places
    dreamt = []
    for held in keys[:, opening:].swapaxes(0, 1):
        dreamt.append(world.step(held))
        places = torch.cat([places, world.places[:, -1:]], 1)
    return torch.cat([clip.latents[:, :opening], torch.stack(dreamt, 1)], 1), places


@torch.no_grad()
def sharpness_by_age(
    autoencoder: Autoencoder,
    grid: tuple[int, int],
    real: Tensor,
    dreamt: Tensor,
    opening: int,
    games: int = 16,
    near: int = 4,
) -> dict[str, Tensor]:
    """Sharpness of dreams [b, f, n, c] over that of the autoencoded truth, 1, 4, 16, ... frames in.

    Over some games and a few frames each: enough to see dreams blur or boil while they are learnt.
    """

    def sharpness(latents: Tensor) -> Tensor:
        frames = autoencoder.decode(latents[:games].flatten(0, 1), grid).float()
        return frames.diff(dim=-1).abs().mean() + frames.diff(dim=-2).abs().mean()

    ages = [4**i for i in range(8) if 4**i <= real.shape[1] - opening]
    spans = {
        age: slice(min(opening + age - 1, real.shape[1] - near), opening + age - 1 + near) for age in ages
    }
    return {f"sharp{age}": sharpness(dreamt[:, at]) / sharpness(real[:, at]) for age, at in spans.items()}

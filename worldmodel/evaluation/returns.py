"""Coming back: is the world what it was, when the player turns to what left the view long ago?

Real frames go through the memory up to a few frames before a return; those few are dreamt with the real
keys and held against the real engine's. No prompt is given, so that only memory can tell what is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..episodes import Episode
from ..eyes import Eyes
from ..training.latents import RETURN_AFTER
from ..world import MakeMemory, World
from .clips import encoded
from .judged import features
from .means import mean_and_error
from .quality import psnr, ssim
from .views import misfit, remembered, returns, track

LAST = 4  # dreamt frames that are scored, the return itself the last of them

Shown = tuple[np.ndarray, Tensor]
"""In place of the scored frames: pictures uint8 [..., LAST, h, w, 3] and latents [..., LAST, n, c]."""


@dataclass(frozen=True)
class Event:
    """Frame `at` of the episode number `game` is a return.

    alike  for each of the LAST frames up to it, the frame 10 s or more before that stands most like it
    """

    game: int
    at: int
    alike: np.ndarray


@dataclass(frozen=True)
class Clip:
    """The way to a return: latents [f, n, c] and keys uint8 [f, 9], and the pictures it ends in.

    real        uint8 [LAST, h, w, 3]
    references  shown in their place: the old frames most alike, any old frames, and the real ones through
                the autoencoder, which no dream can beat
    """

    game: int
    latents: Tensor
    keys: np.ndarray
    real: np.ndarray
    references: dict[str, Shown]


def moments(
    pose: np.ndarray, wall: np.ndarray, *, past: int, dreamt: int = 8, away: int = 60, hidden: float = 0.5
) -> list[int]:
    """The frames that return to a view and need memory for it.

    `past` frames and the `dreamt` ones lead there; the view was seen in the past, 10 s before or more.
    None of the last `away` of the past shows the view, and a share `hidden` of the picture are walls that
    the past has in sight, but not these last frames of it. Of each approach to a view it is the frame with
    the largest share.
    """
    view, share = returns(pose, lead=dreamt, away=away), {}
    for i in range(past + dreamt - 1, len(pose)):
        start = i - dreamt - past + 1
        if view[i] >= start:
            share[i] = remembered(wall, i, start=start, lead=dreamt, away=away)
    needy = [i for i in share if share[i] >= hidden]
    gaps = np.nonzero(np.diff(needy) > 2 * dreamt)[0] + 1
    approaches = [needy[a:b] for a, b in zip([0, *gaps], [*gaps, len(needy)], strict=True) if needy]
    return [max(frames, key=share.__getitem__) for frames in approaches]


def events(
    found: Sequence[Episode], games: int, columns: int, *, past: int, dreamt: int = 8, **needs: Any
) -> list[Event]:
    """At most `games` returns that need memory: one of every episode, then a second of every episode, ..."""
    each = []
    for game, episode in enumerate(found):
        pose, wall = track(episode, columns)
        ends = moments(pose, wall, past=past, dreamt=dreamt, **needs)
        each.append([Event(game, at, alike(pose, at, at - dreamt - past + 1)) for at in ends])
    in_turn = [event for turn in zip_longest(*each) for event in turn if event is not None]
    return in_turn[:games]


def alike(pose: np.ndarray, at: int, start: int) -> np.ndarray:
    """For each of the LAST frames up to `at`, the old frame since `start` that stands most like it."""
    old, last = slice(start, at - RETURN_AFTER + 1), range(at - LAST + 1, at + 1)
    return np.array([start + misfit(pose, i)[old].argmin() for i in last])


def clip_of(world: World, episode: Episode, event: Event, *, past: int, dreamt: int = 8) -> Clip:
    """The frames that lead to an event, encoded, and the references for its last ones."""
    if dreamt < LAST:
        raise ValueError(
            f"The last {LAST} dreamt frames are scored, so dream that many or more, not {dreamt}."
        )
    part = slice(event.at - dreamt - past + 1, event.at + 1)
    frames = episode.frames(part.start, part.stop)
    latents = encoded(world, frames)
    old, anywhere = event.alike - part.start, np.random.default_rng(event.at).integers(past, size=LAST)
    references = {
        "earlier view": (frames[old], latents[old]),
        "random view": (frames[anywhere], latents[anywhere]),
        "autoencoder": (world.decode(latents[-LAST:]), latents[-LAST:]),
    }
    return Clip(event.game, latents, episode.keys[part], frames[-LAST:], references)


@torch.no_grad()
def dreams(world: World, clips: Sequence[Clip], *, dreamt: int = 8, batch: int = 2, seed: int = 0) -> Shown:
    """The last frames of every clip, as dreamt after its real past. The noise depends on the seed alone."""
    parts = [_dreams(world, clips[i : i + batch], dreamt, seed + i) for i in range(0, len(clips), batch)]
    pictures, latents = zip(*parts, strict=True)
    return np.concatenate(pictures), torch.cat(latents)


def _dreams(world: World, clips: Sequence[Clip], dreamt: int, seed: int) -> Shown:
    latents, keys = torch.stack([clip.latents for clip in clips]), np.stack([clip.keys for clip in clips])
    world.reset_latents(latents[:, :-dreamt], keys[:, :-dreamt], "", seed)
    last = [world.step(keys[:, i]) for i in range(-dreamt, 0)][-LAST:]
    return np.stack([world.decode(latent) for latent in last], 1), torch.stack(last, 1)


Scores = dict[str, np.ndarray]
"""By name, a number for each clip and scored frame [k, LAST]."""


def scores(clips: Sequence[Clip], shown: Shown, eyes: Eyes | None = None) -> Scores:
    """PSNR (dB) and SSIM to the engine's frames, and mean square error of the latents.

    With eyes also the mean square distance of what they make of both: pixels that are a little aside count
    as wrong, and the place may be right.
    """
    pictures, latents = shown
    real, truth = (
        np.stack([clip.real for clip in clips]),
        torch.stack([clip.latents[-LAST:] for clip in clips]),
    )
    error = (latents - truth).square().mean((2, 3)).cpu().numpy()
    found = {"psnr": psnr(pictures, real), "ssim": ssim(pictures, real), "latent": error}
    if eyes is not None:
        apart = features(eyes, pictures) - features(eyes, real)
        found["features"] = np.square(apart).mean((-1, -2))
    return found


def measure(
    world: World,
    memories: dict[str, MakeMemory],
    clips: Sequence[Clip],
    *,
    dreamt: int = 8,
    batch: int = 2,
    seed: int = 0,
    eyes: Eyes | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows for the references and every memory, and for what each differs by from the first, pair by pair."""
    games = np.array([clip.game for clip in clips])
    for name in clips[0].references if clips else ():
        pictures, latents = zip(*(clip.references[name] for clip in clips), strict=True)
        yield from rows(name, scores(clips, (np.stack(pictures), torch.stack(latents)), eyes), games)
    first: tuple[str, Scores] | None = None
    for name, make in memories.items() if clips else ():
        world.use(make)
        score = scores(clips, dreams(world, clips, dreamt=dreamt, batch=batch, seed=seed), eyes)
        yield from rows(name, score, games)
        if first is None:
            first = name, score
        else:
            less = {what: values - first[1][what] for what, values in score.items()}
            yield from rows(f"{name} - {first[0]}", less, games)


def rows(name: str, score: Scores, games: np.ndarray) -> Iterator[dict[str, Any]]:
    """Means and their standard errors at the return and over the last frames."""
    for frames, at in (("return", slice(-1, None)), (f"last {LAST}", slice(None))):
        row: dict[str, Any] = {"memory": name, "frames": frames}
        for what, values in score.items():
            row[what], row[f"{what} +-"] = mean_and_error(values[:, at].mean(1), games)
        yield row

"""What history is worth: the error of a one-pass dream against how far back the memory reaches.

Teacher-forced: every frame is dreamt from pure noise after the real frames before it, so that memories
differ in what they remember and in nothing else. No prompt is given, and the noise is the same for all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastar import Dense, WindowSink

from ..episodes import Episode
from ..world import MakeMemory, World
from .clips import encoded
from .means import mean_and_error
from .views import last_sight, returns, track

Known = tuple[MakeMemory, int | None]
"""A memory, and how many frames back it can reach; None for all."""


@dataclass(frozen=True)
class Stretch:
    """A part of an episode: a past of p frames, then f frames to score.

    latents [p + f, n, c]; keys uint8 [p + f, 9]; frames uint8 [f, h, w, 3] of the scored part
    tokens  bool [f, n]: names of what is scored -> which tokens of it. `back` and `new` are columns whose
            wall comes into sight again after more than `away` frames, and for the first time in this part
    """

    latents: Tensor
    keys: np.ndarray
    frames: np.ndarray
    tokens: dict[str, np.ndarray]


def stretches(
    world: World, found: Iterable[Episode], games: int, *, past: int, frames: int, away: int = 60
) -> list[Stretch]:
    """Of each of the first `games` long episodes, the part with the most walls that come back into sight."""
    long = [episode for episode in found if len(episode) >= past + frames][:games]
    if len(long) < games:
        raise ValueError(
            f"Of the episodes there, {len(long)} have past + frames = {past + frames} frames, but "
            f"{games} games are wanted. Collect longer or more episodes, or ask for less."
        )
    return [_stretch(world, episode, past, frames, away) for episode in long]


def _stretch(world: World, episode: Episode, past: int, frames: int, away: int) -> Stretch:
    height, columns = world.denoiser.grid
    pose, wall = track(episode, columns)
    start = richest(last_sight(wall), past, frames, away)
    part = slice(start, start + past + frames)
    tokens = kinds(returns(pose[part], away=away), wall[part], past, away, height)
    pictures = episode.frames(part.start, part.stop)
    return Stretch(encoded(world, pictures), episode.keys[part], pictures[past:], tokens)


def richest(sight: np.ndarray, past: int, frames: int, away: int, stride: int = 16) -> int:
    """Where to start, so that after the past most columns [n, columns] show what was in sight long before."""
    age = np.arange(len(sight))[:, None] - sight

    def known(start: int) -> int:
        scored = slice(start + past, start + past + frames)
        return int(((age[scored] > away) & (sight[scored] >= start)).sum())

    return max(range(0, len(sight) - past - frames + 1, stride), key=known)


def kinds(view: np.ndarray, wall: np.ndarray, past: int, away: int, rows: int) -> dict[str, np.ndarray]:
    """`Stretch.tokens` from each frame's earlier view [p + f] and the walls in sight [p + f, columns]."""
    sight = last_sight(wall)[past:]
    age = np.arange(past, len(wall))[:, None] - sight
    columns = {
        "all": np.ones_like(sight, bool),
        "returns": np.repeat(view[past:, None] >= 0, sight.shape[1], 1),
        "back": (sight >= 0) & (age > away),
        "new": sight < 0,
    }
    return {name: np.tile(column, (1, rows)) for name, column in columns.items()}


def windows(lengths: Sequence[int | str], layers: int) -> dict[str, Known]:
    """A memory for each length of history, a number of frames or `all`.

    A window reaches further than its frames: what it keeps of them was computed from windows of their own.
    """
    found: dict[str, Known] = {}
    for length in lengths:
        if length == "all":
            found["all"] = Dense, None
        elif isinstance(length, int):
            found[f"last {length}"] = _window(length), layers * length
        else:
            raise ValueError(f"A length of history is a number of frames or `all`, not {length!r}.")
    return found


def _window(recent: int) -> MakeMemory:
    return lambda layers, rope: WindowSink(layers, rope, sink=0, recent=recent)


@torch.no_grad()
def errors(
    world: World, played: Sequence[Stretch], *, reach: int | None = None, batch: int = 2, seed: int = 0
) -> np.ndarray:
    """Mean square error [games, f, n] of every token of the scored frames, through the world's memory.

    Of the past only the last `reach` frames are shown. The noise depends on the seed alone.
    """
    parts = [played[i : i + batch] for i in range(0, len(played), batch)]
    return np.concatenate([_errors(world, part, reach, seed + i) for i, part in enumerate(parts)])


def _errors(world: World, played: Sequence[Stretch], reach: int | None, seed: int) -> np.ndarray:
    latents = torch.stack([stretch.latents for stretch in played])
    keys, frames = (np.stack([getattr(stretch, x) for stretch in played]) for x in ("keys", "frames"))
    past = keys.shape[1] - frames.shape[1]
    first = 0 if reach is None else max(0, past - reach)
    world.reset_latents(latents[:, first:past], keys[:, first:past], "", seed)
    found = []
    for i in range(past, keys.shape[1]):
        found.append((world.step(keys[:, i]) - latents[:, i]).square().mean(-1))
        world.see(frames[:, i - past])
    return torch.stack(found, 1).cpu().numpy()


def measure(
    world: World, known: dict[str, Known], played: Sequence[Stretch], *, batch: int = 2
) -> Iterator[dict[str, Any]]:
    """Rows for every memory, the gain being over the first of them."""
    base = None
    for name, (make, reach) in known.items():
        world.use(make)
        error = errors(world, played, reach=reach, batch=batch)
        base = error if base is None else base
        yield from rows(name, error, base, played)


def rows(
    memory: str, error: np.ndarray, base: np.ndarray, played: Sequence[Stretch]
) -> Iterator[dict[str, Any]]:
    """For each kind of tokens: how many, their mean error, and how much less it is than the base's."""
    for kind in played[0].tokens:
        scored = np.stack([stretch.tokens[kind] for stretch in played])
        games = np.nonzero(scored)[0]
        mean, _ = mean_and_error(error[scored], games)
        gain, sure = mean_and_error((base - error)[scored], games)
        yield {
            "memory": memory,
            "tokens": kind,
            "count": len(games),
            "error": mean,
            "gain": gain,
            "gain +-": sure,
        }

"""Held-out clips, and dreams that follow them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..doom.captions import caption
from ..episodes import Episode, episodes
from ..world import World


@dataclass(frozen=True)
class Clips:
    """Real play of equal length: frames uint8 [b, f, h, w, 3], keys [b, f, 9], a prompt each."""

    frames: np.ndarray
    keys: np.ndarray
    prompts: list[str]

    @property
    def games(self) -> int:
        return len(self.frames)

    def game(self, i: int) -> "Clips":
        """One of them."""
        return Clips(self.frames[i : i + 1], self.keys[i : i + 1], self.prompts[i : i + 1])


def held_out(folder: Path, games: int, frames: int, *, start: int = 200, history: int = 16) -> Clips:
    """A clip from each of the first so many episodes; the prompt tells of what comes after the history."""
    found = [e for e in episodes(folder) if len(e) >= start + frames][:games]
    if len(found) < games:
        raise ValueError(
            f"{folder} has {len(found)} episodes of {start + frames} frames, but {games} are wanted. "
            f"`python run.py collect held_out=true out={folder} episodes={games} frames={start + frames}` "
            "plays them."
        )
    return Clips(
        np.stack([e.frames(start, start + frames) for e in found]),
        np.stack([e.keys[start : start + frames] for e in found]),
        [_prompt(e, start + history) for e in found],
    )


def _prompt(episode: Episode, at: int) -> str:
    return caption(episode.meta, episode.steps, at, at + 16)


def dream(world: World, clips: Clips, *, history: int = 16, seed: int = 0) -> Iterator[np.ndarray]:
    """The frames [b, h, w, 3] dreamt after the history of each clip, from the clip's own keys."""
    world.reset(clips.frames[:, :history], clips.keys[:, :history], clips.prompts, seed)
    for i in range(history, clips.frames.shape[1]):
        yield world.decode(world.step(clips.keys[:, i]))


@torch.no_grad()
def encoded(world: World, frames: np.ndarray, batch: int = 64) -> Tensor:
    """Real frames uint8 [f, h, w, 3] as the world sees them: latents [f, n, c]."""
    return torch.cat([world.encode(frames[i : i + batch]) for i in range(0, len(frames), batch)])

"""What eyes say of dreams: are keys obeyed, do pictures look like the game's, is it what was asked for?

The same is always asked about real play as well, so that the ceiling is known: no dream is clearer to
the eyes than the game they were taught on.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from ..actions import KEYS
from ..autoencoder import to_frames
from ..doom.maze import CEILINGS, FLOORS, WALLS
from ..eyes import NAMES, Eyes, Sight
from ..world import World

MOVES = range(6)  # of `KEYS`: those that move the picture
LOOKS = {  # the engine's name -> what a prompt says of it
    "wall": {name: f"{words} walls" for name, words in WALLS.items()},
    "floor": {name: f"floor of {words}" for name, words in FLOORS.items()},
    "ceiling": CEILINGS,
}


@torch.no_grad()
def look(eyes: Eyes, frames: np.ndarray, batch: int = 64) -> Iterator[Sight]:
    """What eyes see in pictures uint8 [n, h, w, 3], a batch at a time."""
    device = next(eyes.parameters()).device
    for part in np.array_split(frames, max(1, len(frames) // batch)):
        yield eyes(to_frames(torch.from_numpy(np.ascontiguousarray(part)).to(device)))


@torch.no_grad()
def obeyed(eyes: Eyes, frames: np.ndarray, keys: np.ndarray) -> float:
    """How well the moving keys can be told from consecutive pictures [b, f, h, w, 3] and keys [b, f, 9].

    The mean over these keys of how often each is told right, held and not held counted alike: 1 is always
    and .5 is guessing.
    """
    told = []
    for game in frames:
        motion = torch.cat([seen.motion for seen in look(eyes, game)])
        told.append((eyes.pressed(motion[:-1], motion[1:]) > 0).cpu().numpy())
    held, told = keys[:, 1:].reshape(-1, len(KEYS)) > 0, np.concatenate(told)
    shares = []
    for key in MOVES:
        for state in (True, False):
            asked = held[:, key] == state
            if asked.any():
                shares.append((told[asked, key] == state).mean())
    return float(np.mean(shares))


def features(eyes: Eyes, frames: np.ndarray) -> np.ndarray:
    """What eyes make of pictures [..., h, w, 3], column by column: [..., columns, width]."""
    flat = frames.reshape(-1, *frames.shape[-3:])
    found = torch.cat([seen.features for seen in look(eyes, flat)]).cpu().numpy()
    return found.reshape(*frames.shape[:-3], *found.shape[1:])


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """Frechet distance of two sets of features [n, d], each taken for a normal distribution."""
    mean_a, mean_b = a.mean(0), b.mean(0)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = _root(cov_a)
    cross = np.sqrt(np.linalg.eigvalsh(root @ cov_b @ root).clip(0)).sum()
    return float(np.square(mean_a - mean_b).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The square root of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values.clip(0))) @ vectors.T


def named(eyes: Eyes, frames: np.ndarray) -> dict[str, str]:
    """What most of some pictures [n, h, w, 3] show: the engine's name of wall, floor and ceiling."""
    votes = {kind: Counter() for kind in NAMES}
    for seen in look(eyes, frames):
        for kind, names in NAMES.items():
            votes[kind].update(names[i] for i in getattr(seen, kind).argmax(-1).flatten().tolist())
    return {kind: count.most_common(1)[0][0] for kind, count in votes.items()}


def agrees(prompt: str, found: dict[str, str]) -> dict[str, bool]:
    """Whether what was found is what a prompt asks for, of all kinds that it names."""
    asked = {}
    for kind, looks in LOOKS.items():
        wanted = [words for words in looks.values() if words in prompt]
        if wanted:
            asked[kind] = looks[found[kind]] in wanted
    return asked


def wishes(count: int, seed: int = 0) -> list[str]:
    """Prompts for rooms of materials drawn by chance."""
    rng = np.random.default_rng(seed)
    walls, floors = (
        [str(x) for x in rng.choice(list(LOOKS[kind].values()), count)] for kind in ("wall", "floor")
    )
    return [f"a large room with {wall} and a {floor}" for wall, floor in zip(walls, floors, strict=True)]


def played(world: World, keys: np.ndarray) -> np.ndarray:
    """The frames [b, f, h, w, 3] that keys [f, 9], the same in all games, lead to."""
    return np.stack([world.decode(world.step(held)) for held in keys], 1)


def changing(frames: np.ndarray) -> np.ndarray:
    """How much each picture [..., f, h, w, 3] differs from the one before [..., f - 1], of 255."""
    return np.abs(np.diff(frames.astype(np.int16), axis=-4)).mean((-1, -2, -3))

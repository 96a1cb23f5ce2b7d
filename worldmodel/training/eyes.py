"""Stage `eyes`: teach a network to say what pictures of the real game show, and which keys were held.

Facts come from the engine: the player's pose and the floor plan tell which wall is behind each column, and
what it is made of. Maps without a floor plan teach the keys alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..autoencoder import to_frames
from ..doom.maze import World
from ..doom.rays import sight
from ..episodes import Episode
from ..eyes import COLUMNS, NAMES, UNKNOWN, Eyes, Truth, sight_loss
from .loop import Average, Run, adamw, rate, update


def train_eyes(
    found: list[Episode],
    folder: Path,
    device: torch.device,
    *,
    pairs: int = 80_000,
    batch: int = 256,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 1e-3,
    workers: int = 0,
    log_every: int = 100,
) -> Eyes:
    """Teach on about so many `pairs` of neighbouring pictures; returns the averaged weights."""
    run = Run(folder, "eyes", minutes=minutes, steps=steps)
    eyes = Eyes().to(device)
    average = Average(eyes, 0.998)
    learn = adamw(eyes, lr, betas=(0.9, 0.95), decay=0.05)
    run.resume(eyes=eyes, average=average, learn=learn)
    pictures, truth = _gather(found, pairs, workers)
    pictures, truth = pictures.to(device), Truth(*(x.to(device) for x in truth))
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    for progress in run.laps():
        at = torch.randint(len(pictures), (batch,), device=device)
        true = Truth(*(x[at] for x in truth))
        seen = dimmed(to_frames(pictures[at].flatten(0, 1)))
        with mixed:
            told = eyes(seen)
            first, second = (told.motion[i::2] for i in range(2))
            pressed = eyes.pressed(first, second)
        told = type(told)(*(x[1::2].float() for x in told))
        keys = F.binary_cross_entropy_with_logits(pressed.float(), true.keys)
        loss = sight_loss(told, true) + 3 * keys
        update(learn, loss, lr * rate(progress, run.step, warmup=100, hold=0.5))
        average.update(eyes)
        if run.step % log_every == 0:
            run.log(loss=loss, keys=keys, **rightness(told, pressed, true))
    run.save(eyes=eyes, average=average, learn=learn)
    return average.module.eval()


def dimmed(pictures: Tensor) -> Tensor:
    """With a little of what dreams get wrong and no one should mind: brightness and grain."""
    light = 1 + 0.05 * torch.randn(len(pictures), 1, 1, 1, device=pictures.device)
    grain = 0.02 * torch.rand(len(pictures), 1, 1, 1, device=pictures.device)
    return (pictures + 1) * light - 1 + grain * torch.randn_like(pictures)


def rightness(told: Any, pressed: Tensor, true: Truth) -> dict[str, Tensor]:
    """Shares that are named right, the mean error of the distance, and how often turning is told right."""
    found = {}
    for name in ("wall", "floor", "ceiling"):
        known = getattr(true, name) != UNKNOWN
        right = getattr(told, name).argmax(-1) == getattr(true, name)
        found[name] = (right & known).sum() / known.sum().clamp_min(1)
    known = true.distance != UNKNOWN
    found["distance"] = ((told.distance - true.distance).abs() * known).sum() / known.sum().clamp_min(1)
    found["pressed"] = ((pressed > 0) == (true.keys > 0.5)).float().mean()
    return found


def truth_of(episode: Episode, at: np.ndarray) -> Truth:
    """What the frames `at` of an episode show."""
    n = len(at)
    wall, floor, ceiling = (torch.full(size, UNKNOWN) for size in ((n, COLUMNS), (n,), (n,)))
    distance = torch.full((n, COLUMNS), float(UNKNOWN))
    world = episode.meta.get("world", {})
    if "grid" in world and episode.pose is not None:
        seen = sight(world, episode.pose[at], COLUMNS)
        here = np.array([episode.steps[i]["room"] for i in at])
        wall, floor, ceiling = (
            torch.from_numpy(_names(world, kind, room))
            for kind, room in (("wall", seen.room), ("floor", here), ("ceiling", here))
        )
        distance = torch.from_numpy(np.log2(seen.distance.clip(8))).float()
    return Truth(distance, wall, floor, ceiling, torch.from_numpy(episode.keys[at]).float())


def _names(world: World, kind: Any, room: np.ndarray) -> np.ndarray:
    """What is of this kind in rooms, as numbers in `NAMES`."""
    number = {name: i for i, name in enumerate(NAMES[kind])}
    each = [number.get(sector[kind], UNKNOWN) for sector in world["sectors"]]
    return np.where(room < 0, UNKNOWN, np.array([*each, UNKNOWN])[room])


class _Pairs(Dataset):
    """Of each episode, pictures uint8 [n, 2, h, w, 3] in pairs, and what the second of each shows."""

    def __init__(self, found: list[Episode], stride: int) -> None:
        self.found, self.stride = found, stride

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, i: int) -> tuple[Tensor, Truth]:
        episode = Episode(self.found[i].folder)
        at = np.arange(1, len(episode), self.stride)
        pairs = np.stack([episode.frames(second - 1, second + 1) for second in at.tolist()])
        return torch.from_numpy(pairs), truth_of(episode, at)


def _gather(found: list[Episode], pairs: int, workers: int) -> tuple[Tensor, Truth]:
    stride = max(1, sum(episode.meta["frames"] for episode in found) // pairs)
    each = DataLoader(_Pairs(found, stride), batch_size=None, num_workers=workers)
    pictures, truths = zip(*each, strict=True)
    return torch.cat(pictures), Truth(*(torch.cat(parts) for parts in zip(*truths, strict=True)))

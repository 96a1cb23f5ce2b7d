"""Everything a training stage draws clips from: latents, keys, captions and earlier views, on one device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..autoencoder import Autoencoder, to_frames
from ..doom.captions import choose, sentences
from ..episodes import Episode
from ..odometer import Odometer, reckoned
from ..vocabulary import Vocabulary, pad

CHUNK = 16  # frames that share a caption
LONGEST = 159  # words of a prompt: with the null token, a multiple of 8
RETURN_AFTER = 175  # frames: an earlier view counts as a return when it is at least 10 s old
NEAR, SAME_WAY = 48.0, 30.0  # map units and degrees within which two poses show the same view

Sentences = list[tuple[str, list[int]]]


class Reels(Dataset):
    """Episodes, decoded and captioned by worker processes: one item each."""

    def __init__(
        self, found: Sequence[Episode], vocabulary: Vocabulary | None = None, *, stride: int = 1
    ) -> None:
        self.found, self.vocabulary, self.stride = found, vocabulary, stride

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, i: int) -> dict[str, Any]:
        episode = Episode(self.found[i].folder)  # a fresh one, or every worker would keep all it has read
        reel: dict[str, Any] = {"frames": torch.from_numpy(episode.frames(stride=self.stride))}
        if self.vocabulary is not None:
            reel["keys"] = torch.from_numpy(episode.keys)
            reel["earlier"] = earlier_views(episode.pose, len(episode))
            reel["places"] = stood(episode.pose, len(episode))
            reel["captions"] = [
                [
                    (part, self.vocabulary.indices(text))
                    for part, text in sentences(episode.meta, episode.steps, at, at + CHUNK)
                ]
                for at in range(0, len(episode), CHUNK)
            ]
        return reel


def read(reels: Reels, workers: int) -> Iterator[dict[str, Any]]:
    """Decoded episodes, in order."""
    return iter(
        DataLoader(reels, batch_size=None, num_workers=workers, prefetch_factor=1 if workers else None)
    )


class Plan(NamedTuple):
    """The frames [b, f] of clips, their prompts, and the frames [b, f] that are shown: some are a twin's."""

    frames: np.ndarray
    prompts: list[list[int]]
    shown: np.ndarray


@dataclass
class Batch:
    """Clips: frames of history and, last, the frames to dream.

    latents [b, f, n, c]; keys [b, f, 9]; times [b, f] in frames, 0 the last one; words [b, l];
    places [b, f, 3] they were seen from: x and y in map units, 0 the last one's, and heading in radians
    """

    latents: Tensor
    keys: Tensor
    times: Tensor
    words: Tensor
    places: Tensor


class Library:
    """Latents of many episodes on one device, and the clips drawn from them."""

    def __init__(
        self,
        latents: Sequence[Tensor],
        keys: Sequence[Tensor],
        captions: list[list[Sentences]],
        earlier: Sequence[np.ndarray],
        places: Sequence[Tensor] | None = None,
        twins: Sequence[int | None] = (),
    ) -> None:
        """One item an episode: latents [f, n, c], keys [f, 9], sentences per chunk, `earlier_views`, `stood`.

        Without places, nobody knows them. `twins` are the numbers of episodes that are the same but for their
        materials, or None.
        """
        lengths = np.array([len(x) for x in latents])
        self.latents, self.keys, self.captions = torch.cat(list(latents)), torch.cat(list(keys)), captions
        places = [stood(None, length) for length in lengths] if places is None else list(places)
        self.places = torch.cat(places).to(self.latents.device)
        self.starts = np.cumsum(lengths) - lengths
        self.episode = np.repeat(np.arange(len(lengths)), lengths)
        self.earlier = np.concatenate(
            [np.where(view < 0, -1, view + start) for view, start in zip(earlier, self.starts, strict=True)]
        )
        self._usable: dict[int, np.ndarray] = {}
        self.twin = np.full(len(self), -1)  # the same moment in other materials
        for one, other in enumerate(twins):
            if other is not None:
                self._pair(one, other)

    def _pair(self, one: int, other: int) -> None:
        """Two episodes show the same moments for as long as their keys and poses are equal."""
        starts, most = self.starts[[one, other]], min((self.episode == i).sum() for i in (one, other))
        a, b = (slice(start, start + most) for start in starts)
        apart = (self.keys[a] != self.keys[b]).any(-1) | ((self.places[a] - self.places[b]).abs() > 0.5).any(
            -1
        )
        same = int(apart.int().argmax()) if apart.any() else most
        for start, there in (starts, starts[::-1]):
            self.twin[start : start + same] = np.arange(there, there + same)

    @classmethod
    @torch.no_grad()
    def encode(
        cls,
        found: Sequence[Episode],
        autoencoder: Autoencoder,
        vocabulary: Vocabulary,
        device: torch.device,
        *,
        workers: int = 0,
    ) -> "Library":
        """Read every episode through the autoencoder."""
        latents, keys, captions, earlier, where = [], [], [], [], []
        numbers = {_number(episode): i for i, episode in enumerate(found)}
        twins = [numbers.get(episode.meta.get("twin_of", -1)) for episode in found]
        for reel in read(Reels(found, vocabulary), workers):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                parts = reel["frames"].split(1000)
                latents.append(
                    torch.cat([autoencoder.encode(to_frames(part.to(device))).half() for part in parts])
                )
            keys.append(reel["keys"].to(device))
            captions.append(reel["captions"])
            earlier.append(reel["earlier"])
            where.append(reel["places"])
        return cls(latents, keys, captions, earlier, where, twins)

    def __len__(self) -> int:
        return len(self.latents)

    @torch.no_grad()
    def reckon(self, odometer: Odometer) -> None:
        """Where nobody knows the places of an episode, such as one's own play, an odometer says them."""
        unknown = self.places.isnan().any(-1).cpu().numpy()
        for number in np.unique(self.episode[unknown]):
            start = int(self.starts[number])
            at = slice(start, start + int((self.episode == number).sum()))
            known = reckoned(odometer, self.latents[None, at].float(), self.keys[None, at])[0]
            steps, heading = known[:, 4:], known[:, 2:3]
            self.places[at] = torch.cat([steps.cumsum(0), heading], 1)

    def plan(
        self,
        rng: np.random.Generator,
        batch: int,
        *,
        recent: int,
        far: int,
        reach: int,
        returns: float,
        swaps: float = 0.0,
    ) -> Plan:
        """Frame indices [batch, far + recent] of clips, and their prompts.

        A clip ends in `recent` consecutive frames. Before them come `far` frames from up to `reach` frames
        back: half the time the ones just before, else scattered. A share `returns` of the clips ends where an
        earlier view is known within reach, and that view is among the far frames. In a share `swaps` of those
        that have a twin the materials change somewhere on the way: what came before is shown as the twin
        was, and the prompt leaves out nothing.
        """
        clips, prompts, shown = [], [], []
        usable = self._ends_with(recent + far)
        back = usable[self.earlier[usable] >= np.maximum(usable - recent + 1 - reach, 0)]
        for _ in range(batch):
            to_view = far > 0 and len(back) > 0 and rng.random() < returns
            end = int(rng.choice(back if to_view else usable))
            first = end - recent + 1
            start = max(int(self.starts[self.episode[end]]), first - reach)
            if to_view:
                history = _around(int(self.earlier[end]), first, start, far, rng)
            elif rng.random() < 0.5:
                history = np.arange(first - far, first)
            else:
                history = start + np.sort(rng.choice(first - start, far, replace=False))
            clip = np.concatenate([history, np.arange(first, end + 1)])
            swapped = swaps > 0 and bool((self.twin[clip] >= 0).all()) and rng.random() < swaps
            before = np.arange(len(clip)) < (rng.integers(1, len(clip)) if swapped else 0)
            clips.append(clip)
            shown.append(np.where(before, self.twin[clip], clip))
            prompts.append(self._prompt(first + recent // 2, rng, whole=swapped))
        return Plan(np.stack(clips), prompts, np.stack(shown))

    def fetch(self, plan: Plan) -> Batch:
        """The clips of a plan, on the device."""
        indices, prompts, shown = plan
        seen = torch.from_numpy(shown).to(self.latents.device, non_blocking=True)
        at = torch.from_numpy(indices).to(self.latents.device, non_blocking=True)
        words = pad(prompts, LONGEST).to(self.latents.device, non_blocking=True)
        places = self.places[at]
        places[..., :2] -= places[:, -1:, :2].clone()
        return Batch(self.latents[seen].float(), self.keys[at].float(), at - at[:, -1:], words, places)

    def _ends_with(self, frames: int) -> np.ndarray:
        """Indices of frames that have at least frames - 1 before them in their episode."""
        if frames not in self._usable:
            age = np.arange(len(self)) - self.starts[self.episode]
            self._usable[frames] = np.nonzero(age >= frames - 1)[0]
            if not len(self._usable[frames]):
                raise ValueError(
                    f"No episode is {frames} frames long; collect longer ones or ask for shorter clips."
                )
        return self._usable[frames]

    def _prompt(self, frame: int, rng: np.random.Generator, *, whole: bool = False) -> list[int]:
        episode = self.episode[frame]
        chunk = self.captions[episode][(frame - self.starts[episode]) // CHUNK]
        if whole:
            return [word for _, words in chunk for word in words][:LONGEST]
        if rng.random() < 0.1:
            return []  # play without a prompt stays possible
        return [word for words in choose(chunk, rng) for word in words][:LONGEST]


def _number(episode: Episode) -> int | None:
    """The number that an episode was collected under, if it has one."""
    number = episode.folder.name.partition("-")[0]
    return int(number) if number.isdigit() else None


def _around(view: int, first: int, start: int, far: int, rng: np.random.Generator) -> np.ndarray:
    """`far` sorted frames of start..first - 1: up to six about an earlier view, the rest scattered."""
    run = np.clip(view + np.array([0, -1, 1, -2, 2, -3])[:far], start, first - 1)
    others = np.setdiff1d(np.arange(start, first), run)
    run = np.unique(run)
    return np.sort(np.concatenate([run, rng.choice(others, far - len(run), replace=False)]))


def stood(pose: np.ndarray | None, frames: int) -> Tensor:
    """Where each frame was seen from [frames, 3]: x, y in map units, heading in radians; NaN if unknown."""
    if pose is None:
        return torch.full((frames, 3), torch.nan)
    return torch.from_numpy(np.column_stack([pose[:, :2], np.deg2rad(pose[:, 3])]).astype(np.float32))


def earlier_views(pose: np.ndarray | None, frames: int) -> np.ndarray:
    """For each frame of an episode, a frame at least 10 s before it with the same view [frames], or -1.

    The player must have left in between: standing still for ten seconds is no return.
    """
    earlier = np.full(frames, -1)
    if pose is None:
        return earlier
    xy, angle = pose[:, :2], pose[:, 3]
    for i in range(RETURN_AFTER, frames):
        near = np.abs(xy[: i + 1] - xy[i]).max(-1) < NEAR
        turned = np.abs((angle[: i + 1] - angle[i] + 180) % 360 - 180) < SAME_WAY
        away = np.nonzero(~near)[0]
        last_away = away[-1] if len(away) else 0
        found = np.nonzero(near[:last_away] & turned[:last_away])[0]
        found = found[found <= i - RETURN_AFTER]
        if len(found):
            earlier[i] = found[-1]
    return earlier

"""What was done in a recorded game, frame by frame, so that it can be done again.

A recording with rewinds is a tree: its frames are numbered as they were dreamt, and each knows the frame
it was dreamt after. Any other episode is a single branch in which nothing is said.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldmodel.actions import action
from worldmodel.episodes import Episode

from .errors import UsageError

OPENING = -1  # what the first frame was dreamt after


class Step(NamedTuple):
    """What led to a frame, and what it looked like then."""

    keys: np.ndarray  # uint8 [9]
    after: int  # number of the frame it was dreamt after, or OPENING
    prompt: str | None  # in force; None where nobody said what
    memory: str | None
    reread: str | None  # the prompt under which the memory read the last frames again before this one
    link: str | None  # of the hash chain, see chain.py


class Script:
    """The steps of the episode in a folder, in the order in which they were taken."""

    def __init__(self, folder: Path) -> None:
        try:
            self.episode = Episode(folder)
            self.meta: Mapping[str, Any] = self.episode.meta
            self.steps = steps(self.episode, events(folder))
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{folder} is no episode that can be read: {error}") from None
        if not self.steps:
            raise UsageError(f"{folder} has no frames: its game ended before the first was dreamt.")

    def path(self) -> list[Step]:
        """The steps that led to the last frame: nothing that was undone."""
        way, number = [], len(self.steps) - 1
        while number != OPENING:
            way.append(self.steps[number])
            number = self.steps[number].after
        return way[::-1]

    def player(self) -> "Pressed":
        return Pressed([step.keys for step in self.path()])


class Pressed:
    """Who presses the keys of a script again, and then none."""

    def __init__(self, keys: Sequence[np.ndarray]) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def __call__(self, index: int) -> np.ndarray:
        return self.keys[index] if index < len(self.keys) else action()


def steps(episode: Episode, events: Mapping[int, Mapping[str, Any]]) -> list[Step]:
    prompt, memory = episode.meta.get("prompt"), episode.meta.get("memory")
    found = []
    for number, (keys, facts) in enumerate(zip(episode.keys, episode.steps, strict=True)):
        event = events.get(number, {})
        prompt, memory = event.get("prompt", prompt), event.get("memory", memory)
        jump = event.get("rewind") or event.get("branch")
        after, reread = jump["to"] if jump else number - 1, event.get("reread")
        found.append(Step(keys, after, prompt, memory, reread, facts.get("hash")))
    return found


def events(folder: Path) -> dict[int, dict[str, Any]]:
    """What changed before which frame; a recording that was killed may end within a line."""
    path, found = folder / "events.jsonl", {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            break
        found[event["frame"]] = event
    return found

"""`run.py replay DIR`: dream a recorded session again, from its opening, seed, keys, prompts and rewinds.

A recording holds a chain of hashes over its pictures. On the machine and in the precision it was made with,
every link must come out again; elsewhere the first frame that does not is told. Under another memory nothing
is to be the same, and how far apart the pictures are is told.
"""

import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from . import chain, config
from .errors import ReplayError, UsageError, WeightsError
from .frame import World
from .play import OpenScenes, OpenWorld
from .script import OPENING, Script, Step
from .stopping import on_stop
from .worlds import open_scenes, open_world

EVERY = 5.0  # seconds between lines
MACHINE = ("device", "dtype", "processor", "torch", "platform")  # where these agree, so do the pictures


def main(
    argv: Sequence[str], open_world: OpenWorld = open_world, open_scenes: OpenScenes = open_scenes
) -> int:
    cfg, folder = settings(argv)
    script = Script(folder)
    check(script, folder)
    cfg.start = script.meta.get("start")
    openings = open_scenes(cfg)
    if (scene := script.meta["world"]) not in openings:
        raise UsageError(f"{folder} is of the world {scene!r}; there is {', '.join(openings)}.")
    other = cfg.memory if cfg.memory not in (None, script.meta["memory"]) else None
    facts: dict[str, Any] = {"platform": platform.platform()}
    world = open_world(as_recorded(cfg, script.meta), facts, lambda state: print(f"{state} ...", flush=True))
    if (ours := facts.get("weights")) != (theirs := script.meta.get("weights")):
        raise WeightsError(f"{folder} has weights {theirs}, the game {ours}; set weights=FOLDER.")
    on_stop(signal.default_int_handler)
    world.reset(openings[scene], seed=script.meta["seed"])
    pictures = told(again(world, script.steps, switch=other is None), len(script.steps))
    if other is None:
        verify(pictures, script, facts, folder)
    else:
        measure(pictures, script, other)
    return 0


def settings(argv: Sequence[str]) -> tuple[DictConfig, Path]:
    parser = config.Parser("replay", "Dream a recorded session again.")
    parser.usage = "run.py replay DIR [key=value ...]     a recording that begins with its game"
    return parser.one(argv, "recording", "run.py replay recordings/FOLDER", config.above_play)


def check(script: Script, folder: Path) -> None:
    """Raise UsageError unless the recording says all it takes."""
    if backbone := script.meta.get("backbone"):
        raise UsageError(
            f"{folder} was dreamt by {backbone}, and only dreams of our own weights are replayed."
        )
    needed = ("world", "seed", "steps", "memory", "memories", "first_frame")
    if missing := [name for name in needed if name not in script.meta]:
        raise UsageError(f"{folder} lacks {', '.join(missing)} in meta.json: no recording of this version.")
    if script.meta["first_frame"] != 1:
        raise UsageError(
            f"{folder} begins at frame {script.meta['first_frame']} of its game, without what the world "
            "remembered then. Record from the first frame on: --record, or F8 and then R."
        )


def as_recorded(cfg: DictConfig, meta: Mapping[str, Any]) -> DictConfig:
    """The settings, with what was recorded for those that are null, and the memories as they were then."""
    cfg.memories = OmegaConf.create(meta["memories"])
    for name in ("memory", "steps", "dtype"):
        if cfg[name] is None:
            cfg[name] = meta.get(name, "auto")
    if cfg.memory not in cfg.memories:
        raise UsageError(f"No memory {cfg.memory!r}{config.suggestion(cfg.memory, map(str, cfg.memories))}")
    return cfg


def again(world: World, steps: Sequence[Step], *, switch: bool) -> Iterator[np.ndarray]:
    """The picture of each step in turn, from a world that was just reset.

    What a later step goes back to is kept until the last that does. `switch` says whether memories are.
    """
    needed = {step.after: number for number, step in enumerate(steps) if step.after != number - 1}
    kept = {OPENING: world.moment()} if OPENING in needed else {}
    for number, step in enumerate(steps):
        if step.after != number - 1:
            world.restore(kept[step.after])
        if step.reread is not None and switch:
            say(world, step.reread)
            world.switch(cast(str, step.memory))
            if step.after in needed:
                kept[step.after] = world.moment()  # who goes back there finds the new memory
        if needed.get(step.after, number) <= number:
            kept.pop(step.after, None)
        say(world, step.prompt)
        yield world.decode(world.step(step.keys))
        if number in needed:
            kept[number] = world.moment()


def say(world: World, prompt: str | None) -> None:
    if prompt is not None and prompt != world.prompt:
        world.say(prompt)


def told(pictures: Iterator[np.ndarray], of: int) -> Iterator[np.ndarray]:
    """The same, with a line now and then."""
    due = time.monotonic() + EVERY
    for number, picture in enumerate(pictures):
        if time.monotonic() > due:
            due = time.monotonic() + EVERY
            print(f"frame {number + 1} of {of}", flush=True)
        yield picture


def verify(pictures: Iterator[np.ndarray], script: Script, facts: Mapping[str, Any], folder: Path) -> None:
    """Say whether every link of the chain comes out again. Raises ReplayError where it must and does not."""
    link = chain.BEGINNING
    for number, (picture, step) in enumerate(zip(pictures, script.steps, strict=True)):
        link = chain.link(link, picture)
        if link == step.link:
            continue
        elsewhere = [name for name in MACHINE if facts.get(name) != script.meta.get(name)]
        apart = distance(picture, script, number)
        line = (
            f"Frame {number} of {len(script.steps)} is the first to differ, on average by {apart:.1f} of 255"
        )
        if not elsewhere:
            raise ReplayError(f"{line}, though {', '.join(MACHINE)} and weights are those of {folder}.")
        changed = ", ".join(f"{name} {script.meta.get(name)} -> {facts.get(name)}" for name in elsewhere)
        print(f"{line}. That is no fault: it was recorded elsewhere ({changed}).")
        return
    print(f"All {len(script.steps)} frames are the same to the bit; the last link of the chain is {link}.")


def measure(pictures: Iterator[np.ndarray], script: Script, memory: str) -> None:
    """Say how far from the recording another memory comes, a line per tenth."""
    apart = [distance(picture, script, number) for number, picture in enumerate(pictures)]
    print(f"Under {memory} in place of {script.meta['memory']}: mean difference from the recording, of 255")
    for part in np.array_split(np.arange(len(apart)), min(10, len(apart))):
        mean = np.mean([apart[i] for i in part])
        print(f"  frames {part[0]} to {part[-1]}: {mean:.1f}")


def distance(picture: np.ndarray, script: Script, number: int) -> float:
    """Mean absolute difference from the recorded picture, which went through JPEG."""
    recorded = script.episode.frames(number, number + 1)[0]
    return float(abs(picture.astype(np.int16) - recorded).mean())

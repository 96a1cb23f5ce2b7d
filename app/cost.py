"""`run.py bench player`: what the player costs beside the dream. Prints its figures as JSON, and writes them.

recording   One headless run, as fast as it goes, with the recorder on and off in turns, for stretches of
            equal length: the median frames per second of each. A first stretch warms up, and none counts its
            first frame, in which files are opened or closed. What the recorder has yet to write when its
            stretch ends is waited for, and told: a queue must not hide the work.
laps        One run in a window, at the pace of play, recorded, while the autopilot plays: milliseconds from
            one turn of the event loop to the next, so how long a key may wait until it is heard. A lap hears,
            waits for a frame up to the window's patience, and draws; the waiting is counted too. Laps until
            the first dreamt frame, while weights are loaded, are told apart.

Recordings go where those of play do, since disks differ, and are deleted afterwards.
"""

import json
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pygame
from omegaconf import DictConfig, OmegaConf

from . import config
from .autopilot import Autopilot
from .console import Console
from .dreamer import Dreamer
from .errors import DisplayError, UsageError
from .frame import Frame, World
from .gif import LastSeconds
from .loop import Stage
from .meter import Meter
from .play import OpenScenes, OpenWorld, check, no_display, open_window, run
from .record import Recorder, check_writable, unused
from .replay import MACHINE
from .window import Window
from .worlds import open_scenes, open_world


def main(
    argv: Sequence[str], open_world: OpenWorld = open_world, open_scenes: OpenScenes = open_scenes
) -> int:
    cfg = settings(argv)
    if problem := no_display():  # said now, and not after the first run
        raise DisplayError(f"{problem} SDL_VIDEODRIVER=dummy measures without one.")
    recordings = Path(cfg.recordings).expanduser()
    name = f"{datetime.now():%Y%m%d-%H%M%S}_cost.json"
    out = Path(cfg.out).expanduser() if cfg.out else unused(recordings / name)
    for folder in (recordings, out.parent):
        check_writable(folder)
    scene = cfg.world or next(iter(open_scenes(cfg)))
    facts: dict[str, Any] = {"world": scene, "memory": cfg.memory, "steps": cfg.steps}

    def noting(cfg: DictConfig, found: dict[str, Any], report: Callable[[str], None]) -> World:
        world = open_world(cfg, found, report)
        facts.update({name: found[name] for name in ("version", "weights", *MACHINE) if name in found})
        return world

    with tempfile.TemporaryDirectory(dir=recordings, prefix="cost-") as folder:
        cfg = with_(cfg, recordings=folder)
        told = {
            "recording": cost_of_recording(cfg, noting, open_scenes),
            "laps": laps_of_window(cfg, noting, open_scenes),
        }
    text = json.dumps({**facts, **told}, indent=1)
    out.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    print(f"Measured: {out}", file=sys.stderr, flush=True)
    return 0


def settings(argv: Sequence[str]) -> DictConfig:
    flags = config.Parser(
        "bench player", "Measure what the player costs.", "configs/cost.yaml"
    ).parse_intermixed_args(argv)
    cfg = config.above_play(flags.config, flags.settings)
    check(cfg)
    if cfg.pairs < 1:
        raise UsageError(f"pairs is {cfg.pairs}, but at least 1 is needed.")
    if cfg.frames is None or stretch_of(cfg) < 2:
        least = 2 * (2 * cfg.pairs + 1)
        raise UsageError(f"frames is {cfg.frames}, but {cfg.pairs} pairs need at least {least}.")
    return cfg


def stretch_of(cfg: DictConfig) -> int:
    """Frames of a stretch: all are as long, and the first warms up."""
    return cfg.frames // (2 * cfg.pairs + 1)


# What recording costs.


class OnAndOff(Console):
    """Headless play that is recorded in every second stretch of frames."""

    def __init__(self, stretch: int, frames: int, keys: Autopilot) -> None:
        super().__init__("autopilot", self._press, frames)
        self._stretch, self._keys = stretch, keys
        self.late: list[float] = []  # seconds that the recorder wrote on when its stretch was over

    def attach(self, dreamer: Dreamer, meter: Meter, recorder: Recorder, lately: LastSeconds) -> None:
        super().attach(dreamer, meter, recorder, lately)
        self._recorder = recorder

    def _press(self, index: int) -> np.ndarray:
        """Asked by the dreamer before each frame, so a stretch begins and ends with the frame it should."""
        stretch, at = divmod(index, self._stretch)
        if at == 0 and stretch % 2:
            self._recorder.start()
        elif at == 0 and stretch:
            began = time.perf_counter()
            self._recorder.stop()
            self._recorder.wait()
            self.late.append(time.perf_counter() - began)
        return self._keys(index)

    def seconds(self) -> list[np.ndarray]:
        """Of the frames of each stretch but its first. The meter has none for the first of all."""
        whole = np.asarray(self._meter.seconds)
        starts = range(0, len(whole), self._stretch)
        return [whole[start : start + self._stretch - 1] for start in starts]


def cost_of_recording(cfg: DictConfig, open_world: OpenWorld, open_scenes: OpenScenes) -> dict[str, Any]:
    """Frames per second of each stretch and over all of them."""
    stretch = stretch_of(cfg)
    frames = stretch * (2 * cfg.pairs + 1)
    stage = OnAndOff(stretch, frames, Autopilot(cfg.seed))
    say(f"{frames:,} frames, the recorder on and off every {stretch} of them")
    played(with_(cfg, fps=0.0, frames=frames, record=False), stage, open_world, open_scenes)
    _, *measured = stage.seconds()
    on, off = measured[0::2], measured[1::2]
    rates = {"on": rate(np.concatenate(on)), "off": rate(np.concatenate(off))}
    return {
        "frames": stretch,
        "fps": {name: round(fps, 3) for name, fps in rates.items()},
        "on_over_off": round(rates["on"] / rates["off"], 4),
        "pairs": [
            {"on": round(rate(a), 3), "off": round(rate(b), 3), "late_ms": round(1000 * late, 1)}
            for a, b, late in zip(on, off, stage.late, strict=True)
        ],
    }


def rate(seconds: np.ndarray) -> float:
    """Median frames per second."""
    return 1 / float(np.median(seconds))


# Laps of the event loop.


class Timed(Window):
    """A window in which the autopilot plays, and that notes when each turn of the event loop begins."""

    player = "autopilot"
    forgiving = False
    lingers = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.controller.next()
        self.turns = array("d")
        self.loading: int | None = None  # turns until a dreamt frame was shown

    def listen(self) -> list[str]:
        self.turns.append(time.perf_counter())
        return super().listen()

    def show(self, frame: Frame | None) -> None:
        super().show(frame)
        if self.loading is None and frame is not None and frame.index:
            self.loading = len(self.turns)


def laps_of_window(cfg: DictConfig, open_world: OpenWorld, open_scenes: OpenScenes) -> dict[str, Any]:
    """Milliseconds of the laps of a window, before and after the first dreamt frame."""
    window = cast(Timed, open_window(cfg, {"autopilot": Autopilot(cfg.seed)}, Timed))
    about = {"driver": pygame.display.get_driver(), "patience_ms": round(1000 * window.patience, 1)}
    say(f"{cfg.frames:,} frames in a window")
    played(with_(cfg, record=True), window, open_world, open_scenes)
    first = window.loading or len(window.turns)
    return {
        **about,
        "fps": cfg.fps,
        "loading": spread(window.turns[:first]),
        "playing": spread(window.turns[first:]),
    }


def spread(turns: Sequence[float]) -> dict[str, float]:
    """How long it was from each of these times, in seconds, to the next, in milliseconds."""
    laps = 1000 * np.diff(np.asarray(turns))
    if not len(laps):
        return {"turns": 0}
    shares = {f"p{share:g}_ms": round(float(np.percentile(laps, share)), 2) for share in (50, 99, 99.9)}
    return {"turns": len(laps), **shares, "max_ms": round(float(laps.max()), 2)}


# Both.


def played(cfg: DictConfig, stage: Stage, open_world: OpenWorld, open_scenes: OpenScenes) -> None:
    """Play, without a word of where the recordings are: they will not stay."""
    with redirect_stdout(StringIO()):
        run(cfg, lambda: stage, open_world, open_scenes)


def with_(cfg: DictConfig, **changed: Any) -> DictConfig:
    return cast(DictConfig, OmegaConf.merge(cfg, changed))


def say(line: str) -> None:
    print(f"{line} ...", file=sys.stderr, flush=True)

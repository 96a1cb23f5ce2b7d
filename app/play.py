"""`run.py play`: puts world, dreamer, stage and recorder together. The only file that knows them all.

A stage is a window, or a terminal where there is no display. Everything that can be found wrong before
the weights are loaded is: the world, the memory, the folder of recordings, the display.
"""

import argparse
import hashlib
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from worldmodel.actions import FPS

from . import config, loop
from .autopilot import Autopilot
from .console import Console
from .dreamer import Dreamer, Frame, Hands, Opening, World
from .errors import DisplayError, UsageError, WeightsError
from .meter import Meter
from .record import Recorder, check_writable

if TYPE_CHECKING:
    from .window import Window  # imports pygame, which headless play does not

AUTOPILOT_FRAMES = 300
HOW_TO_SEE = (
    "To play yourself, run this where there is a screen; over ssh, try ssh -X, or set DISPLAY. "
    "Without one, --headless --frames 300 --record dreams into a video."
)

Report = Callable[[str], None]


# The seams to the world model: these two, and no other place in app, know how it is loaded.


def open_world(cfg: DictConfig, facts: dict[str, Any], report: Report) -> World:
    """The world model of these settings; adds what it found out about weights and machine to `facts`."""
    report("waking up torch")
    import torch
    from worldmodel.load import load_world

    from .device import pick_device, pick_dtype

    report("looking for a device")
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    weights = config.shipped(cfg.weights)
    report("loading weights")
    facts.update(device=device, dtype=dtype, torch=torch.__version__, weights=digest(weights))
    memories = OmegaConf.to_container(cfg.memories)
    return load_world(
        weights, cfg.memory, memories, steps=cfg.steps, device=device, dtype=dtype, seed=cfg.seed
    )


def open_scenes(cfg: DictConfig) -> Mapping[str, Opening]:
    """The opening scenes there are, by name."""
    weights = config.shipped(cfg.weights)
    if not weights.is_dir():
        raise WeightsError(f"No weights at {weights}: `python run.py train` makes them; or weights=FOLDER.")
    from worldmodel.openings import load_openings

    openings = load_openings(weights)
    if not openings:
        raise WeightsError(f"No opening scenes in {weights}: a fresh clone has some; or set weights=FOLDER.")
    return openings


def digest(weights: Path) -> str:
    """One SHA-256 over every file of weights, so that a recording names what dreamt it."""
    total = hashlib.sha256()
    for path in sorted(weights.rglob("*.safetensors")):
        with open(path, "rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


# Command line.


def parser() -> config.Parser:
    flags = config.Parser("play", "Play a dream.")
    add = flags.add_argument
    add("--world", help="opening scene")
    add("--prompt", help="describe the world in your own words")
    add("--memory", help="how the past is kept: tempcache, window_sink, dense")
    add("--steps", type=int, help="denoising passes per frame")
    add("--seed", type=int)
    add("--device", help="auto, cpu, cuda, mps")
    add("--dtype", help="auto, float32, bfloat16")
    add("--fps", type=float, help="frames per second; 0 is as fast as possible")
    add("--size", type=int, dest="scale", help="screen pixels per dreamt pixel")
    add("--frames", type=int, help="stop after so many frames")
    add("--record", action="store_true", default=None, help="record from the first frame")
    stage = flags.add_mutually_exclusive_group()
    stage.add_argument("--headless", action="store_true", help="no window; an autopilot plays")
    stage.add_argument("--window", action="store_true", help="fail if there is no display")
    return flags


def settings(argv: Sequence[str]) -> tuple[DictConfig, argparse.Namespace]:
    """The configuration with flags and key=value words applied, and the flags."""
    flags = parser().parse_intermixed_args(argv)
    cfg = config.load(flags.config, flags.settings)
    shipped = config.load(config.ROOT / "configs" / "play.yaml")
    if missing := ", ".join(str(name) for name in shipped if name not in cfg):
        raise UsageError(f"{flags.config} lacks {missing}; configs/play.yaml shows every setting.")
    for name, value in vars(flags).items():
        if name in cfg and value is not None:
            cfg[name] = value
    if flags.headless and flags.fps is None and not any(word.startswith("fps=") for word in flags.settings):
        cfg.fps = 0
    if cfg.memory not in cfg.memories:
        raise UsageError(f"No memory {cfg.memory!r}{config.suggestion(cfg.memory, map(str, cfg.memories))}")
    for name, least in {"steps": 1, "scale": 1, "fps": 0, "frames": 1}.items():
        if cfg[name] is not None and cfg[name] < least:
            raise UsageError(f"{name} is {cfg[name]}, but at least {least} is needed.")
    return cfg, flags


# Play.


def main(
    argv: Sequence[str],
    open_world: Callable[[DictConfig, dict[str, Any], Report], World] = open_world,
    open_scenes: Callable[[DictConfig], Mapping[str, Opening]] = open_scenes,
) -> int:
    cfg, flags = settings(argv)
    openings = open_scenes(cfg)
    scene = str(cfg.world) if cfg.world is not None else next(iter(openings))
    if scene not in openings:
        raise UsageError(f"No world {scene!r}; there is {', '.join(openings)}.")

    window, problem = (None, "") if flags.headless else try_window(cfg)
    if window is None and flags.window:
        raise DisplayError(f"{problem} {HOW_TO_SEE}")
    if window is None:
        cfg.frames = cfg.frames or AUTOPILOT_FRAMES
    if problem:
        cfg.fps, cfg.record = 0, True
        print(f"{problem} The autopilot plays {cfg.frames} frames instead, and records them.", flush=True)
    recordings = Path(cfg.recordings).expanduser()
    if cfg.record:
        check_writable(recordings)

    facts = {
        "version": config.version(),
        "seed": cfg.seed,
        "steps": cfg.steps,
        "memory_settings": OmegaConf.to_container(cfg.memories[cfg.memory]),
        "controller": "autopilot" if window is None else "human",
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    meter = Meter()
    recorder = Recorder(recordings, facts, FPS)
    hands = Hands()

    def remember(frame: Frame) -> None:
        meter.tick(frame.took)
        recorder.see(frame)

    dreamer = Dreamer(
        lambda report: open_world(cfg, facts, report),
        openings,
        scene,
        Autopilot(cfg.seed) if window is None else hands,
        seed=cfg.seed,
        prompt=cfg.prompt,
        fps=cfg.fps,
        frames=cfg.frames,
        remember=remember,
    )
    if window is None:
        stage = Console(dreamer, meter, cfg.frames)
    else:
        window.attach(dreamer, hands, meter, recorder)
        stage = window
    if cfg.record:
        recorder.start()
    dreamer.start()
    try:
        loop.play(stage, dreamer, recorder)
    finally:
        close(dreamer, recorder)
        if window is not None:
            window.close()
        for folder in recorder.folders:
            print(f"Recorded: {folder}", flush=True)
    if isinstance(stage, Console):
        print(stage.summary())
    if problem:
        print(HOW_TO_SEE)
    recorder.check()
    return 0


def try_window(cfg: DictConfig) -> tuple["Window | None", str]:
    """A window, or why there is none."""
    by_itself = sys.platform in ("win32", "darwin") or "SDL_VIDEODRIVER" in os.environ
    if not by_itself and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return None, "No display: neither DISPLAY nor WAYLAND_DISPLAY is set."
    import pygame

    from .window import Window

    try:
        return Window(cfg.scale, cfg.overlay), ""
    except pygame.error as error:
        return None, f"No window could be opened: {error}."


def close(dreamer: Dreamer, recorder: Recorder) -> None:
    """End both threads, the recording first made whole. A second Ctrl-C must not cut that short."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        dreamer.stop()
        recorder.close()
        dreamer.join(timeout=2)
    finally:
        signal.signal(signal.SIGINT, before)

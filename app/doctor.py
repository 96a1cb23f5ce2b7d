"""`run.py doctor`: what is here, what of it play would use and why, and whether it can play at all.

Takes the flags of play, so that what is examined is what would be played. The menu's "Copy diagnostics" is
the same text, with the speed of the game under way in place of a probe.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

import psutil
from omegaconf import DictConfig

from . import config, driven
from .autopilot import Autopilot
from .errors import PackageError, PlayError, translate
from .frame import World
from .play import OpenScenes, OpenWorld, no_display, parser, settings
from .worlds import open_scenes, open_world

PROBE = 3.0  # seconds of dreaming
NEEDED = ("torch", "numpy", "pygame-ce", "omegaconf", "imageio", "av", "pillow", "safetensors", "psutil")
EXTRAS = {  # of pyproject.toml: the modules by which each is known, and what it is good for
    "serve": (("aiohttp",), "play in a browser"),
    "data": (("vizdoom",), "the real game: F10, and data to train on"),
    "faiss": (("faiss",), "nearest neighbours on a CPU, for comparison"),
    "backbones": (
        ("diffusers", "transformers", "sentencepiece"),
        "published backbones: run.py generate, play --backbone longvie2",
    ),
    "bench": (("matplotlib",), "figures of run.py bench"),
    "gpu": (("faiss", "flashinfer", "pynvml"), "other kernels and search on a GPU, for comparison"),
}
MARGIN = 10  # letters, of which a topic takes the first


class Finding(NamedTuple):
    """What was found about a topic; an error if that keeps from playing."""

    topic: str
    lines: list[str]
    error: PlayError | None = None

    def __str__(self) -> str:
        topics = [self.topic, *[""] * (len(self.lines) - 1)]
        return "\n".join(f"{topic:{MARGIN}}{line}" for topic, line in zip(topics, self.lines, strict=True))


def main(
    argv: Sequence[str], open_world: OpenWorld = open_world, open_scenes: OpenScenes = open_scenes
) -> int:
    """Print each finding as it is made. 0 if play is possible, else the code of the first error."""
    cfg, _ = settings(argv, parser("doctor", "Say what is here and whether it can play."))
    codes = []
    for finding in examine(cfg, lambda: probe(cfg, open_world, open_scenes, PROBE)):
        print(finding, flush=True)
        codes += [finding.error.code] if finding.error else []
    code = codes[0] if codes else 0
    print(f"It cannot play: exit code {code}." if code else "It can play: python run.py")
    return code


def diagnostics(cfg: DictConfig, speed: str) -> str:
    """The findings as one text, for somebody whose game is running at this speed."""
    return "\n".join(str(finding) for finding in examine(cfg, lambda: [speed])) + "\n"


def examine(cfg: DictConfig, speed: Callable[[], Iterable[str]]) -> Iterator[Finding]:
    """From what all else needs to what needs all else."""
    yield (packages := found("Packages", versions))
    if packages.error:
        return
    yield found("Extras", extras)
    yield found("Devices", devices)
    yield found("Window", window)
    yield (use := found("It uses", lambda: used(cfg)))
    yield (weights := found("Weights", lambda: checked(cfg)))
    if not use.error and not weights.error:
        yield found("Speed", speed)


def found(topic: str, look: Callable[[], Iterable[str]]) -> Finding:
    """What a look finds, or the user's error that it ends in."""
    try:
        return Finding(topic, list(look()))
    except Exception as error:
        told = translate(error)
        if told is None:
            raise
        return Finding(topic, [" ".join(str(told).split())], told)


def versions() -> Iterator[str]:
    yield f"FAST-AR Play {config.version()}, Python {platform.python_version()}, {platform.platform()}"
    if missing := [name for name in NEEDED if not version(name)]:
        raise PackageError(f"Not installed: {', '.join(missing)}. Run: pip install -e .")
    yield ", ".join(f"{name} {version(name)}" for name in NEEDED)


def version(package: str) -> str:
    """The version installed; empty if none is."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def extras() -> Iterator[str]:
    for name, (modules, use) in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        state = f"pip install -e '.[{name}]'" if missing else "installed"
        yield f"{name:10}{state:31}{use}"


def devices() -> Iterator[str]:
    """Each device there might be, and what keeps it from being used."""
    from worldmodel.processor import processor

    from .device import nvidia_present, torch_without_cuda, unusable

    for device in ("cuda", "mps", "cpu"):
        yield f"{device:7}{unusable(device) or processor(device)}"
    if nvidia_present() and torch_without_cuda():
        yield "WARNING: this torch leaves the GPU idle, and play is many times slower for it."
    free, total = psutil.virtual_memory().available / 1e9, psutil.virtual_memory().total / 1e9
    yield f"{'memory':7}{free:.1f} GB free of {total:.1f} GB"


def window() -> Iterator[str]:
    """Where play would be shown. Without a window it still can be played."""
    if problem := no_display():
        yield f"{problem} Play is headless, or in a browser: run.py serve."
    else:
        driver = os.environ.get("SDL_VIDEODRIVER") or ("native" if sys.platform != "linux" else "")
        yield driver or os.environ.get("WAYLAND_DISPLAY") or os.environ["DISPLAY"]


def used(cfg: DictConfig) -> Iterator[str]:
    """The device and the precision that play takes, each with its reason."""
    from .device import CLEARLY, pick_device, pick_dtype, speed_of_bfloat16

    device = pick_device(cfg.device)
    yield f"{device}: " + ("the best that works" if cfg.device == "auto" else "as asked for")
    dtype, reason = pick_dtype(cfg.dtype, device), "as asked for"
    if cfg.dtype == "auto":
        reason = "what suits it"
        if device == "cpu":
            gain = speed_of_bfloat16()
            reason = f"as measured, bfloat16 is {gain:.1f} times as fast; it is taken from {CLEARLY} on"
    yield f"{dtype}: {reason}"
    yield f"{cfg.memory}, {cfg.steps} step{'s' * (cfg.steps > 1)} a frame"


def checked(cfg: DictConfig) -> Iterator[str]:
    """The weights, each byte of which is checked; of a backbone, which has far too many, the names."""
    if cfg.backbone is not None:
        for path in driven.files(cfg):
            yield str(path)
        return
    from worldmodel.checkpoint import load_weights

    folder = config.shipped(cfg.weights)
    weights = load_weights(folder)
    size = sum((folder / name).stat().st_size for name in weights.manifest["files"])
    parameters = sum(x.numel() for x in weights.denoiser.parameters())
    yield f"{weights.hash}, whole: {len(weights.manifest['files'])} files, {size / 1e6:.1f} MB, in {folder}"
    steps = ", ".join(weights.manifest["levels"])
    yield f"{parameters / 1e6:.1f} million parameters dream, in {steps} steps a frame"


def probe(cfg: DictConfig, open_world: OpenWorld, open_scenes: OpenScenes, seconds: float) -> Iterator[str]:
    """Dream for some seconds, as an autopilot plays. The first frame is not counted: it warms up."""
    opening = next(iter(open_scenes(cfg).values()))
    facts: dict[str, Any] = {}
    began = time.perf_counter()
    world = open_world(cfg, facts, lambda state: None)
    world.reset(opening, seed=cfg.seed)
    loaded = time.perf_counter() - began
    frames, took = dream(world, Autopilot(cfg.seed), seconds)
    yield f"{frames / took:.1f} frames a second ({frames} in {took:.1f} s), loaded in {loaded:.1f} s"
    stages = ", ".join(f"{name} {1000 * x:.0f} ms" for name, x in world.timings.items())
    yield f"{stages}; the game's own speed is {cfg.fps:g}"


def dream(world: World, keys: Autopilot, seconds: float) -> tuple[int, float]:
    """Frames dreamt in at least so many seconds, and how many it were."""
    world.decode(world.step(keys(0)))
    began, frames, took = time.perf_counter(), 0, 0.0
    while took < seconds or not frames:
        frames += 1
        world.decode(world.step(keys(frames)))
        took = time.perf_counter() - began
    return frames, took

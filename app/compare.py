"""`run.py compare A B [C...]`: several memories dream the same game, without a window.

Same opening, keys, prompts and seed, so whatever differs comes from the memory. The panes are dreamt in
turns, frame by frame; what they dream depends on no clock. Into a folder go

    compare.mp4               the panes with their charts, a picture per frame
    compare.json, compare.md  what was compared, what it cost, how far apart the pictures are
    fps.png, memory.png       the two charts
    compare.gif               with gif=true: the panes at equal clocks, so that a slow one falls behind
"""

import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pygame
from omegaconf import DictConfig

from worldmodel.actions import FPS
from worldmodel.openings import Opening

from . import config, report
from .autopilot import Autopilot
from .errors import UsageError
from .pane import Pane, difference
from .panes import Panes, canvas_size, headline, pixels
from .play import AUTOPILOT_FRAMES, OpenScenes, OpenWorld
from .record import Video, check_writable, unused
from .reel import Reel
from .report import Outcome
from .script import Script
from .stopping import on_stop
from .worlds import open_scenes, open_world

EVERY = 5.0  # seconds between lines
WIDTH = 1408  # pixels of the video, at most but for margins


class Game(NamedTuple):
    """What all panes dream: an opening, and the keys and the prompt of each frame."""

    opening: Opening
    seed: int
    prompt: str | None
    frames: int
    keys: Callable[[int], np.ndarray]
    prompts: Callable[[int], str | None]


def main(
    argv: Sequence[str], open_world: OpenWorld = open_world, open_scenes: OpenScenes = open_scenes
) -> int:
    cfg, names = settings(argv)
    game = game_of(cfg, open_scenes(cfg))
    out = Path(cfg.out).expanduser() if cfg.out else unused(Path(cfg.recordings).expanduser() / title(names))
    check_writable(out)
    facts: dict[str, Any] = {"version": config.version(), "seed": game.seed, "steps": cfg.steps}
    world = open_world(cfg, facts, lambda state: print(f"{state} ...", flush=True))
    on_stop(signal.default_int_handler)  # from here on there is something to close
    panes = [Pane(world), *(Pane(world.beside(name)) for name in names[1:])]
    outcomes = race(panes, game, out, cfg.difference, Reel() if cfg.gif else None)
    facts |= {
        "world": game.opening.name,
        "prompt": game.prompt or game.opening.prompt,
        "actions": cfg.actions,
    }
    report.write(out, facts, outcomes)
    print(report.table(outcomes))
    print(f"Compared: {out}", flush=True)
    return 0


def settings(argv: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """The settings of play and compare in one, and the memories named."""
    parser = config.Parser("compare", "Several memories dream the same game.")
    parser.usage = "run.py compare A B [C ...] [key=value ...]     memories by name, as in configs/play.yaml"
    flags, names, changes = parser.sort(argv)
    cfg = config.above_play(flags.config, changes)
    known = [str(name) for name in cfg.memories]
    for name in names:
        if name not in known:
            raise UsageError(f"No memory {name!r}{config.suggestion(name, known)}")
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise UsageError(
            f"Two different memories or more are needed, got {' '.join(names) or 'none'}; "
            f"there is {', '.join(known)}: run.py compare tempcache dense"
        )
    if cfg.frames is not None and cfg.frames < 1:
        raise UsageError(f"frames is {cfg.frames}, but at least 1 is needed.")
    cfg.memory = names[0]
    return cfg, names


def title(names: Sequence[str]) -> str:
    return f"{datetime.now():%Y%m%d-%H%M%S}_compare_{'_'.join(names)}"


def game_of(cfg: DictConfig, openings: Any) -> Game:
    """The autopilot's game, or the one that a recording is of: then its world, seed and prompts too."""
    scene, seed, prompt = cfg.world, cfg.seed, cfg.prompt
    script = None if cfg.actions is None else Script(Path(cfg.actions).expanduser())
    if script is not None and script.meta.get("first_frame") == 1:
        scene, seed = scene or script.meta["world"], script.meta["seed"]
    scene = next(iter(openings)) if scene is None else str(scene)
    if scene not in openings:
        raise UsageError(f"No world {scene!r}; there is {', '.join(openings)}.")
    if script is None:
        frames = cfg.frames or AUTOPILOT_FRAMES
        return Game(openings[scene], seed, prompt, frames, Autopilot(seed), lambda index: prompt)
    path = script.path()[: cfg.frames]
    prompts = [step.prompt if prompt is None else prompt for step in path]
    keys = [step.keys for step in path]
    return Game(openings[scene], seed, prompts[0], len(path), keys.__getitem__, prompts.__getitem__)


def race(
    panes: list[Pane], game: Game, out: Path, differences: bool, reel: Reel | None = None
) -> list[Outcome]:
    """Dream the game in every pane, and film it."""
    for pane in panes:
        pane.begin(game.opening, game.seed, game.prompt)
    if reel:
        reel.add([pane.picture for pane in panes])
    apart: list[list[float]] = [[] for _ in panes]
    scale = max(1, WIDTH // (len(panes) * (panes[0].picture.shape[1] + 8)))
    canvas, drawing = pygame.Surface(canvas_size(len(panes), panes[0].picture, scale)), Panes()
    heading = headline(f"{game.opening.title}, seed {game.seed}", panes[0].costs, differences)
    video = Video(out / "compare.mp4", (canvas.get_height(), canvas.get_width()), FPS, heading, enlarged=1)
    told = time.monotonic()
    try:
        for index in range(game.frames):
            pictures = [pane.dream(game.keys(index), game.prompts(index)) for pane in panes]
            for far, picture in zip(apart, pictures, strict=True):
                far.append(float(abs(picture.astype(np.int16) - pictures[0]).mean()))
            if differences:
                pictures[1:] = [difference(picture, pictures[0]) for picture in pictures[1:]]
            if reel:
                reel.add(pictures)
            drawing.draw(canvas, [pane.costs for pane in panes], pictures, game.frames, heading)
            video.add(pixels(canvas))
            if time.monotonic() > told + EVERY:
                told = time.monotonic()
                rates = ", ".join(f"{pane.costs.name} {pane.costs.fps[-1]:.1f} FPS" for pane in panes)
                print(f"frame {index + 1} of {game.frames}: {rates}", flush=True)
    finally:
        video.close()
    if reel:
        reel.write(out / "compare.gif", [pane.costs for pane in panes], heading)
    return [Outcome(pane.costs, pane.link, far) for pane, far in zip(panes, apart, strict=True)]

"""`run.py play`: puts world, dreamer, stage and recorder together.

A stage is a window, or a terminal where there is no display. Everything that can be found wrong before
the weights are loaded is: the world, the memory, the folder of recordings, the display.
"""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from worldmodel.openings import Opening

from . import config, loop
from .autopilot import Autopilot
from .console import Console
from .dreamer import Dreamer
from .errors import DisplayError, UsageError, is_out_of_memory
from .frame import Frame, World
from .gif import LastSeconds
from .keys import Keys
from .meter import Evened, Meter
from .past import Past
from .players import Player
from .record import Recorder, check_writable
from .script import Pressed, Script
from .stopping import on_stop, restore
from .worlds import open_scenes, open_world, pictures

if TYPE_CHECKING:
    from .window import Window  # imports pygame, which headless play does not

AUTOPILOT_FRAMES = 300
PLAYERS = ("human", "autopilot", "replay")
HOW_TO_SEE = (
    "To play yourself, run this where there is a screen; over ssh, try ssh -X, or set DISPLAY. "
    "Without one, --headless --frames 300 --record dreams into a video."
)

OpenWorld = Callable[[DictConfig, dict[str, Any], Callable[[str], None]], World]
OpenScenes = Callable[[DictConfig], Mapping[str, Opening]]


def parser(verb: str = "play", about: str = "Play a dream.") -> config.Parser:
    """The flags of play, which other verbs that play take too."""
    flags = config.Parser(verb, about, "configs/play.yaml")
    add = flags.add_argument
    add("--world", help="opening scene")
    add("--start", metavar="PICTURE", help="dream on from this picture")
    add("--backbone", help="let a published model dream: longvie2; with --weights and --start")
    add("--weights", metavar="FOLDER", help="where the weights are")
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
    stage.add_argument("--headless", action="store_true", help="no window; an autopilot plays, or actions")
    stage.add_argument("--window", action="store_true", help="fail if there is no display")
    return flags


def settings(
    argv: Sequence[str], words: config.Parser | None = None
) -> tuple[DictConfig, argparse.Namespace]:
    """The configuration with flags and key=value words applied, and the flags."""
    flags = (words or parser()).parse_intermixed_args(argv)
    said = [*flags.settings, *([f"backbone={flags.backbone}"] if flags.backbone else [])]
    named = config.backbone_of(config.load(flags.config), said)
    cfg = config.above_play(flags.config, said) if named else config.load(flags.config, said)
    shipped = config.load(config.ROOT / "configs" / "play.yaml")
    if missing := ", ".join(str(name) for name in shipped if name not in cfg):
        raise UsageError(f"{flags.config} lacks {missing}; configs/play.yaml shows every setting.")
    for name, value in vars(flags).items():
        if name in cfg and value is not None:
            cfg[name] = value
    if flags.headless and flags.fps is None and not any(word.startswith("fps=") for word in flags.settings):
        cfg.fps = 0
    check(cfg)
    return cfg, flags


def check(cfg: DictConfig) -> None:
    """Raise UsageError for what play cannot do."""
    if cfg.memory not in cfg.memories:
        raise UsageError(f"No memory {cfg.memory!r}{config.suggestion(cfg.memory, map(str, cfg.memories))}")
    if cfg.fallback is not None and cfg.fallback not in cfg.memories:
        raise UsageError(
            f"No memory {cfg.fallback!r}{config.suggestion(cfg.fallback, map(str, cfg.memories))}"
        )
    for name, least in {"steps": 1, "scale": 1, "fps": 0, "frames": 1}.items():
        if cfg[name] is not None and cfg[name] < least:
            raise UsageError(f"{name} is {cfg[name]}, but at least {least} is needed.")
    if cfg.player not in PLAYERS:
        raise UsageError(f"No player {cfg.player!r}{config.suggestion(cfg.player, PLAYERS)}")
    if cfg.player == "replay" and cfg.actions is None:
        raise UsageError("player=replay presses the keys of a recording: say which, by actions=FOLDER.")
    if cfg.rewind.every < 1:
        raise UsageError(f"rewind.every is {cfg.rewind.every}, but at least 1 is needed.")
    Keys(cfg["keys"])


def main(
    argv: Sequence[str], open_world: OpenWorld = open_world, open_scenes: OpenScenes = open_scenes
) -> int:
    cfg, flags = settings(argv)
    return run(cfg, lambda: find_stage(cfg, flags, players_of(cfg)), open_world, open_scenes)


def run(
    cfg: DictConfig, find_stage: Callable[[], loop.Stage], open_world: OpenWorld, open_scenes: OpenScenes
) -> int:
    """Play these settings on a stage, until somebody has enough of it."""
    openings = open_scenes(cfg)
    scene = str(cfg.world) if cfg.world is not None else next(iter(openings))
    if scene not in openings:
        raise UsageError(f"No world {scene!r}; there is {', '.join(openings)}.")
    stage = find_stage()
    # whole paths, since the real game is started from within a folder of its own
    recordings, saves = (Path(folder).expanduser().absolute() for folder in (cfg.recordings, cfg.saves))
    if cfg.record:
        check_writable(recordings)

    facts = facts_of(cfg, stage)
    of_world = pictures(cfg)
    meter, evened = Meter(), Evened(of_world.at_once)
    recorder, lately = Recorder(recordings, facts, of_world.fps), LastSeconds(of_world.fps)

    def remember(frame: Frame) -> None:
        frame = replace(frame, took=evened(frame.took))
        meter.tick(frame.took)
        recorder.see(frame)
        lately.see(frame)

    dreamer = Dreamer(
        lambda report: open_or_smaller(open_world, cfg, facts, report, dreamer.notices.append),
        openings,
        scene,
        stage.controller,
        seed=cfg.seed,
        prompt=None if cfg.prompt is None else str(cfg.prompt),
        fps=cfg.fps,
        frames=cfg.frames,
        fallback=cfg.fallback,
        saves=saves,
        past=Past(cfg.rewind.every, cfg.rewind.megabytes if stage.rewinds else 0),
        remember=remember,
    )
    stage.attach(dreamer, meter, recorder, lately)
    if cfg.record:
        recorder.start()
    dreamer.start()
    on_stop(signal.default_int_handler)  # from here on there is something to close
    try:
        loop.play(stage, dreamer, recorder)
    finally:
        close(dreamer, recorder)
        for folder in recorder.folders:
            print(f"Recorded: {folder}", flush=True)
        stage.close()
    dreamer.check()
    recorder.check()
    return 0


def open_or_smaller(
    open_world: OpenWorld,
    cfg: DictConfig,
    facts: dict[str, Any],
    report: Callable[[str], None],
    tell: Callable[[str], None],
) -> World:
    """The world, or where there is no room for it, one that remembers less; that is told."""
    try:
        return open_world(cfg, facts, report)
    except Exception as error:
        if not is_out_of_memory(error) or cfg.fallback in (None, cfg.memory):
            raise
    # only here, since the error held on to what was loaded
    tell(f"Out of memory: {cfg.fallback} plays in place of {cfg.memory}.")
    cfg.memory = cfg.fallback
    return open_world(cfg, facts, report)


def players_of(cfg: DictConfig) -> dict[str, Player]:
    """Who may play in place of a person."""
    players: dict[str, Player] = {"autopilot": Autopilot(cfg.seed)}
    if cfg.actions is not None:
        players["replay"] = Script(Path(cfg.actions).expanduser()).player()
    return players


def find_stage(
    cfg: DictConfig, flags: argparse.Namespace, players: Mapping[str, Player]
) -> "Window | Console":
    """A window if there can be one. Without a display the last of `players` plays, records, and says why."""
    problem = ""
    if not flags.headless:
        try:
            window = open_window(cfg, players)
            window.hand_to(cfg.player)
            return window
        except DisplayError as error:
            if flags.window:
                raise DisplayError(f"{error} {HOW_TO_SEE}") from None
            problem = str(error)
    name, player = list(players.items())[-1]
    cfg.frames = cfg.frames or (len(player) if isinstance(player, Pressed) else AUTOPILOT_FRAMES)
    if problem:
        cfg.fps, cfg.record = 0, True
        print(f"{problem} The {name} plays {cfg.frames} frames instead, and records them.", flush=True)
    return Console(name, player, cfg.frames, farewell=HOW_TO_SEE if problem else "")


def no_display() -> str:
    """Why there can be no window; empty if nothing is known against it."""
    by_itself = sys.platform in ("win32", "darwin") or "SDL_VIDEODRIVER" in os.environ
    if by_itself or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return ""
    return "No display: neither DISPLAY nor WAYLAND_DISPLAY is set."


def open_window(
    cfg: DictConfig, players: Mapping[str, Player], kind: "type[Window] | None" = None
) -> "Window":
    """The window that people play in, or another kind of it. Raises DisplayError where there can be none."""
    if problem := no_display():
        raise DisplayError(problem)
    import pygame

    from .doctor import diagnostics
    from .window import Window

    try:
        how = cfg.mouse, cfg.film, pictures(cfg).shape
        return (kind or Window)(
            cfg.scale, cfg.overlay, players, partial(diagnostics, cfg), Keys(cfg["keys"]), *how
        )
    except pygame.error as error:
        raise DisplayError(f"No window could be opened: {error}.") from error


def facts_of(cfg: DictConfig, stage: loop.Stage) -> dict[str, Any]:
    """What a recording says about how it came to be; `open_world` adds weights and machine."""
    return {
        "version": config.version(),
        "seed": cfg.seed,
        "steps": cfg.steps,
        "start": cfg.start,
        "memories": OmegaConf.to_container(cfg.memories),
        "controller": stage.player,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def close(dreamer: Dreamer, recorder: Recorder) -> None:
    """End both threads, the recording first made whole. A second Ctrl-C must not cut that short."""
    before = on_stop(signal.SIG_IGN)
    try:
        dreamer.stop()
        recorder.close()
        dreamer.join(timeout=2)
    finally:
        restore(before)

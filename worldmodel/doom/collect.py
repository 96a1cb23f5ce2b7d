"""Plays the real game with scripted players and writes episodes: the data a world model learns from.

Every episode has a number, and the number with the run's seed decides its world, its player and its
dice, so a run that was stopped goes on where it ended and any part of it can be made again anywhere.
An episode is one world and one player; a finished one has its number of `frames` in meta.json.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from ..actions import FPS, action
from ..episodes import HEIGHT, WIDTH, EpisodeWriter
from .engine import STOCK, Doom, Observation, load_vizdoom
from .floorplan import Floorplan, hard_lines
from .maze import HELD_OUT_SEEDS, TRAINING_SEEDS, World, maze, obstacles, recoloured, room_at, solid_lines
from .navigator import Navigator
from .players import Idle, Macro, Player, Uniform

PLAYERS = {"macro": Macro, "uniform": Uniform, "idle": Idle}
MIX = {"navigator": 0.70, "macro": 0.12, "uniform": 0.08, "idle": 0.10}
SHORTEST = 64  # frames; a shorter episode is thrown away and tried in another world
RETRIES = 5  # worlds tried for one episode
REPORT = 100  # frames between two words from a worker
SILENCE = 120  # seconds without a word after which a worker is taken for dead


@dataclass(frozen=True)
class Recipe:
    """What an episode is made of, drawn from its number alone."""

    world: World | str
    engine_seed: int
    player: str
    player_seed: int
    monsters: bool
    held_out: bool
    twin_of: int | None = None  # the number of an episode that is the same but for its materials

    @property
    def name(self) -> str:
        return self.world if isinstance(self.world, str) else f"maze{self.world['seed']}"

    def meta(self) -> dict[str, Any]:
        return {
            "source": "vizdoom",
            "world": self.world,
            "world_seed": None if isinstance(self.world, str) else self.world["seed"],
            "engine_seed": self.engine_seed,
            "player": self.player,
            "player_seed": self.player_seed,
            "monsters": self.monsters,
            "fps": FPS,
            "size": [HEIGHT, WIDTH],
            "held_out": self.held_out,
            **({} if self.twin_of is None else {"twin_of": self.twin_of}),
        }


@dataclass(frozen=True)
class Cook:
    """Draws recipes: the shares of worlds, monsters and players."""

    seed: int
    generated: float
    monsters: float
    players: dict[str, float]
    held_out: bool
    twins: float = 0.0

    def recipe(self, number: int, attempt: int = 0) -> Recipe:
        """Every second episode may be a twin of the one before, unless that is in a map that ships.

        Players look at poses, not at pictures, so a twin is played alike.
        """
        rng = np.random.default_rng([self.seed, number, attempt])
        if self.twins and number % 2 and not attempt and rng.random() < 2 * self.twins:
            first = self.recipe(number - 1)
            if not isinstance(first.world, str):
                return replace(first, world=recoloured(first.world, rng), twin_of=number - 1)
        monsters = bool(rng.random() < self.monsters)
        names, shares = list(self.players), np.array(list(self.players.values()))
        return Recipe(
            world=self._world(rng, number + attempt, monsters),
            engine_seed=int(rng.integers(2**31)),
            player=str(rng.choice(names, p=shares / shares.sum())),
            player_seed=int(rng.integers(2**31)),
            monsters=monsters,
            held_out=self.held_out,
        )

    def _world(self, rng: np.random.Generator, turn: int, monsters: bool) -> World | str:
        if self.held_out:
            return maze(HELD_OUT_SEEDS[turn % len(HELD_OUT_SEEDS)], monsters)
        if rng.random() < self.generated:
            return maze(int(rng.integers(TRAINING_SEEDS.start, TRAINING_SEEDS.stop)), monsters)
        return str(rng.choice(list(STOCK)))


def collect(
    out: str | Path,
    episodes: int,
    frames: int = 2000,
    workers: int | None = None,
    seed: int = 0,
    generated: float = 0.85,
    monsters: float = 0.5,
    players: dict[str, float] | None = None,
    held_out: bool = False,
    twins: float = 0.0,
) -> None:
    """Write `episodes` folders of `frames` frames into `out`, skipping those already finished.

    `generated` and `monsters` are shares of episodes, `players` maps names to shares. `held_out` plays
    the worlds that training never sees. A share `twins`, at most half, are played twice, in other materials:
    they teach what a changed prompt changes. One worker per core but one by default; Ctrl-C ends cleanly.
    """
    if unknown := set(players or ()) - set(MIX):
        raise ValueError(f"No such player: {', '.join(sorted(unknown))}. There are {', '.join(MIX)}.")
    load_vizdoom()  # fails here, once, rather than in every worker
    root = Path(out)
    root.mkdir(parents=True, exist_ok=True)
    cook = Cook(seed, generated, monsters, dict(players or MIX), held_out, twins)
    todo = [number for number in range(episodes) if not finished(root, number)]
    crew = Crew(cook, root, frames, min(workers or max(1, (os.cpu_count() or 2) - 1), max(1, len(todo))))
    crew.work(todo)


def finished(root: Path, number: int) -> bool:
    """Whether this episode was played to its end; what a stopped run left of it is removed."""
    for folder in root.glob(f"{number:06d}-*"):
        meta = folder / "meta.json"
        if meta.exists() and "frames" in json.loads(meta.read_text() or "{}"):
            return True
        shutil.rmtree(folder)
    return False


# ---- one episode


def play(recipe: Recipe, frames: int) -> Iterator[tuple[np.ndarray, Observation]]:
    """Key vectors and what they led to, `frames` of them or fewer if the game ends."""
    with Doom(recipe.world, recipe.engine_seed, recipe.monsters) as doom:
        player = seat(recipe, doom.first)
        keys, seen = action(), doom.first
        for index in range(frames):
            yield keys, seen
            if index == frames - 1:
                return
            keys = player.act(seen)
            seen = doom.step(keys)
            if seen is None:
                return


def seat(recipe: Recipe, first: Observation) -> Player:
    """The player of a recipe, at the place where the game starts."""
    rng = np.random.default_rng(recipe.player_seed)
    if recipe.player != "navigator":
        return PLAYERS[recipe.player](rng)
    return Navigator(floorplan(recipe.world, first.pose[:2]), rng)


def floorplan(world: World | str, start: tuple[float, float]) -> Floorplan:
    """Where one can walk, from the description of a generated world or from the engine's own lines."""
    if isinstance(world, str):
        return Floorplan(_stock_lines(world), start)
    return Floorplan(solid_lines(world), start, obstacles(world))


@cache
def _stock_lines(name: str) -> np.ndarray:
    with Doom(name, seed=0, lines=True) as doom:
        return hard_lines(doom.sectors())


def record(recipe: Recipe, folder: Path, frames: int) -> Iterator[int]:
    """Play an episode into a folder, counting its frames; closing the count early leaves it unfinished."""
    writer = EpisodeWriter(folder, recipe.meta())
    count = 0
    try:
        for count, (keys, seen) in enumerate(play(recipe, frames), 1):  # noqa: B007
            writer.add(seen.frame, keys, **facts(recipe.world, seen))
            yield count
    finally:
        writer.close()
    if count < SHORTEST:
        raise RuntimeError(f"{recipe.name} ended after {count} frames")
    (folder / "meta.json").write_text(json.dumps(recipe.meta() | {"frames": count}, indent=1))


def facts(world: World | str, seen: Observation) -> dict[str, Any]:
    """What is known of a frame, as it goes into actions.jsonl."""
    x, y, z, angle = seen.pose
    known = {
        "pose": [round(x, 2), round(y, 2), round(z, 2), round(angle, 2)],
        "health": seen.health,
        "ammo": seen.ammo,
        "weapon": seen.weapon,
        "objects": seen.objects,
        "light": int(seen.frame[::4, ::4].mean()),
    }
    return known if isinstance(world, str) else known | {"room": room_at(world, x, y)}


# ---- many episodes


@dataclass
class Worker:
    """A process that plays one episode at a time, and what it is at."""

    process: Any
    pipe: Connection
    number: int = -1
    attempt: int = 0
    heard: float = field(default_factory=time.monotonic)

    def busy(self) -> bool:
        return self.number >= 0

    def has_word(self) -> bool:
        """Whether it said something, or has been silent for too long."""
        return self.busy() and (self.pipe.poll() or time.monotonic() - self.heard > SILENCE)

    def word(self) -> tuple[str, int, str]:
        """What happened, how many frames it gave, and why it went wrong."""
        try:
            if not self.pipe.poll():
                return "died", 0, f"nothing was heard of it for {SILENCE} s"
            self.heard = time.monotonic()
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            return "died", 0, "the engine took its process down"


@dataclass
class Crew:
    """Hands episode numbers to workers; a worker that dies is replaced, its episode tried elsewhere."""

    cook: Cook
    root: Path
    frames: int
    size: int
    workers: list[Worker] = field(default_factory=list)

    def work(self, todo: list[int]) -> None:
        queue = [(number, 0) for number in reversed(todo)]
        bar = Bar(len(todo), self.frames)
        try:
            self.workers = [self._hire() for _ in range(self.size if todo else 0)]
            for worker in self.workers:
                self._assign(worker, queue)
            while any(worker.busy() for worker in self.workers):
                self._listen(queue, bar)
        except KeyboardInterrupt:
            bar.say("stopped; the same command goes on from here")
        finally:
            self._dismiss()
            bar.close()

    def _hire(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        job = (theirs, self.cook, self.root, self.frames)
        process = context.Process(target=_serve, args=job, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours)  # pyright: ignore[reportArgumentType]  Windows names it otherwise

    def _assign(self, worker: Worker, queue: list[tuple[int, int]]) -> None:
        worker.number, worker.attempt = queue.pop() if queue else (-1, 0)
        worker.heard = time.monotonic()
        if worker.busy():
            worker.pipe.send((worker.number, worker.attempt))

    def _listen(self, queue: list[tuple[int, int]], bar: "Bar") -> None:
        wait([worker.pipe for worker in self.workers if worker.busy()], timeout=1)
        for worker in [worker for worker in self.workers if worker.has_word()]:
            kind, count, why = worker.word()
            bar.frames(count)
            if kind == "frames":
                continue
            number, attempt = worker.number, worker.attempt
            if kind == "died":
                worker = self._replace(worker)
            if kind == "done":
                bar.episode()
            else:
                bar.say(f"episode {number}: {why}")
                self._retry(number, attempt + 1, queue)
            self._assign(worker, queue)
        bar.draw()

    def _replace(self, worker: Worker) -> Worker:
        """Clear away a dead worker and the engine it may have left running."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        self.workers.append(self._hire())
        return self.workers[-1]

    def _retry(self, number: int, attempt: int, queue: list[tuple[int, int]]) -> None:
        """Try an episode again in another world, a few times."""
        finished(self.root, number)  # removes what is left of it
        if attempt < RETRIES:
            queue.append((number, attempt))

    def _dismiss(self) -> None:
        """A closed pipe is a worker's sign to stop."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=10)
            if worker.process.is_alive():
                worker.process.terminate()


def _serve(pipe: Connection, cook: Cook, root: Path, frames: int) -> None:
    """A worker's life: numbers in, episodes on disk, words about them back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(pipe.fileno(), False)  # or an engine that outlives this process keeps it open
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C then reaches neither this process nor its engine; the crew decides
    while True:
        try:
            recipe, number = None, -1
            number, attempt = pipe.recv()
            recipe = cook.recipe(number, attempt)
            _episode(pipe, recipe, root / f"{number:06d}-{recipe.name}", frames)
        except (EOFError, ConnectionError):
            return
        except Exception as error:  # whatever a world does to the engine costs one episode, not the run
            where = f" in {recipe.name}" if recipe else ""
            pipe.send(("failed", 0, f"{type(error).__name__}{where}: {error}"))


def _episode(pipe: Connection, recipe: Recipe, folder: Path, frames: int) -> None:
    count = 0
    for count in record(recipe, folder, frames):
        if count % REPORT == 0:
            pipe.send(("frames", REPORT, ""))
    pipe.send(("done", count % REPORT, ""))


class Bar:
    """Progress on stderr: one line that moves on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, episodes: int, frames: int) -> None:
        self.total, self.goal = episodes, episodes * frames
        self.done = self.seen = 0
        self.start, self.drawn = time.monotonic(), 0.0
        self.live = sys.stderr.isatty()

    def frames(self, count: int) -> None:
        self.seen += count

    def episode(self) -> None:
        self.done += 1

    def draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self.drawn < (0.2 if self.live else 10):
            return
        self.drawn = now
        rate = self.seen / max(now - self.start, 1e-9)
        left = max(0, self.goal - self.seen) / rate if rate else 0
        text = f"{self.done}/{self.total} episodes  {self.seen:,} frames  {rate:,.0f}/s  {left:,.0f} s left"
        print("\r\x1b[K" + text if self.live else text + "\n", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        print(("\r\x1b[K" if self.live else "") + text, file=sys.stderr, flush=True)

    def close(self) -> None:
        self.draw(force=True)
        if self.live:
            print(file=sys.stderr)

"""`run.py eval`: the parts asked for, into one folder of JSON, Markdown and contact sheets."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastar import WindowSink, method

from ..actions import action
from ..checkpoint import load_weights
from ..doom.captions import VOCABULARY
from ..episodes import episodes
from ..eyes import Eyes, load_eyes
from ..load import load_world, method_of
from ..processor import processor
from ..training.latents import Library
from ..vocabulary import Vocabulary
from ..world import MakeMemory, World
from . import history, judged, returns
from .calibrate import bounded, calibrate
from .clips import Clips, dream, held_out
from .conditioning import ablation, turning
from .explained import explained
from .fidelity import fidelity, rounding
from .pace import in_turns, pace
from .quality import psnr, quality, sharpness, sheet, tiled
from .results import Results
from .table import compare
from .tape import record

PARTS = (
    "calibrate", "quality", "explained", "table", "fidelity", "conditioning", "pace", "history",
    "returns", "judged", "idle", "prompts",
)  # fmt: skip


class Evaluation:
    """The settings of configs/eval.yaml, and what has been found so far."""

    def __init__(
        self,
        weights: Path,
        data: Path,
        out: Path,
        memories: dict[str, Any],
        device: str,
        dtype: str,
        graphs: bool,
    ) -> None:
        self.weights, self.data, self.out, self.memories = load_weights(weights), data, out, memories
        self.how: dict[str, Any] = {"device": device, "dtype": dtype, "graphs": graphs}
        facts = {"machine": processor(device), "dtype": dtype, "weights": self.weights.hash}
        self.results = Results(out, "eval", facts, go_on=False)

    def world(self, memory: str, steps: int = 1) -> World:
        return load_world(self.weights, memory, self.memories, steps=steps, **self.how)

    def quality(
        self,
        memories: list[str],
        steps: list[int],
        games: int,
        likeness: list[int],
        crispness: list[int],
        start: int,
    ) -> None:
        """PSNR and sharpness of every memory at every number of steps."""
        longest = max(*likeness, *(n + 3 for n in crispness))
        clips = held_out(self.data, games, 16 + longest, start=start)
        for count in steps:
            for memory in memories:
                row, dreamt = quality(
                    self.world(memory, count), clips, likeness=likeness, crispness=crispness
                )
                self.add("quality", {"memory": memory, "steps": count, **row})
                picture = sheet(clips, dreamt, sorted({1, *likeness, *crispness}))
                Image.fromarray(picture).save(self.out / f"sheet-{memory}-{count}.png")

    def calibrate(
        self,
        memory: str,
        grid: list[float],
        target: float,
        gap: int,
        games: int,
        frames: int,
        start: int,
        save: bool,
    ) -> None:
        """The threshold that suits each layer, kept beside the weights if asked to."""
        clips, world = held_out(self.data, games, frames), self.world("dense")
        tapes = [record(world, clips.game(i), start=start) for i in range(games)]
        axes = self.memories[memory]

        def make(threshold: float | list[float]) -> MakeMemory:
            return method(**{**axes, "cache": {**axes["cache"], "threshold": threshold}}).cache

        suits, bound = calibrate(tapes, make, grid), bounded(tapes[0], target, gap)
        columns = {
            "layer": range(len(bound)),
            "threshold": suits.thresholds,
            "explained": suits.explained,
            "bound": bound,
            "bound explained": explained(tapes, {"bound": make(bound)})["bound"],
        }
        for row in zip(*columns.values(), strict=True):
            self.add("calibrate", dict(zip(columns, row, strict=True)))
        if save:
            self.weights.suit(axes["cache"]["kind"], {"threshold": suits.thresholds})

    def explained(self, memories: list[str], games: int, frames: int, start: int) -> None:
        """Explained output per layer, once the far memory is full."""
        clips, world = held_out(self.data, games, frames), self.world("dense")
        tapes = (record(world, clips.game(i), start=start) for i in range(games))
        for name, layers in explained(tapes, {name: self.maker(name) for name in memories}).items():
            columns = {f"layer {i}": x for i, x in enumerate(layers)}
            self.add("explained", {"memory": name, **columns, "mean": np.mean(layers), "least": min(layers)})

    def table(
        self,
        budgets: list[int],
        memories: list[str],
        games: int,
        frames: int,
        start: int,
        dreams: int,
        past: int,
        dreamt: int,
    ) -> None:
        """Ways of remembering that read equally much: so many far frames beyond a window of 16 and a sink.

        And these memories, which read as much as they will. With so many `dreams` under each, of `dreamt`
        frames after a `past` of real ones, also how near they are to those under dense attention.
        """
        clips, world = held_out(self.data, games, frames), self.world("dense")
        tapes = [record(world, clips.game(i), start=start) for i in range(games)]
        suits = dict(self.weights.manifest.get("suits", {}).get("tempcache", {}))
        suits.pop("far", None)  # which is the budget
        look = None
        if dreams:
            seen = held_out(self.data, dreams, past + dreamt)
            dense = list(dream(world, seen, history=past))
            self.add("table", {"budget": "all", **self._floor(seen, dense, past)})
            look = partial(_like, dense, world, seen, past)
        others = {name: self.memories[name] for name in memories}
        for row in compare(tapes, budgets, others, suits, look):
            self.add("table", row)

    def fidelity(self, memories: list[str], games: int, frames: int) -> None:
        """Free-running dreams against dense attention's, beside what rounding alone does to that."""
        clips = held_out(self.data, games, 16 + frames)
        dense = list(dream(self.world("dense"), clips))
        self.add("fidelity", self._floor(clips, dense))
        for memory in memories:
            self.add("fidelity", {"memory": memory, **fidelity(dream(self.world(memory), clips), dense)})

    def _floor(self, clips: Clips, dense: list[np.ndarray], history: int = 16) -> dict[str, Any]:
        """What dense attention in another precision comes to: no memory can be told from it beyond that."""
        exact = rounding(self.how["dtype"])
        world = load_world(self.weights, "dense", self.memories, **{**self.how, "dtype": exact})
        return {"memory": f"dense, {exact}", **fidelity(dream(world, clips, history=history), dense)}

    def conditioning(self, clips: int, episodes_read: int, games: int) -> None:
        """What removing a condition costs, and whether the view turns the way the key says."""
        world = load_world(self.weights, "dense", self.memories, device=self.how["device"])
        found = list(episodes(self.data))[:episodes_read]
        library = Library.encode(found, world.autoencoder, Vocabulary(VOCABULARY), world.device)
        losses = ablation(world.denoiser, library, clips=clips)
        whole = losses["nothing"]
        for name, loss in losses.items():
            self.add("conditioning", {"removed": name, "loss": loss, "more": loss - whole})
        world = self.world("tempcache")
        self.add("turning", {"games": games, "right way": turning(world, held_out(self.data, games, 16))})

    def pace(self, frames: dict[str, int], every: int) -> None:
        """One game through each memory."""
        clips = held_out(self.data, 1, 800)
        for memory, count in frames.items():
            world = self.world(memory)
            for row in pace(world, clips, frames=count, every=every):
                self.add("pace", {"memory": memory, **row})
            if memory != "dense":
                self.add("in turns", {"memory": memory, **in_turns(world, self.world(memory), clips)})

    def history(
        self,
        lengths: list[int | str],
        memories: list[str],
        games: int,
        past: int,
        frames: int,
        away: int,
        batch: int,
    ) -> None:
        """One-pass error by how much of the real past is remembered; the first length is the one to beat."""
        world = self.world("dense")
        known = history.windows(lengths, len(world.denoiser.blocks))
        known |= {name: (self.maker(name), None) for name in memories}
        played = history.stretches(world, episodes(self.data), games, past=past, frames=frames, away=away)
        for row in history.measure(world, known, played, batch=batch):
            self.add("history", row)

    def returns(
        self,
        memories: list[str],
        steps: int,
        games: int,
        past: int,
        dreamt: int,
        away: int,
        hidden: float,
        batch: int,
        eyes: str | None,
    ) -> None:
        """Dreams of what was seen long ago; the first memory is the one to beat."""
        world, found = self.world("dense", steps), list(episodes(self.data))
        columns, length = world.denoiser.grid[1], {"past": past, "dreamt": dreamt}
        chosen = returns.events(found, games, columns, **length, away=away, hidden=hidden)
        worlds = len({event.game for event in chosen})
        self.add("return events", {"wanted": games, "found": len(chosen), "episodes": worlds})
        clips = [returns.clip_of(world, found[event.game], event, **length) for event in chosen]
        how: Any = {"dreamt": dreamt, "batch": batch, "eyes": self.eyes(eyes) if eyes else None}
        for row in returns.measure(world, self.recalling(memories), clips, **how):
            self.add("returns", row)

    def judged(
        self, eyes: str, memories: list[str], steps: list[int], games: int, spans: list[list[int]], start: int
    ) -> None:
        """How well keys are obeyed, and how far features are from the game's; first of the game itself."""
        judge = self.eyes(eyes)
        clips = held_out(self.data, games, 16 + max(stop for _, stop in spans), start=start)
        real, keys = clips.frames[:, 16:], clips.keys[:, 16:]
        half = games // 2  # against the other half of the games, also where one half is dreamt

        def rows(name: str, count: int, frames: np.ndarray) -> None:
            for begin, stop in spans:
                at = slice(begin, stop)
                one, other = (
                    judged.features(judge, x).mean(-2).reshape(-1, judge.distance.in_features)
                    for x in (frames[:half, at], real[half:, at])
                )
                found = {
                    "obeyed": judged.obeyed(judge, frames[:, at], keys[:, at]),
                    "frechet": judged.frechet(one, other),
                }
                self.add("judged", {"memory": name, "steps": count, "frames": f"{begin}-{stop}", **found})

        rows("the game itself", 0, real)
        for count in steps:
            for memory in memories:
                rows(memory, count, np.stack(list(dream(self.world(memory, count), clips)), 1))

    def idle(
        self, memories: list[str], steps: list[int], games: int, frames: int, at: list[int], start: int
    ) -> None:
        """Nobody presses a key: is it still the same place, as sharp, and alive?"""
        clips = held_out(self.data, games, 17, start=start)
        first = clips.frames[:, 15]
        for count in steps:
            for memory in memories:
                world = self.world(memory, count)
                world.reset(clips.frames[:, :16], clips.keys[:, :16], clips.prompts)
                dreamt = judged.played(world, np.stack([action()] * frames))
                row: dict[str, Any] = {"memory": memory, "steps": count}
                for n in at:
                    near = slice(max(0, n - 8), n)
                    row[f"psnr@{n}"] = float(psnr(dreamt[:, n - 1], first).mean())
                    row[f"sharp@{n}"] = float(sharpness(dreamt[:, near]).mean() / sharpness(first).mean())
                    row[f"changing@{n}"] = float(judged.changing(dreamt[:, near]).mean())
                self.add("idle", row)
                shown = np.concatenate([first[:, None], dreamt[:, [n - 1 for n in at]]], 1)
                Image.fromarray(tiled(shown)).save(self.out / f"idle-{memory}-{count}.png")

    def prompts(self, eyes: str, memory: str, steps: int, games: int, frames: int, seed: int) -> None:
        """Worlds from noise by text alone, then by another text: do they show what was asked for?"""
        judge, world = self.eyes(eyes), self.world(memory, steps)
        walk, turn = action(["forward"]), action(["forward", "turn_left"])
        keys = np.stack([turn if i % 40 < 20 else walk for i in range(frames)])
        asked = judged.wishes(2 * games, seed)
        told = (
            ("from noise", asked[:games], lambda texts: world.begin(texts, seed)),
            ("after a swap", asked[games:], world.say),
        )
        for name, prompts, tell in told:
            tell(prompts)
            dreamt = judged.played(world, keys)[:, frames // 2 :]
            right = [judged.agrees(p, judged.named(judge, x)) for p, x in zip(prompts, dreamt, strict=True)]
            row = {kind: float(np.mean([x[kind] for x in right])) for kind in ("wall", "floor")}
            self.add("prompts", {"memory": memory, "steps": steps, "world": name, "games": games, **row})
            picture = self.out / f"prompts-{name.replace(' ', '-')}.png"
            Image.fromarray(tiled(dreamt[:, :: frames // 8][:, :4])).save(picture)

    def recalling(self, memories: list[str]) -> dict[str, MakeMemory]:
        """The memories by name and, with TempCache, what is left of it when its far memory is off."""
        makers = {name: self.maker(name) for name in memories}
        if "tempcache" in makers:
            whole = {k: x for k, x in self.memories["tempcache"]["cache"].items() if k in ("sink", "recent")}
            makers["tempcache, far off"] = lambda layers, rope: WindowSink(layers, rope, **whole)
        return makers

    def eyes(self, folder: str) -> Eyes:
        return load_eyes(Path(folder)).to(self.how["device"])

    def maker(self, memory: str) -> MakeMemory:
        return method_of(self.weights, self.memories[memory]).cache

    def add(self, part: str, row: dict[str, Any]) -> None:
        self.results.add(part, row)


def _like(
    dense: list[np.ndarray], world: World, clips: Clips, history: int, make: MakeMemory
) -> dict[str, float]:
    """How near the dreams under another memory come to dense attention's."""
    return fidelity(dream(world.beside(make), clips, history=history), dense)


def evaluate(
    weights: str,
    data: str,
    out: str,
    parts: list[str],
    memories: dict[str, Any],
    device: str = "cpu",
    dtype: str = "float32",
    graphs: bool = False,
    **options: Any,
) -> None:
    """Measure the parts of a configuration; `options` holds the arguments of each part by its name."""
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"No such part: {', '.join(sorted(unknown))}. There are {', '.join(PARTS)}.")
    evaluation = Evaluation(Path(weights), Path(data), Path(out), memories, device, dtype, graphs)
    for part in parts:
        measure: Callable[..., None] = getattr(evaluation, part)
        measure(**options[part])

"""`run.py bench attention|rollout|table|ablation`: FAST-AR, its rivals and dense attention in one run.

Results go to one file, row by row. A run that was stopped goes on where it was, as long as weights, machine
and settings are the same.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastar import Cross, method

from ..backbones.forcing import Forcing
from ..checkpoint import load_weights
from ..denoiser import WHOLE_PROMPT
from ..evaluation.clips import held_out
from ..evaluation.fidelity import rounding
from ..evaluation.judged import features, frechet
from ..evaluation.merging import merging
from ..evaluation.pace import pace
from ..evaluation.recall import TRACKED, tracked
from ..evaluation.results import Results, Row, commit, table
from ..evaluation.tape import record
from ..eyes import load_eyes
from ..load import load_world, method_of, suited
from ..processor import processor
from ..world import World
from . import chunk, paper
from .attention import attention
from .figures import draw
from .paper import Case
from .recorded import HISTORY, Recording, play
from .rollout import rollout
from .table import joined

FINE = 1000  # frames up to which dense attention also dreams in a finer precision, in twice the room
WARM = 12  # chunks until a bounded memory is full and all of them have been recorded
BENCHES = ("attention", "rollout", "table", "ablation", "run", "paper")


class Bench:
    """The settings of configs/bench.yaml, a recorded game, and what has been found so far."""

    def __init__(
        self,
        weights: Path,
        data: Path,
        out: Path,
        memories: Mapping[str, Any],
        lengths: Sequence[int],
        questions: int,
        eyes: str | None,
        how: Mapping[str, Any],
    ) -> None:
        self.weights, self.data, self.out = load_weights(weights), data, out
        self.memories, self.lengths, self.questions, self.how = memories, sorted(lengths), questions, how
        self.eyes = eyes
        self.device, self.dtype = torch.device(how["device"]), getattr(torch, how["dtype"])
        self.launch = {name: how[name] for name in ("graphs", "fuse")}
        facts = {"machine": processor(how["device"]), "torch": torch.__version__, "dtype": how["dtype"]}
        facts |= {"weights": self.weights.hash, "commit": commit(), "memories": dict(memories)}
        self.results = Results(out, "bench", facts, go_on=True)

    def world(self, memory: str, steps: int, **how: Any) -> World:
        return load_world(self.weights, memory, dict(self.memories), steps=steps, **{**self.how, **how})

    @cached_property
    def recording(self) -> Recording:
        """Of one held-out game, as far as the longest length."""
        longest = max(self.lengths)
        print(f"playing {longest:,} frames, which every memory is then given ...", flush=True)
        some = next(iter(self.memories))
        clips = held_out(self.data, 1, HISTORY + 800)
        return play(self.world(some, 1), clips, self.lengths, self.questions)

    @cached_property
    def judge(self) -> Callable[[np.ndarray], float] | None:
        """How far pictures are from the game's own: the Frechet distance of what the eyes see in columns."""
        if self.eyes is None:
            return None
        eyes = load_eyes(Path(self.eyes)).to(self.device)

        def seen(pictures: np.ndarray) -> np.ndarray:
            return features(eyes, pictures).reshape(-1, eyes.distance.in_features)

        real = seen(self.recording.clips.frames[0, HISTORY:])
        return lambda pictures: frechet(seen(pictures), real)

    def attention(self, memories: Sequence[str]) -> None:
        """What the reading of each memory costs and finds."""
        for name in memories:
            if all(self.results.find("attention", memory=name, frame=n) for n in self.lengths):
                continue
            axes = suited(dict(self.memories[name]), self.weights.manifest)
            cache, attn = axes["cache"], axes.get("attn")
            known = cache["kind"] in TRACKED and not (cache["kind"] == "tempcache_paper" and attn)
            accounts = tracked(cache, attn) if known else None
            plain = method_of(self.weights, self.memories[name]).cache
            for row in attention(self.recording.tape, self.lengths, plain, accounts):
                self.results.add("attention", {"memory": name, **row})

    def rollout(self, memories: Sequence[str], steps: int) -> None:
        """What a frame of each memory costs and how it looks; dense first, whose frames are the measure."""
        for name in ["dense", *(name for name in memories if name != "dense")]:
            self._rollout(name, steps, self.world(name, steps), self.lengths)
        other, short = rounding(self.how["dtype"]), [n for n in self.lengths if n <= FINE]
        self._rollout(f"dense, {other}", steps, self.world("dense", steps, dtype=other), short)

    def _rollout(self, name: str, steps: int, world: World, lengths: Sequence[int]) -> None:
        if all(self.results.find("rollout", memory=name, steps=steps, frame=n) for n in lengths):
            return
        torch._dynamo.reset()
        freed()
        known = {n: self.out / f"dense-{steps}-{n}.npy" for n in lengths}
        dense = None if name == "dense" else {n: np.load(path) for n, path in known.items()}

        def keep(length: int, frames: np.ndarray) -> None:
            if name == "dense":
                np.save(known[length], frames)

        for row in rollout(world, self.recording, lengths, dense, keep, self.judge):
            if not self.results.find("rollout", memory=name, steps=steps, frame=row["frame"]):
                self.results.add("rollout", {"memory": name, "steps": steps, **row})

    def run(self, memories: Mapping[str, int], steps: int, every: int) -> None:
        """Each memory played from its first frame to so many, frame by frame: minutes on a GPU."""
        clips = held_out(self.data, 1, HISTORY + 800)
        for name, frames in memories.items():
            if not self.results.find("run", memory=name, steps=steps, frame=frames):
                for row in pace(self.world(name, steps), clips, frames=frames, every=every):
                    self.results.add("run", {"memory": name, "steps": steps, **row})

    def table(self, memories: Sequence[str], steps: int) -> None:
        """Everything about each memory at the longest length, as the paper lays it out."""
        self.rollout(memories, steps)
        self.attention([name for name in memories if not self.memories[name].get("step")])
        at = max(self.lengths)
        dreamt, read = {}, {}
        for name in ("dense", *memories):
            dreamt[name] = self.results.find("rollout", memory=name, steps=steps, frame=at) or {}
            read[name] = self.results.find("attention", memory=name, frame=at) or {}
        told = table(joined(list(dict.fromkeys(("dense", *memories))), dreamt, read))
        (self.out / "table.md").write_text(told + "\n", encoding="utf-8")
        print(told)

    def ablation(self, settings: Mapping[str, Any], games: int, frames: int, start: int) -> None:
        """The paper's ablations of merging."""
        known = {row["setting"] for row in self.results.rows("ablation")}
        settings = {name: options for name, options in settings.items() if name not in known}
        if not settings:
            return
        clips, world = held_out(self.data, games, frames), self.world("dense", 1)
        tapes = (record(world, clips.game(i), start=start) for i in range(games))
        for row in merging(tapes, settings):
            self.results.add("ablation", row)

    def paper(
        self,
        cases: Mapping[str, Mapping[str, Any]],
        memories: Mapping[str, Any],
        lengths: Sequence[int],
        every: int,
        only: Sequence[str] | None,
    ) -> None:
        """Each case, or `only` these, under each memory."""
        for name, options in cases.items():
            if only is not None and name not in only:
                continue
            case = Case(**options)
            decoding = paper.decoding(case, self.device, self.dtype)
            for memory in case.memories or memories:
                self._paper(name, case, memory, memories[memory], every)
            self._paper_dense(name, case, lengths, every)
            rows = [row for row in self.results.rows("paper") if row["case"] == name]
            for row in paper.summary(rows, case.chunks):
                if not self.results.find("paper, whole videos", case=name, memory=row["memory"]):
                    self.results.add("paper, whole videos", {"case": name, **row, "decoding": decoding})

    def _paper(self, name: str, case: Case, memory: str, axes: Mapping[str, Any], every: int) -> None:
        """A case under a bounded memory, then where the time of its chunks goes."""
        length, where = min(case.run or case.chunks, case.chunks), {"case": name, "memory": memory}
        if self.results.find("paper, parts", **where):
            return
        launch = self.launch | axes.get("launch", {})
        chosen = method(**paper.in_chunks({k: v for k, v in axes.items() if k != "launch"}, case.tokens))
        forcing = self._open(case, chosen.cache, chosen.cross, warm=WARM, **launch)
        row: Row = {}
        for row in paper.run(forcing, length, every):
            self.results.add("paper", {**where, "how": "run", **row})
        spent = {**where, **chunk.parts(forcing), "s a chunk": row["s a chunk"]}
        self.results.add("paper, parts", spent | (chunk.trace(forcing) if self.device.type == "cuda" else {}))

    def _open(
        self, case: Case, cache: Any, cross: Cross = WHOLE_PROMPT, *, warm: int = 0, **launch: Any
    ) -> Forcing:
        """A video that begins, after so many chunks of another have compiled what it needs."""
        torch._dynamo.reset()  # what was compiled for other shapes only fills its cache
        if warm:
            freed()
            other = case.open(cache, self.device, self.dtype, cross, **launch)
            for _ in range(warm):
                other.step()
            del other
        freed()
        return case.open(cache, self.device, self.dtype, cross, **launch)

    def _paper_dense(self, name: str, case: Case, lengths: Sequence[int], every: int) -> None:
        if not self.results.find("paper", case=name, memory="dense", chunk=max(lengths)):
            forcing = self._open(case, paper.Nothing, **self.launch)
            for row in paper.replayed(case, forcing, lengths):
                self.results.add("paper", {"case": name, "memory": "dense", "how": "replayed", **row})
            del forcing
        if case.dense and not self.results.find("paper", case=name, memory="dense, run", chunk=case.chunks):
            forcing = self._open(case, paper.Best, warm=2, **self.launch)
            for row in paper.run(forcing, case.chunks, every):
                self.results.add("paper", {"case": name, "memory": "dense, run", "how": "run", **row})

    def draw(self) -> None:
        rows = self.results.rows
        for path in draw(self.out, [*rows("rollout"), *rows("run")], rows("attention"), rows("paper")):
            print(path)


def freed() -> None:
    """Room for the next. Graphs and what they run know each other, so nobody else lets go of them."""
    gc.collect()
    torch.cuda.empty_cache()


def bench(
    what: str,
    *,
    weights: str,
    data: str,
    out: str,
    memories: dict[str, Any],
    lengths: list[int],
    questions: int,
    eyes: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    graphs: bool = False,
    fuse: bool = False,
    **options: Any,
) -> None:
    """Measure one of `BENCHES` of a configuration; `options` holds the arguments of each by its name."""
    if what not in BENCHES:
        raise ValueError(f"No benchmark {what!r}; there is {', '.join(BENCHES)}.")
    how = dict(device=device, dtype=dtype, graphs=graphs, fuse=fuse)
    found = Bench(Path(weights), Path(data), Path(out), memories, lengths, questions, eyes, how)
    measure: Callable[..., None] = getattr(found, what)
    measure(**options[what])
    found.draw()

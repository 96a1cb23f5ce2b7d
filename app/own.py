"""Own play as data: `run.py train data=recordings/...` takes what F8 recorded.

A recording goes on through rewinds and takes, so its frames are no single game, and it says what was asked
for and not what is to be seen. For training it is written anew: each way through it without a cut becomes
an episode, in which every frame has the prompt of its moment for a caption.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from worldmodel.episodes import Episode, EpisodeWriter, episodes

from .errors import UsageError
from .script import OPENING, Script, Step

MARK = "first_frame"  # of its game: a fact that recordings have and collected episodes have not
ITS_OWN = ("keys", "bytes", "hash")  # facts of a frame that its copy does not have, or has anew


def train(**cfg: Any) -> None:
    """Train as configured, on recordings too. The scenes of the weights gone on from come along."""
    from worldmodel.training import main as training

    found = recordings(Path(cfg["data"]).expanduser())
    if not found:
        return training.train(**cfg)
    check_odometer(cfg, found)
    out = Path(cfg["out"]).expanduser()
    training.train(**{**cfg, "data": str(written(found, out / "episodes-of-recordings"))})
    scenes = Path(cfg["start_from"] or "").expanduser() / "openings"
    if cfg["start_from"] and scenes.is_dir():
        shutil.copytree(scenes, out / "weights" / "openings", dirs_exist_ok=True)


def recordings(data: Path) -> list[Path]:
    """The recordings below a folder; none if it holds episodes of the real game."""
    found = list(episodes(data))
    dreamt = [episode.folder for episode in found if MARK in episode.meta]
    if dreamt and len(dreamt) < len(found):
        raise UsageError(
            f"{data} has {len(dreamt)} recordings among {len(found)} episodes. Train on one kind at a time."
        )
    return dreamt


def check_odometer(cfg: dict[str, Any], found: Sequence[Path]) -> None:
    """Raise UsageError where the network is to learn what no recording knows."""
    if "odometer" in cfg["stages"] and any(Episode(folder).pose is None for folder in found):
        others = ",".join(stage for stage in cfg["stages"] if stage != "odometer")
        raise UsageError(
            "Recordings do not say where the player stood, so no odometer learns from them. Go on from "
            f"weights that have one, without that stage: start_from=assets stages=[{others}]"
        )


def written(found: Sequence[Path], out: Path) -> Path:
    """Recordings as episodes in a folder, which is made anew."""
    shutil.rmtree(out, ignore_errors=True)
    for folder in found:
        script = Script(folder)
        for number, way in enumerate(unbroken(script.steps)):
            write(script, way, out / f"{folder.name}-{number}")
    return out


def unbroken(steps: Sequence[Step]) -> Iterator[list[int]]:
    """Numbers of frames each dreamt after the one before: the way to the last one, then what was undone."""
    taken: set[int] = {OPENING}
    for last in reversed(range(len(steps))):
        way, number = [], last
        while number not in taken:
            taken.add(number)
            way.append(number)
            number = steps[number].after
        if way:
            yield way[::-1]


def write(script: Script, way: Sequence[int], folder: Path) -> None:
    """The frames of one way as an episode of its own."""
    meta = {fact: known for fact, known in script.meta.items() if fact != MARK}
    writer = EpisodeWriter(folder, {**meta, "frames": len(way)})
    for number in way:
        step, facts = script.steps[number], script.episode.steps[number]
        known = {name: fact for name, fact in facts.items() if name not in ITS_OWN}
        picture = script.episode.frames(number, number + 1)[0]
        writer.add(picture, step.keys, **known, prompt=step.prompt or "")
    writer.close()

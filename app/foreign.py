"""`run.py import FOLDER`: a video of any game, and the keys held in it, become a recording to train on.

The folder has one video, in any codec that imageio reads, and a line per frame in one of two files:

    actions.jsonl   {"keys": ["forward", "turn_left"]}; or nine of 0 and 1, as recordings have them
    actions.csv     a column per key that is ever held, named after it; 1 where it is held, 0 where not

The keys of a line are those that led to its frame. Of each picture the middle is taken, in the shape that
the model has, and made as large as it is there.
"""

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
from av.error import FFmpegError
from imageio.config import video_extensions
from PIL import Image

from worldmodel.actions import KEYS, action
from worldmodel.episodes import HEIGHT, WIDTH, EpisodeWriter

from . import config
from .errors import UsageError
from .own import MARK
from .record import check_writable, unused
from .start import fitted

VIDEOS = {extension.extension for extension in video_extensions}


def main(argv: Sequence[str]) -> int:
    cfg, folder = settings(argv)
    out = Path(cfg.out).expanduser()
    video, keys = the_video(folder), the_keys(folder)
    check_writable(out)
    written = write(video, keys, unused(out / folder.resolve().name), cfg.prompt)
    print(f"Imported {len(keys):,} frames: {written}", flush=True)
    return 0


def settings(argv: Sequence[str]) -> tuple[Any, Path]:
    parser = config.Parser("import", "Make a recording of a video and its keys.")
    parser.usage = "run.py import FOLDER [key=value ...]     a video, and actions.jsonl or actions.csv"
    cfg, folder = parser.one(argv, "folder", "run.py import FOLDER")
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; one with a video and its keys was expected.")
    return cfg, folder


# What is in the folder.


def the_video(folder: Path) -> Path:
    """Raises UsageError unless there is one and only one."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in VIDEOS)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UsageError(f"{folder} must have one video, such as video.mp4; it has {names}.")
    return found[0]


def the_keys(folder: Path) -> list[np.ndarray]:
    """The key vector of each frame. Raises UsageError with the line that cannot be read."""
    readers = {"actions.jsonl": json_lines, "actions.csv": table}
    found = [folder / name for name in readers if (folder / name).is_file()]
    if len(found) != 1:
        names = " and ".join(path.name for path in found) or "neither"
        raise UsageError(f"{folder} must have {' or '.join(readers)}, a line per frame; it has {names}.")
    return list(readers[found[0].name](found[0]))


def json_lines(path: Path) -> Iterator[np.ndarray]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        yield read(path, number, lambda line=line: vector(json.loads(line)["keys"]))


def vector(keys: Any) -> np.ndarray:
    """Key vector of a list of names, or of one as recordings have it. Raises ValueError for anything else."""
    if not isinstance(keys, list):
        raise ValueError(f"keys is {keys!r}, but a list was expected")
    if len(keys) == len(KEYS) and all(key in (0, 1) for key in keys):
        return np.array(keys, np.uint8)
    return action(map(str, keys))


def table(path: Path) -> Iterator[np.ndarray]:
    with open(path, encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, skipinitialspace=True)
        names = next(rows, [])
        read(path, 1, lambda: action(names))
        for row in rows:
            yield read(path, rows.line_num, lambda row=row: action(ticked(names, row)))


def ticked(names: Sequence[str], row: Sequence[str]) -> list[str]:
    """The names with a 1 below them. Raises ValueError where there is neither 1 nor 0."""
    if len(row) != len(names) or not set(row) <= {"0", "1"}:
        raise ValueError(f"{','.join(row)} is not a 0 or 1 for each of {','.join(names)}")
    return [name for name, held in zip(names, row, strict=True) if held == "1"]


def read(path: Path, line: int, parse: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return parse()
    except KeyError as error:
        raise UsageError(f'{path}, line {line}: no {error}; {{"keys": ["forward"]}} was expected.') from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}, line {line}: {error}") from None


# What becomes of it.


def write(video: Path, keys: Sequence[np.ndarray], folder: Path, prompt: str) -> Path:
    """A recording of no game that is known here. Raises UsageError, and then leaves nothing behind."""
    meta = {"world": folder.name, "prompt": prompt, MARK: None, "source": video.name, "frames": len(keys)}
    meta |= {"height": HEIGHT, "width": WIDTH, "complete": True}
    part = unused(folder.with_name(f"{folder.name}.part"))
    try:
        frames = 0
        with closing(EpisodeWriter(part, meta)) as writer:
            for frames, picture in enumerate(pictures(video), 1):
                if frames <= len(keys):
                    writer.add(picture, keys[frames - 1])
        if frames != len(keys):
            raise UsageError(f"{video} has {frames:,} frames, but there are keys for {len(keys):,}.")
        return part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def pictures(video: Path) -> Iterator[np.ndarray]:
    """Each frame in the shape of the model, uint8 [h, w, 3]. Raises UsageError where it cannot be read."""
    try:
        for picture in iio.imiter(video, plugin="pyav"):
            yield fitted(Image.fromarray(picture))
    except (FFmpegError, OSError, ValueError, IndexError) as error:
        raise UsageError(
            f"{video} cannot be read: {error}. Perhaps so: ffmpeg -i {video} video.mp4"
        ) from None

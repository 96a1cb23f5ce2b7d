"""`run.py gif VIDEO`: some seconds of a recorded video as a GIF to share, with whatever is written on it."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
from av.error import FFmpegError

from . import config, gif
from .errors import UsageError
from .record import disk_error
from .reel import few_colours

RECORDED = ("screen.mp4", "video.mp4")  # of a recording: the window if it was filmed, else the dream


def main(argv: Sequence[str]) -> int:
    cfg, video = settings(argv)
    out = Path(cfg.out).expanduser() if cfg.out else video.with_suffix(".gif")
    pictures = list(excerpt(video, cfg.start, cfg.seconds, cfg.fps))
    if not pictures:
        raise UsageError(f"{video} has ended before second {cfg.start:g}.")
    try:
        gif.write(out, pictures, cfg.fps, few_colours)
    except OSError as error:
        raise disk_error(error, out.parent) from error
    print(f"{len(pictures)} pictures, {out.stat().st_size / 1e6:.1f} MB: {out}", flush=True)
    return 0


def settings(argv: Sequence[str]) -> tuple[Any, Path]:
    parser = config.Parser("gif", "Some seconds of a recorded video as a GIF.")
    parser.usage = "run.py gif VIDEO [key=value ...]     a video, or a recording that has one"
    cfg, path = parser.one(argv, "video", "run.py gif VIDEO")
    for name, wrong in {"start": cfg.start < 0, "seconds": cfg.seconds <= 0, "fps": cfg.fps <= 0}.items():
        if wrong:
            raise UsageError(
                f"{name} is {cfg[name]:g}, but {'0 or more' if name == 'start' else 'more than 0'}"
                " was expected."
            )
    return cfg, the_video(path)


def the_video(path: Path) -> Path:
    """Itself, or that of a recording. Raises UsageError where there is none."""
    if not path.is_dir():
        return path
    for name in RECORDED:
        if (path / name).is_file():
            return path / name
    raise UsageError(f"{path} has neither {' nor '.join(RECORDED)}; a recording or a video was expected.")


def excerpt(video: Path, start: float, seconds: float, fps: float) -> Iterator[np.ndarray]:
    """So many pictures a second of the video from `start` on. Raises UsageError where it cannot be read."""
    try:
        rate = float(iio.immeta(video, plugin="pyav")["fps"])
        wanted = [round((start + i / fps) * rate) for i in range(max(1, round(seconds * fps)))]
        pictures = iio.imiter(video, plugin="pyav")
        for i, picture in enumerate(islice(pictures, wanted[-1] + 1)):
            yield from [picture] * wanted.count(i)
    except (FFmpegError, OSError, ValueError, IndexError, KeyError) as error:
        raise UsageError(f"{video} cannot be read: {error}. A recorded video was expected.") from None

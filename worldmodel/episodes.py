"""The one format for seen and dreamt play: a folder with frames, keys and facts.

    frames.mjpeg    JPEG pictures back to back (quality 95, 4:4:4); any video player opens it
    actions.jsonl   a line per frame: the keys that led to it, the bytes of its picture, and
                    whatever is known (pose, objects in view, health)
    meta.json       where it comes from: world, seeds, size, frame rate

Both streams only ever grow, and a line is written after its picture, so a process that is killed
leaves an episode that ends a little early and reads like any other.
"""

import io
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .actions import KEYS

HEIGHT, WIDTH = 112, 160  # 120 rows cropped to a multiple of 16: an 8-fold autoencoder, patches of 2


def encode_jpeg(frame: np.ndarray, quality: int = 95) -> bytes:
    """RGB uint8 [h, w, 3] to JPEG without chroma subsampling."""
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, "JPEG", quality=quality, subsampling=0)
    return stream.getvalue()


def decode_jpeg(data: bytes) -> np.ndarray:
    """JPEG to RGB uint8 [h, w, 3]."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


class EpisodeWriter:
    """Appends frames to an episode folder. Create, `add` once per frame, `close`."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "meta.json").write_text(json.dumps(meta, indent=1))
        self._frames = open(folder / "frames.mjpeg", "wb")
        self._actions = open(folder / "actions.jsonl", "w")

    def add(self, frame: np.ndarray, keys: np.ndarray, **facts: Any) -> None:
        """Store one frame (uint8 [h, w, 3]), the key vector that led to it, and JSON-able facts."""
        picture = encode_jpeg(frame)
        self._frames.write(picture)
        line = {"keys": [int(key) for key in keys], "bytes": len(picture), **facts}
        self._actions.write(json.dumps(line, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Hand everything written so far to the operating system, pictures first."""
        self._frames.flush()
        self._actions.flush()

    def close(self) -> None:
        self._frames.close()
        self._actions.close()


class Episode:
    """A folder of frames, keys and facts, read lazily."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "actions.jsonl").exists():
            raise FileNotFoundError(f"{folder} is not an episode: it has no actions.jsonl.")
        self.folder = folder

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def meta(self) -> dict[str, Any]:
        return json.loads((self.folder / "meta.json").read_text())

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """One dictionary per complete frame, in order."""
        size = (self.folder / "frames.mjpeg").stat().st_size
        steps, end = [], 0
        for line in (self.folder / "actions.jsonl").read_text().splitlines():
            try:
                step = json.loads(line)
            except json.JSONDecodeError:
                break  # the last line of a recording that was killed
            end += step["bytes"]
            if end > size:
                break
            steps.append(step)
        return steps

    @cached_property
    def keys(self) -> np.ndarray:
        """uint8 [n, 9]; row i holds the keys pressed between frame i - 1 and frame i."""
        return np.array([step["keys"] for step in self.steps], np.uint8).reshape(-1, len(KEYS))

    @cached_property
    def pose(self) -> np.ndarray | None:
        """float32 [n, 4]: x, y, z in map units and angle in degrees; None where nobody knows."""
        if not self.steps or "pose" not in self.steps[0]:
            return None
        return np.array([step["pose"] for step in self.steps], np.float32)

    def frames(self, start: int = 0, stop: int | None = None, stride: int = 1) -> np.ndarray:
        """Every `stride`-th picture of start..stop as RGB uint8 [n, h, w, 3]."""
        ends = np.cumsum([0, *(step["bytes"] for step in self.steps)])
        pictures = []
        with open(self.folder / "frames.mjpeg", "rb") as stream:
            for i in range(start, len(self) if stop is None else stop, stride):
                stream.seek(ends[i])
                pictures.append(decode_jpeg(stream.read(ends[i + 1] - ends[i])))
        return np.stack(pictures)


def episodes(root: Path) -> Iterator[Episode]:
    """Every episode below a folder, in a fixed order."""
    for path in sorted(root.rglob("actions.jsonl")):
        yield Episode(path.parent)

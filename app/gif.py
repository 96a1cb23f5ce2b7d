"""The last seconds of play as a GIF to share."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from .frame import Frame

SECONDS = 6
ENLARGED = 2
COLOURS = 128


class LastSeconds:
    """Keeps the pictures of the last seconds of one dream."""

    def __init__(self, fps: float, seconds: float = SECONDS) -> None:
        self.fps = fps
        self._pictures: deque[np.ndarray] = deque(maxlen=round(seconds * fps))
        self._run = 0
        self._lock = threading.Lock()

    def see(self, frame: Frame) -> None:
        with self._lock:
            if frame.run != self._run:
                self._pictures.clear()
                self._run = frame.run
            self._pictures.append(frame.picture)

    def pictures(self) -> list[np.ndarray]:
        with self._lock:
            return list(self._pictures)


def enlarged(picture: np.ndarray, times: int) -> Image.Image:
    """Every pixel a square of so many."""
    image = Image.fromarray(picture)
    return image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)


def few_colours(picture: np.ndarray) -> Image.Image:
    """A dreamt picture, enlarged, with a palette."""
    return enlarged(picture, ENLARGED).quantize(COLOURS, dither=Image.Dither.NONE)


def write(
    path: Path,
    pictures: list[np.ndarray],
    fps: float,
    image: Callable[[np.ndarray], Image.Image] = few_colours,
) -> None:
    """A GIF that repeats, each picture as `image` has it. Raises OSError, and then leaves nothing behind."""
    images = [image(picture) for picture in pictures]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # GIF counts in hundredths of a second
        images[0].save(path, save_all=True, append_images=images[1:], duration=round(100 / fps) * 10, loop=0)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def write_beside(
    path: Path, pictures: list[np.ndarray], fps: float, told: Callable[[OSError | None], None]
) -> threading.Thread:
    """`write` in a thread of its own, since it takes seconds; `told` hears how it went."""

    def work() -> None:
        try:
            write(path, pictures, fps)
        except OSError as error:
            told(error)
        else:
            told(None)

    thread = threading.Thread(target=work, name="gif", daemon=True)
    thread.start()
    return thread

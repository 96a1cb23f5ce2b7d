"""An opening made of any picture: the world is told that it has stood still before it for a while."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from worldmodel.actions import action
from worldmodel.episodes import HEIGHT, WIDTH
from worldmodel.openings import FRAMES, Opening

from .errors import UsageError


def opening_of(path: Path, prompt: str = "", shape: tuple[int, int] = (HEIGHT, WIDTH)) -> Opening:
    """The middle of the picture in the shape of the game, as often as an opening has frames."""
    picture = picture_of(path, shape)
    frames, keys = np.stack([picture] * FRAMES), np.stack([action()] * FRAMES)
    return Opening(path.stem, path.name, prompt, 0, 0, frames, keys, keys, {})


def picture_of(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """The middle of the picture in a file, uint8 [h, w, 3]. Raises UsageError where it cannot be read."""
    try:
        with Image.open(path) as image:
            return fitted(image, shape)
    except (OSError, UnidentifiedImageError) as error:
        reason = getattr(error, "strerror", None) or "no picture that can be read"
        raise UsageError(f"Cannot read {path}: {reason}. A PNG or JPEG was expected.") from None


def fitted(image: Image.Image, shape: tuple[int, int] = (HEIGHT, WIDTH)) -> np.ndarray:
    """The middle of a picture in this shape, that of the game, uint8 [h, w, 3]."""
    return np.asarray(ImageOps.fit(image.convert("RGB"), (shape[1], shape[0]), Image.Resampling.LANCZOS))

"""A chain of hashes over the frames of a dream: where two links are equal, so was all that came before."""

import hashlib

import numpy as np

BEGINNING = ""


def link(before: str, picture: np.ndarray) -> str:
    """The link of a picture uint8 [h, w, 3] after that of the frame before it; 16 hexadecimal digits."""
    return hashlib.sha256(before.encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()[:16]

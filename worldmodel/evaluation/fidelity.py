"""How far a dream with a bounded memory is from the one with dense attention: the same seed, the same keys.

A dream is chaotic: any difference grows, so even rounding leads elsewhere in the end. That is the noise
floor, beyond which no memory can be told from dense attention.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from .quality import psnr, ssim

POINTS = (1, 4, 16, 64, 256)


def fidelity(dreamt: Iterable[np.ndarray], dense: Sequence[np.ndarray]) -> dict[str, float]:
    """PSNR in dB and SSIM of frames [b, h, w, 3], each against dense's; mean over all, and PSNR at some.

    Equal frames have 100 dB.
    """
    pairs = list(zip(dreamt, dense, strict=True))
    decibels = [float(psnr(a, b).mean()) for a, b in pairs]
    row = {"psnr": float(np.mean(decibels)), "ssim": float(np.mean([ssim(a, b).mean() for a, b in pairs]))}
    return row | {f"psnr@{n}": decibels[n - 1] for n in POINTS if n <= len(pairs)}


def rounding(dtype: str) -> str:
    """The type to hold another against: float32, and float64 for float32 itself."""
    return "float64" if dtype == "float32" else "float32"

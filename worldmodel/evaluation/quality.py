"""Likeness to the real engine, and sharpness beside that of raw real frames."""

import numpy as np
import torch
import torch.nn.functional as F

from ..world import World
from .clips import Clips, dream

LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def psnr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """dB between pictures uint8 [..., h, w, 3]: [...]."""
    error = np.square((a.astype(np.float32) - b.astype(np.float32)) / 255).mean((-1, -2, -3))
    return -10 * np.log10(np.maximum(error, 1e-10))


def ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Structural similarity of the luma of pictures uint8 [..., h, w, 3]: [...], 1 where they are equal.

    Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity, 2004: the mean of
    their index (13) over every window inside the picture, 11 x 11 pixels under a Gaussian of 1.5 pixels.
    """
    h, w = a.shape[-3:-1]
    x, y = (torch.from_numpy(z.astype(np.float32) @ LUMA).reshape(-1, 1, h, w) for z in (a, b))
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mx, my = blurred(x), blurred(y)
    vx, vy, covariance = blurred(x * x) - mx * mx, blurred(y * y) - my * my, blurred(x * y) - mx * my
    index = (2 * mx * my + c1) * (2 * covariance + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return index.mean((1, 2, 3)).numpy().reshape(a.shape[:-3])


def blurred(x: torch.Tensor, size: int = 11, sigma: float = 1.5) -> torch.Tensor:
    """Gaussian mean of every window of pictures [n, 1, h, w], one axis after the other."""
    weight = torch.exp(-(torch.arange(size) - size // 2).square() / (2 * sigma**2))
    weight = (weight / weight.sum())[None, None, None]
    return F.conv2d(F.conv2d(x, weight), weight.mT)


def sharpness(pictures: np.ndarray) -> np.ndarray:
    """Mean |dx| + |dy| of luma of pictures uint8 [..., h, w, 3]: [...]."""
    luma = pictures.astype(np.float32) @ LUMA
    return np.abs(np.diff(luma, axis=-1)).mean((-1, -2)) + np.abs(np.diff(luma, axis=-2)).mean((-1, -2))


def quality(
    world: World, clips: Clips, *, likeness: list[int], crispness: list[int], history: int = 16
) -> tuple[dict[str, float], np.ndarray]:
    """PSNR at some frames of the dream and sharpness ratio about others; and the dream [b, f, h, w, 3].

    The ratio at frame n compares the eight frames around it, summed over games, with the raw real ones.
    """
    dreamt = np.stack(list(dream(world, clips, history=history)), 1)
    real = clips.frames[:, history:]
    row = {f"psnr@{n}": float(psnr(dreamt[:, n - 1], real[:, n - 1]).mean()) for n in likeness}
    for n in crispness:
        near = slice(max(0, n - 5), n + 3)
        row[f"sharp@{n}"] = float(sharpness(dreamt[:, near]).mean() / sharpness(real[:, near]).mean())
    return row, dreamt


def sheet(
    clips: Clips, dreamt: np.ndarray, frames: list[int], *, history: int = 16, games: int = 8
) -> np.ndarray:
    """A contact sheet: per game the real frames above the dreamt ones, at the given numbers."""
    real = clips.frames[:, history:]
    at = [n - 1 for n in frames]
    shown = range(min(games, clips.games))
    return tiled(np.stack([pictures[game, at] for game in shown for pictures in (real, dreamt)]))


def tiled(pictures: np.ndarray) -> np.ndarray:
    """Pictures [rows, columns, h, w, 3] as one."""
    return np.concatenate([np.concatenate(list(row), 1) for row in pictures])

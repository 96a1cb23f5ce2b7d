"""The mathematics of the flow, with no networks in it.

x_t = (1 - t) clean + t noise, v = noise - clean, so clean = x_t - t v. The noise level t runs from 0
(clean) to 1 (pure noise).
"""

import torch
from torch import Tensor


def noised(clean: Tensor, level: Tensor, noise: Tensor) -> Tensor:
    """x_t of clean [b, f, n, c] at level [b, f]."""
    t = level[..., None, None]
    return (1 - t) * clean + t * noise


def clean_of(x: Tensor, level: Tensor, velocity: Tensor) -> Tensor:
    """The clean frame that x_t and its velocity point at."""
    return x - level[..., None, None] * velocity


def training_levels(shape: tuple[int, int], device: torch.device | str) -> Tensor:
    """Levels of the frames to denoise [b, f]: logit-normal, towards the noisy end."""
    return torch.sigmoid(1.2 * torch.randn(shape, device=device) + 0.4)


def context_levels(shape: tuple[int, int], device: torch.device | str, most: float = 0.5) -> Tensor:
    """Levels of the history [b, f]: mostly small, one scale a clip, so that a dream is a likely history."""
    b, f = shape
    scale = most * torch.rand(b, 1, device=device) * torch.rand(b, 1, device=device)
    return scale * (0.5 + 0.5 * torch.rand(b, f, device=device))

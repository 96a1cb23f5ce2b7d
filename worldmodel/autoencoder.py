"""Frames to latents and back: an 8-fold convolutional autoencoder with a light, crisp decoder.

The decoder runs once per frame on a laptop CPU, so it works at 1/8 and 1/4 of the resolution and
reaches full size by pixel shuffling. `Critic` is the patch discriminator that keeps it crisp in
training: an L1 loss alone keeps .54-.62 of the sharpness of real frames.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2)


class Residual(nn.Module):
    """x + conv(act(conv(act(norm(x))))), the identity at the start of training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.inner, self.outer = conv(width, width), conv(width, width)
        for parameter in self.outer.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.silu(self.inner(F.silu(self.norm(x)))))


class Autoencoder(nn.Module):
    """Frames [n, 3, h, w] in -1..1 <-> tokens [n, (h / 8p) (w / 8p), channels p^2] of unit variance.

    channels  of the latent grid, which is 8 times smaller than the frame
    widths    of the layers at 1/2, 1/4 and 1/8 of the frame's size
    patch     p: latents of p x p cells make one token
    """

    def __init__(
        self, *, channels: int = 8, widths: tuple[int, int, int] = (48, 96, 160), patch: int = 2
    ) -> None:
        super().__init__()
        fine, middle, coarse = widths
        self.patch = patch
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(2), conv(12, fine), Residual(fine),
            conv(fine, middle, stride=2), Residual(middle),
            conv(middle, coarse, stride=2), Residual(coarse), Residual(coarse),
            conv(coarse, channels),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            conv(channels, coarse), Residual(coarse), Residual(coarse),
            conv(coarse, 4 * middle, 1), nn.PixelShuffle(2), Residual(middle), Residual(middle),
            conv(middle, 4 * fine, 1), nn.PixelShuffle(2), Residual(fine),
            conv(fine, 12), nn.PixelShuffle(2),
        )  # fmt: skip
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(channels * patch**2))
        self.register_buffer("std", torch.ones(channels * patch**2))

    def encode(self, frames: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, tokens, channels p^2]."""
        return (to_tokens(self.encoder(frames), self.patch) - self.mean) / self.std

    def decode(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """[n, tokens, channels p^2] -> [n, 3, h, w]; `grid` is (rows, columns) of tokens."""
        return self.decoder(to_cells(tokens * self.std + self.mean, grid, self.patch))


def to_tokens(cells: Tensor, patch: int) -> Tensor:
    """Latent cells [n, c, y p, x p] -> tokens [n, y x, c p p]."""
    split = cells.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # n c y p x p
    return split.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def to_cells(tokens: Tensor, grid: tuple[int, int], patch: int) -> Tensor:
    """The inverse of `to_tokens`."""
    split = tokens.unflatten(1, grid).unflatten(3, (-1, patch, patch))  # n y x c p p
    return split.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


class Critic(nn.Module):
    """Patch discriminator: frames [n, 3, h, w] -> realness of neighbourhoods [n, 1, h/8, w/8]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(2), conv(12, width), nn.SiLU(),
            conv(width, 2 * width, stride=2), nn.GroupNorm(8, 2 * width), nn.SiLU(),
            conv(2 * width, 4 * width, stride=2), nn.GroupNorm(8, 4 * width), nn.SiLU(),
            conv(4 * width, 4 * width), nn.GroupNorm(8, 4 * width), nn.SiLU(),
            conv(4 * width, 1),
        )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        return self.layers(frames)


def to_frames(pixels: Tensor) -> Tensor:
    """uint8 [n, h, w, 3] -> float [n, 3, h, w] in -1..1."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pixels(frames: Tensor) -> Tensor:
    """The inverse of `to_frames`, clamped and rounded."""
    return ((frames.float().clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1)

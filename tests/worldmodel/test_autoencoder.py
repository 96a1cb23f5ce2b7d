"""Frames to tokens and back."""

import numpy as np
import pytest
import torch
from tiny import autoencoder
from torch.testing import assert_close

from worldmodel.autoencoder import Critic, Residual, to_cells, to_frames, to_pixels, to_tokens
from worldmodel.training.autoencoder import _normalise


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_latents_and_tokens_are_two_views_of_the_same_numbers(patch):
    latent = torch.randn(2, 4, 8, 12)
    tokens = to_tokens(latent, patch)
    assert tokens.shape == (2, 8 * 12 // patch**2, 4 * patch**2)
    assert torch.equal(to_cells(tokens, (8 // patch, 12 // patch), patch), latent)


def test_tokens_are_told_row_by_row():
    """Token y * columns + x holds the patch of cells at row y and column x, channel by channel."""
    latent = torch.randn(1, 4, 4, 6)
    tokens = to_tokens(latent, 2)
    for y, x in [(0, 0), (0, 2), (1, 0), (1, 1)]:
        patch = latent[0, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        assert torch.equal(tokens[0, 3 * y + x], patch.flatten())


@pytest.mark.parametrize("size, grid", [((112, 160), (7, 10)), ((32, 48), (2, 3))])
def test_a_frame_comes_back_in_its_own_size(size, grid):
    net = autoencoder()
    frames = torch.rand(2, 3, *size) * 2 - 1
    with torch.no_grad():
        tokens = net.encode(frames)
        assert tokens.shape == (2, grid[0] * grid[1], 16)
        assert net.decode(tokens, grid).shape == frames.shape


def test_normalised_tokens_have_mean_zero_and_variance_one():
    net = autoencoder()
    pixels = torch.randint(0, 256, (12, 32, 48, 3), dtype=torch.uint8)
    frames = to_frames(pixels)
    before = net.decode(net.encode(frames), (2, 3))
    assert net.encode(frames).std((0, 1)).sub(1).abs().max() > 0.1
    _normalise(net, pixels, torch.autocast("cpu", torch.bfloat16, enabled=False))
    tokens = net.encode(frames)
    assert_close(tokens.mean((0, 1)), torch.zeros(16), rtol=0, atol=1e-4)
    assert_close(tokens.std((0, 1)), torch.ones(16), rtol=0, atol=1e-4)
    assert_close(net.decode(tokens, (2, 3)), before, rtol=0, atol=1e-4)  # what it draws stays the same


def test_pixels_survive_the_way_to_frames_and_back():
    every = torch.arange(256, dtype=torch.uint8).view(1, 8, 32, 1).expand(-1, -1, -1, 3)
    frames = to_frames(every)
    assert frames.shape == (1, 3, 8, 32) and frames.min() == -1 and frames.max() == 1
    assert torch.equal(to_pixels(frames), every)


def test_colours_beyond_the_range_are_clamped():
    assert to_pixels(torch.tensor([-3.0, 3.0, 0.0]).view(1, 3, 1, 1)).flatten().tolist() == [0, 255, 128]


def test_a_residual_begins_as_the_identity():
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(Residual(8)(x), x)


def test_the_critic_judges_every_neighbourhood():
    assert Critic(8)(torch.zeros(2, 3, 112, 160)).shape == (2, 1, 14, 20)


def test_pictures_are_channels_last():
    pixels = np.zeros((1, 4, 6, 3), np.uint8)
    pixels[0, 1, 2] = 255, 0, 0
    frames = to_frames(torch.from_numpy(pixels))
    assert frames[0, :, 1, 2].tolist() == [1, -1, -1]

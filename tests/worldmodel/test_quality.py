"""Likeness of pictures, and how sure a mean is."""

import numpy as np
import pytest
from torch.testing import assert_close

from worldmodel.evaluation.means import mean_and_error
from worldmodel.evaluation.quality import psnr, ssim


def pictures(*shape: int, seed: int = 0) -> np.ndarray:
    """Smooth uint8 pictures [*shape, 24, 31, 3]."""
    random = np.random.default_rng(seed)
    coarse = random.integers(256, size=(*shape, 4, 5, 3)).repeat(6, -3).repeat(7, -2)
    return coarse[..., :31, :].astype(np.uint8)


def noisy(x: np.ndarray, by: float, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=x.shape)
    return (x + by * noise).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_equal_pictures_are_wholly_alike(shape):
    x = pictures(*shape)
    assert ssim(x, x).shape == shape
    assert (ssim(x, x) == 1).all()


def test_likeness_is_mutual_and_per_picture():
    x, y = pictures(2, 3), pictures(2, 3, seed=5)
    assert_close(ssim(x, y), ssim(y, x))
    assert ssim(x, y)[1, 2] == pytest.approx(float(ssim(x[1, 2], y[1, 2])), abs=1e-5)
    assert (np.abs(ssim(x, y)) < 1).all()


def test_likeness_falls_with_noise():
    x = pictures(4)
    for likeness in (ssim, psnr):
        values = np.stack([likeness(x, noisy(x, by)) for by in (2, 8, 32, 100)])
        assert (np.diff(values, axis=0) < 0).all()


@pytest.mark.parametrize("a, b", [(0, 255), (100, 110), (7, 7)])
def test_flat_pictures_differ_by_their_means(a, b):
    x, y = (np.full((16, 20, 3), value, np.uint8) for value in (a, b))
    c1 = (0.01 * 255) ** 2
    assert ssim(x, y) == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), abs=1e-4)


def test_the_error_of_a_mean_is_that_of_its_games():
    values = np.random.default_rng(0).normal(size=(7, 5))
    games = np.arange(7).repeat(5)
    mean, error = mean_and_error(values.ravel(), games)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(values.mean(1).std(ddof=1) / 7**0.5)
    again = mean_and_error(np.repeat(values.ravel(), 9), np.repeat(games, 9))  # says nothing new
    assert again == pytest.approx((mean, error))


def test_games_without_values_do_not_count():
    values, games = np.array([1.0, 3.0, 5.0]), np.array([4, 4, 9])
    assert mean_and_error(values, games) == mean_and_error(values, np.array([0, 0, 1]))
    assert np.isnan(mean_and_error(np.array([]), np.array([], int))).all()
    mean, error = mean_and_error(values[:2], games[:2])
    assert mean == 2 and np.isnan(error)

"""The straight line between a frame and noise, and the way back."""

import pytest
import torch
from torch.testing import assert_close

from worldmodel.diffusion import clean_of, context_levels, noised, training_levels

EXACT = dict(rtol=0, atol=1e-12)


@pytest.fixture
def frames():
    torch.manual_seed(0)
    return torch.randn(2, 2, 3, 4, 5, dtype=torch.float64).unbind()


def test_the_line_begins_at_the_frame_and_ends_in_noise(frames):
    clean, noise = frames
    zero, one = torch.zeros(2, 3).double(), torch.ones(2, 3).double()
    assert torch.equal(noised(clean, zero, noise), clean)
    assert torch.equal(noised(clean, one, noise), noise)


def test_velocity_is_the_slope_of_the_line(frames):
    """d x_t / dt = noise - clean, everywhere on it."""
    clean, noise = frames
    t = torch.rand(2, 3, dtype=torch.float64)
    step = noised(clean, t + 0.1, noise) - noised(clean, t, noise)
    assert_close(step / 0.1, noise - clean, **EXACT)


def test_the_true_velocity_leads_back_to_the_frame(frames):
    clean, noise = frames
    t = torch.rand(2, 3, dtype=torch.float64)
    assert_close(clean_of(noised(clean, t, noise), t, noise - clean), clean, **EXACT)
    assert not torch.allclose(clean_of(noised(clean, t, noise), t, noise), clean)


def test_each_frame_has_its_own_level(frames):
    clean, noise = frames
    level = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.5]]).double()
    x = noised(clean, level, noise)
    assert torch.equal(x[0, 0], clean[0, 0]) and torch.equal(x[0, 1], noise[0, 1])
    assert_close(x[1, 2], (clean[1, 2] + noise[1, 2]) / 2, **EXACT)


def test_levels_to_train_on_lean_to_noise_and_levels_of_history_to_clean():
    torch.manual_seed(0)
    told, level = context_levels((512, 8), "cpu"), training_levels((512, 8), "cpu")
    assert told.shape == level.shape == (512, 8)
    assert 0 <= told.min() and told.max() <= 0.5 and told.median() < 0.15
    assert 0 < level.min() and level.max() < 1 and level.median() > 0.5
    spread = told.amax(1) / told.amin(1)
    assert (spread <= 2).all()  # one scale a clip

"""Merging moves attention by no more than the bound says, and thresholds follow from what moves it."""

import math

import pytest
import torch
from frames import HEADS, ROPE, TIMELESS, TOKENS, WIDTH, film, normal
from torch.testing import assert_close

from fastar.attention import attend_reference
from fastar.bound import movement, slope, thresholds, variation


def softmax(q, k):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("far", [0.01, 0.3, 3.0])
def test_no_more_moves_than_the_bound(seed, far):
    q, v = normal(2, 3, 7, WIDTH, seed=seed), normal(2, 3, 40, WIDTH, seed=seed + 10)
    k = 2 * normal(2, 3, 40, WIDTH, seed=seed + 20)
    instead = k + far * normal(2, 3, 40, WIDTH, seed=seed + 30)
    most = variation(movement(q, k, instead))
    total = (softmax(q, k) - softmax(q, instead)).abs().sum(-1) / 2
    assert (total <= most + 1e-12).all()
    wide = torch.cdist(v, v).amax((-1, -2))[..., None]
    apart = (attend_reference(q, k, v) - attend_reference(q, instead, v)).norm(dim=-1)
    assert (apart <= most * wide + 1e-12).all()


@pytest.mark.parametrize("eps", [0.1, 1.0, 4.0])
def test_the_bound_is_reached(eps):
    """By two keys that change places: nothing varies more."""
    q = torch.ones(1, 1, 1, dtype=torch.float64)
    k = torch.tensor([[[-eps / 2], [eps / 2]]], dtype=torch.float64)
    total = (softmax(q, k) - softmax(q, -k)).abs().sum() / 2
    assert total.item() == pytest.approx(math.tanh(eps / 2))
    assert variation(movement(q, k, -k)).item() == pytest.approx(total.item())


def test_what_moves_all_logits_alike_moves_nothing():
    q, k = normal(2, 3, 7, WIDTH), normal(2, 3, 40, WIDTH, seed=1)
    shift = normal(2, 3, 1, WIDTH, seed=2)
    assert_close(movement(q, k, k + shift), torch.zeros(2, 3, 7, dtype=torch.float64), rtol=0, atol=1e-12)


def rollout(scale: float = 1.0):
    return [(f.q * scale, f.k, f.where) for f in film(12, stay=0.9)]


def test_a_layer_whose_queries_are_longer_needs_nearer_keys():
    found = thresholds([rollout(0.5), rollout(1.0), rollout(2.0)], ROPE, target=0.1, gap=4)
    assert found == sorted(found) and found[0] < found[-1] < 1
    assert slope(rollout(2.0), ROPE, 4) == pytest.approx(2 * slope(rollout(1.0), ROPE, 4))


def test_the_smaller_the_error_the_higher_the_threshold():
    found = [thresholds([rollout()], TIMELESS, target=t, gap=4)[0] for t in (0.3, 0.1, 0.03, 0.0)]
    assert found == sorted(found) and found[-1] == 1.0


def test_frames_too_few_or_all_alike_say_nothing():
    still = [(f.q, normal(2, HEADS, TOKENS, WIDTH), f.where) for f in film(6)]
    for frames in (film(3), still):
        with pytest.raises(
            ValueError, match="Thresholds need frames that are 4 apart and not all alike; got"
        ):
            thresholds([[(f[0], f[1], f[-1]) for f in frames]], TIMELESS, target=0.1, gap=4)

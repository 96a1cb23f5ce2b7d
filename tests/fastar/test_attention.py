"""One bias per key says everything: how often a key counts, and whether it is there."""

import math

import pytest
import torch
from frames import HEADS, WIDTH, normal
from torch.testing import assert_close

from fastar.attention import attend, attend_reference

EXACT = dict(rtol=0, atol=1e-12)
BATCH, QUERIES, KEYS = 2, 5, 9


@pytest.fixture
def qkv():
    return [normal(BATCH, HEADS, n, WIDTH, seed=i) for i, n in enumerate((QUERIES, KEYS, KEYS))]


@pytest.fixture
def bias():
    bias = normal(BATCH, KEYS, seed=7)
    bias[:, 4] = -torch.inf
    return bias


@pytest.mark.parametrize(
    "dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.03)]
)
@pytest.mark.parametrize("biased", [False, True])
def test_fast_attention_is_the_definition(qkv, bias, dtype, atol, biased):
    bias = bias if biased else None
    fast = attend(*(x.to(dtype) for x in qkv), bias)
    assert fast.dtype == dtype
    assert_close(fast.double(), attend_reference(*qkv, bias), rtol=0, atol=atol)


def test_the_definition_is_softmax(qkv, bias):
    """One query at a time, by the formula."""
    q, k, v = qkv
    output = attend_reference(q, k, v, bias)
    for b, h, i in [(0, 0, 0), (1, 1, 4)]:
        weights = [
            math.exp(float(q[b, h, i] @ k[b, h, j]) / WIDTH**0.5 + float(bias[b, j])) for j in range(KEYS)
        ]
        mean = sum(w * v[b, h, j] for j, w in enumerate(weights)) / sum(weights)
        assert_close(output[b, h, i], mean, **EXACT)


def test_a_key_at_minus_infinity_is_absent(qkv):
    q, k, v = qkv
    bias = torch.zeros(BATCH, KEYS, dtype=torch.float64)
    bias[:, 3] = -torch.inf
    others = [j for j in range(KEYS) if j != 3]
    assert_close(attend(q, k, v, bias), attend(q, k[:, :, others], v[:, :, others]), **EXACT)


@pytest.mark.parametrize("m", [1, 2, 7])
def test_merging_identical_keys_is_exact(qkv, m):
    """Lemma 1. m equal keys attend like one key with logit + log m and the mean of their values."""
    q, k, v = qkv
    twins, values = k[:, :, :1].expand(-1, -1, m, -1), normal(BATCH, HEADS, m, WIDTH, seed=m)
    every = attend(q, torch.cat([k[:, :, 1:], twins], 2), torch.cat([v[:, :, 1:], values], 2))
    bias = torch.zeros(BATCH, KEYS, dtype=torch.float64)
    bias[:, 0] = math.log(m)
    merged = attend(q, k, torch.cat([values.mean(2, keepdim=True), v[:, :, 1:]], 2), bias)
    assert_close(merged, every, **EXACT)


def test_without_the_log_count_merging_is_wrong(qkv):
    q, k, v = qkv
    every = attend(q, torch.cat([k, k[:, :, :1]], 2), torch.cat([v, v[:, :, :1]], 2))
    assert (attend(q, k, v) - every).abs().max() > 0.01


def test_merging_near_keys_costs_at_most_their_distance(qkv):
    """Lemma 2. Keys within r of their entry move the output by at most (exp 2e - 1) max|v|.

    With e = |q| r / sqrt d, a logit moves by at most e, so a weight by a factor of at most exp 2e.
    """
    q, k, v = qkv
    for r in (0.01, 0.1, 0.3):
        nudge = normal(*k.shape, seed=3)
        moved = k + r * nudge / nudge.norm(dim=-1, keepdim=True)
        e = q.norm(dim=-1) * r / WIDTH**0.5
        most = (2 * e).expm1() * v.norm(dim=-1).amax(-1, keepdim=True)
        assert ((attend(q, moved, v) - attend(q, k, v)).norm(dim=-1) <= most).all()


def test_the_order_of_keys_means_nothing(qkv, bias):
    q, k, v = qkv
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(0))
    assert_close(attend(q, k[:, :, order], v[:, :, order], bias[:, order]), attend(q, k, v, bias), **EXACT)
    assert not torch.allclose(attend(q, k[:, :, order], v[:, :, order], bias), attend(q, k, v, bias))

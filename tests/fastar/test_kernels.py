"""Kernels equal their definitions: in Triton's interpreter on a CPU, and compiled on a GPU.

Whether a kernel is interpreted is decided when Triton is first imported, for a whole process, and torch's
compiler imports it too. So the interpreter gets a process of its own, which runs the laws as pytest would.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from frames import normal
from torch.testing import assert_close

from fastar import kernels
from fastar.attention import attend_reference
from fastar.kernels.flash import BlockLists, attention_reference, merge
from fastar.kernels.match import nearest_reference

EXACT = dict(rtol=0, atol=1e-12)
LAWS = Path(__file__).with_name("kernel_laws.py")

if torch.cuda.is_available():
    pytest.register_assert_rewrite("kernel_laws")
    import kernel_laws

    for name, law in vars(kernel_laws).items():
        if name.startswith("test_"):
            globals()[name] = pytest.mark.gpu(law)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the laws run compiled")
def test_the_laws_hold_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(LAWS)]
    ran = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]


def test_without_triton_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(kernels, "triton", None)
    with pytest.raises(ModuleNotFoundError, match="pip install torch .*cu130"):
        kernels.require_triton()


@pytest.fixture
def qkv():
    return [normal(2, 3, n, 8, seed=i) for i, n in enumerate((5, 9, 9))]


def test_the_definition_is_softmax_with_a_bias(qkv):
    bias = normal(2, 9, seed=7)
    bias[:, 4] = -torch.inf
    o, lse = attention_reference(*qkv, bias)
    assert_close(o, attend_reference(*qkv, bias), **EXACT)
    logits = qkv[0] @ qkv[1].mT / 8**0.5 + bias[:, None, None]
    assert_close(lse, logits.exp().sum(-1).log(), **EXACT)


def test_the_definition_reads_listed_blocks_only(qkv):
    q, k, v = qkv
    index = torch.tensor([2, 0, 99, 1, 99, 99]).view(1, 1, 2, 3).expand(2, 3, -1, -1).int()
    count = torch.tensor([2, 1]).expand(2, 3, -1).int()
    o, lse = attention_reference(q, k, v, None, BlockLists(count, index, rows=3, columns=4))
    first = [0, 1, 2, 3, 8]
    assert_close(o[:, :, :3], attend_reference(q[:, :, :3], k[:, :, first], v[:, :, first]), **EXACT)
    assert_close(o[:, :, 3:], attend_reference(q[:, :, 3:], k[:, :, 4:8], v[:, :, 4:8]), **EXACT)
    assert (lse < torch.inf).all()


@pytest.mark.parametrize("at", [0, 1, 6, 9])
def test_merging_disjoint_keys_is_exact(qkv, at):
    """Also with a set that is empty, and with more than two."""
    q, k, v = qkv
    bias = normal(2, 9, seed=7)
    edges = sorted({0, at, 6, 9})
    sets = [slice(0, 0)] + [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    parts = [attention_reference(q, k[:, :, s], v[:, :, s], bias[:, s]) for s in sets]
    for got, expected in zip(merge(parts), attention_reference(q, k, v, bias), strict=True):
        assert_close(got, expected, **EXACT)


def test_the_log_of_a_number_joins_a_whole_set(qkv):
    """Adding log m to the lse of a set is adding it to each of its logits."""
    q, k, v = qkv
    bias = torch.zeros(2, 9, dtype=torch.float64)
    bias[:, :4] = torch.tensor(3.0, dtype=torch.float64).log()
    (o, lse), rest = (attention_reference(q, k[:, :, s], v[:, :, s]) for s in (slice(4), slice(4, 9)))
    merged = merge([(o, lse + bias[0, 0]), rest])
    for got, expected in zip(merged, attention_reference(q, k, v, bias), strict=True):
        assert_close(got, expected, **EXACT)


def test_the_nearest_key_is_the_first_of_the_best():
    keys = torch.tensor([[[1.0, 0], [0, 1], [1, 0], [0, -1]]])
    valid = torch.tensor([[False, True, True, False]])
    queries = torch.tensor([[[2.0, 1], [0, -3]]])
    similarity, index, second = nearest_reference(queries, keys, second=True)
    assert index.tolist() == [[0, 3]]
    assert similarity.tolist() == [[2, 3]] and second.tolist() == [[2, 0]]
    similarity, index, second = nearest_reference(queries, keys, valid, second=True)
    assert index.tolist() == [[2, 2]]
    assert similarity.tolist() == [[2, 0]] and second.tolist() == [[1, -3]]

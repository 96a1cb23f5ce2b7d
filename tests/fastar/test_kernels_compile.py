"""Every kernel compiles for a Hopper GPU, wherever this runs: the interpreter forgives what that does not."""

import importlib.util

import pytest
import torch
from frames import normal

from fastar.kernels.buckets import Buckets, Choice, choose, lay_out, read
from fastar.kernels.flash import TILES, BlockLists, flash
from fastar.kernels.match import nearest
from fastar.kernels.needs import masked
from fastar.kernels.turning import settle

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="here the laws run compiled"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),  # of Triton 3.9: a default is to change
]
WIDTHS = pytest.mark.parametrize("d", [64, 128])


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """The names of what has been compiled, by a driver that has no GPU and launches nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Hopper:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    names, run = [], JITFunction.run

    def only_compile(self, *arguments, grid, warmup, **options):
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        assert kernel and kernel.asm["cubin"]
        names.append(kernel.name)

    monkeypatch.setattr(JITFunction, "run", only_compile)
    monkeypatch.setattr(driver, "_active", Hopper())
    return names


def half(*shape: int) -> torch.Tensor:
    return normal(*shape).bfloat16()


@WIDTHS
@pytest.mark.parametrize("kind", sorted({kind for kind, _ in TILES}))
def test_attention(kind, d, compiled):
    """In all the tiles that are in use."""
    n, m = (70, 1190) if kind == "few" else (512, 1024)
    q, (k, v) = half(1, 2, n, d), half(2, 1, 2, m, d)
    blocks = None
    if "x" in kind:
        rows, columns = map(int, kind.split("x"))
        index = torch.arange(4).expand(1, 2, n // rows, -1).int().contiguous()
        blocks = BlockLists(torch.full((1, 2, n // rows), 4, dtype=torch.int32), index, rows, columns)
    for tiles in TILES[kind, d]:
        for bias in (None, torch.zeros(1, m)):
            flash(q, k, v, bias, blocks, finite=True, tiles=tiles)
    assert set(compiled) >= {"_attend"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_match(dtype, compiled):
    queries, keys = (torch.zeros(1, n, 384, dtype=dtype) for n in (70, 1190))
    for second in (False, True):
        for valid in (None, torch.ones(1, 1190, dtype=torch.bool)):
            nearest(queries, keys, valid, second=second)
    assert set(compiled) == {"_nearest"}


@WIDTHS
@pytest.mark.parametrize("mass", [1.0, 0.6])
def test_the_choice_of_buckets(mass, d, compiled):
    choose(half(1, 2, 70, d), buckets(d), 20, mass)
    assert compiled == ["_choose"]


@WIDTHS
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_reading_of_buckets(biased, summed, d, compiled):
    plan, m = buckets(d), 1260 + 70 * 64
    q, (k, v) = half(1, 2, 70, d), half(2, 1, 2, m, d)
    chosen = torch.zeros(1, 2, 20, dtype=torch.int64), torch.ones(1, 2, 20, dtype=torch.bool)
    choice = Choice(*chosen, plan.weight if summed else None)
    for parts in (1, 3):
        bias = torch.zeros(1, 1, m) if biased else None
        read(q, k, v, bias, plan, choice, parts=parts)
    assert set(compiled) == {"_read", "_merge"}


@WIDTHS
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_laying_out_of_buckets(biased, summed, d, compiled):
    plan, m = buckets(d), 1260 + 70 * 64
    k, v = half(2, 1, 2, m, d)
    chosen = torch.zeros(1, 2, 20, dtype=torch.int64), torch.ones(1, 2, 20, dtype=torch.bool)
    choice = Choice(*chosen, plan.weight if summed else None)
    lay_out(k, v, torch.zeros(1, 1, m) if biased else None, plan, choice)
    assert set(compiled) == {"_lay_out"}


def buckets(d: int) -> Buckets:
    order = torch.arange(70 * 64).expand(1, 2, -1).contiguous()
    centre, value = half(2, 1, 2, 70, d)
    return Buckets(1260, order, centre, value, torch.zeros(1, 2, 70))


@WIDTHS
def test_the_need_of_words(d, compiled):
    masked(half(1, 2, 70, d), half(1, 2, 33, d), torch.zeros(1, 33), 11)
    assert compiled == ["_share", "_rank"]


@WIDTHS
def test_turning(d, compiled):
    q, k, v, keys, values = half(5, 1, 2, 70, d)
    cos, sin = half(2, 70, d // 2)
    settle(q, k, v, cos, sin, keys, values)
    assert compiled == ["_settle"]

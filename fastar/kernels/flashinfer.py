"""FlashInfer's FlashAttention-3, where it is installed: attention without a bias, dense or in blocks.

It knows no bias per key and wants one pattern for all heads, so no memory ends here; it is what our own
kernel is measured against, and a second opinion on it. The first call of a kind compiles for about a minute.
"""

import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .flash import BlockLists

INSTALLED = find_spec("flashinfer") is not None
WORKSPACE = 128 << 20  # bytes


def dense(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention of q [b, h, n, d] over k, v [b, h, m, d] -> o, lse as in `attention_reference`."""
    run = _module().single_prefill_with_kv_cache
    # Heads come second: with them first, 0.6.6 takes the number of keys for that of heads, and divides by it.
    told = dict(causal=False, kv_layout="NHD", backend="fa3", return_lse=True)
    games = [run(*(x.transpose(0, 1) for x in game), **told) for game in zip(q, k, v, strict=True)]
    outputs, lses = zip(*games, strict=True)
    return torch.stack(outputs).transpose(1, 2), _natural(torch.stack(lses))


class Blocks:
    """Attention of one game in blocks [1, h, M, N] that all heads share: planned once, run often.

    n, m  queries and keys
    """

    def __init__(
        self, blocks: BlockLists, n: int, m: int, heads: int, width: int, dtype: torch.dtype
    ) -> None:
        count, index = blocks.count[0, 0].int(), blocks.index[0, 0].int()
        used = torch.arange(index.shape[1], device=index.device) < count[:, None]
        ends = torch.nn.functional.pad(count.cumsum(0, dtype=torch.int32), (1, 0))
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=index.device)
        self._wrapper = _module().BlockSparseAttentionWrapper(workspace, backend="fa3")
        sizes = n, m, blocks.rows, blocks.columns, heads, heads, width
        types = dict(q_data_type=dtype, kv_data_type=dtype, o_data_type=dtype)
        self._wrapper.plan(ends, index[used], *sizes, **types)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """q [1, h, n, d] over k, v [1, h, m, d] -> o, lse."""
        o, lse = self._wrapper.run(*(x[0].transpose(0, 1).contiguous() for x in (q, k, v)), return_lse=True)
        return o.transpose(0, 1)[None], _natural(lse)[None]


def _natural(lse: Tensor) -> Tensor:
    """From base 2, [..., n, h], to base e, [..., h, n]."""
    return lse.transpose(-1, -2) * math.log(2)


def _module() -> Any:
    if not INSTALLED:
        raise ModuleNotFoundError("FlashInfer is not installed: pip install flashinfer-python==0.6.6")
    import flashinfer  # pyright: ignore[reportMissingImports]

    return flashinfer

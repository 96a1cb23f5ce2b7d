"""Which tokens of a short prompt a frame needs: what AnnCA lowers to where a prompt is soon read.

Attention to some tens of tokens costs little more than attention to the needed ones among them, and laying
these side by side costs more than it saves. So what is not needed gets a bias of -inf and stays where it is.
"""

# pyright: reportInvalidTypeForm=false
# (Triton's constexpr is no type to Python)
from __future__ import annotations

import torch
from torch import Tensor

from ..attention import logits
from . import jit, on, precision, require_triton, tl

MOST = 128  # tokens that the kernel can rank at once
FEW = 256  # queries up to which one program a game, which has all of them before it, is fast


def attention_share(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """The mean share of the attention of q [b, h, n, d] that each of k [b, h, l, d], bias [b, l], gets."""
    return logits(q, k, bias).float().softmax(-1).mean((1, 2))


def ranked(
    share: Tensor, bias: Tensor, wanted: int, least: float = 0.0, always: int = 1
) -> tuple[Tensor, Tensor]:
    """The `wanted` tokens of the largest shares [b, l], and which of them have at least the `least`, [b, j].

    The `always` first and last tokens that are there, whose bias [b, l] is not -inf, come before all others
    and have enough.
    """
    there, place = bias > -torch.inf, torch.arange(bias.shape[1], device=bias.device)
    last = (there * (place + 1)).amax(-1, keepdim=True)
    ends = (place < always) | ((place >= last - always) & (place < last))
    need = share.masked_fill(ends, torch.inf).masked_fill(~there, -torch.inf)
    most, kept = need.topk(wanted)
    return kept, most >= least


def masked_reference(
    q: Tensor, k: Tensor, bias: Tensor, wanted: int, least: float = 0.0, always: int = 1
) -> Tensor:
    """The bias [b, l], fp32, with -inf for the tokens that the queries do not need, see `ranked`."""
    kept, needed = ranked(attention_share(q, k, bias), bias, wanted, least, always)
    read = torch.zeros_like(bias, dtype=torch.bool).scatter_(1, kept, needed)
    return bias.float().masked_fill(~read, -torch.inf)


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether `masked` can be asked this."""
    kinds = torch.float16, torch.bfloat16, torch.float32
    strided = q.stride(-1) == k.stride(-1) == 1
    short = q.shape[2] <= FEW and k.shape[2] <= MOST
    return q.shape[-1] in (64, 128) and short and q.dtype == k.dtype in kinds and strided


def masked(q: Tensor, k: Tensor, bias: Tensor, wanted: int, least: float = 0.0, always: int = 1) -> Tensor:
    """`masked_reference` as one Triton kernel, where it `fits`."""
    require_triton()
    (b, h, n, d), l = q.shape, k.shape[2]
    bias = bias.float().contiguous()
    out = torch.empty_like(bias)
    with on(q.device):
        _mask[(b,)](
            q, k, bias, out, *q.stride()[:3], *k.stride()[:3], h, n, l, wanted, least, always, d**-0.5,
            WIDTH=d, QUERIES=32, PLACES=max(16, 1 << (l - 1).bit_length()),
            PRECISION=precision(q), num_warps=4,
        )  # fmt: skip
    return out


@jit(do_not_specialize=["heads", "n", "l", "wanted", "always"])
def _mask(
    q, k, bias, out, qb, qh, qn, kb, kh, kl, heads, n, l, wanted, least, always, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One game. Tokens are ranked by comparing each with every other."""
    scale = tl.cast(scale, tl.float32)  # a compiled caller hands them over in double precision
    least = tl.cast(least, tl.float32)
    game = tl.program_id(0).to(tl.int64)
    q += game * qb
    k += game * kb
    place, wide = tl.arange(0, PLACES), tl.arange(0, WIDTH)
    weight = tl.load(bias + game * l + place, mask=place < l, other=-float("inf"))
    there = weight > -float("inf")

    share = tl.zeros([PLACES], tl.float32)
    for head in range(0, heads):
        key_at = k + head * kh + place.to(tl.int64)[:, None] * kl + wide[None, :]
        keys = tl.load(key_at, mask=place[:, None] < l, other=0.0)
        for start in range(0, n, QUERIES):
            row = start + tl.arange(0, QUERIES)
            query_at = q + head * qh + row.to(tl.int64)[:, None] * qn + wide[None, :]
            queries = tl.load(query_at, mask=row[:, None] < n, other=0.0)
            logits = tl.dot(queries, keys.T, input_precision=PRECISION) * scale + weight[None, :]
            part = tl.exp(logits - tl.maximum(tl.max(logits, 1), -1e38)[:, None])
            part = part / tl.maximum(tl.sum(part, 1), 1e-37)[:, None]
            share += tl.sum(tl.where(row[:, None] < n, part, 0.0), 0)

    last = tl.max(tl.where(there, place + 1, 0), 0)
    ends = (place < always) | ((place >= last - always) & (place < last))
    need = tl.where(ends, float("inf"), share / (n * heads))
    need = tl.where(there, need, -float("inf"))
    first = (need[None, :] == need[:, None]) & (place[None, :] < place[:, None])
    rank = tl.sum(((need[None, :] > need[:, None]) | first).to(tl.int32), 1)
    read = (rank < wanted) & (need >= least)
    tl.store(out + game * l + place, tl.where(read, weight, -float("inf")), mask=place < l)

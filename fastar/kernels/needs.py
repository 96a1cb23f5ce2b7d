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
    return q.shape[-1] in (64, 128) and k.shape[2] <= MOST and q.dtype == k.dtype in kinds and strided


def masked(q: Tensor, k: Tensor, bias: Tensor, wanted: int, least: float = 0.0, always: int = 1) -> Tensor:
    """`masked_reference` as two Triton kernels, where it `fits`."""
    require_triton()
    (b, h, n, d), l = q.shape, k.shape[2]
    bias = bias.float().contiguous()
    share, out = bias.new_empty(b, h, l), torch.empty_like(bias)
    places = max(16, 1 << (l - 1).bit_length())
    with on(q.device):
        _share[(b * h,)](
            q, k, bias, share, *q.stride()[:3], *k.stride()[:3], h, n, l, d**-0.5,
            WIDTH=d, QUERIES=32, PLACES=places, PRECISION=precision(q), num_warps=4,
        )  # fmt: skip
        _rank[(b,)](
            share, bias, out, h, n * h, l, wanted, least, always,
            HEADS=1 << (h - 1).bit_length(), PLACES=places, num_warps=4,
        )  # fmt: skip
    return out


@jit(do_not_specialize=["heads", "n", "l"])
def _share(
    q, k, bias, share, qb, qh, qn, kb, kh, kl, heads, n, l, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of a game: the attention that each token gets, summed over queries."""
    scale = tl.cast(scale, tl.float32)  # a compiled caller hands it over in double precision
    head = tl.program_id(0).to(tl.int64)
    q += head // heads * qb + head % heads * qh
    k += head // heads * kb + head % heads * kh
    place, wide = tl.arange(0, PLACES), tl.arange(0, WIDTH)
    known = place < l
    weight = tl.load(bias + head // heads * l + place, mask=known, other=-float("inf"))
    key_at = k + place.to(tl.int64)[:, None] * kl + wide[None, :]
    keys = tl.load(key_at, mask=known[:, None], other=0.0)

    total = tl.zeros([PLACES], tl.float32)
    for start in range(0, n, QUERIES):
        row = start + tl.arange(0, QUERIES)
        query_at = q + row.to(tl.int64)[:, None] * qn + wide[None, :]
        queries = tl.load(query_at, mask=row[:, None] < n, other=0.0)
        logits = tl.dot(queries, keys.T, input_precision=PRECISION) * scale + weight[None, :]
        part = tl.exp(logits - tl.maximum(tl.max(logits, 1), -1e38)[:, None])
        part = part / tl.maximum(tl.sum(part, 1), 1e-37)[:, None]
        total += tl.sum(tl.where(row[:, None] < n, part, 0.0), 0)
    tl.store(share + head * l + place, total, mask=known)


@jit(do_not_specialize=["heads", "asked", "l", "wanted", "always"])
def _rank(
    share, bias, out, heads, asked, l, wanted, least, always, HEADS: tl.constexpr, PLACES: tl.constexpr
):  # fmt: skip
    """One game. Tokens are ranked by comparing each with every other."""
    least = tl.cast(least, tl.float32)
    game = tl.program_id(0).to(tl.int64)
    place, head = tl.arange(0, PLACES), tl.arange(0, HEADS)
    known = place < l
    weight = tl.load(bias + game * l + place, mask=known, other=-float("inf"))
    there = weight > -float("inf")
    share_at = share + (game * heads + head)[:, None] * l + place[None, :]
    shares = tl.load(share_at, mask=(head[:, None] < heads) & known[None, :], other=0.0)

    last = tl.max(tl.where(there, place + 1, 0), 0)
    ends = (place < always) | ((place >= last - always) & (place < last))
    need = tl.where(ends, float("inf"), tl.sum(shares, 0) / asked)
    need = tl.where(there, need, -float("inf"))
    first = (need[None, :] == need[:, None]) & (place[None, :] < place[:, None])
    rank = tl.sum(((need[None, :] > need[:, None]) | first).to(tl.int32), 1)
    read = (rank < wanted) & (need >= least)
    tl.store(out + game * l + place, tl.where(read, weight, -float("inf")), mask=known)

"""A frame's queries and keys turned to their positions, and its keys and values put where they are kept.

For the few tokens of a frame every launch counts, so what would be nine of them is one.
"""

# pyright: reportInvalidTypeForm=false
# (Triton's constexpr is no type to Python)
from __future__ import annotations

import torch
from torch import Tensor

from . import jit, on, require_triton, tl

ROWS = 16


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d/2) of x [..., n, d] by angles given as cosines and sines [..., n, d/2]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def settle_reference(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """q [b, h, n or 0, d], turned. k, v [b, h, n, d] go to `keys`, turned, and `values`, of their shape.

    cos and sin [n, d/2], or [b, 1, n, d/2].
    """
    keys.copy_(turn(k, cos, sin))
    values.copy_(v)
    return turn(q, cos, sin) if q.shape[-2] else q


def settles(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether `settle` can be asked this."""
    same = len({x.dtype for x in (q, k, v, keys, values)}) == 1
    return same and q.shape[-1] in (64, 128) and all(x.stride(-1) == 1 for x in (q, k, v, keys, values))


def settle(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`settle_reference` as one Triton kernel, where it `settles`."""
    require_triton()
    b, h, n, d = k.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    cos, sin = cos.contiguous(), sin.contiguous()
    with on(k.device):
        _settle[-(-n // ROWS), b * h](
            q, k, v, cos, sin, keys, values, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *keys.stride()[:3], *values.stride()[:3], cos.stride(0) if cos.dim() == 4 else 0, h, n,
            HALF=d // 2, SIZE=ROWS, ASKED=q.shape[2] > 0,
        )  # fmt: skip
    return out


@jit(do_not_specialize=["n", "tb"])
def _settle(
    q, k, v, cos, sin, keys, values, out, qb, qh, qn, kb, kh, kn, vb, vh, vn, keyb, keyh, keyn,
    valueb, valueh, valuen, tb, heads, n,
    HALF: tl.constexpr, SIZE: tl.constexpr, ASKED: tl.constexpr,
):  # fmt: skip
    """Some tokens of one head."""
    game, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)[:, None].to(tl.int64)
    low = tl.arange(0, HALF)[None, :]
    there = row < n
    turn_at = game * tb + row * HALF + low
    c = tl.load(cos + turn_at, mask=there, other=0.0).to(tl.float32)
    s = tl.load(sin + turn_at, mask=there, other=0.0).to(tl.float32)
    _turn(k + game * kb + head * kh + row * kn + low, keys + game * keyb + head * keyh + row * keyn + low,
          c, s, there, HALF)  # fmt: skip
    if ASKED:
        out_at = out + ((game * heads + head) * n + row) * (2 * HALF) + low
        _turn(q + game * qb + head * qh + row * qn + low, out_at, c, s, there, HALF)
    v += game * vb + head * vh + row * vn + low
    values += game * valueb + head * valueh + row * valuen + low
    tl.store(values, tl.load(v, mask=there), mask=there)
    tl.store(values + HALF, tl.load(v + HALF, mask=there), mask=there)


@jit()
def _turn(x, out, c, s, there, HALF: tl.constexpr):
    a = tl.load(x, mask=there, other=0.0).to(tl.float32)
    b = tl.load(x + HALF, mask=there, other=0.0).to(tl.float32)
    tl.store(out, (a * c - b * s).to(out.dtype.element_ty), mask=there)
    tl.store(out + HALF, (a * s + b * c).to(out.dtype.element_ty), mask=there)

"""Attention with one additive bias per key: the single call that every memory lowers to.

The bias is 0 for an ordinary key, log m for a key that stands for m merged keys, -inf for an empty
slot. So merging is exact for equal keys, padding needs no mask and shapes can stay fixed.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .kernels import usable
from .kernels.flash import flash

PLAIN = 4096
"""Keys up to which two bf16 products beat fused attention on a CPU (Zen 4, 70 queries: 2.4 : 2.8 ms for 2,380
keys); for 70,000 they lose, 141 : 91. They also cost oneDNN some MB for every number of keys it meets."""

ENOUGH = 256  # queries that are asked what a frame needs; so many a kernel asks at once
FEW = 256  # queries up to which cuDNN, which does not split keys among programs, is the slowest on a GPU
MATH = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
STOCK = {
    True: [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, *MATH],
    False: [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, *MATH],
}


def attend_reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Softmax attention, q [b, h, n, d] over k, v [b, h, m, d].

    `bias` joins every query's logit: [b, m], or [b, h or 1, m] where heads differ.
    """
    return logits(q, k, bias).softmax(-1) @ v


def logits(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """What each query makes of each key [b, h, n, m], before the softmax."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return scores if bias is None else scores + as_mask(bias, scores.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """`attend_reference` by the fastest path here. Keys at -inf must be finite numbers all the same."""
    if not q.shape[-2]:
        return q
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
        return _on_gpu(q, k, v, bias)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= PLAIN:
        return attend_reference(q, k, v, bias)
    return _fused(q, k, v, bias)


def sampled(q: Tensor) -> Tensor:
    """At most ENOUGH of queries [b, h, n, d], evenly spread: what they need on the whole, all of them do."""
    return q[:, :, :: math.ceil(q.shape[2] / ENOUGH)] if q.shape[2] > ENOUGH else q


def attend_where(reads: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """`attend` of each query to the keys that it `reads`, bool [b or 1, h or 1, n or 1, m], at least one.

    By a mask: it shows what a pattern is worth, and saves no time.
    """
    mask = torch.zeros(reads.shape, dtype=q.dtype, device=q.device).masked_fill_(~reads, -torch.inf)
    if bias is not None:
        mask = mask + as_mask(bias, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _on_gpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """By what was fastest on an H200 (Triton 3.6, torch 2.11); 12 heads of 128, or 6 of 64 with few queries.

    With a bias our kernel: 4,680 queries over 32,760 keys 2.0 ms, cuDNN 2.7, efficient 8.3; 70 over 4,480
    .010 ms, efficient .24. Without one, many queries: cuDNN 1.7 ms, ours 1.9; few: FlashAttention-2
    .015 ms, cuDNN .043, and ours .010 but for launching it, which takes twice as long. Ours has no gradient.
    """
    if usable(q, k, v) and q.shape[-1] in (64, 128) and bias is not None:
        return flash(q, k, v, bias, finite=True)[0]
    with sdpa_kernel(STOCK[q.shape[2] <= FEW], set_priority=True):
        return _fused(q, k, v, bias)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    mask = None if bias is None else as_mask(bias, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def as_mask(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias per key as scores [b, h or 1, 1, m]."""
    return (bias if bias.ndim == 3 else bias[:, None])[:, :, None].to(dtype)

"""How far merging can move the output of attention, and the thresholds that keep it within a target.

Attention over merged entries is dense attention in which every key is replaced by its entry's key, if values
are means and log m is added. So if no logit moves by more than eps from the middle of its query's movements,

    TV(p, p') <= tanh(eps / 2)   and   |o - o'| <= tanh(eps / 2) diam(V)

where TV is the total variation between the two softmaxes and diam(V) the largest distance of two values. The
bound is the worst case of a softmax under a perturbation of its logits; a shift of all of them cancels.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from .rope import AxialRope
from .search import across_heads


def movement(q: Tensor, k: Tensor, instead: Tensor) -> Tensor:
    """eps of each query [..., n] of q [..., n, d] when `instead` takes the place of k [..., m, d]."""
    moved = (q @ (instead - k).mT) * q.shape[-1] ** -0.5
    return (moved.amax(-1) - moved.amin(-1)) / 2


def variation(eps: Tensor) -> Tensor:
    """The most that the softmax can vary in total."""
    return (eps / 2).tanh()


def thresholds(
    layers: Sequence[Sequence[tuple[Tensor, Tensor, Tensor]]], rope: AxialRope, target: float, gap: int = 16
) -> list[float]:
    """For each layer the cosine above which a merged key moves logits so little that `target` bounds TV.

    layers  per layer the frames of a short rollout: un-rotated q, k [b, h, n, d], their positions [n, 3]
    gap     frames between a key and the one that takes its place

    A logit moves in proportion to the distance of the two keys on the unit sphere, sqrt(2 - 2 cos); by how
    much is measured, as root mean square over queries and heads, since the layers differ by far.
    """
    eps = 2 * math.atanh(target)
    slopes = [slope(frames, rope, gap) for frames in layers]
    return [1 - min(eps / x, math.sqrt(2)) ** 2 / 2 for x in slopes]


def slope(frames: Sequence[tuple[Tensor, Tensor, Tensor]], rope: AxialRope, gap: int) -> float:
    """Root mean square movement of a logit, per distance of the looks of the two keys."""
    moved, apart = 0.0, 0.0
    for (_, k, where), (q, later, now) in zip(frames, frames[gap:], strict=False):
        heads = q.shape[1]
        old, new = (across_heads(rope.in_space(*x))[:, 0].double() for x in ((k, where), (later, now)))
        cosine, match = (old @ new.mT).max(-1)
        turned = rope(later, now).gather(2, match[:, None, :, None].expand(-1, heads, -1, k.shape[-1]))
        change = (rope(q, now) @ (turned - rope(k, where)).mT).double() * q.shape[-1] ** -0.5
        change = change - change.mean(-1, keepdim=True)  # what moves all logits alike moves nothing
        moved += float(change.square().mean())
        apart += float((2 - 2 * cosine).clamp_min(0).mean())
    if apart < 1e-9 or not moved:
        raise ValueError(
            f"Thresholds need frames that are {gap} apart and not all alike; got {len(frames)} frames."
        )
    return math.sqrt(moved / apart)

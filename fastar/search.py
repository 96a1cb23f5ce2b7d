"""Search by cosine: which remembered key is most like this one, exactly or nearly.

A search is a way to encode vectors and a cosine estimated from codes. Codes are plain tensors, one
row a vector, so a memory keeps one per entry and overwrites it in place, and what one frame and layer
encodes once serves the cache, self-attention and cross-attention.

None of the torch kinds waits for the device or has a shape that depends on values. FAISS kinds are in
`faiss_search`: the reference for what LSH and scalar quantisation mean, and slower, since an index is
built for every call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .faiss_search import FaissFlat, FaissLSH, FaissPQ, FaissSQ8
from .kernels import usable
from .kernels.match import nearest

MANY = 2**20  # products of queries and keys, from which on a kernel that keeps none of them is faster
RUNS = 16
"""Of the first stage of `_largest` on a CPU. More would do for float32, but not for bfloat16."""


class Search(Protocol):
    """Axes: n queries, m keys, d width of a vector, w width of its code; leading axes are searched apart."""

    def encode(self, x: Tensor) -> Tensor:
        """Vectors of any length [..., n, d] -> codes [..., n, w]. A vector's scale is forgotten."""
        ...

    def similarity(self, a: Tensor, b: Tensor) -> Tensor:
        """Cosine estimated from codes [..., n, w] and [..., m, w] -> [..., n, m]."""
        ...

    def nearest(self, queries: Tensor, keys: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Codes [..., n, w] and [..., m, w] -> estimated cosine and index of the nearest key, [..., n] each.

        Keys where `valid` [..., m] is False are never found, whatever their codes hold; where none is valid
        the cosine is -inf. Of keys with the same score one is found, the same one every time.
        """
        ...


class Bucketed(Search, Protocol):
    """A search whose codes also fall into buckets: near vectors often share one, far ones seldom."""

    def buckets(self, codes: Tensor) -> Tensor:
        """Codes [..., n, w] -> one bucket number per table [..., n, tables]."""
        ...


def across_heads(x: Tensor, groups: int = 1) -> Tensor:
    """[b, h, n, d] -> unit vectors [b, groups, n, h d / groups]; their cosine is the mean over heads."""
    heads = x.shape[1] // groups
    unit = x * torch.rsqrt(x.square().sum(-1, keepdim=True).clamp_min(1e-12) * heads)
    return unit.unflatten(1, (groups, heads)).transpose(2, 3).flatten(3)


def many(queries: Tensor, keys: Tensor) -> bool:
    """Whether the nearest of keys [r, m, w] is best found by a kernel that keeps no matrix of products."""
    return queries.dim() == 3 and queries.shape[1] * keys.shape[1] > MANY and usable(queries, keys)


def share_bucket(a: Tensor, b: Tensor) -> Tensor:
    """Buckets [..., n, tables] and [..., m, tables] -> bool [..., n, m]: the same one in any table."""
    return (a[..., :, None, :] == b[..., None, :, :]).any(-1)


class _Scored:
    """A search that scores codes by a product: nearest is the best score, and only that becomes a cosine."""

    def similarity(self, a: Tensor, b: Tensor) -> Tensor:
        return self._cosine(self._scores(a, b), a)

    def nearest(self, queries: Tensor, keys: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = self._scores(queries, keys)
        best, index = _largest(scores if valid is None else self._only(valid, scores))
        return self._cosine(best[..., None], queries)[..., 0], index

    def _only(self, valid: Tensor, scores: Tensor) -> Tensor:
        """Scores [..., n, m] where valid [..., m], elsewhere less than any. By a sum: the cheapest way."""
        least = -torch.inf if scores.is_floating_point() else -(2**30)
        return scores.add_(scores.new_zeros(valid.shape).masked_fill_(~valid, least)[..., None, :])

    def _scores(self, a: Tensor, b: Tensor) -> Tensor:
        """Codes -> a number per pair, [..., n, m], that orders the keys of a query as the cosine does."""
        raise NotImplementedError

    def _cosine(self, scores: Tensor, queries: Tensor) -> Tensor:
        """Scores [..., n, k] of these queries -> estimated cosines; what is worse than any score -> -inf."""
        raise NotImplementedError


class Exact(_Scored):
    """No approximation: codes are the unit vectors, in the type that they came in."""

    def encode(self, x: Tensor) -> Tensor:
        return F.normalize(x.to(_wide(x)), dim=-1).to(x.dtype)

    def _only(self, valid: Tensor, scores: Tensor) -> Tensor:
        return scores.where(valid[..., None, :], -torch.inf)  # no sum brings down what is not a number

    def _scores(self, a: Tensor, b: Tensor) -> Tensor:
        _check_codes(a.dtype, a.shape[-1], b)
        return a @ b.mT

    def _cosine(self, scores: Tensor, queries: Tensor) -> Tensor:
        return scores


class LSH(_Scored):
    """SimHash: on which side of `bits` random planes a vector lies (Charikar, STOC 2002).

    Two vectors at an angle t lie on the same side of a plane with probability 1 - t / pi, so a Hamming
    distance H estimates the cosine cos(pi H / bits): at .9 and 256 bits within .03 (one deviation). The
    planes are orthogonal in groups of d, which estimates better than independent ones (Super-Bit LSH,
    NIPS 2012). `tables` buckets are made of bits / tables bits each, so two vectors share a given one
    with probability (1 - t / pi)^(bits / tables).

    Codes are int8 of +1 and -1, whose product is bits - 2 H. Packed bits are eight times smaller, but
    torch counts no bits: by shifts and masks that is 20 times slower or more on a CPU with int8 products.

    Planes depend on the seed and on d alone, and are made when a width is met first. A `width` here makes
    other widths an error. Raises ValueError if bits do not split into tables of at most 64 bits.
    """

    def __init__(self, bits: int = 256, tables: int = 16, seed: int = 0, width: int | None = None) -> None:
        if bits < 1 or tables < 1 or bits % tables or bits // tables > 64:
            raise ValueError(
                f"LSH needs tables of the same 1 to 64 bits each, got bits={bits} in tables={tables}. "
                "Take a number of tables that divides the bits."
            )
        self.bits, self.tables, self.seed, self.width = bits, tables, seed, width
        self._planes: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def encode(self, x: Tensor) -> Tensor:
        if self.width not in (None, x.shape[-1]):
            raise ValueError(f"This LSH encodes vectors of width {self.width}, got {tuple(x.shape)}.")
        side = x.to(_wide(x)) @ self._planes_for(x) >= 0
        return side.to(torch.int8) * 2 - 1

    def buckets(self, codes: Tensor) -> Tensor:
        _check_codes(torch.int8, self.bits, codes)
        sides = (codes > 0).long().unflatten(-1, (-1, self.tables))
        return (sides << torch.arange(sides.shape[-2], device=codes.device)[:, None]).sum(-2)

    def nearest(self, queries: Tensor, keys: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not many(queries, keys):
            return super().nearest(queries, keys, valid)
        _check_codes(torch.int8, self.bits, queries, keys)
        scores, index = nearest(queries, keys, valid)
        return self._cosine(scores, queries), index

    def _scores(self, a: Tensor, b: Tensor) -> Tensor:
        _check_codes(torch.int8, self.bits, a, b)
        return _integer_products(a, b)

    def _cosine(self, scores: Tensor, queries: Tensor) -> Tensor:
        cosine = torch.sin(scores * (math.pi / 2 / self.bits))  # = cos(pi H / bits)
        return cosine.masked_fill_(scores < -self.bits, -torch.inf)

    def _planes_for(self, x: Tensor) -> Tensor:
        """Unit normals [d, bits], in the place and precision of x."""
        key = x.shape[-1], x.device, _wide(x)
        if key not in self._planes:
            self._planes[key] = _random_planes(x.shape[-1], self.bits, self.seed).to(x.device, _wide(x))
        return self._planes[key]


class Quant(_Scored):
    """Channels rounded to 2^bits - 1 levels, symmetric about 0; the largest of a vector sets the scale.

    The scale drops out of a cosine, but the length of the rounded vector does not: a code [d + 4] of int8
    (16 bits: [d + 2] of int16) ends in the bytes of a float32 that holds 1 / length. 2 and 4 bits are
    not packed: they are for seeing what precision is worth.

    Up to 8 bits the products are exact integers, by int8 instructions where the device has fast ones.

    Buckets: channel i belongs to table i modulo `tables`; the number is that of the largest channel of
    the table and its sign, the nearest of the signed axes (cross-polytope hashing, arXiv 1509.02897,
    without its rotation: where a few channels outweigh all others, centre or turn the vectors first).
    """

    def __init__(self, bits: int = 8, tables: int = 4) -> None:
        if bits not in (2, 4, 8, 16):
            raise ValueError(f"Quant takes 2, 4, 8 or 16 bits, got {bits}. For more precision take exact.")
        if tables < 1:
            raise ValueError(f"Quant needs at least one table of buckets, got tables={tables}.")
        self.bits, self.tables = bits, tables
        self.dtype = torch.int16 if bits == 16 else torch.int8

    def encode(self, x: Tensor) -> Tensor:
        x = x.to(_wide(x))
        peak = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        levels = (x / peak * (2 ** (self.bits - 1) - 1)).round()
        length = levels.norm(dim=-1, keepdim=True).clamp_min(1).float()
        return torch.cat([levels.to(self.dtype), length.reciprocal().view(self.dtype)], -1)

    def buckets(self, codes: Tensor) -> Tensor:
        levels, _ = self._parts(codes)
        if levels.shape[-1] < self.tables:
            raise ValueError(
                f"{self.tables} tables need vectors at least as wide, got width {levels.shape[-1]}. "
                f"Take tables={levels.shape[-1]} or fewer."
            )
        by_table = F.pad(levels, (0, -levels.shape[-1] % self.tables)).unflatten(-1, (-1, self.tables))
        channel = by_table.short().abs().argmax(-2, keepdim=True)
        return (2 * channel + (by_table.gather(-2, channel) < 0)).squeeze(-2)

    def _scores(self, a: Tensor, b: Tensor) -> Tensor:
        _check_codes(self.dtype, a.shape[-1], a, b)
        (levels, _), (others, shrink) = self._parts(a), self._parts(b)
        if self.bits == 16:  # products of 30 bits: rounded, far below the rounding of the levels
            return (levels.float() @ others.float().mT).mul_(shrink[..., None, :])
        return _integer_products(levels, others) * shrink[..., None, :]

    def _cosine(self, scores: Tensor, queries: Tensor) -> Tensor:
        return scores * self._parts(queries)[1][..., None]

    def _parts(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Levels [..., n, d] and 1 / length [..., n]."""
        _check_codes(self.dtype, codes.shape[-1], codes)
        tail = torch.float32.itemsize // self.dtype.itemsize
        shrink = codes[..., -tail:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return codes[..., :-tail], shrink[..., 0].where(shrink[..., 0].abs() <= 1, 0)  # else nobody wrote it


def int8(tables: int = 4) -> Quant:
    """Quant with 8 bits: nearer than bfloat16, at twice the speed of float32 on a CPU with int8 products."""
    return Quant(8, tables)


SEARCHES: dict[str, Callable[..., Search]] = {
    "exact": Exact,
    "lsh": LSH,
    "int8": int8,
    "quant": Quant,
    "faiss-flat": FaissFlat,
    "faiss-lsh": FaissLSH,
    "faiss-sq8": FaissSQ8,
    "faiss-pq": FaissPQ,
}


@dataclass(frozen=True)
class Recall:
    """How well a search finds: the share of queries whose nearest key it found, and what the others lost.

    A key as near as the nearest to within 1e-6 counts as found. Loss is the true cosine of the nearest
    key less that of the key found, over all queries.
    """

    top1: float
    mean_loss: float
    worst_loss: float


def recall(search: Search, queries: Tensor, keys: Tensor, valid: Tensor | None = None) -> Recall:
    """Compare a search with the exact one, in float64, on vectors [..., n, d] and [..., m, d]."""
    exact = Exact()
    truth = exact.similarity(exact.encode(queries.double()), exact.encode(keys.double()))
    _, found = search.nearest(search.encode(queries), search.encode(keys), valid)
    if valid is not None:
        truth.masked_fill_(~valid[..., None, :], -torch.inf)
    loss = truth.amax(-1) - truth.gather(-1, found[..., None])[..., 0]
    return Recall(float((loss <= 1e-6).double().mean()), float(loss.mean()), float(loss.max()))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _largest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """`scores.max(-1)`, though of equals not always the first.

    On a CPU in two stages, two to three times as fast: a maximum with its index is slow there, one without
    is not. Row i of `stacked` holds the i-th of equal runs of keys.
    """
    if scores.device.type != "cpu":
        return scores.max(-1)
    least = -torch.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    stacked = F.pad(scores, (0, -scores.shape[-1] % RUNS), value=least).unflatten(-1, (RUNS, -1))
    place = stacked.amax(-2).argmax(-1)
    best, run = stacked.take_along_dim(place[..., None, None], -1).squeeze(-1).max(-1)
    return best, run * stacked.shape[-1] + place


def _random_planes(width: int, count: int, seed: int) -> Tensor:
    """Unit normals [width, count] in float64, orthogonal within each group of `width`."""
    generator = torch.Generator().manual_seed(seed)
    groups = [
        torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
        for _ in range(-(-count // width))
    ]
    return torch.cat(groups, 1)[:, :count]


def _integer_products(a: Tensor, b: Tensor) -> Tensor:
    """Exact products of int8 vectors [..., n, w] x [..., m, w] -> int32 [..., n, m]."""
    n, m, width = a.shape[-2], b.shape[-2], a.shape[-1]
    if not _multiplies_int8(a.device):
        exact = torch.float32 if 127 * 127 * width < 2**24 else torch.float64
        return (a.to(exact) @ b.to(exact).mT).int()
    if a.is_cuda:  # takes more than 16 rows, and multiples of 8
        a, b = F.pad(a, (0, -width % 8, 0, max(0, 17 - n))), F.pad(b, (0, -width % 8, 0, -m % 8))
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = a.new_empty(*lead, a.shape[-2], b.shape[-2], dtype=torch.int32)
    rows = (x.expand(*lead, -1, -1).reshape(-1, *x.shape[-2:]) for x in (a, b))
    for x, y, product in zip(*rows, out.view(-1, *out.shape[-2:]), strict=True):
        torch._int_mm(x, y.mT, out=product)  # pyright: ignore[reportPrivateImportUsage]
    return out[..., :n, :m]


def _multiplies_int8(device: torch.device) -> bool:
    """Without VNNI a CPU is slower in int8 than in float32, and may clip sums of two products."""
    return device.type == "cuda" or (device.type == "cpu" and torch.cpu._is_vnni_supported())


def _check_codes(dtype: torch.dtype, width: int, *codes: Tensor) -> None:
    for x in codes:
        if x.dtype != dtype or x.shape[-1] != width:
            raise ValueError(
                f"Expected codes of {dtype} and width {width}, got {x.dtype} and {tuple(x.shape)}. "
                "Encode both sides with the same search."
            )

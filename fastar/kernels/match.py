"""The most similar key of each query, without the matrix of similarities.

A tile of queries walks over tiles of keys and keeps, for every query and every place in a tile, the best
product so far and the tile it came from; which place wins is settled once, at the end. Equal products go to
the lowest index. Long walks may be split among programs.
"""

# pyright: reportInvalidTypeForm=false
# (Triton's constexpr is no type to Python)
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import allocate_descriptors, jit, movable, multiprocessors, on, precision, require_triton, splits, tl


def nearest_reference(
    queries: Tensor,
    keys: Tensor,
    valid: Tensor | None = None,
    *,
    offset: Tensor | None = None,
    second: bool = False,
) -> tuple[Tensor, ...]:
    """Largest product of queries [r, n, c] with keys [r, m, c] -> similarity fp32, index int64 [r, n].

    Keys where `valid` [r, m] is False are never found; where none is valid, similarity is -inf and index 0.
    `offset` fp32 [r, m] joins the products of each key: minus half of its square makes it the nearest by
    distance. `second` adds the largest product with any other key [r, n], -inf where there is none.
    """
    wide = torch.float64 if queries.dtype in (torch.int8, torch.float64) else torch.float32
    products = queries.to(wide) @ keys.to(wide).mT
    if offset is not None:
        products = products + offset[:, None]
    if valid is not None:
        products = torch.where(valid[:, None], products, -torch.inf)
    index = products.argmax(-1)  # the first of equals
    best = products.gather(-1, index[..., None])[..., 0].float()
    if not second:
        return best, index
    return best, index, products.scatter(-1, index[..., None], -torch.inf).amax(-1).float()


@dataclass(frozen=True)
class Tiles:
    """How the kernel cuts its work: queries x keys products at a time, `channels` of each at a time.

    The others as in flash.
    """

    queries: int
    keys: int
    channels: int
    warps: int
    stages: int
    resident: int = 1
    tma: bool = False


# The fastest of those measured on an H200. Kinds: up to 128 channels, more, and either with the second best.
TILES = {
    ("narrow", False): Tiles(128, 64, 128, 8, 3),
    ("narrow", True): Tiles(128, 64, 128, 8, 3),
    ("narrow tma", False): Tiles(64, 64, 128, 4, 3, resident=3, tma=True),
    ("narrow tma", True): Tiles(64, 64, 128, 4, 3, tma=True),
    ("wide", False): Tiles(128, 64, 64, 8, 4),
    ("wide", True): Tiles(128, 64, 64, 8, 4),
    ("wide tma", False): Tiles(128, 128, 64, 8, 4, tma=True),
    ("wide tma", True): Tiles(128, 64, 64, 8, 4, tma=True),
    ("fp32", False): Tiles(32, 32, 32, 4, 1),
    ("fp32", True): Tiles(32, 32, 32, 4, 1),
}


@torch.compiler.disable(reason="nothing around it could be fused with it")
def nearest(
    queries: Tensor,
    keys: Tensor,
    valid: Tensor | None = None,
    *,
    offset: Tensor | None = None,
    second: bool = False,
    tiles: Tiles | None = None,
    parts: int | None = None,
) -> tuple[Tensor, ...]:
    """`nearest_reference` as one Triton kernel, for fp16, bf16, fp32 and int8 of any width.

    int8 products are exact. Keys that are not valid may hold anything, NaN too. `tiles` and the `parts` of
    the keys are chosen from shapes alone; name them to compare. Never waits for the GPU.
    """
    require_triton()
    _check(queries, keys, valid, offset)
    (r, n, _), m = queries.shape, keys.shape[1]
    tiles = tiles or _tiles(queries, keys, second)
    if tiles.tma and not movable(queries, keys):
        raise ValueError(
            "TMA needs addresses and strides that are multiples of 16 bytes; name tiles without it."
        )
    steps = -(-m // tiles.keys)
    programs = -(-n // tiles.queries) * r
    slots = multiprocessors(queries.device) * tiles.resident
    parts = parts or splits(programs, steps, slots, 3 * r * n)
    best, other = queries.new_empty(2, parts, r, n, dtype=torch.float32)
    index = queries.new_empty(parts, r, n, dtype=torch.int64)
    penalty = None
    if valid is not None or offset is not None or m % tiles.keys:
        penalty = _penalty(valid, offset, queries, m, tiles.keys)
    _launch(queries, keys, penalty, best, index, other, second, tiles, -(-steps // parts))
    found = _first_of_parts(best, index, other) if parts > 1 else (best[0], index[0], other[0])
    return found if second else found[:2]


def _check(queries: Tensor, keys: Tensor, valid: Tensor | None, offset: Tensor | None) -> None:
    if queries.dim() != 3 or keys.shape[::2] != queries.shape[::2] or not keys.shape[1]:
        raise ValueError(
            f"Expected queries [r, n, c] and keys [r, m, c] with at least one key, "
            f"got {tuple(queries.shape)} and {tuple(keys.shape)}."
        )
    kinds = torch.float16, torch.bfloat16, torch.float32, torch.int8
    if queries.dtype != keys.dtype or queries.dtype not in kinds:
        raise TypeError(f"Both must be fp16, bf16, fp32 or int8, got {queries.dtype} and {keys.dtype}.")
    if queries.stride(2) != 1 or keys.stride(2) != 1:
        raise ValueError("The channels of queries and keys must lie side by side; call .contiguous() first.")
    for name, numbers in (("valid", valid), ("offset", offset)):
        if numbers is not None and numbers.shape != keys.shape[:2]:
            raise ValueError(f"Expected {name} {tuple(keys.shape[:2])}, got {tuple(numbers.shape)}.")
    if offset is not None and queries.dtype == torch.int8:
        raise TypeError("Products of int8 are integers and take no offset.")


def _tiles(queries: Tensor, keys: Tensor, second: bool) -> Tiles:
    if queries.dtype == torch.float32:
        return TILES["fp32", second]
    kind = "narrow" if queries.shape[2] <= 128 else "wide"
    return TILES[f"{kind} tma" if movable(queries, keys) else kind, second]


def _launch(queries, keys, penalty, best, index, other, second, tiles, span) -> None:
    (r, n, c), m = queries.shape, keys.shape[1]
    whole = queries.dtype == torch.int8
    if tiles.tma:
        allocate_descriptors(queries.device)
    with on(queries.device):
        _nearest[-(-n // tiles.queries), len(best), r](
            queries, keys, penalty, best, index, other, *queries.stride()[:2], *keys.stride()[:2],
            0 if penalty is None or len(penalty) == 1 else penalty.stride(0), n, m, c, span,
            QUERIES=tiles.queries, KEYS=tiles.keys, CHANNELS=tiles.channels, CHUNKS=-(-c // tiles.channels),
            STAGES=tiles.stages, PENALISED=penalty is not None, SECOND=second, WHOLE=whole, TMA=tiles.tma,
            PRECISION=precision(queries),
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip


def _penalty(valid: Tensor | None, offset: Tensor | None, queries: Tensor, m: int, keys: int) -> Tensor:
    """What joins products [r or 1, whole tiles of keys]: offsets, and too little to win if not valid."""
    whole = queries.dtype == torch.int8
    never = -(2**30) if whole else -torch.inf  # products of int8 are less than 2^29, so no sum overflows
    rows = len(queries) if valid is not None or offset is not None else 1
    penalty = torch.full(
        (rows, -(-m // keys) * keys),
        never,
        dtype=torch.int32 if whole else torch.float32,
        device=queries.device,
    )
    penalty[:, :m] = 0 if offset is None else offset
    if valid is not None:
        penalty[:, :m].masked_fill_(~valid, never)
    return penalty


def _first_of_parts(best: Tensor, index: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Best, index and second best over parts [p, r, n] of the keys."""
    top = best.amax(0)
    first = torch.where(best == top, index, torch.iinfo(index.dtype).max).amin(0)
    return top, first, torch.where(index == first, other, best).amax(0)


@jit(do_not_specialize=["n", "m", "span", "pr"])
def _nearest(
    queries, keys, penalty, best_out, index_out, other_out, qr, qn, kr, km, pr, n, m, c, span,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, PENALISED: tl.constexpr, SECOND: tl.constexpr, WHOLE: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries over one part of the keys."""
    tile, part, r = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries += r * qr
    keys += r * kr
    if PENALISED:
        penalty += r * pr
    rows = tile * QUERIES + tl.arange(0, QUERIES)
    lane = tl.arange(0, KEYS)
    wide = tl.arange(0, CHANNELS)
    first = part * span
    last = tl.minimum(first + span, tl.cdiv(m, KEYS))

    kind: tl.constexpr = tl.int32 if WHOLE else tl.float32
    lowest: tl.constexpr = -536870912 if WHOLE else -float("inf")  # what is not valid stays below
    best = tl.full([QUERIES, KEYS], lowest, kind)
    other = tl.full([QUERIES, KEYS], lowest, kind)
    tiles = tl.full([QUERIES, KEYS], 0, tl.int32) + first
    query_at = queries + rows.to(tl.int64)[:, None] * qn + wide[None, :]
    there = rows[:, None] < n
    if TMA:
        query_tiles = tl.make_tensor_descriptor(queries, [n, c], [qn, 1], [QUERIES, CHANNELS])
        key_tiles = tl.make_tensor_descriptor(keys, [m, c], [km, 1], [KEYS, CHANNELS])
        if PENALISED:
            penalty_tiles = tl.make_tensor_descriptor(penalty, [tl.cdiv(m, KEYS) * KEYS], [1], [KEYS])
    if CHUNKS == 1:
        if TMA:
            held = query_tiles.load([tile * QUERIES, 0])
        else:
            held = tl.load(query_at, mask=there & (wide[None, :] < c), other=0)

    for step in tl.range(first, last, num_stages=STAGES):
        begin = step * KEYS
        if PENALISED:
            if TMA:
                joins = penalty_tiles.load([begin])
            else:
                joins = tl.load(penalty + begin + lane)
        key_at = keys + tl.cast(begin, tl.int64) * km + (lane[:, None] * km + wide[None, :])
        inside = (begin + lane < m)[:, None]
        if CHUNKS == 1:
            if TMA:
                key = key_tiles.load([begin, 0])
            else:
                key = tl.load(key_at, mask=inside & (wide[None, :] < c), other=0)
            products = tl.dot(held, key.T, out_dtype=kind, input_precision=PRECISION)
        else:
            products = tl.zeros([QUERIES, KEYS], kind)
            for chunk in tl.range(0, CHUNKS, num_stages=STAGES):
                at = chunk * CHANNELS
                if TMA:
                    query, key = query_tiles.load([tile * QUERIES, at]), key_tiles.load([begin, at])
                else:
                    query = tl.load(query_at + at, mask=there & (wide[None, :] + at < c), other=0)
                    key = tl.load(key_at + at, mask=inside & (wide[None, :] + at < c), other=0)
                products = tl.dot(query, key.T, products, out_dtype=kind, input_precision=PRECISION)
        if PENALISED:
            products += joins[None, :]
        better = products > best  # never for NaN
        if SECOND:
            other = tl.where(better, best, tl.maximum(other, products))
        best = tl.where(better, products, best)
        tiles = tl.where(better, step, tiles)

    top = tl.max(best, 1)
    place = tiles * KEYS + lane[None, :]
    index = tl.min(tl.where(best == top[:, None], place, 2147483647), 1)
    at = (part * tl.num_programs(2) + r) * n + rows
    tl.store(best_out + at, _real(top, WHOLE), mask=rows < n)
    tl.store(index_out + at, index.to(tl.int64), mask=rows < n)
    if SECOND:
        runner_up = tl.max(tl.where(place == index[:, None], other, best), 1)
        tl.store(other_out + at, _real(runner_up, WHOLE), mask=rows < n)


@jit()
def _real(products, WHOLE: tl.constexpr):
    """As fp32, -inf for what is no product of a valid key."""
    if WHOLE:
        return tl.where(products == -536870912, -float("inf"), products.to(tl.float32))
    else:
        return products

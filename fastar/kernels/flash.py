"""Attention with a bias per key, block lists and log-sum-exp: what every memory and plan lowers to.

The bias is 0 for an ordinary key, log m for a key that stands for m, -inf for an empty slot. Block lists say
which keys a tile of queries reads. Attention over disjoint sets of keys is joined exactly by `merge`.

The kernel is online softmax over tiles of keys (FlashAttention-2, arXiv 2307.08691). The keys may be split
among programs and merged (Flash-Decoding): for few queries, to use the whole GPU at all; for many, so that
the last wave of programs is not half empty. Where memory allows it tiles come through TMA.
"""

# pyright: reportInvalidTypeForm=false
# (Triton's constexpr is no type to Python)
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import allocate_descriptors, jit, movable, multiprocessors, on, precision, require_triton, splits, tl

LOG2E = tl.constexpr(1.4426950408889634) if tl else None


@dataclass(frozen=True)
class BlockLists:
    """Which blocks of `columns` keys a tile of `rows` queries reads: the first `count` of `index`, each once.

    count  int32 [b, h, M], M = ceil(n / rows)
    index  int32 [b, h, M, N]; what follows the first `count` means nothing
    """

    count: Tensor
    index: Tensor
    rows: int
    columns: int

    def mask(self, n: int, m: int) -> Tensor:
        """The same as bool [b, h, n, m]: True where a query reads a key."""
        blocks = -(-m // self.columns)
        used = torch.arange(self.index.shape[-1], device=self.index.device) < self.count[..., None]
        block = torch.where(used, self.index, blocks).long()  # one past the last: cut off below
        read = torch.zeros(*self.count.shape, blocks + 1, dtype=torch.bool, device=self.index.device)
        read = read.scatter_(-1, block, True)[..., :blocks]
        return read.repeat_interleave(self.rows, -2).repeat_interleave(self.columns, -1)[..., :n, :m]


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, blocks: BlockLists | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention of q [b, h, n, d] over k, v [b, h, m, d] -> o [b, h, n, d], lse [b, h, n].

    `bias` [b, m] or [b, 1 or h, m] joins every query's logit; a key at -inf is absent, whatever its slot
    holds. lse is the natural log of the sum of exponentials. A query that reads nothing gives o = 0 and
    lse = -inf.
    """
    (b, h, n, d), m = q.shape, k.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = torch.zeros(b, m, device=q.device) if bias is None else bias
    bias = (bias if bias.dim() == 3 else bias[:, None])[:, :, None].to(wide)
    reads = (bias > -torch.inf).expand(b, h, n, m)
    if blocks is not None:
        reads = reads & blocks.mask(n, m)
    logits = torch.where(reads, (q.to(wide) * d**-0.5) @ k.to(wide).mT + bias, -torch.inf)
    lse = logits.logsumexp(-1)
    weights = torch.where(reads, (logits - lse[..., None]).exp(), 0.0)
    values = torch.where(reads.any(2)[..., None], v.to(wide), 0.0)
    return (weights @ values).to(q.dtype), lse


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, from o [b, h, n, d] and lse [b, h, n] over each."""
    outputs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    lse = lses.logsumexp(0)
    share = torch.where(lses > -torch.inf, (lses - lse).exp(), 0.0)
    return (share[..., None] * outputs).sum(0).to(outputs.dtype), lse


@dataclass(frozen=True)
class Tiles:
    """How the kernel cuts its work; which cut is fast is for the GPU to say.

    queries, keys  tile of the score matrix
    warps, stages  of Triton: how many compute a tile, and how many tiles are on their way
    resident       programs that share a multiprocessor, as the choice of splits should assume
    tma            tiles come through TMA instead of masked loads
    held           the queries stay in registers instead of shared memory; needs tma
    registers      most a thread may use
    """

    queries: int
    keys: int
    warps: int
    stages: int
    resident: int = 1
    tma: bool = False
    held: bool = False
    registers: int | None = None


# By kind and head width: the cut for masked loads, and the one for TMA. The fastest of those measured on an
# H200 (Triton 3.6); letting one warp load for the others (warp_specialize) gave wrong results there.
TILES = {
    ("few", 64): (Tiles(64, 128, 4, 3, resident=2),) * 2,
    ("few", 128): (Tiles(128, 64, 8, 3),) * 2,
    ("many", 64): (Tiles(128, 64, 8, 3, resident=2, registers=128), Tiles(128, 128, 8, 3, tma=True)),
    ("many", 128): (Tiles(128, 128, 8, 3), Tiles(128, 128, 8, 3, tma=True)),
    ("64x64", 64): (
        Tiles(64, 64, 4, 3, resident=3),
        Tiles(64, 64, 4, 3, resident=3, tma=True, held=True),
    ),
    ("64x64", 128): (
        Tiles(64, 64, 4, 2, resident=2),
        Tiles(64, 64, 4, 2, resident=3, tma=True, held=True, registers=168),
    ),
    ("128x128", 64): (
        Tiles(128, 64, 8, 3, resident=2, registers=128),
        Tiles(128, 128, 8, 2, tma=True, held=True),
    ),
    ("128x128", 128): (Tiles(128, 64, 8, 3), Tiles(128, 128, 8, 2, tma=True, held=True)),
    ("fp32", 64): (Tiles(32, 32, 4, 1),) * 2,
    ("fp32", 128): (Tiles(32, 32, 4, 1),) * 2,
}


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    blocks: BlockLists | None = None,
    *,
    finite: bool = False,
    tiles: Tiles | None = None,
    parts: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`attention_reference` as one Triton kernel: o in the type of q, lse in fp32.

    q, k, v are fp16, bf16 or fp32 of head width 64 or 128, with any strides but the last, which must be 1.
    Blocks are of 64 or 128 rows and columns. `finite` promises that keys and values in slots with bias -inf
    are finite numbers: they are then loaded like all others, which is faster, and TMA can do it. Without it
    nothing there is touched. `tiles` and the `parts` that the keys are split into are chosen from shapes
    alone; name them to compare. Never waits for the GPU.
    """
    require_triton()
    _check(q, k, v, bias, blocks)
    (b, h, n, d), m = q.shape, k.shape[2]
    if not n or not m:
        return torch.zeros_like(q), q.new_full((b, h, n), -torch.inf, dtype=torch.float32)
    plain, best = (tiles, tiles) if tiles else TILES[_kind(q, blocks), d]
    reach = best.tma and movable(q, k, v) and (bias is None or finite)
    tiles = best if reach else plain
    _check_tiles(tiles, blocks, reach)
    steps = -(-(blocks.index.shape[3] * blocks.columns if blocks else m) // tiles.keys)
    programs = -(-n // tiles.queries) * b * h
    slots = multiprocessors(q.device) * tiles.resident
    parts = parts or splits(programs, steps, slots, b * h * n * d)
    o = q.new_empty(parts, b, h, n, d, dtype=q.dtype if parts == 1 else torch.float32)
    lse = q.new_empty(parts, b, h, n, dtype=torch.float32)
    unit = blocks.columns if blocks else tiles.keys
    row = _row(bias, q, m, unit if tiles.tma else 1)
    _launch(q, k, v, row, blocks, o, lse, tiles, -(-steps // parts), finite)
    return (o[0], lse[0]) if parts == 1 else _merge_parts(o, lse, q.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, blocks: BlockLists | None) -> None:
    (b, h, n, d), m = q.shape, k.shape[2]
    if d not in (64, 128) or k.shape != (b, h, m, d) or v.shape != k.shape:
        raise ValueError(
            f"Expected q [b, h, n, d] and k, v [b, h, m, d] with d of 64 or 128, "
            f"got {[tuple(x.shape) for x in (q, k, v)]}."
        )
    if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"q, k and v must all be fp16, bf16 or fp32, got {q.dtype}, {k.dtype} and {v.dtype}.")
    if any(x.stride(3) != 1 for x in (q, k, v)):
        raise ValueError("The channels of q, k and v must lie side by side; call .contiguous() first.")
    if bias is not None and bias.shape not in ((b, m), (b, 1, m), (b, h, m)):
        raise ValueError(f"Expected a bias [{b}, {m}] or [{b}, 1 or {h}, {m}], got {tuple(bias.shape)}.")
    if blocks is not None:
        _check_blocks(blocks, (b, h, -(-n // blocks.rows)))


def _check_blocks(blocks: BlockLists, shape: tuple[int, int, int]) -> None:
    count, index = blocks.count, blocks.index
    if count.shape != shape or index.shape[:3] != shape or not index.shape[3]:
        raise ValueError(
            f"Tiles of {blocks.rows} queries need count {shape} and index [*{shape}, 1 or more], "
            f"got {tuple(count.shape)} and {tuple(index.shape)}."
        )
    if any(x.dtype != torch.int32 or not x.is_contiguous() for x in (count, index)):
        raise TypeError("count and index must be contiguous int32; call .int().contiguous() first.")


def _check_tiles(tiles: Tiles, blocks: BlockLists | None, reach: bool) -> None:
    if tiles.tma and not reach:
        raise ValueError(
            "TMA needs addresses and strides that are multiples of 16 bytes, and finite=True with a bias. "
            "Leave `tiles` out, or name one without tma."
        )
    if blocks and (blocks.rows % tiles.queries or blocks.columns % tiles.keys):
        raise ValueError(
            f"Tiles of {tiles.queries} x {tiles.keys} do not divide blocks of "
            f"{blocks.rows} x {blocks.columns}."
        )


def _kind(q: Tensor, blocks: BlockLists | None) -> str:
    if q.dtype == torch.float32:
        return "fp32"
    if blocks is None:
        return "few" if q.shape[2] <= 256 else "many"
    return "64x64" if min(blocks.rows, blocks.columns) < 128 else "128x128"


def _row(bias: Tensor | None, q: Tensor, m: int, unit: int) -> Tensor | None:
    """The bias as fp32 [b, h, m or more], a view where possible.

    TMA reads zeros beyond m, so there it goes on, with -inf, to the end of the last `unit` of keys.
    """
    b, h = q.shape[:2]
    if bias is not None:
        bias = (bias if bias.dim() == 3 else bias[:, None]).float()
        bias = bias if bias.stride(-1) == 1 else bias.contiguous()
    if unit > 1 and (m % unit or bias is not None and not movable(bias)):
        rows = bias.shape[:2] if bias is not None else (1, 1)
        whole = q.new_full((*rows, -(-m // unit) * unit), -torch.inf, dtype=torch.float32)
        whole[..., :m] = 0 if bias is None else bias
        bias = whole
    return None if bias is None else bias.expand(b, h, -1)


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    blocks: BlockLists | None,
    o: Tensor,
    lse: Tensor,
    tiles: Tiles,
    span: int,
    finite: bool,
) -> None:
    (b, h, n, d), m = q.shape, k.shape[2]
    biased = bias is not None
    lists = (blocks.count, blocks.index, *blocks.index.shape[2:]) if blocks else (None, None, 0, 0)
    if tiles.tma:
        allocate_descriptors(q.device)
    with on(q.device):
        _attend[-(-n // tiles.queries), len(o), b * h](
            q, k, v, bias, o, lse, *lists[:2], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *(bias.stride()[:2] if bias is not None else (0, 0)), h, n, m, *lists[2:], span, d**-0.5,
            WIDTH=d, QUERIES=tiles.queries, KEYS=tiles.keys, STAGES=tiles.stages,
            ROWS=blocks.rows if blocks else 0, COLUMNS=blocks.columns if blocks else 0,
            BIASED=biased, GUARDED=biased and not finite, RAGGED=blocks is None or m % blocks.columns > 0,
            TMA=tiles.tma, HELD=tiles.held,
            PRECISION=precision(q),
            num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers,
        )  # fmt: skip


# Sizes that change from call to call must not compile the kernel anew.
@jit(
    do_not_specialize=["bb", "bh", "n", "m", "row_tiles", "capacity", "span"],
    do_not_specialize_on_alignment=["bias"],
)
def _attend(
    q, k, v, bias, o, lse, count, index, qb, qh, qn, kb, kh, km, vb, vh, vm, bb, bh, heads, n, m,
    row_tiles, capacity, span, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BIASED: tl.constexpr, GUARDED: tl.constexpr,
    RAGGED: tl.constexpr, TMA: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head over one part of the keys."""
    scale = tl.cast(scale, tl.float32)  # a compiled caller hands it over in double precision
    tile, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    q += head // heads * qb + head % heads * qh
    k += head // heads * kb + head % heads * kh
    v += head // heads * vb + head % heads * vh
    if BIASED:
        bias += head // heads * bb + head % heads * bh
    rows = tile * QUERIES + tl.arange(0, QUERIES)
    wide = tl.arange(0, WIDTH)
    lane = tl.arange(0, KEYS)

    if COLUMNS:
        place = head * row_tiles + tile * QUERIES // ROWS
        index += place * capacity
        steps = tl.load(count + place) * (COLUMNS // KEYS)
        span = tl.cdiv(steps, tl.num_programs(1))
    else:
        steps = tl.cdiv(m, KEYS)
    first = part * span
    last = tl.minimum(first + span, steps)

    acc = tl.zeros([QUERIES, WIDTH], tl.float32)
    top = tl.full([QUERIES], -1e38, tl.float32)  # finite, so that -inf - top is never NaN
    total = tl.zeros([QUERIES], tl.float32)
    if TMA:
        queries = tl.make_tensor_descriptor(q, [n, WIDTH], [qn, 1], [QUERIES, WIDTH]).load(
            [tile * QUERIES, 0]
        )
        if HELD:  # what was computed stays in registers, and halving changes no digit
            queries = (queries * 0.5).to(queries.dtype)
            scale *= 2
        key_tiles = tl.make_tensor_descriptor(k, [m, WIDTH], [km, 1], [KEYS, WIDTH])
        value_tiles = tl.make_tensor_descriptor(v, [m, WIDTH], [vm, 1], [KEYS, WIDTH])
        if BIASED:
            unit: tl.constexpr = COLUMNS if COLUMNS else KEYS
            bias_tiles = tl.make_tensor_descriptor(bias, [tl.cdiv(m, unit) * unit], [1], [KEYS])
        coming = _start(index, first, capacity, COLUMNS, KEYS)
        # A loop that may be skipped makes ptxas wait for every matrix product by itself.
        end = tl.maximum(last, first + 1)
        tl.assume(first < end)
        for step in tl.range(first, end, num_stages=STAGES):
            start = coming
            coming = _start(index, step + 1, capacity, COLUMNS, KEYS)
            penalty = bias_tiles.load([start]) if BIASED else lane
            keys = key_tiles.load([start, 0])
            values = value_tiles.load([start, 0])
            acc, top, total = _fold(queries, keys, values, penalty, acc, top, total, scale, BIASED, PRECISION)
    else:
        query_at = q + rows.to(tl.int64)[:, None] * qn + wide[None, :]
        queries = tl.load(query_at, mask=rows[:, None] < n, other=0.0)
        if COLUMNS:
            coming = _start(index, first, capacity, COLUMNS, KEYS)
            for step in tl.range(first, last, num_stages=STAGES):
                start = coming
                coming = _start(index, step + 1, capacity, COLUMNS, KEYS)
                keys, values, penalty = _load(
                    k, v, bias, start, m, km, vm, lane, wide, BIASED, GUARDED, RAGGED
                )
                acc, top, total = _fold(
                    queries, keys, values, penalty, acc, top, total, scale, BIASED or RAGGED, PRECISION
                )
        else:
            whole = tl.minimum(last, m // KEYS)
            for step in tl.range(first, whole, num_stages=STAGES):
                keys, values, penalty = _load(
                    k, v, bias, step * KEYS, m, km, vm, lane, wide, BIASED, GUARDED, False
                )
                acc, top, total = _fold(
                    queries, keys, values, penalty, acc, top, total, scale, BIASED, PRECISION
                )
            for step in tl.range(tl.maximum(first, whole), last, num_stages=1):
                keys, values, penalty = _load(
                    k, v, bias, step * KEYS, m, km, vm, lane, wide, BIASED, GUARDED, True
                )
                acc, top, total = _fold(
                    queries, keys, values, penalty, acc, top, total, scale, True, PRECISION
                )

    at = (part * tl.num_programs(2) + head) * n + rows
    _finish(o, lse, at, rows < n, wide, acc, top, total, first < last, WIDTH)


@jit()
def _start(index, step, capacity, COLUMNS: tl.constexpr, KEYS: tl.constexpr):
    """Where the tile of keys of a step starts."""
    if COLUMNS:
        tiles: tl.constexpr = COLUMNS // KEYS
        return tl.load(index + tl.minimum(step // tiles, capacity - 1)) * COLUMNS + step % tiles * KEYS
    else:
        return step * KEYS


@jit()
def _load(
    k, v, bias, start, m, km, vm, lane, wide, BIASED: tl.constexpr, GUARDED: tl.constexpr, EDGE: tl.constexpr
):  # fmt: skip
    """A tile of keys and values, and what joins its logits: -inf beyond m, where nothing is touched."""
    inside = start + lane < m
    if BIASED and EDGE:
        penalty = tl.load(bias + start + lane, mask=inside, other=-float("inf"))
    elif BIASED:
        penalty = tl.load(bias + start + lane)
    else:
        penalty = tl.where(inside, 0.0, -float("inf"))
    begin = tl.cast(start, tl.int64)
    key_at = k + begin * km + (lane[:, None] * km + wide[None, :])
    value_at = v + begin * vm + (lane[:, None] * vm + wide[None, :])
    if GUARDED or EDGE:
        there = (penalty > -float("inf"))[:, None]
        return tl.load(key_at, mask=there, other=0.0), tl.load(value_at, mask=there, other=0.0), penalty
    else:
        return tl.load(key_at), tl.load(value_at), penalty


@jit()
def _fold(
    queries, keys, values, penalty, acc, top, total, scale, ADDITIVE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """A tile of keys joins the running softmax. Logits are natural; only the exponentials have base 2."""
    logits = tl.dot(queries, keys.T, input_precision=PRECISION)
    if ADDITIVE:
        logits = logits * scale + penalty[None, :]
        above = tl.maximum(top, tl.max(logits, 1))
        weights = tl.exp2(logits * LOG2E - (above * LOG2E)[:, None])
    else:
        above = tl.maximum(top, tl.max(logits, 1) * scale)
        weights = tl.exp2(logits * (scale * LOG2E) - (above * LOG2E)[:, None])
    fade = tl.exp2((top - above) * LOG2E)
    total = total * fade + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * fade[:, None], input_precision=PRECISION)
    return acc, above, total


@jit()
def _finish(o, lse, at, there, wide, acc, top, total, any, WIDTH: tl.constexpr):
    """Write what the running softmax has come to at these rows, if it has read `any` tile at all."""
    read = (total > 0) & any
    some = tl.where(read, total, 1.0)
    mean = tl.where(read[:, None], acc / some[:, None], 0.0)
    tl.store(o + at[:, None] * WIDTH + wide[None, :], mean.to(o.dtype.element_ty), mask=there[:, None])
    tl.store(lse + at, tl.where(read, top + tl.log(some), -float("inf")), mask=there)


def _merge_parts(o: Tensor, lse: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`merge` of o [p, b, h, n, d] and lse [p, b, h, n] in one pass."""
    p, b, h, n, d = o.shape
    padded = next(
        most for most in (4, 16, 64, 256) if p <= most
    )  # few kinds: a game must not wait for a new one
    rows = max(1, 4096 // (padded * d))
    out, out_lse = o.new_empty(b, h, n, d, dtype=dtype), lse.new_empty(b, h, n)
    with on(o.device):
        _merge[(-(-b * h * n // rows),)](o, lse, out, out_lse, b * h * n, p, WIDTH=d, PARTS=padded, ROWS=rows)
    return out, out_lse


@jit(do_not_specialize=["rows", "parts"])
def _merge(o, lse, out, out_lse, rows, parts, WIDTH: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr):
    """All parts of ROWS queries: every load is on its way before the first is used."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, PARTS)
    wide = tl.arange(0, WIDTH)
    there = (part[:, None] < parts) & (row[None, :] < rows)
    at = part[:, None].to(tl.int64) * rows + row[None, :]
    lses = tl.load(lse + at, mask=there, other=-float("inf"))
    outputs = tl.load(o + at[:, :, None] * WIDTH + wide[None, None, :], mask=there[:, :, None], other=0.0)
    top = tl.maximum(tl.max(lses, 0), -1e38)
    share = tl.exp2((lses - top[None, :]) * LOG2E)
    total = tl.sum(share, 0)
    some = tl.where(total > 0, total, 1.0)
    mean = tl.sum(share[:, :, None] * outputs, 0) / some[:, None]
    tl.store(
        out + row[:, None] * WIDTH + wide[None, :], mean.to(out.dtype.element_ty), mask=row[:, None] < rows
    )
    tl.store(out_lse + row, tl.where(total > 0, top + tl.log(some), -float("inf")), mask=row < rows)

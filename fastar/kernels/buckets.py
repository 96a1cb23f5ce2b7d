"""Attention over a memory of which only the wanted buckets are read in full: what AnnSA lowers to.

One kernel chooses the buckets, another reads them where they lie. Nothing is gathered first: for the few
queries of a frame, copying what they read would cost more than reading it. For many queries it is the other
way round, and a third lays it out side by side.
"""

# pyright: reportInvalidTypeForm=false
# (Triton's constexpr is no type to Python)
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import logits
from . import jit, multiprocessors, on, precision, require_triton, splits, tl
from .flash import _finish, _fold, _merge_parts

MOST = 256  # buckets that the kernel can rank at once
ROWS = 32  # that a program lays out
UNIT = 128  # keys of a tile of attention, which would first copy a bias that ends within one
QUERIES = 256  # from here on gathering what they read costs less than reading it where it lies


class Buckets(NamedTuple):
    """Keys `start` to `start + f` of a layer, in the order of their buckets of f / i keys each.

    order   int64 [b, h, f] of the keys, counted from `start`; bucket i holds i f / i to (i + 1) f / i
    centre  [b, h, i, d], mean key of each bucket, and
    value   [b, h, i, d], mean value, both over the tokens it stands for
    weight  [b, h, i], log of how many these are; -inf where it is empty
    """

    start: int
    order: Tensor
    centre: Tensor
    value: Tensor
    weight: Tensor

    @property
    def block(self) -> int:
        return self.order.shape[2] // self.weight.shape[2]

    @property
    def end(self) -> int:
        return self.start + self.order.shape[2]


class Choice(NamedTuple):
    """Which buckets are read in full: the `useful` ones of those in `bucket`, int64 and bool [b, h, j].

    rest  [b, h, i], the weight of all others, -inf where a bucket is read in full; None to leave them out
    """

    bucket: Tensor
    useful: Tensor
    rest: Tensor | None


def choose_reference(q: Tensor, buckets: Buckets, wanted: int, mass: float = 1.0) -> Choice:
    """The `wanted` buckets that get most attention of queries [b, h, n, d], judged by their mean keys.

    Useful are those that it takes to hold a share `mass` of it; of 1, all are.
    """
    scores = logits(q, buckets.centre.to(q.dtype), buckets.weight)
    share, bucket = scores.float().softmax(-1).mean(2).topk(wanted)
    useful = (share.cumsum(-1) - share < mass) | (mass >= 1)
    read = torch.zeros_like(buckets.weight, dtype=torch.bool).scatter_(2, bucket, useful)
    return Choice(bucket, useful, buckets.weight.masked_fill(read, -torch.inf))


def gathered(
    keys: Tensor, values: Tensor, bias: Tensor | None, buckets: Buckets, choice: Choice
) -> tuple[Tensor, Tensor, Tensor]:
    """What is read of keys and values [b, h, m, d] and bias [b, h or 1, m], laid out side by side.

    All that is in no bucket, the chosen buckets, then a mean for each of the rest. `read` is attention to it.
    """
    bias = of_heads(keys, bias)
    rows = take(buckets.order.unflatten(2, (-1, buckets.block)), choice.bucket).flatten(2) + buckets.start
    idle = ~choice.useful.repeat_interleave(buckets.block, -1)
    whole = keys, values, bias
    read = take(keys, rows), take(values, rows), take(bias, rows).masked_fill(idle, -torch.inf)
    means = [x[:, :, :0] for x in whole]
    if choice.rest is not None:
        means = [buckets.centre, buckets.value, choice.rest]
    keys, values, bias = (
        torch.cat([x[:, :, : buckets.start], x[:, :, buckets.end :], chosen, mean], 2)
        for x, chosen, mean in zip(whole, read, means, strict=True)
    )
    return keys, values, bias


def of_heads(keys: Tensor, bias: Tensor | None) -> Tensor:
    """The bias of every key [b, h, m, d] of every head [b, h, m]."""
    b, h, m, _ = keys.shape
    wide = torch.promote_types(keys.dtype, torch.float32)
    return (keys.new_zeros(b, 1, m, dtype=wide) if bias is None else bias).expand(b, h, m)


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [b, h, m, ...] at index [b, h, j] -> [b, h, j, ...]."""
    b, h, m = x.shape[:3]
    offset = m * torch.arange(b * h, device=x.device).view(b, h, 1)
    return x.flatten(0, 2).index_select(0, (index + offset).flatten()).unflatten(0, index.shape)


def fits(q: Tensor, buckets: Buckets) -> bool:
    """Whether `choose` and `read` can be asked this."""
    narrow = q.shape[-1] in (64, 128) and q.dtype in (torch.float16, torch.bfloat16, torch.float32)
    block = buckets.block
    few = q.shape[2] <= QUERIES and buckets.weight.shape[2] <= MOST
    return narrow and few and block >= 16 and not block & (block - 1)


def choose(q: Tensor, buckets: Buckets, wanted: int, mass: float = 1.0) -> Choice:
    """`choose_reference` as one Triton kernel, where it `fits`."""
    require_triton()
    (b, h, n, d), count = q.shape, buckets.weight.shape[2]
    bucket = torch.empty(b, h, wanted, dtype=torch.int64, device=q.device)
    useful = torch.empty(b, h, wanted, dtype=torch.bool, device=q.device)
    weight, rest = buckets.weight.float().contiguous(), q.new_empty(b, h, count, dtype=torch.float32)
    places = max(16, 1 << (count - 1).bit_length())
    at_once = 64 if n > 32 and q.dtype != torch.float32 else 32  # each time around waits for the one before
    with on(q.device):
        _choose[(b * h,)](
            q, buckets.centre.to(q.dtype).contiguous(), weight, bucket, useful, rest, *q.stride()[:3], h, n,
            count, wanted, mass if mass < 1 else 2.0, d**-0.5, WIDTH=d, QUERIES=at_once, PLACES=places,
            PRECISION=precision(q), num_warps=8 if places > 128 else 4,
        )  # fmt: skip
    return Choice(bucket, useful, rest)


def read(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    buckets: Buckets,
    choice: Choice,
    *,
    parts: int | None = None,
) -> Tensor:
    """Attention of q [b, h, n, d] to what `gathered` lays out, as one Triton kernel, where it `fits`.

    Keys and values at a bias of -inf must be finite numbers all the same. `parts` is how many programs share
    the keys; it is chosen from shapes if not given.
    """
    require_triton()
    (b, h, n, d), m = q.shape, keys.shape[2]
    block, wanted = buckets.block, choice.bucket.shape[2]
    means = 0 if choice.rest is None else buckets.weight.shape[2]
    tile, step = (16, 16) if q.dtype == torch.float32 else (64, min(64, block))
    steps = -(-(m - buckets.order.shape[2]) // step) + wanted * block // step + -(-means // step)
    programs = -(-n // tile) * b * h
    parts = parts or splits(programs, steps, 2 * multiprocessors(q.device), b * h * n * d)
    o = q.new_empty(parts, b, h, n, d, dtype=q.dtype if parts == 1 else torch.float32)
    lse = q.new_empty(parts, b, h, n, dtype=torch.float32)
    row = None if bias is None else bias.float().expand(b, h, m)
    rest = choice.rest if choice.rest is None else choice.rest.float().contiguous()
    with on(q.device):
        _read[-(-n // tile), parts, b * h](
            q, keys, values, row, buckets.order, choice.bucket, choice.useful, buckets.centre, buckets.value,
            rest, o, lse, *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
            *(row.stride()[:2] if row is not None else (0, 0)), h, n, m, buckets.start, buckets.end, wanted,
            buckets.weight.shape[2], means, -(-steps // parts), d**-0.5,
            WIDTH=d, QUERIES=tile, KEYS=step, BLOCK=block, BIASED=row is not None, SUMMED=rest is not None,
            PRECISION=precision(q), num_warps=4, num_stages=3,
        )  # fmt: skip
    return o[0] if parts == 1 else _merge_parts(o, lse, q.dtype)[0]


def lay_out(
    keys: Tensor, values: Tensor, bias: Tensor | None, buckets: Buckets, choice: Choice
) -> tuple[Tensor, Tensor, Tensor]:
    """`gathered` as one Triton kernel, for widths that are powers of 2; the bias is fp32.

    What is read is followed by zeros with a bias of -inf, to a multiple of `UNIT`.
    """
    require_triton()
    (b, h, m, d), count, wanted = keys.shape, buckets.weight.shape[2], choice.bucket.shape[2]
    means = 0 if choice.rest is None else count
    size = m - buckets.order.shape[2] + wanted * buckets.block + means
    room = -(-size // UNIT) * UNIT
    laid = (
        keys.new_empty(b, h, room, d),
        values.new_empty(b, h, room, d),
        keys.new_empty(b, h, room, dtype=torch.float32),
    )
    row = None if bias is None else bias.float().expand(b, h, m)
    rest = choice.rest if choice.rest is None else choice.rest.float().contiguous()
    with on(keys.device):
        _lay_out[room // ROWS, b * h](
            keys, values, row, buckets.order, choice.bucket, choice.useful, buckets.centre, buckets.value,
            rest, *laid, *keys.stride()[:3], *values.stride()[:3],
            *(row.stride()[:2] if row is not None else (0, 0)), h, m, buckets.start, buckets.end, wanted,
            count, size, room,
            WIDTH=d, AT_ONCE=ROWS, BLOCK=buckets.block, BIASED=row is not None, SUMMED=rest is not None,
            num_warps=4,
        )  # fmt: skip
    return laid


@jit(
    do_not_specialize=["bb", "bh", "m", "start", "end", "wanted", "count", "size", "room"],
    do_not_specialize_on_alignment=["bias"],
)
def _lay_out(
    k, v, bias, order, bucket, useful, centre, value, rest, out_k, out_v, out_bias, kb, kh, km, vb, vh, vm,
    bb, bh, heads, m, start, end, wanted, count, size, room,
    WIDTH: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """Some rows of one head: what is in no bucket, chosen buckets, means."""
    head = tl.program_id(1).to(tl.int64)
    k += head // heads * kb + head % heads * kh
    v += head // heads * vb + head % heads * vh
    at = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    wide = tl.arange(0, WIDTH)[None, :]
    whole = m - (end - start)
    full = whole + wanted * BLOCK
    chosen = (at >= whole) & (at < full)
    slot = head * wanted + (at - whole) // BLOCK
    first = (head * count + tl.load(bucket + slot, mask=chosen, other=0)) * BLOCK
    place = start + tl.load(order + first + (at - whole) % BLOCK, mask=chosen, other=0)
    row = tl.where(chosen, place, tl.where(at < start, at, at + (end - start))).to(tl.int64)
    known = at < full
    keys = tl.load(k + row[:, None] * km + wide, mask=known[:, None], other=0.0)
    values = tl.load(v + row[:, None] * vm + wide, mask=known[:, None], other=0.0)
    penalty = tl.zeros([AT_ONCE], tl.float32)
    if BIASED:
        bias += head // heads * bb + head % heads * bh
        penalty = tl.load(bias + row, mask=known, other=0.0)
    idle = chosen & (tl.load(useful + slot, mask=chosen, other=1) == 0)
    penalty = tl.where(idle, -float("inf"), penalty)
    if SUMMED:
        mean = (at >= full) & (at < size)
        bucket_at = head * count + (at - full)
        mean_at = bucket_at[:, None] * WIDTH + wide
        keys = tl.where(mean[:, None], tl.load(centre + mean_at, mask=mean[:, None], other=0.0), keys)
        values = tl.where(mean[:, None], tl.load(value + mean_at, mask=mean[:, None], other=0.0), values)
        penalty = tl.where(mean, tl.load(rest + bucket_at, mask=mean, other=0.0), penalty)
    out = head * room + at
    tl.store(out_k + out[:, None] * WIDTH + wide, keys)
    tl.store(out_v + out[:, None] * WIDTH + wide, values)
    tl.store(out_bias + out, tl.where(at < size, penalty, -float("inf")))


@jit(do_not_specialize=["n", "count", "wanted"])
def _choose(
    q, centre, weight, bucket, useful, rest, qb, qh, qn, heads, n, count, wanted, mass, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head. Buckets are ranked by comparing each with every other."""
    scale = tl.cast(scale, tl.float32)  # a compiled caller hands them over in double precision
    mass = tl.cast(mass, tl.float32)
    head = tl.program_id(0).to(tl.int64)
    q += head // heads * qb + head % heads * qh
    place, wide = tl.arange(0, PLACES), tl.arange(0, WIDTH)
    there = place < count
    centre_at = centre + (head * count + place)[:, None] * WIDTH + wide[None, :]
    centres = tl.load(centre_at, mask=there[:, None], other=0.0)
    weights = tl.load(weight + head * count + place, mask=there, other=-float("inf"))

    share = tl.zeros([PLACES], tl.float32)
    for start in range(0, n, QUERIES):
        row = start + tl.arange(0, QUERIES)
        queries = tl.load(
            q + row.to(tl.int64)[:, None] * qn + wide[None, :], mask=row[:, None] < n, other=0.0
        )
        logits = tl.dot(queries, centres.T, input_precision=PRECISION) * scale + weights[None, :]
        part = tl.exp(logits - tl.maximum(tl.max(logits, 1), -1e38)[:, None])
        part = part / tl.maximum(tl.sum(part, 1), 1e-37)[:, None]
        share += tl.sum(tl.where(row[:, None] < n, part, 0.0), 0)
    share = tl.where(there, share / n, -1.0)

    first = (share[None, :] == share[:, None]) & (place[None, :] < place[:, None])
    ahead = (share[None, :] > share[:, None]) | first
    rank = tl.sum(ahead.to(tl.int32), 1)
    chosen = rank < wanted
    used = chosen & (tl.sum(tl.where(ahead, share[None, :], 0.0), 1) < mass)
    tl.store(bucket + head * wanted + rank, place.to(tl.int64), mask=chosen)
    tl.store(useful + head * wanted + rank, used, mask=chosen)
    tl.store(rest + head * count + place, tl.where(used, -float("inf"), weights), mask=there)


@jit(
    do_not_specialize=["bb", "bh", "n", "m", "start", "end", "wanted", "count", "means", "span"],
    do_not_specialize_on_alignment=["bias"],
)
def _read(
    q, k, v, bias, order, bucket, useful, centre, value, rest, o, lse, qb, qh, qn, kb, kh, km, vb, vh, vm,
    bb, bh, heads, n, m, start, end, wanted, count, means, span, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    BIASED: tl.constexpr, SUMMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head, over one part of: what is in no bucket, chosen buckets, means."""
    scale = tl.cast(scale, tl.float32)
    tile, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    q += head // heads * qb + head % heads * qh
    k += head // heads * kb + head % heads * kh
    v += head // heads * vb + head % heads * vh
    if BIASED:
        bias += head // heads * bb + head % heads * bh
    rows = tile * QUERIES + tl.arange(0, QUERIES)
    lane, wide = tl.arange(0, KEYS), tl.arange(0, WIDTH)
    pieces: tl.constexpr = BLOCK // KEYS
    whole = tl.cdiv(m - (end - start), KEYS)
    full = whole + wanted * pieces
    first = part * span
    last = tl.minimum(first + span, full + tl.cdiv(means, KEYS))

    query_at = q + rows.to(tl.int64)[:, None] * qn + wide[None, :]
    queries = tl.load(query_at, mask=rows[:, None] < n, other=0.0)
    acc = tl.zeros([QUERIES, WIDTH], tl.float32)
    top = tl.full([QUERIES], -1e38, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)

    for step in tl.range(first, tl.minimum(last, whole)):
        at = step * KEYS + lane
        at = tl.where(at < start, at, at + (end - start)).to(tl.int64)
        inside = at < m
        if BIASED:
            penalty = tl.load(bias + at, mask=inside, other=-float("inf"))
        else:
            penalty = tl.where(inside, 0.0, -float("inf"))
        keys = tl.load(k + at[:, None] * km + wide[None, :], mask=inside[:, None], other=0.0)
        values = tl.load(v + at[:, None] * vm + wide[None, :], mask=inside[:, None], other=0.0)
        acc, top, total = _fold(queries, keys, values, penalty, acc, top, total, scale, True, PRECISION)

    for step in tl.range(tl.maximum(first, whole), tl.minimum(last, full)):
        slot = head * wanted + (step - whole) // pieces
        begin = (head * count + tl.load(bucket + slot)) * BLOCK + (step - whole) % pieces * KEYS
        at = start + tl.load(order + begin + lane)
        penalty = tl.load(bias + at) if BIASED else tl.zeros([KEYS], tl.float32)
        penalty = tl.where(tl.load(useful + slot), penalty, -float("inf"))
        keys = tl.load(k + at[:, None] * km + wide[None, :])
        values = tl.load(v + at[:, None] * vm + wide[None, :])
        acc, top, total = _fold(queries, keys, values, penalty, acc, top, total, scale, True, PRECISION)

    if SUMMED:
        for step in tl.range(tl.maximum(first, full), last):
            at = (step - full) * KEYS + lane
            inside = at < means
            penalty = tl.load(rest + head * count + at, mask=inside, other=-float("inf"))
            mean_at = (head * count + at)[:, None] * WIDTH + wide[None, :]
            keys = tl.load(centre + mean_at, mask=inside[:, None], other=0.0)
            values = tl.load(value + mean_at, mask=inside[:, None], other=0.0)
            acc, top, total = _fold(queries, keys, values, penalty, acc, top, total, scale, True, PRECISION)

    at = (part * tl.num_programs(2) + head) * n + rows
    _finish(o, lse, at, rows < n, wide, acc, top, total, first < last, WIDTH)

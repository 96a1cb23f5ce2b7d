"""What the kernels must equal. `test_kernels.py` runs this in Triton's interpreter, or its laws on a GPU.

The interpreter knows no bf16 and is slow, so there tiles are small; on a GPU they are the ones in use.
"""

import math
import os

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fastar.kernels import flash as flash_file
from fastar.kernels import match as match_file
from fastar.kernels.buckets import (
    UNIT,
    Buckets,
    Choice,
    choose,
    choose_reference,
    fits,
    gathered,
    lay_out,
    read,
)
from fastar.kernels.flash import BlockLists, Tiles, attention_reference, flash, merge
from fastar.kernels.match import nearest, nearest_reference
from fastar.kernels.needs import masked, masked_reference
from fastar.kernels.turning import settle, settle_reference, settles

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
DEVICE = "cuda" if GPU else "cpu"
CLOSE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
HALF = torch.bfloat16 if GPU else torch.float16
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
B, H = (2, 3) if GPU else (2, 1)
LONG = 192 if GPU else 224  # whole tiles, but no whole blocks
SIZES = [(1, 1), (37, 77), (70, 33)] + ([(129, 1190), (1561, 9001)] if GPU else [])


def small(**how: bool) -> dict[int, Tiles]:
    return dict.fromkeys((64, 128), Tiles(32, 32, 4, 2, **how))


def used(kind: str, tma: bool) -> dict[int, Tiles]:
    return {d: flash_file.TILES[kind, d][tma] for d in (64, 128)}


CUTS = (
    {
        "few": used("few", False),
        "loads": used("many", False),
        "tma": used("many", True),
        "held": used("64x64", True),
    }
    if GPU
    else {
        "loads": small(),
        "tma": small(tma=True),
        "held": small(tma=True, held=True),
    }
)
LISTS = (
    [(rows, columns, tma) for rows, columns in ((64, 64), (128, 64), (128, 128)) for tma in (False, True)]
    if GPU
    else [(rows, columns, tma) for rows, columns in ((32, 32), (64, 32), (32, 64)) for tma in (False, True)]
)
MATCHES = (
    {
        "default": None,
        "loads": match_file.Tiles(128, 64, 64, 8, 3),
        "tma": match_file.Tiles(128, 64, 64, 8, 3, tma=True),
    }
    if GPU
    else {
        "loads": match_file.Tiles(32, 32, 32, 4, 1),
        "tma": match_file.Tiles(32, 32, 32, 4, 2, tma=True),
        "all channels": match_file.Tiles(32, 32, 128, 4, 2, tma=True),
    }
)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def qkv(n: int, m: int, d: int = 64, dtype: torch.dtype = HALF) -> list[Tensor]:
    return [normal(B, H, x, d, seed=i, dtype=dtype) for i, x in enumerate((n, m, m))]


def row(*shape: int, holes: int = 5) -> Tensor:
    """A bias as a compressed memory has it: 0, log counts, and every few slots empty."""
    bias = normal(*shape, seed=9, dtype=torch.float32).abs().round().add(1).log()
    bias[..., 1::holes] = -torch.inf
    return bias


def is_close(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype = HALF) -> None:
    """o and lse; the definition in float64 is the law."""
    far = CLOSE[dtype]
    assert_close(got[0].double(), expected[0].double(), rtol=far, atol=far)
    assert_close(got[1].double(), expected[1].double(), rtol=far, atol=far)


def exact(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, blocks: BlockLists | None = None):
    return attention_reference(q.double(), k.double(), v.double(), bias, blocks)


def lists(n: int, m: int, rows: int, columns: int, seed: int = 0) -> BlockLists:
    """Random ones, in random order, some empty, with rubbish after the end."""
    blocks, tiles = -(-m // columns), -(-n // rows)
    dice = torch.Generator().manual_seed(seed)
    index = torch.rand(B, H, tiles, blocks, generator=dice).argsort(-1)
    count = torch.randint(0, blocks + 1, (B, H, tiles), generator=dice)
    count[0, 0, 0] = 0
    index = torch.where(torch.arange(blocks) < count[..., None], index, 10**6)
    return BlockLists(count.int().to(DEVICE), index.int().to(DEVICE), rows, columns)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS)
def test_the_kernel_is_its_definition(cut, dtype, size):
    """At odd sizes, for both head widths, without a bias and with one."""
    if GPU and dtype == torch.float32 and cut != "few":
        pytest.skip("fp32 has one cut of its own")
    for d, bias in ((64, None), (128, row(B, size[1]))):
        q, k, v = qkv(*size, d, dtype)
        tiles = None if GPU and dtype == torch.float32 else CUTS[cut][d]
        is_close(flash(q, k, v, bias, finite=True, tiles=tiles), exact(q, k, v, bias), dtype)


@pytest.mark.parametrize("cut", CUTS)
def test_it_reads_views(cut):
    """A prefix of a longer buffer, queries that lie token by token, and a bias of each head."""
    q, (k, v) = normal(2, 37, 3, 64).transpose(1, 2), normal(2, 2, 3, 160, 64, seed=1)[:, :, :, :77]
    bias = row(2, 3, 160)[..., :77]
    is_close(flash(q, k, v, bias, finite=True, tiles=CUTS[cut][64]), exact(q, k, v, bias))


@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_empty_or_beyond_the_end_is_never_touched(parts):
    """There it may be NaN, around the queries as well."""
    size, m = 160, 77
    held = torch.full((3, B, H, size, 64), torch.nan, device=DEVICE, dtype=HALF)
    bias = row(B, size)
    q, k, v = (held[i, :, :, :x] for i, x in enumerate((37, m, m)))
    for x, filled in zip((q, k, v), qkv(37, m), strict=True):
        x.copy_(filled)
    clean = exact(q, k, v, bias[:, :m])
    full = [name for name, cut in CUTS.items() if not cut[64].tma]
    for cut in ("loads", "tma"):
        is_close(flash(q, k, v, tiles=CUTS[cut][64], parts=parts), exact(q, k, v))
    k.masked_fill_(bias[:, None, :m, None] == -torch.inf, torch.nan)
    v.masked_fill_(bias[:, None, :m, None] == -torch.inf, torch.nan)
    for cut in full:
        is_close(flash(q, k, v, bias[:, :m], tiles=CUTS[cut][64], parts=parts), clean)
    is_close(exact(q, k, v, bias[:, :m]), clean)


@pytest.mark.parametrize("cut", CUTS)
def test_a_key_at_minus_infinity_is_absent(cut):
    q, k, v = qkv(37, 77)
    bias = torch.zeros(B, 77, device=DEVICE)
    bias[:, 3::4] = -torch.inf
    kept = bias[0] == 0
    k[:, :, ~kept] *= 100
    got = flash(q, k, v, bias, finite=True, tiles=CUTS[cut][64])
    is_close(got, exact(q, k[:, :, kept], v[:, :, kept]))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("times", [2, 7])
def test_equal_keys_are_one_key_with_the_log_of_their_number(cut, times):
    """Lemma 1, with the mean of their values."""
    q, k, v = qkv(37, 77)
    values = normal(B, H, times, 64, seed=5)
    every = flash(
        q,
        torch.cat([k[:, :, 1:], k[:, :, :1].expand(-1, -1, times, -1)], 2),
        torch.cat([v[:, :, 1:], values], 2),
        tiles=CUTS[cut][64],
    )
    bias = torch.zeros(B, 77, device=DEVICE)
    bias[:, 0] = math.log(times)
    mean = values.float().mean(2, keepdim=True).to(HALF)
    is_close(flash(q, k, torch.cat([mean, v[:, :, 1:]], 2), bias, finite=True, tiles=CUTS[cut][64]), every)


@pytest.mark.parametrize("cut", CUTS)
def test_lse_is_the_natural_log(cut):
    """One key: its weight is 1 whatever its logit, and lse is that logit."""
    q, k, v = qkv(37, 1)
    bias = torch.full((B, 1), 2.5, device=DEVICE)
    o, lse = flash(q, k, v, bias, finite=True, tiles=CUTS[cut][64])
    assert_close(lse.double(), (q.double() @ k.double().mT)[..., 0] / 8 + 2.5, rtol=1e-3, atol=1e-3)
    assert_close(o, v.expand_as(o), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("finite", [False, True])
def test_a_query_that_reads_nothing_gives_nothing(finite):
    q, k, v = qkv(37, 77)
    bias = torch.zeros(B, 77, device=DEVICE)
    bias[1] = -torch.inf
    for parts in (1, 2, None):
        o, lse = flash(q, k, v, bias, finite=finite, parts=parts, tiles=CUTS["loads"][64])
        assert (o[1] == 0).all() and (lse[1] == -torch.inf).all() and (lse[0] > -torch.inf).all()
    o, lse = flash(q, k[:, :, :0], v[:, :, :0])
    assert (o == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("cut", CUTS)
def test_split_keys_are_the_keys(cut):
    """Also in more parts than there are tiles."""
    q, k, v = qkv(37, 77)
    bias = row(B, 77)
    whole = flash(q, k, v, bias, finite=True, tiles=CUTS[cut][64], parts=1)
    for parts in (2, 5):
        is_close(flash(q, k, v, bias, finite=True, tiles=CUTS[cut][64], parts=parts), whole)


@pytest.mark.parametrize("at", [0, 1, 40, 77])
def test_halves_merge_to_the_whole(at):
    q, k, v = qkv(37, 77)
    tiles = CUTS["loads"][64]
    halves = [flash(q, k[:, :, half], v[:, :, half], tiles=tiles) for half in (slice(at), slice(at, None))]
    is_close(merge(halves), exact(q, k, v))


@pytest.mark.parametrize("m", [101, LONG])
@pytest.mark.parametrize("rows, columns, tma", LISTS)
def test_all_blocks_listed_is_dense(rows, columns, tma, m):
    q, k, v = qkv(70, m)
    bias = row(B, m) if m == 101 else None
    blocks, tiles = -(-m // columns), -(-70 // rows)
    index = torch.arange(blocks, device=DEVICE).flip(0).expand(B, H, tiles, -1).int().contiguous()
    every = BlockLists(index.new_full((B, H, tiles), blocks), index, rows, columns)
    got = flash(q, k, v, bias, every, finite=tma, tiles=cut_for(rows, columns, tma))
    is_close(got, exact(q, k, v, bias))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("rows, columns, tma", LISTS)
def test_listed_blocks_are_the_masked_definition(rows, columns, tma, parts):
    """And what no list names is never touched, so it may be NaN."""
    m, bias = (101, row(B, 101)) if parts == 1 else (LONG, None)
    q, k, v = qkv(70, m)
    chosen = lists(70, m, rows, columns, seed=rows + columns)
    nobody = ~chosen.mask(70, m).any(2)[..., None]
    expected = exact(q, k, v, bias, chosen)
    poisoned = (x.masked_fill(nobody, torch.nan) for x in (k, v))
    got = flash(q, *poisoned, bias, chosen, finite=tma, parts=parts, tiles=cut_for(rows, columns, tma))
    is_close(got, expected)


def cut_for(rows: int, columns: int, tma: bool) -> Tiles:
    if GPU:
        return used("64x64" if min(rows, columns) < 128 else "128x128", tma)[64]
    return Tiles(32, 32, 4, 2, tma=tma, held=tma and rows == 64)


def test_flash_says_what_is_wrong():
    q, k, v = qkv(37, 77)
    tma = Tiles(32, 32, 4, 2, tma=True)
    with pytest.raises(ValueError, match="d of 64 or 128"):
        flash(q[..., :32], k[..., :32], v[..., :32])
    with pytest.raises(TypeError, match=r"must all be fp16, bf16 or fp32, got torch\.float64"):
        flash(q.double(), k, v)
    with pytest.raises(ValueError, match="side by side"):
        flash(q, k, v.mT.contiguous().mT)
    with pytest.raises(ValueError, match=r"Expected a bias \[2, 77\]"):
        flash(q, k, v, row(B, 76))
    with pytest.raises(ValueError, match="finite=True"):
        flash(q, k, v, row(B, 77), tiles=tma)
    with pytest.raises(ValueError, match=r"need count \(2, [13], 1\)"):
        flash(q, k, v, None, lists(100, 77, 64, 64))
    with pytest.raises(ValueError, match="do not divide blocks of 32 x 32"):
        flash(q, k, v, None, lists(37, 77, 32, 32), tiles=Tiles(64, 32, 4, 2))


def whole(*shape: int, dtype: torch.dtype, seed: int = 0, most: int = 3) -> Tensor:
    """Small whole numbers: their products are exact in every type, and often equal."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).to(
        DEVICE, dtype
    )


KINDS = [torch.float16, torch.int8, *([torch.bfloat16] if GPU else [torch.float32])]


@pytest.mark.parametrize("m", [1, 77])
@pytest.mark.parametrize("chosen", [False, True])
def test_an_offset_joins_the_products_of_a_key(m, chosen):
    """With minus half of its square the nearest by distance is found."""
    queries, keys = whole(2, 9, 16, dtype=torch.float32), whole(2, m, 16, dtype=torch.float32, seed=1)
    offset = -0.5 * keys.square().sum(-1)
    valid = torch.arange(m, device=DEVICE).expand(2, -1) % 2 == 0 if chosen else None
    got = nearest(queries, keys, valid, offset=offset)
    assert_close(got, nearest_reference(queries, keys, valid, offset=offset), rtol=0, atol=0)
    apart = torch.cdist(queries, keys)
    if valid is not None:
        apart = apart.masked_fill(~valid[:, None], torch.inf)
    assert_close(apart.gather(2, got[1][..., None])[..., 0], apart.amin(-1))


@pytest.mark.parametrize("n, m, c", [(1, 1, 16), (37, 77, 48), (40, 50, 128)] + [(700, 1120, 384)] * GPU)
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("cut", MATCHES)
def test_nearest_is_its_definition(cut, dtype, n, m, c):
    """Equal products, and there are many, go to the lowest index; what is not valid is never found."""
    tiles = MATCHES[cut]
    if tiles and tiles.channels == 128 and c > tiles.channels:
        pytest.skip("one chunk of channels at a time")
    queries, keys = whole(2, n, c, dtype=dtype), whole(2, m, c, dtype=dtype, seed=1)
    keys[:, m // 2 :] = keys[:, : -(-m // 2)]
    valid = torch.rand(2, m, generator=torch.Generator().manual_seed(3)).to(DEVICE) < 0.6
    valid[1] = False
    for which, parts in ((None, 1), (valid, 3)):
        got = nearest(queries, keys, which, second=True, tiles=tiles, parts=parts)
        assert_close(got, nearest_reference(queries, keys, which, second=True), rtol=0, atol=0)
    assert_close(nearest(queries, keys, valid, tiles=tiles, parts=1), got[:2], rtol=0, atol=0)


@pytest.mark.parametrize("cut", MATCHES)
def test_what_is_not_valid_may_be_nan(cut):
    queries, keys = (whole(2, x, 48, dtype=HALF, seed=x) for x in (37, 77))
    valid = torch.rand(2, 77, generator=torch.Generator().manual_seed(3)).to(DEVICE) < 0.6
    expected = nearest_reference(queries, keys, valid)
    keys[~valid] = torch.nan
    assert_close(nearest(queries, keys, valid, tiles=MATCHES[cut]), expected, rtol=0, atol=0)
    assert_close(nearest_reference(queries, keys, valid), expected, rtol=0, atol=0)
    if GPU:  # the interpreter's maximum keeps NaN, a GPU's does not
        second = nearest(queries, keys, valid, second=True, tiles=MATCHES[cut])
        assert_close(second, nearest_reference(queries, keys, valid, second=True), rtol=0, atol=0)


def test_the_largest_numbers_do_not_overflow():
    """int8 at its ends, over the widest key in use; fp32 cannot hold such products exactly."""
    queries = torch.full((1, 5, 1536 if GPU else 96), -128, dtype=torch.int8, device=DEVICE)
    keys = queries.new_full((1, 9, queries.shape[2]), 127)
    keys[:, 6] = -128
    valid = torch.ones(1, 9, dtype=torch.bool, device=DEVICE)
    tiles = None if GPU else MATCHES["loads"]
    similarity, index, second = nearest(queries, keys, valid, second=True, tiles=tiles)
    assert (index == 6).all()
    assert (similarity == 128 * 128 * queries.shape[2]).all()
    assert (second == -128 * 127 * queries.shape[2]).all()


def test_every_key_is_nearest_to_itself():
    keys = torch.nn.functional.normalize(normal(2, 77, 64, dtype=torch.float32), dim=-1).to(HALF)
    similarity, index = nearest(keys, keys, tiles=None if GPU else MATCHES["loads"])
    assert (index == torch.arange(77, device=DEVICE)).all()
    assert_close(similarity, torch.ones_like(similarity), rtol=0, atol=0.02)


def test_nearest_says_what_is_wrong():
    keys = whole(2, 7, 48, dtype=HALF)
    with pytest.raises(ValueError, match="at least one key"):
        nearest(keys, keys[:, :0])
    with pytest.raises(TypeError, match=r"got torch\.float16 and torch\.float32|got torch\.bfloat16"):
        nearest(keys, keys.float())
    with pytest.raises(ValueError, match="side by side"):
        nearest(keys, keys.mT.contiguous().mT)
    with pytest.raises(ValueError, match=r"Expected valid \(2, 7\)"):
        nearest(keys, keys, torch.ones(2, 6, dtype=torch.bool, device=DEVICE))


# ---- buckets


def buckets(start: int, count: int, block: int, d: int, dtype: torch.dtype = HALF) -> Buckets:
    """Random ones, of which every fifth is empty."""
    dice = torch.Generator().manual_seed(4)
    order = torch.rand(B, H, count * block, generator=dice).argsort(-1).to(DEVICE)
    centre, value = (normal(B, H, count, d, seed=i, dtype=dtype) for i in (7, 8))
    return Buckets(start, order, centre, value, row(B, H, count))


ROOMS = [(0, 3, 32, 5), (40, 5, 16, 0)] + [(1260, 70, 64, 3), (70, 200, 16, 0)] * GPU


@pytest.mark.parametrize("mass", [1.0, 0.6])
@pytest.mark.parametrize("n", [1, 37, 70])
@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_chosen_buckets_are_those_of_the_definition(room, n, mass):
    """As sets: those that get equally much may come in any order."""
    start, count, block, _ = room
    for d in (64, 128):
        plan, q = buckets(start, count, block, d), normal(B, H, n, d)
        assert fits(q, plan)
        wanted = -(-count // 3)
        found, expected = choose(q, plan, wanted, mass), choose_reference(q.float(), plan, wanted, mass)
        read_found, read_expected = (full(plan, choice) for choice in (found, expected))
        share = (q.float() * d**-0.5 @ plan.centre.float().mT + plan.weight[:, :, None]).softmax(-1).mean(2)
        unlike = (read_found != read_expected) * share  # at a border, rounding decides
        assert unlike.sum(-1).max() <= 0.02
        rest = torch.where(read_found, -torch.inf, plan.weight)
        assert found.rest is not None and torch.equal(found.rest, rest)


def full(plan: Buckets, choice: Choice) -> Tensor:
    """Which buckets are read in full, bool [b, h, i]."""
    return torch.zeros_like(plan.weight, dtype=torch.bool).scatter_(2, choice.bucket, choice.useful)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("n", [1, 37, 70])
@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_reading_buckets_is_attention_to_what_they_gather(room, n, parts):
    """With a bias for all heads, one each and none; with the means of the rest and without."""
    start, count, block, more = room
    for d, heads, rest in ((64, 1, True), (128, H, True), (64, None, True), (64, 1, False)):
        m = start + count * block + more
        q, k, v = qkv(n, m, d)
        bias = None if heads is None else row(B, heads, m)
        plan = buckets(start, count, block, d)
        choice = choose_reference(q.float(), plan, -(-count // 3), 0.7)
        choice = choice if rest else choice._replace(rest=None)
        laid = gathered(k.double(), v.double(), bias, plan._replace(**doubled(plan)), choice)
        expected, _ = attention_reference(q.double(), *laid)
        found = read(q, k, v, bias, plan, choice, parts=parts)
        assert_close(found.double(), expected, rtol=CLOSE[HALF], atol=CLOSE[HALF])


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_laid_out_is_what_is_gathered(room):
    """With a bias for all heads, one each and none; with the means of the rest and without; from views."""
    start, count, block, more = room
    for d, heads, rest in ((64, 1, True), (128, H, True), (64, None, True), (64, 1, False)):
        m = start + count * block + more
        q, k, v = qkv(5, m, d)
        k, v = (torch.cat([x, x], 2)[:, :, :m] for x in (k, v))
        bias = None if heads is None else row(B, heads, m)
        plan = buckets(start, count, block, d)
        choice = choose_reference(q.float(), plan, -(-count // 3), 0.7)
        choice = choice if rest else choice._replace(rest=None)
        expected, laid = gathered(k, v, bias, plan, choice), lay_out(k, v, bias, plan, choice)
        size = expected[0].shape[2]
        for found, wanted in zip(laid, expected, strict=True):
            assert torch.equal(found[:, :, :size], wanted)
            assert found.shape[2] == -(-size // UNIT) * UNIT
        assert [x[:, :, size:].unique().tolist() for x in laid] in ([[0.0], [0.0], [-math.inf]], [[]] * 3)


def doubled(plan: Buckets) -> dict[str, Tensor]:
    return {"centre": plan.centre.double(), "value": plan.value.double()}


def test_buckets_are_read_from_views():
    """A layer of a memory's buffer is a view of it."""
    plan = buckets(20, 3, 32, 64)
    q, k, v = qkv(37, 120)
    wide = [torch.cat([x, x], 2)[:, :, : x.shape[2]] for x in (q, k, v)]
    choice = choose(q, plan, 2)
    assert torch.equal(read(*wide, None, plan, choice), read(q, k, v, None, plan, choice))
    assert torch.equal(choose(wide[0], plan, 2).bucket, choice.bucket)


# ---- needs


@pytest.mark.parametrize("least", [0.0, 0.05])
@pytest.mark.parametrize("n, l, always", [(1, 1, 1), (37, 9, 1), (70, 33, 2), (70, 128, 0)])
def test_needed_tokens_are_those_of_the_definition(n, l, always, least):
    """But for those at a border, where rounding decides."""
    for d in (64, 128):
        q, k = normal(B, H, n, d), normal(B, H, l, d, seed=1)
        bias = row(B, l, holes=7)
        wanted = -(-l // 3)
        found = masked(q, k, bias, wanted, least, always)
        expected = masked_reference(q.float(), k.float(), bias, wanted, least, always)
        logits = q.float() * d**-0.5 @ k.float().mT + bias[:, None, None]
        unlike = (found != expected) * logits.softmax(-1).mean((1, 2))
        assert unlike.sum(-1).max() <= 0.05
        assert torch.equal(found[found > -torch.inf], bias[found > -torch.inf])


# ---- turning


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("games", [1, B], ids=["one place", "places"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_settling_is_turning_and_copying(dtype, games, asked):
    """From views of what a layer made, into views of a memory's buffers."""
    n = 37
    for d in (64, 128):
        made = normal(B, n, 3, H, d, dtype=dtype).unbind(2)
        q, k, v = (x.transpose(1, 2) for x in made)
        angle = normal(games, 1, n, d // 2, dtype=torch.float32)
        angle = angle if games > 1 else angle[0, 0]
        table = angle.cos().to(dtype), angle.sin().to(dtype)
        kept = [[torch.zeros(B, H, 3 * n, d, device=DEVICE, dtype=dtype) for _ in "kv"] for _ in range(2)]
        views = [[x[:, :, n : 2 * n] for x in buffers] for buffers in kept]
        q = q if asked else q[:, :, :0]
        assert settles(q, k, v, *views[0])
        found, expected = settle(q, k, v, *table, *views[0]), settle_reference(q, k, v, *table, *views[1])
        for a, b in ((found, expected), *zip(*kept, strict=True)):
            assert_close(a, b, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        assert torch.equal(kept[0][1], kept[1][1])

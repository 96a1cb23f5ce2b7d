"""Every search finds what is alike; how nearly depends on its codes alone."""

import math
import sys

import pytest
import torch
from frames import normal
from torch import Tensor
from torch.testing import assert_close

from fastar.search import SEARCHES, Exact, int8, recall, share_bucket

TORCH = ["exact", "lsh", "int8", "quant"]
FAISS = ["faiss-flat", "faiss-lsh", "faiss-sq8", "faiss-pq"]
EVERY = [*TORCH, *FAISS]
BUCKETED = ["lsh", "int8", "quant"]
SMALL = {
    "lsh": {"bits": 96, "tables": 8},
    "int8": {"tables": 5},
    "quant": {"bits": 4, "tables": 5},
    "faiss-lsh": {"bits": 96},
    "faiss-pq": {"parts": 7, "bits": 6},
}
WIDTH = 21
EXACT = dict(rtol=0, atol=1e-12)


def make(kind: str, **options):
    if kind in FAISS:
        pytest.importorskip("faiss")
    return SEARCHES[kind](**(SMALL.get(kind, {}) | options))


def find(search, queries: Tensor, keys: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return search.nearest(search.encode(queries), search.encode(keys), valid)


def similarity(search, a: Tensor, b: Tensor) -> Tensor:
    return search.similarity(search.encode(a), search.encode(b))


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """The definition."""
    return torch.cosine_similarity(a[..., :, None, :], b[..., None, :, :], dim=-1)


def at_angle(cosine: float, pairs: int, width: int) -> tuple[Tensor, Tensor]:
    """Pairs of vectors [pairs, width] with this cosine, in every direction."""
    a, b = torch.linalg.qr(normal(pairs, width, 2))[0].unbind(-1)
    return a, cosine * a + math.sqrt(1 - cosine**2) * b


# ---- every kind


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("keys", [1, 2, 33, 70])
def test_a_vector_finds_itself(kind, keys):
    """Whatever the number of keys, also where it is no multiple of anything, and at any length."""
    search, x = make(kind), normal(3, keys, WIDTH)
    cosine, index = find(search, 5 * x, x)
    assert torch.equal(index, torch.arange(keys).expand(3, -1))
    assert (cosine > 0.8).all()


@pytest.mark.parametrize("kind", EVERY)
def test_the_length_of_a_vector_means_nothing(kind):
    search, queries, keys = make(kind), normal(2, 7, WIDTH), normal(2, 40, WIDTH, seed=1)
    longer = torch.logspace(-3, 3, 40, dtype=torch.float64)[:, None]
    for a, b in zip(find(search, queries, keys), find(search, 0.1 * queries, longer * keys), strict=True):
        assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", EVERY)
def test_what_is_not_valid_is_never_found(kind):
    """Half of the queries are among the keys that are not valid; they find the best of the others."""
    search, x = make(kind), normal(3, 40, WIDTH)
    valid = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    cosine, index = find(search, x, x, valid)
    assert valid.gather(-1, index).all()
    here = torch.arange(40).expand(3, -1)
    assert torch.equal(index[valid], here[valid])
    for row, known, best in zip(x, valid, cosine, strict=True):
        assert_close(best, find(search, row, row[known])[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", EVERY)
def test_where_nothing_is_valid_nothing_is_near(kind):
    """Below every threshold, in that row alone; the index can still be used to index."""
    search, x = make(kind), normal(2, 5, WIDTH)
    valid = torch.tensor([[False], [True]]).expand(2, 5)
    cosine, index = find(search, x, x, valid)
    assert (cosine[0] == -math.inf).all() and (cosine[1] > 0.9).all()
    assert ((0 <= index) & (index < 5)).all()


@pytest.mark.parametrize("kind", TORCH)
def test_an_empty_slot_may_hold_anything(kind):
    """Memory that was never written: not a number as floats, the largest number as integers."""
    search, x = make(kind), normal(2, 9, WIDTH)
    codes = search.encode(x)
    room = torch.empty(2, 40, codes.shape[-1], dtype=codes.dtype)  # filled so by conftest.py
    room[:, 20:29] = codes
    valid = torch.zeros(2, 40, dtype=torch.bool)
    valid[:, 20:29] = True
    cosine, index = search.nearest(codes, room, valid)
    assert torch.equal(index, torch.arange(20, 29).expand(2, -1)) and (cosine > 0.9).all()


@pytest.mark.parametrize("kind", EVERY)
def test_a_vector_of_zeros_is_near_nothing_and_breaks_nothing(kind):
    search, x = make(kind), normal(1, 5, WIDTH)
    x[:, 2] = 0
    cosine, index = find(search, x, x)
    assert cosine.isfinite().all()
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(index[0, others], others)


@pytest.mark.parametrize("kind", EVERY)
def test_rows_are_searched_apart(kind):
    search, queries, keys = make(kind), normal(2, 3, 7, WIDTH), normal(2, 3, 40, WIDTH, seed=1)
    together = find(search, queries, keys)
    pairs = similarity(search, queries, keys)
    assert together[0].shape == together[1].shape == (2, 3, 7) and pairs.shape == (2, 3, 7, 40)
    for i in range(2):
        for j in range(3):
            for a, b in zip(together, find(search, queries[i, j], keys[i, j]), strict=True):
                assert_close(a[i, j], b, **EXACT)
            assert_close(pairs[i, j], similarity(search, queries[i, j], keys[i, j]), **EXACT)


@pytest.mark.parametrize("kind", EVERY)
def test_keys_may_be_shared_between_rows(kind):
    search, queries, keys = make(kind), normal(3, 7, WIDTH), normal(40, WIDTH, seed=1)
    for a, b in zip(find(search, queries, keys), find(search, queries, keys.expand(3, -1, -1)), strict=True):
        assert_close(a, b, **EXACT)


@pytest.mark.parametrize("kind", EVERY)
def test_the_nearest_is_the_most_similar(kind):
    search, queries, keys = make(kind), normal(2, 7, WIDTH), normal(2, 45, WIDTH, seed=1)
    cosine, index = find(search, queries, keys)
    pairs = similarity(search, queries, keys)
    assert_close(cosine, pairs.amax(-1), rtol=0, atol=1e-6)
    assert_close(pairs.gather(-1, index[..., None])[..., 0], cosine, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", EVERY)
def test_the_same_settings_make_the_same_codes(kind):
    x = normal(2, 40, WIDTH)
    one, other = make(kind), make(kind)
    assert torch.equal(one.encode(x), other.encode(x))
    for a, b in zip(find(one, x[:, :7], x), find(other, x[:, :7], x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", EVERY)
def test_codes_can_be_kept_and_overwritten_in_place(kind):
    """What a memory does: a row of codes per entry, and a vector moves into an entry."""
    search, x, fresh = make(kind), normal(2, 12, WIDTH), normal(2, 3, WIDTH, seed=1)
    kept = search.encode(x)
    kept[:, 4:7] = search.encode(fresh)
    x[:, 4:7] = fresh
    assert torch.equal(kept, search.encode(x))
    assert torch.equal(search.nearest(search.encode(fresh), kept)[1], torch.arange(4, 7).expand(2, -1))


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_types_find_the_same(kind, dtype):
    """Near-duplicates, so that rounding cannot change which is nearest."""
    search, keys = make(kind), normal(2, 40, WIDTH)
    queries = keys[:, :9] + 0.02 * normal(2, 9, WIDTH, seed=1)
    wide, narrow = find(search, queries, keys), find(search, queries.to(dtype), keys.to(dtype))
    assert torch.equal(narrow[1], wide[1])
    assert_close(narrow[0].double(), wide[0].double(), rtol=0, atol=0.05)


@pytest.mark.parametrize("kind", EVERY)
def test_near_duplicates_are_found(kind):
    search, keys = make(kind), normal(2, 90, WIDTH)
    queries = keys[:, 5:35] + 0.05 * normal(2, 30, WIDTH, seed=1)
    report = recall(search, queries, keys)
    assert report.top1 > 0.9 and report.worst_loss < 0.5


# ---- exact


@pytest.mark.parametrize("kind", ["exact", "faiss-flat"])
def test_exact_is_the_largest_cosine(kind):
    search, queries, keys = make(kind), 3 * normal(2, 7, WIDTH), normal(2, 45, WIDTH, seed=1)
    tolerance = EXACT if kind == "exact" else dict(rtol=0, atol=1e-6)
    truth = cosines(queries, keys)
    cosine, index = find(search, queries, keys)
    assert torch.equal(index, truth.argmax(-1))
    assert_close(cosine.double(), truth.amax(-1), **tolerance)
    assert_close(similarity(search, queries, keys).double(), truth, **tolerance)


# ---- quantised


def test_every_bit_brings_the_estimate_nearer():
    queries, keys = normal(2, 30, 64), normal(2, 200, 64, seed=1)
    truth = cosines(queries, keys)
    errors = [
        (similarity(SEARCHES["quant"](bits=bits), queries, keys).double() - truth).abs().mean()
        for bits in (2, 4, 8, 16)
    ]
    assert errors[0] > 4 * errors[1] > 16 * errors[2] > 64 * errors[3]


def test_with_16_bits_it_is_exact():
    queries, keys = normal(2, 30, 64), normal(2, 200, 64, seed=1)
    search = SEARCHES["quant"](bits=16)
    assert torch.equal(find(search, queries, keys)[1], find(Exact(), queries, keys)[1])
    assert_close(similarity(search, queries, keys).double(), cosines(queries, keys), rtol=0, atol=3e-5)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_a_quantised_vector_has_so_many_levels(bits):
    levels = SEARCHES["quant"](bits=bits).encode(torch.linspace(-1, 1, 70_000)[None])
    assert len(levels[0, :70_000].unique()) == 2**bits - 1


def test_int8_is_quant_with_8_bits():
    x = normal(2, 9, WIDTH)
    one, other = int8(), SEARCHES["quant"](bits=8)
    assert torch.equal(one.encode(x), other.encode(x))
    assert torch.equal(similarity(one, x, x), similarity(other, x, x))


@pytest.mark.parametrize("width", [7, 64, 1500])
def test_int8_instructions_change_nothing(width, monkeypatch):
    """Not by a bit, also where float32 could not hold the sums: at the largest levels, all of one sign."""
    x = torch.cat([normal(2, 9, width), torch.linspace(0.97, 1, width).expand(2, 9, -1)], 1)
    for search in (int8(), make("quant"), make("lsh")):
        as_it_is = similarity(search, x, x)
        with monkeypatch.context() as patch:
            patch.setattr("fastar.search._multiplies_int8", lambda device: False)
            assert torch.equal(similarity(search, x, x), as_it_is)


# ---- LSH


@pytest.mark.parametrize("cosine", [-0.5, 0.2, 0.8, 0.9])
@pytest.mark.parametrize("width", [16, 384])
def test_vectors_share_a_bucket_as_often_as_their_angle_says(cosine, width):
    """(1 - acos(c) / pi)^b for a table of b bits, over pairs in every direction and 64 tables."""
    a, b = at_angle(cosine, 500, width)
    for bits in (1, 4, 8):
        search = SEARCHES["lsh"](bits=64 * bits, tables=64)
        ours, theirs = (search.buckets(search.encode(x)) for x in (a, b))
        expected = (1 - math.acos(cosine) / math.pi) ** bits
        assert float((ours == theirs).double().mean()) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("cosine", [-0.5, 0.0, 0.5, 0.9])
def test_the_estimate_of_the_cosine_is_centred(cosine):
    """And as spread as 256 independent planes would make it, or less."""
    a, b = at_angle(cosine, 2000, 384)
    search = SEARCHES["lsh"](bits=256)
    estimate = search.similarity(search.encode(a)[:, None], search.encode(b)[:, None])
    p = math.acos(cosine) / math.pi
    spread = math.pi * math.sqrt(p * (1 - p) / 256) * math.sqrt(1 - cosine**2)
    assert float(estimate.mean()) == pytest.approx(cosine, abs=0.01)
    assert float(estimate.std()) < 1.05 * spread


def test_planes_are_orthogonal_in_groups():
    """Orthogonal planes estimate better: all d sides of d planes turn over for the opposite vector only."""
    from fastar.search import _random_planes

    planes = _random_planes(5, 12, seed=3)
    for group in planes.split(5, dim=-1):
        assert_close(group.mT @ group, torch.eye(group.shape[-1], dtype=torch.float64), **EXACT)


def test_more_bits_find_more():
    keys = normal(2, 300, 64)
    queries = keys[:, :60] + 0.6 * normal(2, 60, 64, seed=1)
    found = [recall(SEARCHES["lsh"](bits=bits, tables=1), queries, keys).top1 for bits in (8, 32)]
    found += [recall(SEARCHES["lsh"](bits=bits), queries, keys).top1 for bits in (128, 512)]
    assert found == sorted(found) and found[0] < 0.5 < 0.95 < found[-1]


def test_a_table_holds_up_to_64_bits():
    """The last one counts too."""
    search, x = SEARCHES["lsh"](bits=64, tables=1), normal(1, 9, WIDTH)
    codes = search.encode(x)
    turned = codes.clone()
    turned[..., -1] *= -1
    assert not (search.buckets(codes) == search.buckets(turned)).any()


def test_another_seed_makes_other_codes():
    x = normal(1, 9, WIDTH)
    a, b = (SEARCHES["lsh"](seed=seed).encode(x) for seed in (0, 1))
    assert not torch.equal(a, b)


def test_one_search_encodes_every_width():
    search = make("lsh")
    for width in (3, 50, 3):
        assert search.encode(normal(2, 4, width)).shape == (2, 4, 96)


# ---- buckets


@pytest.mark.parametrize("kind", BUCKETED)
def test_equal_directions_share_every_bucket(kind):
    search, x = make(kind), normal(2, 9, WIDTH)
    a, b = (search.buckets(search.encode(y)) for y in (x, 4 * x))
    assert a.shape == (2, 9, search.tables) and not a.is_floating_point()
    assert torch.equal(a, b)
    assert share_bucket(a, b).diagonal(dim1=-2, dim2=-1).all()


@pytest.mark.parametrize("kind", BUCKETED)
def test_opposite_directions_share_none(kind):
    search, x = make(kind), normal(2, 9, WIDTH)
    a, b = (search.buckets(search.encode(y)) for y in (x, -x))
    assert not (a == b).any()


@pytest.mark.parametrize("kind", BUCKETED)
def test_near_vectors_share_buckets_more_often(kind):
    search = SEARCHES[kind]()
    shared = []
    for cosine in (0.0, 0.5, 0.9, 0.99):
        a, b = (search.buckets(search.encode(x)) for x in at_angle(cosine, 300, 384))
        shared.append(float((a == b).double().mean()))
    assert shared == sorted(shared) and shared[0] < 0.2 < shared[-1]


def test_sharing_any_table_is_enough():
    """By hand: the first key shares the second table, the second key shares numbers but no table."""
    queries, keys = torch.tensor([[3, 5]]), torch.tensor([[4, 5], [5, 3], [3, 5]])
    assert share_bucket(queries, keys).tolist() == [[True, False, True]]


def test_a_quantised_bucket_is_the_largest_channel_and_its_sign():
    """By hand: table 0 holds channels 0, 2 and 4, table 1 channels 1 and 3."""
    search = SEARCHES["quant"](bits=8, tables=2)
    x = torch.tensor([[0.1, 0.9, -2.0, -0.3, 1.5], [0.1, 0.2, 0.3, -0.4, 0.9]])
    assert search.buckets(search.encode(x)).tolist() == [[2 * 1 + 1, 0], [2 * 2, 2 * 1 + 1]]


# ---- the report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_search_finds_all(dtype):
    keys = normal(2, 40, WIDTH).to(dtype)
    keys[:, 7] = keys[:, 3]  # either of the two will do
    report = recall(Exact(), torch.cat([normal(2, 9, WIDTH, seed=1).to(dtype), keys[:, :8]], 1), keys)
    assert report.top1 == 1
    assert report.mean_loss == pytest.approx(0, abs=1e-6) == report.worst_loss


def test_the_report_says_what_was_lost():
    """A search that always finds key 0: by hand, over keys at 0, 60 and 90 degrees."""

    class First(Exact):
        def nearest(self, queries, keys, valid=None):
            return torch.ones(queries.shape[:-1]), torch.zeros(queries.shape[:-1], dtype=torch.long)

    keys = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)], [0.0, 1.0]])
    report = recall(First(), keys, keys)
    assert report.top1 == pytest.approx(1 / 3)
    assert report.mean_loss == pytest.approx(0.5, abs=1e-6)
    assert report.worst_loss == pytest.approx(1, abs=1e-6)


def test_the_report_heeds_what_is_valid():
    x = normal(2, 40, WIDTH)
    valid = (torch.arange(40) % 2 == 0).expand(2, -1)
    assert recall(Exact(), x, x, valid).top1 == 1


# ---- errors


@pytest.mark.parametrize("bits, tables", [(0, 1), (8, 0), (10, 4), (65, 1)])
def test_bits_that_make_no_tables_are_refused(bits, tables):
    with pytest.raises(ValueError, match=f"got bits={bits} in tables={tables}"):
        SEARCHES["lsh"](bits=bits, tables=tables)


def test_other_precisions_are_refused():
    with pytest.raises(ValueError, match="2, 4, 8 or 16 bits, got 3"):
        SEARCHES["quant"](bits=3)


def test_a_width_that_was_promised_is_kept():
    search = SEARCHES["lsh"](width=WIDTH)
    search.encode(normal(2, 4, WIDTH))
    with pytest.raises(ValueError, match=rf"width {WIDTH}, got \(2, 4, 5\)"):
        search.encode(normal(2, 4, 5))


@pytest.mark.parametrize("kind", ["exact", "int8", "quant", *FAISS])
def test_codes_of_two_widths_are_refused(kind):
    search = make(kind)
    with pytest.raises(ValueError, match="Encode both sides with the same search"):
        find(search, normal(2, 4, WIDTH), normal(2, 9, WIDTH + 3))


@pytest.mark.parametrize("kind", BUCKETED)
def test_vectors_are_no_codes(kind):
    search, x = make(kind), normal(2, 4, WIDTH)
    with pytest.raises(ValueError, match=r"Expected codes of torch.int8 .*, got torch.float64"):
        search.nearest(search.encode(x), x)


def test_codes_of_other_bits_are_refused():
    x = normal(2, 4, WIDTH)
    with pytest.raises(ValueError, match="width 96, got torch.int8"):
        make("lsh").nearest(make("lsh").encode(x), SEARCHES["lsh"](bits=64).encode(x))


def test_more_tables_than_channels_are_refused():
    search = SEARCHES["int8"](tables=WIDTH + 1)
    with pytest.raises(ValueError, match=f"Take tables={WIDTH} or fewer"):
        search.buckets(search.encode(normal(2, 4, WIDTH)))


def test_parts_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match=f"parts=4 equal pieces, but they have width {WIDTH}"):
        find(make("faiss-pq", parts=4), normal(2, 4, WIDTH), normal(2, 9, WIDTH))


@pytest.mark.parametrize("kind, options", [("faiss-lsh", {"bits": 0}), ("faiss-pq", {"bits": 17})])
def test_settings_faiss_has_no_index_for_are_refused(kind, options):
    with pytest.raises(ValueError, match=kind):
        SEARCHES[kind](**options)


@pytest.mark.parametrize("kind", FAISS)
def test_without_faiss_one_line_says_how_to_get_it(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(RuntimeError, match=r"pip install -e '\.\[faiss\]'"):
        SEARCHES[kind]()


# ---- a GPU answers as the CPU does


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("queries, keys", [(1, 1), (7, 45), (70, 1120), (1100, 1120)])
def test_a_gpu_finds_the_same(kind, queries, keys):
    search, x, y = make(kind), normal(2, queries, WIDTH), normal(2, keys, WIDTH, seed=1)
    valid = (torch.arange(keys) % 3 == 0).expand(2, -1)
    here, _ = find(search, x, y, valid)
    there, _ = find(search, x.cuda(), y.cuda(), valid.cuda())
    assert_close(there.cpu(), here, rtol=0, atol=1e-6)

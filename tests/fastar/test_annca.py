"""AnnCA reads the whole prompt at its exact setting, and otherwise the tokens that a frame asks for."""

import pytest
import torch
from frames import normal
from torch.testing import assert_close

from fastar.annca import AnnCA, collapse
from fastar.attention import attend_reference
from fastar.search import LSH

EXACT = dict(rtol=0, atol=1e-12)
HEADS, WIDTH, TOKENS = 2, 8, 12


@pytest.fixture
def prompt():
    """Tokens k, v that point each its own way, and a bias that hides the last two of the second game."""
    k = 10 * torch.eye(TOKENS, dtype=torch.float64)[:, :WIDTH].expand(2, HEADS, -1, -1).clone()
    k[:, :, WIDTH:] = normal(2, HEADS, TOKENS - WIDTH, WIDTH)
    bias = torch.zeros(2, TOKENS, dtype=torch.float64)
    bias[1, -2:] = -torch.inf
    return k, normal(2, HEADS, TOKENS, WIDTH, seed=1), bias


def towards(*tokens: int) -> torch.Tensor:
    """Queries that want these tokens [2, h, n, d]."""
    return 5 * torch.eye(WIDTH, dtype=torch.float64)[list(tokens)].expand(2, HEADS, -1, -1)


def test_everything_is_the_whole_prompt(prompt):
    q = normal(2, HEADS, 5, WIDTH)
    assert_close(AnnCA(density=1.0).read(q, *prompt), attend_reference(q, *prompt), **EXACT)


def test_a_short_prompt_is_read_whole_if_told_so(prompt):
    q = normal(2, HEADS, 5, WIDTH)
    whole = attend_reference(q, *prompt)
    assert_close(AnnCA(density=0.33, whole=TOKENS).read(q, *prompt), whole, **EXACT)
    assert not torch.allclose(AnnCA(density=0.33, whole=TOKENS - 1).read(q, *prompt), whole)


def test_what_is_asked_for_is_read(prompt):
    """A fifth of the tokens, and they hold nearly all of the attention."""
    q = towards(3, 5)
    read = AnnCA(density=0.33, always=1).read(q, *prompt)
    assert_close(read, attend_reference(q, *prompt), rtol=0, atol=1e-2)
    kept, _ = AnnCA(density=0.33, always=1).choose(q, prompt[0], prompt[2])
    assert kept.shape == (2, 4)
    for game in range(2):
        last = TOKENS - 1 if game == 0 else TOKENS - 3
        assert {0, 3, 5, last} == set(kept[game].tolist())


def test_the_ends_are_read_in_any_case(prompt):
    kept, needed = AnnCA(density=0.1, always=2).choose(towards(4), prompt[0], prompt[2])
    assert {0, 1, 10, 11} == set(kept[0].tolist()) and {0, 1, 8, 9} == set(kept[1].tolist())
    assert needed.all()


def test_below_the_floor_nothing_is_needed_but_the_ends(prompt):
    _, needed = AnnCA(density=1.0, floor=0.9, always=1).choose(towards(3, 5), prompt[0], prompt[2])
    assert needed.sum(-1).tolist() == [2, 2]


@pytest.mark.parametrize("hits, expected", [(1, {0, 3, 5, 9, 11}), (4, {0, 5, 11})])
def test_tokens_are_found_by_the_buckets_of_queries(hits, expected):
    """Three queries of each head want token 5, one wants 3, and as many want their opposites, 11 and 9."""
    ways = torch.eye(WIDTH, dtype=torch.float64)[:6]
    k = torch.cat([ways, -ways]).expand(1, HEADS, -1, -1)
    q = torch.stack([ways[5]] * 3 + [ways[3]])
    q = torch.cat([q, -q]).expand(1, HEADS, -1, -1)
    annca = AnnCA(density=1.0, search=LSH(bits=64, tables=4), hits=hits)
    kept, needed = annca.choose(q, k, torch.zeros(1, TOKENS, dtype=torch.float64))
    assert {int(token) for token, need in zip(kept[0], needed[0], strict=True) if need} == expected


def test_a_hidden_token_is_never_read(prompt):
    k, v, bias = prompt
    k[1, :, -2:] = 100.0
    q = torch.ones(2, HEADS, 3, WIDTH, dtype=torch.float64)
    assert_close(AnnCA(density=0.5).read(q, k, v, bias)[1], AnnCA(density=0.5).read(q, *prompt)[1], **EXACT)
    kept, _ = AnnCA(density=0.5).choose(q, k, bias)
    hidden = bias.gather(1, kept) == -torch.inf
    assert not hidden.any()


@pytest.mark.parametrize("l, text", [(512, 9), (20, 0), (20, 19)])
def test_equal_padding_collapses_exactly(l, text):
    """As Wan's prompts are padded: equal keys after the text, read by every query."""
    k, v = normal(2, 1, HEADS, l, WIDTH)
    k[:, :, text:] = k[:, :, text : text + 1]
    same = (torch.arange(l) >= text)[None]
    q, bias = normal(1, HEADS, 7, WIDTH, seed=3), torch.zeros(1, l, dtype=torch.float64)
    merged = collapse(k, v, bias, same)
    assert_close(attend_reference(q, *merged), attend_reference(q, k, v, bias), **EXACT)
    assert (merged[2] > -torch.inf).sum() == text + 1
    used = slice(0, text + 1)
    short = attend_reference(q, merged[0][:, :, used], merged[1][:, :, used], merged[2][:, used])
    assert_close(short, attend_reference(q, k, v, bias), **EXACT)


@pytest.mark.parametrize("wrong", [{"density": 0}, {"floor": 1.0}, {"density": 2}])
def test_shares_are_shares(wrong):
    with pytest.raises(ValueError, match="density is a share above 0, floor one below 1; got"):
        AnnCA(**wrong)

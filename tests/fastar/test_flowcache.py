"""FlowCache's cache: what is looked at stays, what is alike goes, and one sum stands for all pairs."""

import pytest
import torch
import torch.nn.functional as F
from frames import HEADS, ROPE, TOKENS, WIDTH, film, normal, play
from torch.testing import assert_close

from fastar.rivals import R1KV
from fastar.rivals.flowcache import worths

EXACT = dict(rtol=0, atol=1e-12)


def by_all_pairs(q, k, looked, pool):
    """The definition, pair by pair and key by key."""
    m = k.shape[2]
    attention = (q @ k.mT / WIDTH**0.5).softmax(-1).mean(2)
    cosine = F.cosine_similarity(k[:, :, :, None], k[:, :, None], dim=-1)
    cosine = cosine.masked_fill(torch.eye(m, dtype=torch.bool), 0).sum(-1) / m
    half = pool // 2
    spread = torch.stack([attention[..., max(0, i - half) : i + half + 1].amax(-1) for i in range(m)], -1)
    return looked * spread - (1 - looked) * cosine.softmax(-1)


@pytest.mark.parametrize("looked, pool", [(0.07, 7), (1.0, 1), (0.0, 3), (0.5, 5)])
def test_worth_is_attention_less_likeness(looked, pool):
    q, k = normal(2, HEADS, 5, WIDTH), normal(2, HEADS, 30, WIDTH, seed=1)
    there = torch.ones(2, HEADS, 30, dtype=torch.bool)
    assert_close(worths(q, k, there, looked, pool), by_all_pairs(q, k, looked, pool), **EXACT)


def test_empty_places_count_for_nothing():
    q, k = normal(2, HEADS, 5, WIDTH), normal(2, HEADS, 30, WIDTH, seed=1)
    there = torch.arange(30).expand(2, HEADS, -1) >= 4
    found = worths(q, k, there, 0.3, 7)[..., 4:]
    assert_close(found, by_all_pairs(q, k[:, :, 4:], 0.3, 7), **EXACT)


def test_what_is_looked_at_stays():
    """With attention alone, one token that all queries look at outlives all others."""
    frames = film(30, stay=0.0)
    axis = torch.eye(WIDTH, dtype=torch.float64)[0] * 30
    for t, frame in enumerate(frames):
        frame.q[:] = ROPE(axis.expand_as(frame.q), -frame.where)
        if t == 3:
            frame.k[:, :, 2] = ROPE(axis.expand_as(frame.k), -frame.where)[:, :, 2]
    memory = R1KV(1, ROPE, sink=1, recent=2, far=4, looked=1.0, pool=1)
    play(memory, frames)
    assert (memory.far_number[0] == 3 * TOKENS + 2).any(-1).all()


def test_of_what_is_alike_the_most_alike_goes():
    """With likeness alone, tokens unlike each other outlive those that all look the same."""
    frames = film(30, stay=0.0)
    same = normal(WIDTH, seed=7)
    for t, frame in enumerate(frames):
        if t not in (3, 4):
            frame.k[:] = ROPE(same.expand_as(frame.k), -frame.where)
    memory = R1KV(1, ROPE, sink=1, recent=2, far=2 * TOKENS, looked=0.0)
    play(memory, frames[:5])
    odd = [ROPE(frame.k, frame.where) for frame in frames[3:5]]
    unlike = (F.cosine_similarity(torch.cat(odd, 2), same, dim=-1) < 0.5).sum(-1)
    play(memory, frames[5:])
    held = memory.far_number[0] // TOKENS
    assert (((held == 3) | (held == 4)).sum(-1) >= unlike).all() and (unlike > 4).all()


def test_heads_keep_their_own():
    memory = R1KV(1, ROPE, sink=1, recent=2, far=10)
    play(memory, film(30))
    held = memory.far_number[0].sort().values
    assert not torch.equal(held[:, 0], held[:, 1])


def test_keys_stand_in_for_queries_where_none_are_asked():
    """Whatever noisy passes asked before: what is kept depends on the frames that are committed alone."""
    frames, noise = film(20), film(20, seed=1)
    asked, silent = (R1KV(1, ROPE, sink=1, recent=2, far=10, looked=1.0) for _ in range(2))
    for frame, other in zip(frames, noise, strict=True):
        asked.attend(0, frame.k, *frame[1:])
        silent.attend(0, *other)
        silent.attend(0, frame.q[:, :, :0], *frame[1:])
        for memory in (asked, silent):
            memory.commit(0)
    assert torch.equal(asked.far_number, silent.far_number)


@pytest.mark.parametrize("queries", [1, 4, 100])
def test_queries_are_thinned_evenly(queries):
    memory = R1KV(1, ROPE, sink=1, recent=2, far=10, queries=queries)
    (frame,) = film(1)
    memory.attend(0, *frame)
    rows = {1: [0], 4: [0, 1, 3, 4], 100: list(range(TOKENS))}[queries]
    assert_close(memory.asked[0], ROPE(frame.q, frame.where)[:, :, rows], **EXACT)


@pytest.mark.parametrize("wrong", [{"looked": 1.1}, {"pool": 4}, {"queries": 0}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="looked is a share, pool odd and queries at least 1; got"):
        R1KV(1, ROPE, **wrong)

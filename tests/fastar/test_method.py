"""A method is a choice on axes that do not know of each other: at its exact setting each of them is dense."""

import itertools
import math

import pytest
import torch
from frames import HEADS, ROPE, TIMELESS, TOKENS, WIDTH, Frame, film, normal, play, where
from torch.testing import assert_close

from fastar import CACHES, CROSSES, PATTERNS, STEPS, Dense, method
from fastar.attention import attend_reference

EXACT = dict(rtol=0, atol=1e-12)
FRAMES = 14

# The setting at which each kind loses nothing, on frames in which nothing repeats.
CACHE = {
    "dense": {},
    "window_sink": {"recent": FRAMES},
    "tempcache": {"recent": 2, "far": FRAMES * TOKENS, "threshold": 1.5, "floor": 1.5},
    "tempcache_paper": {"threshold": 1.5},
    "random": {"recent": 2, "far": FRAMES * TOKENS},
    "uniform": {"recent": 2, "far": FRAMES * TOKENS},
    "flowcache": {"recent": 2, "far": FRAMES * TOKENS},
}
ATTN = {
    None: None,
    "annsa": {"density": 1.0, "block": 4, "every": 3},
    "prompt_buckets": {},  # one layer
    "topk": {"keys": FRAMES * TOKENS},
    "radial": {"block": 0, "decay": math.inf},
    "sta": {"grid": [2, 3], "tile": [1, 1], "window": [FRAMES, 3, 3]},
    "svg1": {"density": 1.0},
    "svg2": {"mass": 1.0, "size": 4, "every": 3},
}
CROSS = {None: None, "annca": {"density": 1.0}}
STEP = {None: None, "teacache": {"threshold": 0.0}, "flowcache": {"threshold": 0.0}}  # see test_world.py
MERGING = ["tempcache", "tempcache_paper"]
NUMBERED = ["radial", "sta", "svg1"]  # go by when and where a key was seen


def legal(cache, attn):
    return cache not in MERGING or attn not in NUMBERED


def node(kind, options):
    return {"kind": kind, **options} if kind else None


def test_the_table_below_knows_every_kind():
    assert CACHE.keys() == CACHES.keys() and ATTN.keys() - {None} == PATTERNS.keys()
    assert CROSS.keys() - {None} == CROSSES.keys() and STEP.keys() - {None} == STEPS.keys()


@pytest.mark.parametrize(
    "cache, attn, cross", [x for x in itertools.product(CACHE, ATTN, CROSS) if legal(*x[:2])]
)
def test_every_combination_is_dense_at_its_exact_setting(cache, attn, cross):
    chosen = method(node(cache, CACHE[cache]), node(attn, ATTN[attn]), node(cross, CROSS[cross]))
    frames = film(FRAMES, stay=0.0)
    for a, b in zip(play(chosen.cache(1, ROPE), frames), play(Dense(1, ROPE), frames), strict=True):
        assert_close(a, b, **EXACT)
    q, (k, v) = normal(2, HEADS, 5, WIDTH), normal(2, 2, HEADS, 9, WIDTH, seed=1)
    bias = torch.zeros(2, 9, dtype=torch.float64)
    bias[1, -2:] = -torch.inf
    assert_close(chosen.cross.read(q, k, v, bias), attend_reference(q, k, v, bias), **EXACT)


@pytest.mark.parametrize("cache, attn", [x for x in itertools.product(MERGING, ATTN) if legal(*x)])
def test_where_all_repeats_merging_loses_nothing(cache, attn):
    options = {"recent": 2, "far": 2 * TOKENS} if cache == "tempcache" else {"match": "key"}
    k = normal(2, HEADS, TOKENS, WIDTH, seed=5)
    q, v = normal(2, FRAMES, 2, HEADS, TOKENS, WIDTH)
    frames = [Frame(q[t], k, v[t], where(t)) for t in range(FRAMES)]
    memory = method(node(cache, options), node(attn, ATTN[attn])).cache(1, TIMELESS)
    for a, b in zip(play(memory, frames), play(Dense(1, TIMELESS), frames), strict=True):
        assert_close(a, b, **EXACT)


@pytest.mark.parametrize("cache, attn", [x for x in itertools.product(CACHE, ATTN) if not legal(*x)])
def test_a_pattern_that_goes_by_time_and_place_needs_tokens(cache, attn):
    told = (
        f"attn {attn} goes by when and where each key was seen, and cache {cache} merges keys of many frames"
    )
    with pytest.raises(ValueError, match=told + "; take a cache that does not: dense, window_sink, random, "):
        method(node(cache, CACHE[cache]), node(attn, ATTN[attn]))


@pytest.mark.parametrize("step", STEP)
@pytest.mark.parametrize("cache, attn", [("flowcache", "radial"), ("tempcache", "svg2"), ("dense", "annsa")])
def test_all_axes_are_chosen_at_once(cache, attn, step):
    nodes = {
        "cache": node(cache, CACHE[cache]),
        "attn": node(attn, ATTN[attn]),
        "step": node(step, STEP[step]),
    }
    chosen = method(**nodes)
    assert isinstance(chosen.cache(1, ROPE), CACHES[cache])
    assert chosen.step is None if step is None else isinstance(chosen.step, STEPS[step])


@pytest.mark.parametrize(
    "axes, told",
    [
        ({"cache": {"kind": "sieve"}}, "cache has no kind 'sieve'; there is dense, window_sink, tempcache"),
        ({"cache": {"far": 3}}, "cache has no kind None"),
        (
            {"cache": {"kind": "window_sink", "far": 3}},
            "window_sink has no option far; there is sink, recent",
        ),
        ({"cache": {"kind": "dense"}, "attn": {"kind": "annca"}}, "attn has no kind 'annca'; there is annsa"),
        (
            {"cache": {"kind": "dense"}, "cross": {"kind": "annca", "densty": 1}},
            "cross annca has no option densty; there is density, ",
        ),
        (
            {"cache": {"kind": "dense"}, "step": {"kind": "radial"}},
            "step has no kind 'radial'; there is teacache, flowcache",
        ),
    ],
)
def test_what_does_not_exist_is_named(axes, told):
    with pytest.raises(ValueError, match=told):
        method(**axes)


def test_options_of_the_wrong_type_are_named_when_it_is_made():
    with pytest.raises(ValueError, match="settings of cache window_sink do not fit it: .*"):
        method({"kind": "window_sink", "recent": "many"}).cache(1, ROPE)

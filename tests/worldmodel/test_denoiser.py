"""The network: what it starts as, and what each of its inputs may reach."""

import math

import numpy as np
import pytest
import tiny
import torch
from tiny import CHANNELS, DENOISER, GRID, TOKENS, VOCABULARY, clip, denoiser, shaken
from torch.testing import assert_close

from fastar import Dense
from fastar.attention import attend
from worldmodel.denoiser import Denoiser, Prompt, Refiner
from worldmodel.vocabulary import pad
from worldmodel.world import Recall

CLOSE = dict(rtol=0, atol=1e-5)


@pytest.fixture
def network():
    return denoiser()


def prompt(network: Denoiser, *texts: str, length: int = 1) -> Prompt:
    return network.read_prompt(pad([VOCABULARY.indices(text) for text in texts], length))


@torch.no_grad()
def run(network, latents, keys, *, level=0.5, texts=("red room", "stone"), prompts=None, **options):
    """A pass over all frames, each reading the ones before it, as in play."""
    b, f = latents.shape[:2]
    memory = Dense(DENOISER["depth"], network.rope)
    reads = [Recall(memory, layer) for layer in range(DENOISER["depth"])]
    where = network.positions(torch.arange(f)).chunk(f)
    levels = torch.full((b, f), level)
    return network(latents, levels, keys, where, prompts or prompt(network, *texts), reads, **options)


def test_a_velocity_has_the_shape_of_its_frames(network):
    latents, keys = clip(3)
    assert run(network, latents, keys).shape == latents.shape


def test_a_frame_does_not_see_later_frames(network):
    latents, keys = clip(4)
    later, later_keys = latents.clone(), keys.clone()
    later[:, 2:], later_keys[:, 2:] = 0, 1
    a, b = run(network, latents, keys), run(network, later, later_keys)
    assert_close(a[:, :2], b[:, :2], **CLOSE)
    assert not torch.allclose(a[:, 2:], b[:, 2:])


@pytest.mark.parametrize("changed", ["latents", "keys", "level", "prompt"])
def test_a_frame_sees_its_own_and_earlier_inputs(network, changed):
    latents, keys = clip(3)
    before = run(network, latents, keys)
    match changed:
        case "latents":
            after = run(network, torch.cat([latents[:, :1] + 1, latents[:, 1:]], 1), keys)
        case "keys":
            after = run(network, latents, torch.cat([1 - keys[:, :1], keys[:, 1:]], 1))
        case "level":
            after = run(network, latents, keys, level=0.6)
        case "prompt":
            after = run(network, latents, keys, texts=("dark room", "a"))
    for frame in range(3):
        assert not torch.allclose(before[:, frame], after[:, frame], rtol=0, atol=1e-5)


def test_games_of_a_batch_are_independent(network):
    latents, keys = clip(3)
    both = run(network, latents, keys)
    for game, text in enumerate(("red room", "stone")):
        one = slice(game, game + 1)
        assert_close(run(network, latents[one], keys[one], texts=[text]), both[one], **CLOSE)


def test_at_first_the_network_says_nothing():
    """Its last layer is zero; and behind it, every branch is: out(norm(embed(x))) is all there is."""
    torch.manual_seed(0)
    fresh = Denoiser(**DENOISER).eval()
    latents, keys = clip(2)
    assert not run(fresh, latents, keys).any()
    torch.nn.init.normal_(fresh.out.weight)
    with torch.no_grad():
        expected = fresh.out(fresh.norm(fresh.embed(latents)))
    assert_close(run(fresh, latents, keys), expected, **CLOSE)
    assert_close(run(fresh, latents, 1 - keys, texts=("dark", ""), level=0.9), expected, **CLOSE)


def test_padding_of_a_prompt_changes_nothing(network):
    """A short prompt reads the same alone, and padded to the length of any other."""
    latents, keys = clip(2)
    tight = run(network, latents, keys, texts=("red", "stone"))
    assert_close(
        run(network, latents, keys, prompts=prompt(network, "red", "stone", length=12)), tight, **CLOSE
    )
    mixed = run(network, latents, keys, texts=("red", "a room of dark red stone"))
    assert_close(mixed[0], tight[0], **CLOSE)


def test_an_empty_prompt_is_a_prompt(network):
    """It is the null token alone: one thing to attend to, whatever the padding."""
    read = prompt(network, "", "red")
    assert read.bias.tolist() == [[0, -torch.inf], [0, 0]]
    alone = prompt(network, "")
    assert_close(alone.keys[0][0, :, 0], read.keys[0][0, :, 0], **CLOSE)
    query = torch.randn(2, DENOISER["heads"], 5, 16)
    read_by = attend(query, read.keys[0], read.values[0], read.bias)
    assert_close(read_by[0], read.values[0][0, :, :1].expand(-1, 5, -1), **CLOSE)


def test_controls_computed_once_are_controls_computed_inside(network):
    latents, keys = clip(3)
    with torch.no_grad():
        controls = network.control(keys)
    assert torch.equal(run(network, latents, keys, controls=controls), run(network, latents, keys))


def test_each_control_branch_can_be_dropped_per_game(network):
    _, keys = clip(3)
    still, one = torch.zeros(2, 1, 1, 1), torch.tensor([1.0, 0.0]).view(2, 1, 1, 1)
    with torch.no_grad():
        (full,), (mixed,), (none,) = (
            network.control(keys), network.control(keys, one, one), network.control(keys, still, still)
        )  # fmt: skip
        (dense,), (sparse,) = network.control(keys, 1.0, 0.0), network.control(keys, 0.0, 1.0)
    assert_close(mixed[0], full[0], **CLOSE)
    assert_close(mixed[1], none[1], **CLOSE)
    assert_close(dense + sparse - none, full, **CLOSE)
    assert_close(none[0, 0, 0], network.inject[0].bias.detach(), **CLOSE)
    for a, b in [(dense, full), (sparse, full), (dense, sparse)]:
        assert not torch.allclose(a, b)


def test_positions_tell_time_row_and_column(network):
    where = network.positions(torch.tensor([4, 9]))
    assert where.shape == (2 * TOKENS, 3)
    assert where[0].tolist() == [4, 0, 0] and where[5].tolist() == [4, 1, 2]
    assert where[TOKENS + 3].tolist() == [9, 1, 0]
    clips = network.positions(torch.tensor([[0, 1], [4, 9]]))
    assert torch.equal(clips[1], where)


def test_widths_of_positions_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="widths that add up to the head width 16"):
        Denoiser(**(DENOISER | {"rope": (8, 4, 8)}))


def test_the_network_has_the_shape_it_is_asked_for(network):
    assert network.grid == GRID and network.channels == CHANNELS and len(network.blocks) == DENOISER["depth"]


# ---- focus


def test_attention_sharpens_with_what_it_is_spread_over():
    """By 1 + focus x log(span / 16) per head: none at 16 frames, none where nothing was learnt."""
    block = Denoiser(**DENOISER, focus=True).blocks[0]
    assert block.focus.tolist() == [0.0] * DENOISER["heads"]
    span = torch.tensor([[16.0, 64.0]])
    assert (block.focused(span, TOKENS) == 1).all()
    torch.nn.init.constant_(block.focus[:1], 0.5)
    factors = block.focused(span, TOKENS)
    assert factors.shape == (1, DENOISER["heads"], 2 * TOKENS, 1)
    assert factors[0, 0, :, 0].tolist() == pytest.approx([1.0] * TOKENS + [1 + 0.5 * math.log(4)] * TOKENS)
    assert (factors[0, 1:] == 1).all()


def test_attention_sharpens_up_to_the_longest_span():
    block = Denoiser(**DENOISER, focus=True, longest=64).blocks[0]
    torch.nn.init.constant_(block.focus, 0.5)
    factors = block.focused(torch.tensor([[63, 64, 1000]]), 1)[0, :, :, 0]
    assert (factors[:, 0] < factors[:, 1]).all() and torch.equal(factors[:, 1], factors[:, 2])


@pytest.mark.parametrize("memory", tiny.MEMORIES)
def test_play_and_training_agree_on_what_attention_is_spread_over(memory):
    """The first frames of a game, before anything is left out: each over all frames up to its own."""
    network = shaken(Denoiser(**DENOISER, focus=True))
    told, forward = [], network.forward
    network.forward = lambda *args: told.append(args[8].tolist()) or forward(*args)
    game = tiny.world(memory, network)
    latents, keys = clip(2)
    game.reset_latents(latents, keys)
    game.step(np.ones(9))
    game.step(np.ones(9))
    assert told == [[[1]], [[2, 3]], [[3, 4]]]
    if memory == "window_sink":  # full now: 1 + 2 frames and its own
        game.step(np.ones(9))
        assert told[-1] == [[4, 4]]


# ---- the refiner


def test_a_refiner_adds_nothing_at_first_and_joins_neighbours_later():
    """Its convolutions carry what a token says over its border, and the exchange stays within a frame."""
    torch.manual_seed(0)
    refiner = Refiner(16, CHANNELS, GRID, hidden=8)
    x = torch.randn(2, 3, TOKENS, 16, requires_grad=True)
    assert refiner(x).shape == (2, 3, TOKENS, CHANNELS) and not refiner(x).any()
    torch.nn.init.normal_(refiner.layers[-1].weight)
    (reach,) = torch.autograd.grad(refiner(x)[0, 1, 0].sum(), x)
    touched = reach.abs().sum(-1) > 0
    assert touched[0, 1, 1] and not touched[1].any() and not touched[0, [0, 2]].any()

"""LongVie 2 as a game, from a small random checkpoint in the published layout."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from published import longvie_folder

from fastar import Dense, WindowSink, method
from worldmodel.actions import action
from worldmodel.backbones.cloud import Cloud, Optics
from worldmodel.backbones.drive import Drive, Pace
from worldmodel.backbones.load_longvie import (
    open_autoencoder,
    open_image_encoder,
    open_longvie,
    open_text_encoder,
)
from worldmodel.backbones.longvie_game import CLIP, LongVieGame

pytest.importorskip("diffusers", reason="needs diffusers: pip install -e '.[backbones]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

SIZE = 32, 48
PICTURE = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
ON = "cpu", torch.float32
TOKENS = 3 * 2 * 3  # of a chunk
STILL, AHEAD, LEFT = action(), action(["forward"]), action(["turn_left"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return longvie_folder(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def helpers(folder):
    return [opens(folder, *ON) for opens in (open_autoencoder, open_text_encoder, open_image_encoder)]


@pytest.fixture(scope="module")
def longvie(folder):
    return open_longvie(folder, method({"kind": "dense"}), *ON, steps=2)


@pytest.fixture
def game(helpers, longvie) -> LongVieGame:
    drive = partial(Drive, Cloud(Optics(*SIZE)), Pace(), every=8, radius=1)
    return begun(LongVieGame(longvie.beside(Dense), *helpers, drive, SIZE))


def begun(game: LongVieGame) -> LongVieGame:
    game.reset(PICTURE[None, None], STILL[None, None], "a red room", seed=1)
    return game


def played(game: LongVieGame, keys: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(
        [np.empty((0, *SIZE, 3), np.uint8), *(game.decode(game.step(held)) for held in keys)]
    )


def test_a_chunk_of_the_opening_has_eight_pictures_and_every_other_one_twelve(game):
    chunks = []
    for _ in range(33):
        picture = game.step(AHEAD)
        assert picture.shape == (1, *SIZE, 3) and picture.dtype == torch.uint8
        chunks.append(game.stats().seen // TOKENS)
    assert chunks == [1] * 8 + [2] * 12 + [3] * 12 + [4] and game.frame_index == 33
    assert set(game.timings) == {"signals", "encode", "dream", "decode"}


def test_keys_count_where_a_chunk_begins(game):
    """They change its signals, and with them what is dreamt; in the middle of a chunk they change nothing."""
    straight = played(game, [AHEAD] * 20)
    assert np.array_equal(played(begun(game), [AHEAD] + [LEFT] * 7 + [AHEAD] * 12), straight)
    turned = played(begun(game), [AHEAD] * 8 + [LEFT] * 12)
    assert np.array_equal(turned[:8], straight[:8]) and not np.array_equal(turned[8:], straight[8:])


def test_the_signals_are_what_the_keys_show(game, monkeypatch):
    """[latents, mask, latents of how it began]; standing still they come to rest, moving they do not."""
    told = []
    steer = game.longvie.steer
    monkeypatch.setattr(game.longvie, "steer", lambda *signals: told.append(signals) or steer(*signals))
    played(game, [STILL] * 8 + [AHEAD] * 12)
    (dense, sparse, still), (moved, tracked, later) = told
    assert all(x.shape == (1, 3, 36, 4, 6) for x in (dense, sparse, moved, tracked))
    assert still.shape == (1, 3, 20, 4, 6)
    for x in (dense[:, :, 16:], sparse[:, :, 16:], still):
        assert (x[:, 0, :4] == 1).all() and (x[:, 1:, :4] == 0).all()
    assert (later[:, :, :4] == 0).all()
    assert torch.allclose(
        dense[:, 0, :16], dense[:, 0, 20:], atol=1e-5
    )  # a clip begins with its first picture
    assert not torch.allclose(moved[:, 2, :16], dense[:, 2, :16], atol=1e-3)
    assert not torch.allclose(tracked[:, 2, :16], sparse[:, 2, :16], atol=1e-3)


def test_it_plays_on_after_the_length_of_a_clip(game):
    played(game, [AHEAD] * (8 + 12 * (CLIP // 3 + 1)))
    assert game.longvie.finished > CLIP


def test_a_seed_is_a_game_and_a_prompt_another(game):
    first = played(game, [AHEAD] * 8)
    assert np.array_equal(played(begun(game), [AHEAD] * 8), first)
    begun(game).say("a room")
    assert not np.array_equal(played(game, [AHEAD] * 8), first)
    game.reset(PICTURE[None, None], STILL[None, None], "a red room", seed=2)
    assert not np.array_equal(played(game, [AHEAD] * 8), first)


def test_what_is_said_holds_from_the_next_chunk_on(game):
    silent = played(game, [AHEAD] * 20)
    begun(game)
    before = played(game, [AHEAD] * 3)
    assert game.say("room") == [] and game.prompts == ["room"]
    after = played(game, [AHEAD] * 17)
    assert np.array_equal(np.concatenate([before, after])[:8], silent[:8])
    assert not np.array_equal(after[5:], silent[8:])


@pytest.mark.parametrize("frames", [0, 3, 8, 21])
def test_a_moment_is_everything(game, frames):
    """Also in the middle of a chunk, and after other moves and words."""
    played(game, [AHEAD] * frames)
    state = game.state_dict()
    expected = played(game, [LEFT] * 15)
    game.say("a room")
    played(game, [AHEAD] * 9)
    game.load_state_dict(state)
    assert game.prompts == ["a red room"] and game.frame_index == frames
    assert np.array_equal(played(game, [LEFT] * 15), expected)


def test_another_memory_reads_the_last_chunks_again(game):
    """A window that holds all of them goes on as dense does, to rounding."""
    played(game, [AHEAD] * 20)
    state = game.state_dict()
    expected = played(game, [LEFT] * 12).astype(int)
    game.load_state_dict(state)
    assert game.switch(lambda *told: WindowSink(*told, sink=1, recent=4)) == 21
    assert np.abs(played(game, [LEFT] * 12) - expected).max() <= 1
    assert game.stats().seen == 3 * TOKENS


def test_a_game_beside_shares_networks_and_nothing_else(game):
    played(game, [AHEAD] * 4)
    other = begun(game.beside(Dense))
    assert other.longvie.wan is game.longvie.wan
    alone = played(other, [AHEAD] * 20)
    assert np.array_equal(played(begun(game), [AHEAD] * 20), alone)


def test_a_chunk_that_fails_has_not_been(game, monkeypatch):
    expected = played(game, [AHEAD] * 20)
    played(begun(game), [AHEAD] * 8)
    steer = game.longvie.steer

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(game.longvie, "steer", fail)
    with pytest.raises(MemoryError):
        game.step(LEFT)
    monkeypatch.setattr(game.longvie, "steer", steer)
    assert np.array_equal(played(game, [AHEAD] * 12), expected[8:])


def test_it_can_forget_and_begin_again_with_what_it_saw_last(game):
    played(game, [AHEAD] * 8)
    game.forget()
    assert game.stats().seen == 0
    assert game.switch(lambda *told: WindowSink(*told, sink=1, recent=1)) == 9
    assert game.stats().seen == TOKENS


def test_pictures_of_another_size_are_refused(game):
    with pytest.raises(ValueError, match=r"Expected pictures of \(32, 48\)"):
        game.reset(np.zeros((1, 1, 16, 16, 3), np.uint8), STILL[None, None])

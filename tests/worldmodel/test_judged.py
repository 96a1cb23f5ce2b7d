"""What is asked of eyes about dreams, with eyes that know the answer."""

import numpy as np
import pytest
import tiny
import torch
from tiny import GRID

from worldmodel.evaluation.judged import (
    LOOKS,
    agrees,
    changing,
    features,
    frechet,
    named,
    obeyed,
    played,
    wishes,
)
from worldmodel.eyes import NAMES, Sight


class Knowing(torch.nn.Module):
    """Eyes that read off the first pixel which of the first six keys was held, and what it all is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(self, pictures: torch.Tensor) -> Sight:
        n = len(pictures)
        wall, floor, ceiling = (
            torch.zeros(n, *lead, len(NAMES[kind]))
            for kind, lead in (("wall", (10,)), ("floor", ()), ("ceiling", ()))
        )
        wall[..., 3], floor[..., 1], ceiling[..., 2] = 1, 1, 1
        code = ((pictures[:, 0, :1, :1] + 1) * 127.5).round()
        return Sight(pictures.mean((1, 2))[:, :10, None], wall[..., 0], wall, floor, ceiling, code[:, None])

    def pressed(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        bits = after.flatten(1).int() >> torch.arange(9) & 1
        return bits.float() - 0.5


def told(keys: np.ndarray) -> np.ndarray:
    """Pictures [b, f, 16, 20, 3] whose first pixel tells the first six keys [b, f, 9]."""
    frames = np.random.default_rng(0).integers(256, size=(*keys.shape[:2], 16, 20, 3)).astype(np.uint8)
    frames[..., 0, 0, 0] = (keys[..., :6] << np.arange(6)).sum(-1)
    return frames


KEYS = np.random.default_rng(1).integers(2, size=(2, 200, 9)).astype(np.uint8)


def test_keys_that_can_be_seen_are_obeyed():
    assert obeyed(Knowing(), told(KEYS), KEYS) == 1


def test_keys_that_mean_nothing_are_guessed():
    """However rare a key is: held and not held count alike."""
    rare = (np.random.default_rng(2).random((4, 500, 9)) < 0.1).astype(np.uint8)
    blind = told(np.zeros_like(rare))
    assert obeyed(Knowing(), blind, rare) == 0.5


def test_frechet_distance_of_what_is_alike_is_nothing():
    rng = np.random.default_rng(0)
    a, b, far = rng.normal(size=(3, 4000, 5)) + np.array([0, 0, 2])[:, None, None]
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet(a, b) < 0.02
    assert frechet(a, far) == pytest.approx(5 * 2**2, rel=0.05)
    assert frechet(a, 3 * b) == pytest.approx(5 * (3 - 1) ** 2, rel=0.1)


def test_features_keep_the_shape_of_what_is_looked_at():
    frames = told(KEYS)[:, :7]
    found = features(Knowing(), frames)
    assert found.shape == (2, 7, 10, 1)
    assert np.array_equal(found[1, 3], features(Knowing(), frames[1, 3:4])[0])


def test_most_pictures_say_what_it_is():
    found = named(Knowing(), told(KEYS)[0])
    assert found == {"wall": NAMES["wall"][3], "floor": NAMES["floor"][1], "ceiling": NAMES["ceiling"][2]}


def test_only_what_a_prompt_names_is_held_against_it():
    found = {"wall": "BRICK7", "floor": "GRASS1", "ceiling": "F_SKY1"}
    assert agrees("a room with tan brick walls and a floor of green slime", found) == {
        "wall": True,
        "floor": False,
    }
    assert agrees("anything at all", found) == {}


def test_wishes_are_words_that_can_be_held_against_a_dream():
    found = {kind: next(iter(names)) for kind, names in LOOKS.items()}
    assert all(set(agrees(wish, found)) == {"wall", "floor"} for wish in wishes(20))
    assert len(set(wishes(20))) > 10 and wishes(5, seed=1) == wishes(5, seed=1) != wishes(5)


def test_the_same_keys_are_pressed_in_all_games():
    world = tiny.world()
    world.begin(["a red room", "a dark room"], seed=4)
    assert played(world, KEYS[0, :3]).shape == (2, 3, 16 * GRID[0], 16 * GRID[1], 3)


def test_a_picture_that_stays_does_not_change():
    still = np.repeat(told(KEYS)[:, :1], 4, 1)
    assert changing(still).shape == (2, 3) and not changing(still).any()
    moved = still.copy()
    moved[:, 2:] = 255 - moved[:, 2:]
    assert (changing(moved)[:, 1] > 20).all() and not changing(moved)[:, 0].any()

"""The mouse turns by what it moved, to within half a frame's turn, in keys that the game knows."""

import numpy as np
import pytest
import torch

from app import mouse
from app.mouse import MOST, PACE, PIXEL, MouseLook
from worldmodel.actions import action, held
from worldmodel.control import TURN
from worldmodel.odometer import SLOW, turned


def played(pixels: list[float], others: tuple[str, ...] = ()) -> list[np.ndarray]:
    """The keys of frames before each of which the mouse moved so far, until it asks for no more."""
    look, frames = MouseLook(), []
    for moved in [*pixels, *[0.0] * 100]:
        look.move(moved)
        frames.append(look(action(others)))
    return frames


def degrees(frames: list[np.ndarray]) -> float:
    """How far to the right these keys turn the game."""
    place = torch.zeros(1, 4)
    for keys in frames:
        place = turned(place, torch.from_numpy(keys)[None])
    return -float(np.degrees(np.unwrap([0.0, float(place[0, 2])])[-1]))


@pytest.mark.parametrize("others", [(), ("run", "forward")])
@pytest.mark.parametrize("pixels", [[90], [-200], [30] * 9, [200, -200, 90], [3] * 100, [1]])
def test_the_game_turns_by_what_the_mouse_moved(pixels, others):
    wanted = PIXEL * sum(pixels)
    assert abs(degrees(played(pixels, others)) - wanted) <= PACE * (2 if others else 1) / 2 + 1e-3


def test_it_knows_how_the_game_turns():
    assert pytest.approx(TURN) == PACE and mouse.SLOW == SLOW


def test_other_keys_stay_as_they_are():
    for keys in played([90], ("forward", "fire")):
        assert set(held(keys)) - {"turn_right"} == {"forward", "fire"}


def test_what_is_owed_has_a_bound_and_a_turn_by_keys_cancels_it():
    look = MouseLook()
    look.move(10**6)
    assert look.owed == MOST
    assert held(look(action(["turn_left"]))) == ("turn_left",) and not look.owed
    assert not look(action()).any()


def test_keys_that_are_held_are_not_written_on():
    look, keys = MouseLook(), action()
    look.move(100)
    assert look(keys).any() and not keys.any()

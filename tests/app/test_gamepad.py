"""A gamepad presses keys: once per tilt, until it is upright again."""

import pygame
import pytest
from fake_world import FakeWorld
from test_play import at_each_lap, main, until

from app.gamepad import FULL, PAD, Gamepad
from worldmodel.actions import KEYS, held


@pytest.fixture
def pad():
    pygame.display.init()
    yield Gamepad()
    pygame.quit()


def tilt(axis, share):
    return pygame.Event(pygame.CONTROLLERAXISMOTION, axis=axis, value=round(share * (FULL - 1)))


def button(code, down=True):
    return pygame.Event(pygame.CONTROLLERBUTTONDOWN if down else pygame.CONTROLLERBUTTONUP, button=code)


def keys(pad, *events):
    told = [each for event in events for each in pad.translate(event)]
    return [(PAD[event.key], event.type == pygame.KEYDOWN) for event in told]


def test_a_stick_presses_its_key_once_and_lets_go_when_upright(pad):
    left = pygame.CONTROLLER_AXIS_LEFTY
    assert keys(pad, *(tilt(left, -x) for x in (0.2, 0.5, 0.9, 0.4))) == [("forward", True)]
    assert keys(pad, tilt(left, -0.1)) == [("forward", False)]
    assert keys(pad, tilt(left, -0.9), tilt(left, 0.9)) == [
        ("forward", True), ("forward", False), ("back", True),
    ]  # fmt: skip


def test_a_pad_that_is_unplugged_lets_go_of_every_key(pad):
    keys(pad, tilt(pygame.CONTROLLER_AXIS_LEFTY, -1), tilt(pygame.CONTROLLER_AXIS_RIGHTX, 1))
    gone = pygame.Event(pygame.CONTROLLERDEVICEREMOVED, instance_id=0)
    assert set(keys(pad, gone)) == {("forward", False), ("turn_right", False)} and not keys(pad, gone)


def test_the_whole_game_can_be_played_on_it():
    assert set(PAD.values()) >= {*KEYS, "menu", "help", "rewind", "branch"}
    assert all(code < 0 for code in PAD)  # on no keyboard, so that no other binding is in its way


def test_other_events_pass(pad):
    event = pygame.Event(pygame.KEYDOWN, key=pygame.K_w)
    assert pad.translate(event) == [event]
    assert pad.translate(button(pygame.CONTROLLER_BUTTON_GUIDE)) != []


def test_in_a_window_sticks_and_buttons_reach_the_world_and_the_menu(monkeypatch):
    def hands():
        yield from until(lambda: len(world.steps) > 3)
        yield tilt(pygame.CONTROLLER_AXIS_LEFTY, -1)
        yield tilt(pygame.CONTROLLER_AXIS_RIGHTX, -1)
        yield from until(lambda: held(world.steps[-1]) == ("forward", "turn_left"))
        yield tilt(pygame.CONTROLLER_AXIS_LEFTY, 0)
        yield from until(lambda: held(world.steps[-1]) == ("turn_left",))
        yield button(pygame.CONTROLLER_BUTTON_START)
        yield button(pygame.CONTROLLER_BUTTON_DPAD_UP)  # from the first item to the last: quit
        yield button(pygame.CONTROLLER_BUTTON_A)

    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    assert main("--window", "fps=0", "--frames", "20000", world=world) == 0
    assert len(world.steps) < 20000

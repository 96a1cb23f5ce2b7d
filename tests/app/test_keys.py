"""Keys are bound as the settings say, and whatever is written about them says the same."""

import pygame
import pytest
from fake_world import FakeWorld
from test_controls import controls, down, now, post  # noqa: F401
from test_play import Watched, main, press, until

from app import play
from app.controls import Controls
from app.errors import UsageError
from app.keys import HELP, WISHES, Keys, shipped
from worldmodel.actions import KEYS, held


def keys(*words: str) -> Keys:
    cfg, _ = play.settings(words)
    return Keys(cfg["keys"])


def test_a_key_does_what_it_is_bound_to_and_nothing_else(controls):  # noqa: F811
    controls = Controls(keys=keys("keys.forward=[z]", "keys.fire=[alt]", "keys.next world=[5]"))
    post(controls, *down(pygame.K_w, pygame.K_UP, pygame.K_SPACE, pygame.K_TAB))
    assert now(controls) == set() and controls.wishes() == []
    post(controls, *down(pygame.K_z, pygame.K_RALT, pygame.K_5))
    assert now(controls) == {"forward", "fire"} and controls.wishes() == ["next world"]


def test_a_rewind_ends_with_the_key_it_is_bound_to(controls):  # noqa: F811
    controls = Controls(keys=keys("keys.rewind=[z]"))
    post(controls, *down(pygame.K_z), (pygame.KEYUP, pygame.K_BACKSPACE))
    assert controls.wishes() == ["rewind"]
    post(controls, (pygame.KEYUP, pygame.K_z))
    assert controls.wishes() == ["let go"]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("keys.forward=[spce]", "keys.forward has no key 'spce'; did you mean space?"),
        ("keys.forward=[e]", "The key e is bound twice, to forward and to use"),
        ("keys.forward=[left ctrl]", "The key left ctrl is bound twice, to forward and to fire"),
        ("keys.forward=[w, w]", "The key w is bound twice, to forward and to forward"),
        ("keys.forwrd=[w]", "No setting keys.forwrd; did you mean keys.forward?"),
        ("keys.forward=w", "keys.forward takes a list, such as [a, b], and 'w' is not one."),
        ("mouse=yes please", "mouse takes true or false"),
    ],
)
def test_what_cannot_be_bound_is_named_before_anything_is_loaded(word, line):
    with pytest.raises(UsageError) as error:
        main("--headless", word)
    assert line in str(error.value)


def test_a_file_may_neither_invent_an_action_nor_lack_one():
    with pytest.raises(UsageError, match="No action keys.forwrd; did you mean forward?"):
        Keys(shipped().bound | {"forwrd": ("w",)})
    with pytest.raises(UsageError, match=r"keys lacks menu; \[\] leaves an action without a key"):
        Keys({action: names for action, names in shipped().bound.items() if action != "menu"})


def test_the_help_has_every_action_once_by_the_keys_that_are_bound():
    told = [action for actions in HELP for action in actions]
    assert len(told) == len(set(told)) and set(told) == {*KEYS, *WISHES} - {"help"}
    rows = dict(reversed(row) for row in keys("keys.gif=[]", "keys.turn_left=[q, left]").help())
    assert rows["forward, back"] == "W S  or  \u2191 \u2193" and rows["turn"] == "Q \u2192  or  \u2190"
    assert (
        rows["fire"] == "Ctrl or Space" and rows["menu"] == "Esc" and rows["save, go back to it"] == "F5 F9"
    )
    assert "the last seconds as GIF" not in rows


def test_a_line_names_the_key_that_is_bound():
    assert keys("keys.save=[f11]").spell("<save> saves, <Enter> <next world>") == "F11 saves, <Enter> Tab"
    assert keys("keys.save=[]").spell("<save> saves") == "(save, which has no key) saves"


def test_in_a_window_another_key_plays():
    def watch(world):
        yield press(pygame.K_z)
        yield from until(lambda: held(world.steps[-1]) == ("forward",))
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    assert main("--fps", "0", "--frames", "20000", "keys.forward=[z]", world=world) == 0
    assert len(world.steps) < 20000


@pytest.mark.parametrize("mouse", [True, False])
def test_in_a_window_the_mouse_turns_only_if_it_is_asked_to(mouse):
    def watch(world: FakeWorld):
        yield pygame.Event(pygame.MOUSEBUTTONDOWN, pos=(5, 5), button=1)
        yield from (None for _ in range(20))
        yield pygame.Event(pygame.MOUSEMOTION, pos=(5, 5), rel=(400, 0), buttons=(0, 0, 0))
        yield from (None for _ in range(20))
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    assert main("--window", "--fps", "0", f"mouse={str(mouse).lower()}", world=world) == 0
    assert any(held(keys) == ("turn_right",) for keys in world.steps) is mouse

import pygame
import pytest

from app.controls import Controls, codes
from app.keys import ACTIONS, NAMES, shipped
from worldmodel.actions import KEYS, held


@pytest.fixture
def controls():
    """Fed by pygame's own queue, as in play, on the dummy display."""
    pygame.display.init()
    pygame.display.set_mode((160, 112))
    pygame.event.clear()
    yield Controls()
    pygame.quit()


def post(controls, *events):
    for kind, *rest in events:
        facts = {"key": rest[0]} if kind in (pygame.KEYDOWN, pygame.KEYUP) else (rest[0] if rest else {})
        pygame.event.post(pygame.Event(kind, facts))
    for event in pygame.event.get([kind for kind, *_ in events]):
        controls.feed(event)


def down(*keys):
    return [(pygame.KEYDOWN, key) for key in keys]


def up(*keys):
    return [(pygame.KEYUP, key) for key in keys]


def now(controls):
    return set(held(controls.keys()[0]))


def test_chords_hold_several_keys_at_once(controls):
    post(controls, *down(pygame.K_w, pygame.K_LEFT, pygame.K_LSHIFT, pygame.K_SPACE))
    assert now(controls) == {"forward", "turn_left", "run", "fire"}
    post(controls, *up(pygame.K_LEFT))
    assert now(controls) == {"forward", "run", "fire"}


def test_every_key_of_the_game_is_on_the_keyboard():
    assert set(shipped().does.values()) == set(ACTIONS) >= set(KEYS)


def test_every_name_is_a_key_of_its_own():
    known = [code for name in NAMES if name not in ("ctrl", "shift", "alt") for code in codes(name)]
    assert len(set(known)) == len(known) and set(codes("shift")) < set(known)


def test_letting_go_of_one_of_two_keys_for_the_same_thing_keeps_it_held(controls):
    post(controls, *down(pygame.K_w, pygame.K_UP), *up(pygame.K_w))
    assert now(controls) == {"forward"}


def test_lost_focus_releases_every_key(controls):
    post(controls, *down(pygame.K_w, pygame.K_d))
    post(controls, (pygame.WINDOWFOCUSLOST,))
    assert now(controls) == set()


def test_a_tap_between_two_looks_is_seen_once(controls):
    post(controls, *down(pygame.K_LCTRL), *up(pygame.K_LCTRL))
    held_now, tapped = controls.keys()
    assert held(held_now) == () and held(tapped) == ("fire",)
    assert not controls.keys()[1].any()


@pytest.mark.parametrize(
    ("key", "wish"),
    [
        (pygame.K_p, "pause"),
        (pygame.K_PERIOD, "pause"),
        (pygame.K_n, "step"),
        (pygame.K_r, "reset"),
        (pygame.K_u, "reset"),
        (pygame.K_TAB, "next world"),
        (pygame.K_F1, "help"),
        (pygame.K_h, "help"),
        (pygame.K_F2, "overlay"),
        (pygame.K_F3, "compare"),
        (pygame.K_x, "difference"),
        (pygame.K_F4, "memory"),
        (pygame.K_F5, "save"),
        (pygame.K_F6, "player"),
        (pygame.K_F7, "gif"),
        (pygame.K_F9, "load"),
        (pygame.K_b, "branch"),
        (pygame.K_t, "prompt"),
        (pygame.K_F8, "record"),
        (pygame.K_F12, "screenshot"),
        (pygame.K_ESCAPE, "menu"),
    ],
)
def test_a_wish_is_made_once_per_press(controls, key, wish):
    post(controls, *down(key), *up(key))
    assert controls.wishes() == [wish]
    assert controls.wishes() == []


@pytest.fixture
def looking(controls):
    controls._mouse = True
    post(controls, (pygame.MOUSEBUTTONDOWN, {"pos": (5, 5), "button": 1}))
    return controls


def moved(controls, pixels):
    post(controls, (pygame.MOUSEMOTION, {"pos": (5, 5), "rel": (pixels, 3), "buttons": (0, 0, 0)}))
    return controls.moved()


def test_the_pointer_is_never_taken_unasked(controls):
    post(controls, (pygame.MOUSEBUTTONDOWN, {"pos": (5, 5), "button": 1}))
    assert not controls.looking and now(controls) == set() and not moved(controls, 9)


def test_a_click_takes_the_pointer_and_the_next_one_fires(looking):
    assert looking.looking and now(looking) == set() and moved(looking, 9) == 9 and not looking.moved()
    post(looking, (pygame.MOUSEBUTTONDOWN, {"pos": (5, 5), "button": 1}))
    assert now(looking) == {"fire"}
    post(looking, (pygame.MOUSEBUTTONUP, {"pos": (5, 5), "button": 1}))
    assert now(looking) == set()


@pytest.mark.parametrize("ending", [(pygame.WINDOWFOCUSLOST,), *down(pygame.K_ESCAPE), *down(pygame.K_t)])
def test_what_releases_the_keys_gives_the_pointer_back(looking, ending):
    post(looking, ending)
    assert not looking.looking and not moved(looking, 9)


def test_closing_the_window_is_a_wish_to_quit(controls):
    post(controls, (pygame.QUIT,))
    assert controls.wishes() == ["quit"]


def test_the_menu_takes_the_keys_from_the_game(controls):
    post(controls, *down(pygame.K_w, pygame.K_ESCAPE))
    assert now(controls) == set() and controls.wishes() == ["menu"]
    post(controls, *down(pygame.K_s, pygame.K_DOWN))
    assert now(controls) == set()
    post(controls, *down(pygame.K_RETURN))
    assert controls.wishes() == ["reset"] and not controls.menu.open


def test_a_second_escape_quits(controls):
    post(controls, *down(pygame.K_ESCAPE), *down(pygame.K_ESCAPE))
    assert controls.wishes() == ["menu", "quit"]


def test_the_mouse_chooses_in_the_menu(controls):
    controls._item_at = lambda position: position[1] // 10 if position[1] < 130 else None
    post(controls, *down(pygame.K_ESCAPE))
    post(controls, (pygame.MOUSEMOTION, {"pos": (5, 15), "rel": (0, 0), "buttons": (0, 0, 0)}))
    assert controls.menu.chosen == 1
    post(controls, (pygame.MOUSEBUTTONDOWN, {"pos": (5, 135), "button": 1}))
    assert controls.menu.open
    post(controls, (pygame.MOUSEBUTTONDOWN, {"pos": (5, 125), "button": 1}))
    assert controls.wishes() == ["menu", "record"]

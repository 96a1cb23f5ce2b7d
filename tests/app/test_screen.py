import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pygame
import pytest

from app.dreamer import Rewound
from app.menu import Menu
from app.screen import NIGHT, Screen, View


@pytest.fixture
def screen():
    screen = Screen(4, 112, 160)
    yield screen
    screen.close()


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("xvfb-run"), reason="needs an X server: apt install xvfb")
@pytest.mark.skipif(not find_spec("triton"), reason="needs Triton: pip install triton")
def test_a_real_window_lives_beside_triton():
    """Mesa would draw it through an LLVM, and Triton has another."""
    code = "from app.screen import Screen; window = Screen(2, 112, 160); import triton; window.close()"
    around = {name: value for name, value in os.environ.items() if name != "SDL_VIDEODRIVER"}
    told = ["xvfb-run", "-a", sys.executable, "-c", code]
    assert subprocess.run(told, env=around, capture_output=True, timeout=120).returncode == 0


def pixels(screen: Screen) -> np.ndarray:
    return pygame.surfarray.array3d(screen.surface).swapaxes(0, 1)


def test_every_dreamt_pixel_becomes_a_square_of_equal_pixels(screen, frame):
    shown = frame()
    screen.draw(View("", frame=shown, overlay=0))
    assert np.array_equal(pixels(screen), shown.picture.repeat(4, 0).repeat(4, 1))


def test_a_window_of_another_shape_gets_bars_and_not_stretched_pixels(screen, frame):
    pygame.display.set_mode((500, 340), pygame.RESIZABLE)
    shown = frame()
    screen.draw(View("", frame=shown, overlay=0))
    window = pixels(screen)
    top, left = (340 - 336) // 2, (500 - 480) // 2
    assert np.array_equal(window[top : top + 336, left : left + 480], shown.picture.repeat(3, 0).repeat(3, 1))
    assert (window[:, :left] == NIGHT).all() and (window[:top] == NIGHT).all()


@pytest.mark.parametrize("level", [1, 2])
def test_the_overlay_is_on_the_window_and_not_on_the_frame(screen, frame, level):
    pygame.display.set_mode((960, 672), pygame.RESIZABLE)
    shown = frame()
    before = shown.picture.copy()
    screen.draw(View("", frame=shown, overlay=0))
    bare = pixels(screen)
    screen.draw(View("The Wet Cellar", frame=shown, fps=17.5, overlay=level, recording=3.0, toast="saved"))
    assert not np.array_equal(pixels(screen), bare)
    assert np.array_equal(shown.picture, before)


@pytest.mark.parametrize("size", [(160, 112), (97, 301), (330, 240), (2000, 500), (1, 1)])
@pytest.mark.parametrize("state", ["loading weights", "paused", "dreaming"])
def test_any_window_can_be_drawn(screen, frame, size, state):
    pygame.display.set_mode(size, pygame.RESIZABLE)
    menu = Menu()
    for menu.open in (False, True):
        for shown in (None, frame(prompt="long " * 200)):
            view = View("A Title", state, shown, backdrop=frame().picture, overlay=2, menu=menu)
            view.help, view.toast, view.recording = not menu.open, "toast " * 99, 1.0
            view.gpu, view.pace = 10**9, [0.05, 0.06, 1.0]
            screen.draw(view)
            menu.credits = True
            screen.draw(view)
            menu.credits, view.failure = False, "Out of memory. " * 20
            screen.draw(view)
            view.failure = ""
            view.help, view.rewound = False, Rewound(at=20, oldest=20, newest=20, bytes=10**8)
            screen.draw(view)


def test_the_mouse_finds_each_item_of_the_menu_where_it_is_drawn(screen, frame):
    pygame.display.set_mode((960, 672), pygame.RESIZABLE)
    menu = Menu()
    menu.open = True
    screen.draw(View("", frame=frame(), menu=menu))
    found = [screen.item_at((x, y)) for x in (300, 660) for y in range(672)]
    assert [item for item in dict.fromkeys(found) if item is not None] == list(range(len(Menu.ITEMS)))
    assert screen.item_at((480, 336)) is None  # between the columns
    screen.draw(View("", frame=frame()))
    assert screen.item_at((300, 336)) is None

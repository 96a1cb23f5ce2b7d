"""From pygame events to held keys and wishes. `feed` is the only place where either changes."""

from collections.abc import Callable

import numpy as np
import pygame

from worldmodel.actions import KEYS, action

from . import gamepad
from .keys import EITHER, Keys, shipped
from .menu import Menu
from .prompt import PromptLine

MOUSE = -1000  # the left button as a key; a gamepad's are above


def codes(name: str) -> tuple[int, ...]:
    """What pygame calls the key of this name; two where it is on the keyboard twice."""
    if name in EITHER:
        return tuple(code for each in EITHER[name] for code in codes(each))
    if len(name) == 1:
        return (ord(name),)
    name = name.replace("left ", "l").replace("right ", "r").replace(" ", "")
    return (getattr(pygame, f"K_{name.upper()}"),)


class Controls:
    """What the person at the keyboard holds, and has asked for."""

    def __init__(
        self,
        item_at: Callable[[tuple[int, int]], int | None] = lambda position: None,
        keys: Keys | None = None,
        mouse: bool = False,
    ) -> None:
        """With `mouse`, a click takes the pointer for looking, and whatever releases keys gives it back."""
        self.menu = Menu()
        self.line = PromptLine()
        self._item_at = item_at
        bound = (keys or shipped()).does.items()
        self._does = {code: does for name, does in bound for code in codes(name)} | gamepad.PAD
        self._does[MOUSE] = "fire"
        self._mouse = mouse
        self.looking = False  # whether the pointer is to be held
        self._moved = 0
        self._down: set[int] = set()  # codes, not actions: W and up may both be down, and one let go
        self._tapped: set[int] = set()
        self._wishes: list[str] = []
        self._rewinding = False

    def feed(self, event: pygame.Event) -> None:
        code = code_of(event)
        does = self._does.get(code)
        if event.type == pygame.QUIT:
            self._wishes.append("quit")
        elif event.type == pygame.WINDOWFOCUSLOST:
            self.release()
        elif event.type in (pygame.KEYUP, pygame.MOUSEBUTTONUP):
            self._down.discard(code)
            if does == "rewind":
                self._let_go()
        elif self.line.open:
            said = self.line.feed(event)
            if said is not None:
                self._wishes.append(f"say {said}" if said else "resume")
        elif self.menu.open:
            wish = self.menu.feed(event, does, self._item_at)
            if wish is not None:
                self.menu.open = False
                self._ask(wish)
        elif code == MOUSE and not self.looking:
            self.looking = self._mouse
        elif event.type == pygame.MOUSEMOTION and self.looking:
            self._moved += event.rel[0]
        elif does in KEYS:
            self._down.add(code)
            self._tapped.add(code)
        elif does is not None:
            self._ask(does)

    def _ask(self, wish: str) -> None:
        """Some wishes change at once where the next keys go."""
        if wish == "menu":
            self.open_menu()
        elif wish == "prompt":
            self.type()
        elif wish == "rewind":
            self._rewinding = True
        self._wishes.append(wish)

    def open_menu(self) -> None:
        self.release()
        self.menu.open, self.menu.chosen = True, 0

    def type(self) -> None:
        """From here on keys are letters, until the line is said or left."""
        self.release()
        self.line.begin()

    def release(self) -> None:
        """Let go of every key: their KEYUP will go to somebody else."""
        self._down.clear()
        self._tapped.clear()
        self.looking, self._moved = False, 0
        self._let_go()

    def _let_go(self) -> None:
        """A rewind ends, once."""
        if self._rewinding:
            self._rewinding = False
            self._wishes.append("let go")

    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Two key vectors: what is held, and what went down since the last call."""
        tapped, self._tapped = self._tapped, set()
        return action(self._does[code] for code in self._down), action(self._does[code] for code in tapped)

    def moved(self) -> int:
        """Pixels that the mouse went to the right since the last call."""
        moved, self._moved = self._moved, 0
        return moved

    def wishes(self) -> list[str]:
        """What was asked for since the last call, in order."""
        wishes, self._wishes = self._wishes, []
        return wishes


def code_of(event: pygame.Event) -> int:
    """Which key an event is about; 0 if about none."""
    if event.type in (pygame.KEYDOWN, pygame.KEYUP):
        return event.key
    clicks = pygame.MOUSEBUTTONDOWN, pygame.MOUSEBUTTONUP
    return MOUSE if event.type in clicks and event.button == pygame.BUTTON_LEFT else 0

"""From pygame events to held keys and wishes. `feed` is the only place where either changes."""

from collections.abc import Callable

import numpy as np
import pygame

from worldmodel.actions import action

from .prompt import PromptLine

HELD = {
    pygame.K_w: "forward",
    pygame.K_UP: "forward",
    pygame.K_s: "back",
    pygame.K_DOWN: "back",
    pygame.K_LEFT: "turn_left",
    pygame.K_RIGHT: "turn_right",
    pygame.K_a: "strafe_left",
    pygame.K_d: "strafe_right",
    pygame.K_LCTRL: "fire",
    pygame.K_RCTRL: "fire",
    pygame.K_SPACE: "fire",
    pygame.K_e: "use",
    pygame.K_LSHIFT: "run",
    pygame.K_RSHIFT: "run",
}

WISHES = {
    pygame.K_ESCAPE: "menu",
    pygame.K_p: "pause",
    pygame.K_PERIOD: "pause",
    pygame.K_n: "step",
    pygame.K_r: "reset",
    pygame.K_u: "reset",
    pygame.K_TAB: "next world",
    pygame.K_F1: "help",
    pygame.K_h: "help",
    pygame.K_F2: "overlay",
    pygame.K_F3: "compare",
    pygame.K_x: "difference",
    pygame.K_F4: "memory",
    pygame.K_F5: "save",
    pygame.K_F9: "load",
    pygame.K_F6: "player",
    pygame.K_F7: "gif",
    pygame.K_F8: "record",
    pygame.K_F12: "screenshot",
    pygame.K_t: "prompt",
    pygame.K_BACKSPACE: "rewind",  # until it is let go
    pygame.K_b: "branch",
}

# What the help says, in the order it says it.
HELP = (
    ("W S  or  \u2191 \u2193", "forward, back"),
    ("A D", "step aside"),
    ("\u2190 \u2192", "turn"),
    ("Ctrl or Space", "fire"),
    ("E", "use, open"),
    ("Shift", "run"),
    ("T", "say what you want to see"),
    ("P  .", "pause"),
    ("N", "one frame"),
    ("R  U", "start again"),
    ("Tab", "next world"),
    ("Backspace", "hold: go back in time"),
    ("B", "then: keep both takes"),
    ("F2", "numbers"),
    ("F3  X", "compare memories, difference"),
    ("F4", "another memory"),
    ("F5  F9", "save, go back to it"),
    ("F6", "let another play"),
    ("F7", "the last seconds as GIF"),
    ("F8", "record"),
    ("F12", "screenshot"),
    ("Esc", "menu"),
)


class Menu:
    """The Esc menu: a list, one of it chosen by arrows or mouse."""

    ITEMS = (
        *("resume", "prompt", "reset", "next world", "save", "load"),
        *("record", "memory", "compare", "player", "diagnostics", "quit"),
    )

    def __init__(self) -> None:
        self.open = False
        self.chosen = 0

    def feed(self, event: pygame.Event, item_at: Callable[[tuple[int, int]], int | None]) -> str | None:
        """The wish this event makes, if it makes one."""
        if event.type == pygame.KEYDOWN:
            if event.key in (pygame.K_UP, pygame.K_w):
                self.chosen = (self.chosen - 1) % len(self.ITEMS)
            elif event.key in (pygame.K_DOWN, pygame.K_s):
                self.chosen = (self.chosen + 1) % len(self.ITEMS)
            elif event.key in (pygame.K_RETURN, pygame.K_KP_ENTER, pygame.K_SPACE):
                return self.ITEMS[self.chosen]
            elif event.key == pygame.K_ESCAPE:
                return "quit"
        elif event.type in (pygame.MOUSEMOTION, pygame.MOUSEBUTTONDOWN):
            item = item_at(event.pos)
            if item is not None:
                self.chosen = item
                if event.type == pygame.MOUSEBUTTONDOWN and event.button == pygame.BUTTON_LEFT:
                    return self.ITEMS[item]
        return None


class Controls:
    """What the person at the keyboard holds, and has asked for."""

    def __init__(self, item_at: Callable[[tuple[int, int]], int | None] = lambda position: None) -> None:
        self.menu = Menu()
        self.line = PromptLine()
        self._item_at = item_at
        self._down: set[int] = set()  # pygame keys, not actions: W and up may both be down, and one let go
        self._tapped: set[int] = set()
        self._wishes: list[str] = []
        self._rewinding = False

    def feed(self, event: pygame.Event) -> None:
        if event.type == pygame.QUIT:
            self._wishes.append("quit")
        elif event.type == pygame.WINDOWFOCUSLOST:
            self.release()
        elif event.type == pygame.KEYUP:
            self._down.discard(event.key)
            if event.key == pygame.K_BACKSPACE:
                self._let_go()
        elif self.line.open:
            said = self.line.feed(event)
            if said is not None:
                self._wishes.append(f"say {said}" if said else "resume")
        elif self.menu.open:
            wish = self.menu.feed(event, self._item_at)
            if wish is not None:
                self.menu.open = False
                self._ask(wish)
        elif event.type == pygame.KEYDOWN and event.key in HELD:
            self._down.add(event.key)
            self._tapped.add(event.key)
        elif event.type == pygame.KEYDOWN and event.key in WISHES:
            self._ask(WISHES[event.key])

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
        self._let_go()

    def _let_go(self) -> None:
        """A rewind ends, once."""
        if self._rewinding:
            self._rewinding = False
            self._wishes.append("let go")

    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Two key vectors: what is held, and what went down since the last call."""
        tapped, self._tapped = self._tapped, set()
        return action(HELD[key] for key in self._down), action(HELD[key] for key in tapped)

    def wishes(self) -> list[str]:
        """What was asked for since the last call, in order."""
        wishes, self._wishes = self._wishes, []
        return wishes

"""The Esc menu: items in two columns, one of them chosen by arrows or mouse, and a page of credits."""

from collections.abc import Callable

import pygame

NAMES = {  # the wish that an item is, and what it is called; credits are a page of the menu itself
    "resume": "Resume",
    "prompt": "Change the prompt",
    "reset": "Start again",
    "next world": "Next world",
    "save": "Save this moment",
    "load": "Back to what was saved",
    "branch": "The other take",
    "player": "Let another play",
    "memory": "Another memory",
    "compare": "Compare memories",
    "difference": "How they differ",
    "real": "The real game beside it",
    "record": "Record",
    "gif": "The last seconds as GIF",
    "screenshot": "Screenshot",
    "overlay": "Numbers: none, some, all",
    "help": "Keys",
    "diagnostics": "Copy diagnostics",
    "credits": "Credits",
    "quit": "Quit",
}


class Menu:
    ITEMS = tuple(NAMES)
    ROWS = (len(ITEMS) + 1) // 2

    def __init__(self) -> None:
        self.open = False
        self.credits = False  # shown in place of the items
        self.chosen = 0

    def feed(
        self, event: pygame.Event, does: str | None, item_at: Callable[[tuple[int, int]], int | None]
    ) -> str | None:
        """The wish this event makes, if it makes one; `does` is what its key does in play."""
        if self.credits:
            self.credits = event.type not in (pygame.KEYDOWN, pygame.MOUSEBUTTONDOWN)
            return None
        wish = self._wish(event, does, item_at)
        self.credits = wish == "credits"
        return None if self.credits else wish

    def _wish(
        self, event: pygame.Event, does: str | None, item_at: Callable[[tuple[int, int]], int | None]
    ) -> str | None:
        if event.type == pygame.KEYDOWN:
            if event.key == pygame.K_UP or does == "forward":
                self.chosen = (self.chosen - 1) % len(self.ITEMS)
            elif event.key == pygame.K_DOWN or does == "back":
                self.chosen = (self.chosen + 1) % len(self.ITEMS)
            elif event.key in (pygame.K_LEFT, pygame.K_RIGHT) or does in ("strafe_left", "strafe_right"):
                self._cross()
            elif event.key in (pygame.K_RETURN, pygame.K_KP_ENTER, pygame.K_SPACE) or does == "fire":
                return self.ITEMS[self.chosen]
            elif event.key == pygame.K_ESCAPE or does == "menu":
                return "quit"
        elif event.type in (pygame.MOUSEMOTION, pygame.MOUSEBUTTONDOWN):
            item = item_at(event.pos)
            if item is not None:
                self.chosen = item
                if event.type == pygame.MOUSEBUTTONDOWN and event.button == pygame.BUTTON_LEFT:
                    return self.ITEMS[item]
        return None

    def _cross(self) -> None:
        """To the other column."""
        across = self.chosen + self.ROWS if self.chosen < self.ROWS else self.chosen - self.ROWS
        self.chosen = min(across, len(self.ITEMS) - 1)

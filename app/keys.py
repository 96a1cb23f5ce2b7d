"""Which key does what, as `keys` in configs/play.yaml has it: checked, and put into words.

The names of keys are those printed on them. Nothing here knows of a window: the same keys are bound in
one and in a browser.
"""

import re
from collections.abc import Iterable, Mapping
from string import ascii_lowercase, digits
from typing import Any

from worldmodel.actions import KEYS

from . import config
from .errors import UsageError

# What may be asked for besides the keys of the game.
WISHES = (
    *("menu", "pause", "step", "reset", "next world", "help", "overlay", "compare", "difference", "memory"),
    *("save", "load", "player", "gif", "record", "screenshot", "prompt", "rewind", "branch", "real"),
)
ACTIONS = (*KEYS, *WISHES)
EITHER = {side: (f"left {side}", f"right {side}") for side in ("ctrl", "shift", "alt")}
NAMES = (
    *(*ascii_lowercase, *digits, *".,;'/\\[]-=`", *(f"f{n}" for n in range(1, 13)), *EITHER),
    *(*(name for both in EITHER.values() for name in both), "up", "down", "left", "right", "space", "tab"),
    *("return", "backspace", "escape", "insert", "delete", "home", "end", "page up", "page down"),
)
BROWSER = {  # KeyboardEvent.key in small letters, where it is not simply the name
    **{way: f"arrow{way}" for way in ("up", "down", "left", "right")},
    **{"space": " ", "return": "enter", "left shift": "shift", "right shift": "shift"},
}
NOT_BROWSER = ("ctrl", "alt")  # with W held, Ctrl would close the page, and Alt opens a menu
SIGNS = {"up": "\u2191", "down": "\u2193", "left": "\u2190", "right": "\u2192", "escape": "Esc"}

# What the help says, in the order it says it.
HELP = {
    ("forward", "back"): "forward, back",
    ("strafe_left", "strafe_right"): "step aside",
    ("turn_left", "turn_right"): "turn",
    ("fire",): "fire",
    ("use",): "use, open",
    ("run",): "run",
    ("prompt",): "say what you want to see",
    ("pause",): "pause",
    ("step",): "one frame",
    ("reset",): "start again",
    ("next world",): "next world",
    ("rewind",): "hold: go back in time",
    ("branch",): "then: keep both takes",
    ("overlay",): "numbers",
    ("compare", "difference"): "compare memories, difference",
    ("real",): "the real game beside it",
    ("memory",): "another memory",
    ("save", "load"): "save, go back to it",
    ("player",): "let another play",
    ("gif",): "the last seconds as GIF",
    ("record",): "record",
    ("screenshot",): "screenshot",
    ("menu",): "menu",
}


class Keys:
    """The keys of each action, and what each key does. Raises UsageError for what cannot be bound."""

    def __init__(self, bound: Mapping[Any, Iterable[Any]]) -> None:
        if unknown := [str(action) for action in bound if action not in ACTIONS]:
            raise UsageError(f"No action keys.{unknown[0]}{config.suggestion(unknown[0], ACTIONS)}")
        if missing := [action for action in ACTIONS if action not in bound]:
            raise UsageError(f"keys lacks {', '.join(missing)}; [] leaves an action without a key.")
        self.bound = {action: tuple(map(str, bound[action] or ())) for action in ACTIONS}
        self.does: dict[str, str] = {}
        for action, names in self.bound.items():
            for name in names:
                self._bind(name, action)

    def _bind(self, name: str, action: str) -> None:
        if name not in NAMES:
            raise UsageError(f"keys.{action} has no key {name!r}{config.suggestion(name, NAMES)}")
        for each in EITHER.get(name, (name,)):
            if each in self.does:
                raise UsageError(
                    f"The key {each} is bound twice, to {self.does[each]} and to {action}; "
                    f"give one of them another, such as keys.{action}=[f11]."
                )
            self.does[each] = action

    def label(self, *actions: str) -> str:
        """The keys of actions that belong together: first those that come first, then the others."""
        ranks = range(max(len(self.bound[action]) for action in actions))
        sets = [
            [printed(self.bound[action][rank]) for action in actions if rank < len(self.bound[action])]
            for rank in ranks
        ]
        return (" or " if len(actions) == 1 else "  or  ").join(" ".join(names) for names in sets)

    def help(self) -> list[tuple[str, str]]:
        """Keys and what they do, without what no key does."""
        rows = [(self.label(*actions), words) for actions, words in HELP.items()]
        return [(label, words) for label, words in rows if label]

    def in_browsers(self) -> dict[str, str]:
        """What each key does, by the name that browsers have for it."""
        return {BROWSER.get(name, name.replace(" ", "")): does for name, does in self.does.items()}

    def spell(self, line: str) -> str:
        """A line in which <save> stands for the key that saves."""
        return re.sub(r"<([a-z ]+)>", self._first, line)

    def _first(self, found: re.Match[str]) -> str:
        names = self.bound.get(found[1])
        if names is None:
            return found[0]
        return printed(names[0]) if names else f"({found[1]}, which has no key)"


def for_browsers(keys: Keys) -> Keys:
    """The same keys, without those that a browser needs for itself or has no use for."""
    of_windows = ("menu", "compare", "difference", "real", "gif", "screenshot")
    kept = {
        action: [name for name in names if not name.endswith(NOT_BROWSER) and action not in of_windows]
        for action, names in keys.bound.items()
    }
    return Keys(kept)


def printed(name: str) -> str:
    """A key as it is written on keyboards."""
    return SIGNS.get(name) or (name.upper() if len(name) < 4 and name[-1:].isdigit() else name.title())


def shipped() -> Keys:
    return Keys(config.load(config.ROOT / "configs" / "play.yaml")["keys"])

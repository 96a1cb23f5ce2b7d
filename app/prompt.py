"""The line in which a person says what the world is to look like."""

import re
from collections.abc import Sequence

import pygame

from worldmodel.words import split

from . import gamepad

LONGEST = 400  # letters


class PromptLine:
    """One line of text with a memory for what was said before, over the words that the world knows."""

    def __init__(self) -> None:
        self.open = False
        self.text = ""
        self.words: Sequence[str] = ()
        self._said: list[str] = []  # oldest first
        self._back = 0  # how many of them back the line is now

    def begin(self) -> None:
        self.open, self.text, self._back = True, "", 0
        pygame.key.start_text_input()

    def know(self, words: Sequence[str], now: str) -> None:
        """The words there are, and the prompt of the moment, which up brings back."""
        self.words = words
        self._remember(now)

    def feed(self, event: pygame.Event) -> str | None:
        """What was said once it is said, "" if it is to be nothing; None while typing goes on."""
        if event.type == pygame.TEXTINPUT:
            self.text = (self.text + event.text)[:LONGEST]
        elif event.type == pygame.KEYDOWN:
            match event.key:
                case pygame.K_RETURN | pygame.K_KP_ENTER:
                    return self._end(self.text.strip())
                case pygame.K_ESCAPE | gamepad.START:
                    return self._end("")
                case pygame.K_BACKSPACE if getattr(event, "mod", 0) & pygame.KMOD_CTRL:
                    self.text = re.sub(r"\S*\s*$", "", self.text)
                case pygame.K_BACKSPACE:
                    self.text = self.text[:-1]
                case pygame.K_UP:
                    self._recall(1)
                case pygame.K_DOWN:
                    self._recall(-1)
                case pygame.K_TAB:
                    self._complete()
        return None

    def suggestions(self, most: int = 6) -> list[str]:
        """Known words that go on as the last one begins."""
        begun = self._begun()
        return [word for word in self.words if begun and word.startswith(begun) and word != begun][:most]

    def parts(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether the world knows it; the last may yet become known.

        A world without words of its own takes any.
        """
        pieces, words = re.findall(r"\S+|\s+", self.text), set(self.words)
        known = [not words or words.issuperset(split(piece)) for piece in pieces]
        if known and self.suggestions():
            known[-1] = True
        return list(zip(pieces, known, strict=True))

    def _begun(self) -> str:
        return re.findall(r"[a-z0-9]*$", self.text.lower())[0]

    def _complete(self) -> None:
        if found := self.suggestions(1):
            self.text = self.text[: len(self.text) - len(self._begun())] + found[0] + " "

    def _recall(self, step: int) -> None:
        self._back = max(0, min(len(self._said), self._back + step))
        self.text = self._said[-self._back] if self._back else ""

    def _remember(self, text: str) -> None:
        if text:
            self._said = [said for said in self._said if said != text] + [text]

    def _end(self, text: str) -> str:
        self.open = False
        self._remember(text)
        pygame.key.stop_text_input()
        return text

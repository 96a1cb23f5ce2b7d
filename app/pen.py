"""Words, rows and bars as pictures, all in the size of one unit: what screens and videos are written with."""

from functools import cached_property
from pathlib import Path

import pygame

ASSETS = Path(__file__).resolve().parent.parent / "assets"

NIGHT = (11, 11, 14)
PAPER = (238, 234, 224)
DIM = (164, 159, 148)
EMBER = (255, 158, 61)
RED = (255, 76, 64)
GLASS = (11, 11, 14, 215)  # behind text: dark enough to read on, thin enough to see through
TRACK = (255, 255, 255, 40)
GLOW = (255, 158, 61, 130)


class Pen:
    """`unit` is the height of ordinary text in pixels."""

    unit: int

    def text(self, text: str, colour=PAPER, size: float = 1.0, bold: bool = False) -> pygame.Surface:
        """A line of text; `size` in units."""
        key = (round(size * self.unit), bold)
        if key not in self._fonts:
            path = ASSETS / ("font-bold.ttf" if bold else "font.ttf")
            self._fonts[key] = pygame.Font(path if path.exists() else None, key[0])
        return self._fonts[key].render(text, True, colour)

    @cached_property
    def _fonts(self) -> dict[tuple[int, bool], pygame.Font]:
        pygame.font.init()
        return {}

    def fit(self, text: str, width: int, **style) -> pygame.Surface:
        """The text, or its beginning and an ellipsis."""
        image = self.text(text, **style)
        while image.get_width() > width and len(text) > 1:
            text = text[: max(1, len(text) * width // image.get_width() - 1)].rstrip(" ,;\u2026") + "\u2026"
            image = self.text(text, **style)
            if len(text) <= 2:
                break
        return image

    def wrap(self, text: str, width: int, **style) -> list[pygame.Surface]:
        """The text over as many lines as it takes."""
        lines, line = [], ""
        for word in text.split():
            longer = f"{line} {word}".strip()
            if line and self.text(longer, **style).get_width() > width:
                lines.append(line)
                longer = word
            line = longer
        return [self.fit(line, width, **style) for line in [*lines, line]]

    def row(self, label: str, value: str, width: int) -> pygame.Surface:
        """A label at the left, a value at the right."""
        left = self.text(label, DIM)
        right = self.fit(value, width - left.get_width() - self.unit)
        row = pygame.Surface((width, max(left.get_height(), right.get_height())), pygame.SRCALPHA)
        row.blit(left, (0, 0))
        row.blit(right, (width - right.get_width(), 0))
        return row

    def beside(self, parts: list[pygame.Surface], gap: float = 0.5) -> pygame.Surface:
        """Surfaces next to each other, on one baseline more or less."""
        gap = round(gap * self.unit)
        width = sum(part.get_width() for part in parts) + gap * (len(parts) - 1)
        row = pygame.Surface((width, max(part.get_height() for part in parts)), pygame.SRCALPHA)
        x = 0
        for part in parts:
            row.blit(part, (x, row.get_height() - part.get_height()))
            x += part.get_width() + gap
        return row

    def bar(self, share: float, width: int) -> pygame.Surface:
        """How much of a whole."""
        thick = max(4, self.unit // 3)
        bar = pygame.Surface((width, 2 * thick), pygame.SRCALPHA)
        whole = pygame.Rect(0, thick // 2, width, thick)
        part = pygame.Rect(whole.topleft, (max(thick, round(width * min(1, share))), thick))
        pygame.draw.rect(bar, TRACK, whole, border_radius=thick // 2)
        pygame.draw.rect(bar, EMBER, part, border_radius=thick // 2)
        return bar

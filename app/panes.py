"""Several dreams of one game side by side: their pictures, what each costs, and two charts of it.

The same drawing is the window's in a live comparison and every frame of the video of a headless one.
"""

from collections.abc import Sequence

import numpy as np
import pygame

from .chart import Colour, chart
from .pane import AMPLIFIED, Costs
from .pen import DIM, NIGHT, PAPER, Pen

COLOURS: tuple[Colour, ...] = ((255, 158, 61), (92, 200, 235), (190, 150, 255), (140, 215, 100))
CLOCKS = "They take turns on one machine; each clock counts its own pane's computing alone."


class Panes(Pen):
    """Draws on surfaces of any size; the first pane leads."""

    def draw(
        self,
        surface: pygame.Surface,
        panes: Sequence[Costs],
        pictures: Sequence[np.ndarray],
        frames: int,
        title: str,
    ) -> None:
        """What each pane shows, of a game that is `frames` long so far."""
        self.surface = surface
        surface.fill(NIGHT)
        across, down = surface.get_size()
        self.unit = max(12, min(30, down // 44, across // 64))
        gap = self.unit
        width = (across - gap * (len(panes) + 1)) // len(panes)
        top = gap // 2 + round(1.6 * self.unit)
        self._heading(title, width=across - 2 * gap, at=(gap, gap // 2))
        places = [(gap + i * (width + gap), top) for i in range(len(panes))]
        ends = [
            self._pane(pane, panes, picture, colour, place, width)
            for pane, picture, colour, place in zip(
                panes, pictures, colours(panes).values(), places, strict=True
            )
        ]
        below = max(ends) + gap
        self._charts(panes, frames, pygame.Rect(gap, below, across - 2 * gap, down - gap // 2 - below))

    def _heading(self, title: str, width: int, at: tuple[int, int]) -> None:
        left = self.text(title, PAPER, bold=True)
        self.surface.blit(left, at)
        right = self.text(CLOCKS, DIM, 0.9)
        if left.get_width() + right.get_width() + self.unit < width:
            self.surface.blit(right, right.get_rect(topright=(at[0] + width, at[1])))

    def _pane(
        self,
        pane: Costs,
        panes: Sequence[Costs],
        picture: np.ndarray,
        colour: Colour,
        at: tuple[int, int],
        width: int,
    ) -> int:
        """Name, picture, figures from the top down; returns where they end."""
        (x, y), leads = at, pane is panes[0]
        name = self.text(pane.name, colour, 1.3, bold=True)
        place = self.text(standing(pane, panes), DIM if leads else PAPER, bold=not leads)
        self.surface.blit(name, (x, y))
        if name.get_width() + place.get_width() < width:
            self.surface.blit(place, place.get_rect(bottomright=(x + width, y + name.get_height())))
        y += name.get_height() + self.unit // 4
        image = self._enlarged(picture, width, self.surface.get_height() // 2)
        self.surface.blit(image, (x + (width - image.get_width()) // 2, y))
        y += image.get_height() + self.unit // 3
        for row in self._figures(pane, colour, width):
            self.surface.blit(row, (x, y))
            y += row.get_height()
        return y

    def _figures(self, pane: Costs, colour: Colour, width: int) -> list[pygame.Surface]:
        if not pane.index:
            return [self.text("\u2013", DIM, 1.6), self.text(" ")]
        rate = [
            self.text(f"{pane.fps[-1]:.1f}", colour, 1.6, bold=True),
            self.text("FPS", DIM),
            self.text(f"  {1000 * pane.seconds[-1]:.0f} ms a frame", PAPER),
            self.text(f"  frame {pane.index:,} at {pane.clock:.1f} s", DIM),
        ]
        tokens = "no dream: the engine itself"
        if pane.remembers:
            tokens = f"{pane.kept[-1]:,} of {pane.seen[-1]:,} tokens kept, {pane.bytes[-1] / 1e6:,.0f} MB"
        while len(rate) > 2 and self.beside(rate).get_width() > width:
            rate.pop()
        return [self.beside(rate), self.fit(tokens, width)]

    def _charts(self, panes: Sequence[Costs], frames: int, area: pygame.Rect) -> None:
        width, height = (area.width - self.unit) // 2, area.height
        if height < 6 * self.unit or width < 12 * self.unit:
            return
        for i, (title, series) in enumerate(figures(panes).items()):
            image = chart(self, (width, height), title, series, colours(panes), frames)
            self.surface.blit(image, (area.x + i * (width + self.unit), area.y))

    def _enlarged(self, picture: np.ndarray, width: int, height: int) -> pygame.Surface:
        """As large as it fits, by a whole number if that is at least 1."""
        rows, columns = picture.shape[:2]
        scale = min(width / columns, height / rows)
        scale = int(scale) if scale >= 1 else max(scale, 1 / min(rows, columns))
        small = pygame.image.frombuffer(np.ascontiguousarray(picture).tobytes(), (columns, rows), "RGB")
        return pygame.transform.scale(small, (round(scale * columns), round(scale * rows)))


def canvas_size(panes: int, picture: np.ndarray, scale: int) -> tuple[int, int]:
    """Width and height of panes and charts, with so many pixels per dreamt one; even, as H.264 wants it."""
    rows, columns = picture.shape[:2]
    unit = max(12, scale * panes * columns // 64)
    return (scale * panes * columns + (panes + 1) * unit + 1) // 2 * 2, (scale * rows + 24 * unit) // 2 * 2


def pixels(surface: pygame.Surface) -> np.ndarray:
    """RGB uint8 [h, w, 3]."""
    return np.ascontiguousarray(pygame.surfarray.pixels3d(surface).swapaxes(0, 1))


def figures(panes: Sequence[Costs]) -> dict[str, dict[str, Sequence[float]]]:
    """What is charted: per chart and pane a number for each frame. An engine would dwarf them."""
    panes = [pane for pane in panes if pane.remembers]
    return {
        "Frames per second": {pane.name: pane.fps[: pane.index] for pane in panes},
        "Memory, MB": {pane.name: [size / 1e6 for size in pane.bytes[: pane.index]] for pane in panes},
    }


def colours(panes: Sequence[Costs]) -> dict[str, Colour]:
    return {pane.name: COLOURS[i % len(COLOURS)] for i, pane in enumerate(panes)}


def headline(title: str, leader: Costs, differences: bool) -> str:
    what = f"difference from {leader.name}'s same frame, {AMPLIFIED} times as strong"
    return f"{title}: {what}" if differences else title


def standing(pane: Costs, panes: Sequence[Costs]) -> str:
    """How one of the panes does against the first, which leads."""
    leader = panes[0]
    if not all(other.remembers for other in panes):
        return f"frame {pane.index:,}"  # the real game does not race
    if pane is leader:
        return "leads"
    behind = pane.behind(leader)
    if not behind:
        return "as fast"
    return f"{abs(behind):,} frame{'s' * (abs(behind) > 1)} {'behind' if behind > 0 else 'ahead'}"

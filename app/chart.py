"""A line for each of some series over the frames of a game."""

from collections.abc import Mapping, Sequence

import numpy as np
import pygame

from .pen import DIM, PAPER, Pen

Colour = tuple[int, int, int]
GRID = (255, 255, 255, 26)
LINES = 4  # across a chart, the axis among them


def chart(
    pen: Pen,
    size: tuple[int, int],
    title: str,
    series: Mapping[str, Sequence[float]],
    colours: Mapping[str, Colour],
    frames: int,
    legend: bool = False,
) -> pygame.Surface:
    """The series over 0 ... `frames`, from 0 to a round number above them all."""
    surface = pygame.Surface(size, pygame.SRCALPHA)
    top = round_above(max((max(values) for values in series.values() if len(values)), default=1.0))
    plot = plot_area(pen, size, top)
    heading = [pen.text(title, PAPER, bold=True)]
    heading += [pen.text(name, colours[name], bold=True) for name in series if legend]
    surface.blit(pen.beside(heading, 1.0), (plot.x, 0))
    grid(pen, surface, plot, top, frames)
    for name, values in series.items():
        if len(values) > 1:
            pygame.draw.lines(
                surface, colours[name], False, points(values, plot, top, frames), thickness(pen)
            )
    return surface


def plot_area(pen: Pen, size: tuple[int, int], top: float) -> pygame.Rect:
    left = pen.text(number(top)).get_width() + pen.unit // 2
    above, below = round(1.8 * pen.unit), round(1.4 * pen.unit)
    return pygame.Rect(left, above, max(1, size[0] - left - pen.unit), max(1, size[1] - above - below))


def grid(pen: Pen, surface: pygame.Surface, plot: pygame.Rect, top: float, frames: int) -> None:
    for i in range(LINES):
        share = i / (LINES - 1)
        y = round(plot.bottom - share * plot.height)
        pygame.draw.line(surface, GRID, (plot.x, y), (plot.right, y))
        label = pen.text(number(share * top), DIM, 0.85)
        surface.blit(label, label.get_rect(midright=(plot.x - pen.unit // 3, y)))
        label = pen.text(f"{round(share * frames):,}" + " frames" * (i == LINES - 1), DIM, 0.85)
        x = round(plot.x + share * plot.width)
        place = label.get_rect(midtop=(x, plot.bottom + pen.unit // 5))
        surface.blit(label, place.clamp(surface.get_rect()))


def points(values: Sequence[float], plot: pygame.Rect, top: float, frames: int) -> list[tuple[float, float]]:
    """Places of the values of frames 1, 2, ...; no more of them than there are pixels."""
    index = np.unique(np.linspace(0, len(values) - 1, min(len(values), plot.width)).round().astype(int))
    x = plot.x + (index + 1) / max(1, frames) * plot.width
    y = plot.bottom - np.asarray(values, float)[index] / top * plot.height
    return list(zip(x.tolist(), y.tolist(), strict=True))


def thickness(pen: Pen) -> int:
    return max(2, pen.unit // 7)


def round_above(value: float) -> float:
    """The least number not below a value that has a third with few digits."""
    power = float(10 ** np.floor(np.log10(max(value, 1e-9))))
    steps = (1.2, 1.5, 1.8, 2.4, 3, 4.5, 6, 7.5, 9, 12)
    return next(step * power for step in steps if step * power >= value)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"

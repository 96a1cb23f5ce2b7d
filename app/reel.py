"""A comparison as a small GIF, in which a slow memory is seen to fall behind.

The video of a comparison has the same frame in every pane. Here every pane has computed for the same time: at
each moment it shows what it had dreamt when its own clock said so. It ends with the leader's last frame.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pygame
from PIL import Image

from . import gif
from .pane import Costs
from .panes import Panes, canvas_size, pixels

MOMENTS, RATE = 40, 6.0  # pictures, and how many of them a second
HELD = 12  # times that the last one is shown
SCALE = 2  # screen pixels per dreamt pixel
COLOURS = 96  # so that two panes come to less than 3 MB


class Reel:
    """What each pane showed, frame by frame; 54 kB a picture."""

    def __init__(self) -> None:
        self._shown: list[list[np.ndarray]] = []

    def add(self, pictures: Sequence[np.ndarray]) -> None:
        """A picture per pane; first those that the panes begin with."""
        self._shown.append(list(pictures))

    def write(self, path: Path, panes: Sequence[Costs], heading: str) -> None:
        """Raises OSError, and then leaves nothing behind."""
        leader = panes[0]
        moments = min(MOMENTS, leader.index)
        speed = leader.clock / moments * RATE
        heading = f"{heading}, {speed:.1f} times as fast"
        clocks = np.linspace(0, leader.clock, moments + 1)[1:]
        drawn = [self._drawn(panes, clock, heading) for clock in clocks]
        gif.write(path, [*drawn, *drawn[-1:] * HELD], RATE, few_colours)

    def _drawn(self, panes: Sequence[Costs], clock: float, heading: str) -> np.ndarray:
        """The panes at one time of all their clocks."""
        then = [pane.until(clock) for pane in panes]
        pictures = [self._shown[costs.index][i] for i, costs in enumerate(then)]
        canvas = pygame.Surface(canvas_size(len(panes), pictures[0], SCALE))
        Panes().draw(canvas, then, pictures, panes[0].index, heading)
        return pixels(canvas)


def few_colours(picture: np.ndarray) -> Image.Image:
    """With a palette in which the thin lines of a chart keep their colours; a median cut gives those away."""
    image = Image.fromarray(picture)
    return image.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)

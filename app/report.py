"""What a comparison comes to: all its numbers as JSON, a table to read, two charts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pygame

from .chart import chart
from .pane import Pane
from .panes import colours, figures
from .pen import NIGHT, Pen

FACTS = ("world", "seed", "prompt", "steps", "weights", "device", "dtype", "processor")
PLOT, MARGIN = (960, 400), 16  # pixels


def write(out: Path, facts: dict[str, Any], panes: list[Pane], apart: dict[str, list[float]]) -> None:
    told = {
        **facts,
        "frames": panes[0].index,
        "panes": {pane.name: account(pane, panes[0], apart[pane.name]) for pane in panes},
    }
    (out / "compare.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    (out / "compare.md").write_text(markdown(facts, panes, apart), encoding="utf-8")
    for name, (heading, series) in zip(("fps", "memory"), figures(panes).items(), strict=True):
        pygame.image.save(plot(panes, heading, series), out / f"{name}.png")


class Small(Pen):
    unit = 18


def plot(panes: list[Pane], heading: str, series: dict[str, Sequence[float]]) -> pygame.Surface:
    canvas = pygame.Surface((PLOT[0] + 2 * MARGIN, PLOT[1] + 2 * MARGIN))
    canvas.fill(NIGHT)
    frames = panes[0].index
    canvas.blit(chart(Small(), PLOT, heading, series, colours(panes), frames, legend=True), (MARGIN, MARGIN))
    return canvas


def markdown(facts: dict[str, Any], panes: list[Pane], apart: dict[str, list[float]]) -> str:
    told = [f"{name}: {facts[name]}  \n" for name in FACTS if name in facts]
    return "".join(told) + "\n" + table(panes, apart) + "\n"


def account(pane: Pane, leader: Pane, apart: list[float]) -> dict[str, Any]:
    """All that is known of a pane. `hash` and `apart`, mean differences in 0 ... 255, depend on no clock."""
    return {
        "hash": pane.link,
        "seconds": round(pane.clock, 3),
        "frames_behind": pane.behind(leader),
        "ms": [round(1000 * took, 2) for took in pane.seconds],
        "kept": list(pane.kept),
        "seen": list(pane.seen),
        "bytes": list(pane.bytes),
        "apart": [round(x, 3) for x in apart],
    }


def table(panes: list[Pane], apart: dict[str, list[float]]) -> str:
    """Markdown, a row per pane. The first and last frames are a tenth of all."""
    rows = [
        "| memory | FPS, first | FPS, last | seconds | frames behind | tokens kept | MB | apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for pane in panes:
        tenth = max(1, pane.index // 10)
        first, last = (1 / float(np.median(part)) for part in (pane.seconds[:tenth], pane.seconds[-tenth:]))
        rows.append(
            f"| {pane.name} | {first:.1f} | {last:.1f} | {pane.clock:.1f} | {pane.behind(panes[0])} "
            f"| {pane.kept[-1]:,} of {pane.seen[-1]:,} | {pane.bytes[-1] / 1e6:.0f} "
            f"| {np.mean(apart[pane.name]):.1f} |"
        )
    return "\n".join(rows)

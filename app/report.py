"""What a comparison comes to: all its numbers as JSON, a table to read, two charts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pygame

from .chart import chart
from .pane import Costs
from .panes import colours, figures
from .pen import NIGHT, Pen

FACTS = ("world", "seed", "prompt", "steps", "weights", "device", "dtype", "processor")
PLOT, MARGIN = (960, 400), 16  # pixels


class Outcome(NamedTuple):
    """Of one pane. What it dreamt, `link` and `apart`, depends on no clock."""

    costs: Costs
    link: str  # of the hash chain, after the last frame
    apart: list[float]  # mean difference from the first pane's picture, 0 ... 255, for each frame


def write(out: Path, facts: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    first = outcomes[0].costs
    panes = {outcome.costs.name: account(outcome, first) for outcome in outcomes}
    told = {**facts, "frames": first.index, "panes": panes}
    (out / "compare.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    (out / "compare.md").write_text(markdown(facts, outcomes), encoding="utf-8")
    costs = [outcome.costs for outcome in outcomes]
    for name, (heading, series) in zip(("fps", "memory"), figures(costs).items(), strict=True):
        pygame.image.save(plot(costs, heading, series), out / f"{name}.png")


def account(outcome: Outcome, first: Costs) -> dict[str, Any]:
    costs = outcome.costs
    return {
        "hash": outcome.link,
        "seconds": round(costs.clock, 3),
        "frames_behind": costs.behind(first),
        "ms": [round(1000 * took, 2) for took in costs.seconds],
        "kept": list(costs.kept),
        "seen": list(costs.seen),
        "bytes": list(costs.bytes),
        "apart": [round(x, 3) for x in outcome.apart],
    }


def markdown(facts: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    told = [f"{name}: {facts[name]}  \n" for name in FACTS if name in facts]
    return "".join(told) + "\n" + table(outcomes) + "\n"


def table(outcomes: Sequence[Outcome]) -> str:
    """A row per pane. The first and the last frames are a tenth of all."""
    rows = [
        "| memory | FPS, first | FPS, last | seconds | frames behind | tokens kept | MB | apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*rows, *(row(outcome, outcomes[0].costs) for outcome in outcomes)])


def row(outcome: Outcome, leader: Costs) -> str:
    costs = outcome.costs
    tenth = max(1, costs.index // 10)
    begins, ends = (1 / float(np.median(part)) for part in (costs.seconds[:tenth], costs.seconds[-tenth:]))
    cells = [
        costs.name,
        f"{begins:.1f}",
        f"{ends:.1f}",
        f"{costs.clock:.1f}",
        f"{costs.behind(leader)}",
        f"{costs.kept[-1]:,} of {costs.seen[-1]:,}",
        f"{costs.bytes[-1] / 1e6:.0f}",
        f"{np.mean(outcome.apart):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


class Small(Pen):
    unit = 18


def plot(panes: Sequence[Costs], heading: str, series: dict[str, Sequence[float]]) -> pygame.Surface:
    canvas = pygame.Surface((PLOT[0] + 2 * MARGIN, PLOT[1] + 2 * MARGIN))
    canvas.fill(NIGHT)
    image = chart(Small(), PLOT, heading, series, colours(panes), panes[0].index, legend=True)
    canvas.blit(image, (MARGIN, MARGIN))
    return canvas

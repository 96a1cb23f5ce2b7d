"""The paper's figures, recall against density, FPS and memory against the frame; and likeness against cost.

What was sampled is a point, and between points there is nothing: no line pretends to know.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..evaluation.results import Row

MARKS = "osD^v<>PX*ph"
LINEAR, LOG = ("linear", "linear"), ("log", "log")


def draw(
    out: Path, rollout: Sequence[Row], attention: Sequence[Row], paper: Sequence[Row] = ()
) -> list[Path]:
    """Write what there are rows for as PNG; returns the files."""
    written, lengths = [], {row["frame"] for row in rollout}
    for name, heading, rows, axes, scales in (
        ("recall", "Attention on what is read in full", last(attention), ("density", "recall"), LINEAR),
        ("likeness", "Likeness to dense attention, dB", others(rollout), ("cost", "psnr"), ("log", "linear")),
        ("fps", "Frames per second", rollout, ("frame", "fps"), LOG),
        ("memory", "Cache in MB", rollout, ("frame", "cache MB"), LOG),
    ):
        points = by_memory(rows, *axes)
        if points and (axes[0] != "frame" or len(lengths) > 1):
            written.append(scatter(out / f"{name}.png", heading, points, axes, scales))
    for axis in ("fps", "cache GB") if paper else ():
        written.append(panels(out / f"paper-{axis.split()[0]}.png", by_case(paper, "frame", axis), axis))
    return written


def last(rows: Sequence[Row]) -> list[Row]:
    """Those of the longest past."""
    longest = max((row["frame"] for row in rows), default=0)
    return [row for row in rows if row["frame"] == longest]


def others(rollout: Sequence[Row]) -> list[Row]:
    """Without dense attention in another precision, whose likeness would leave no room for the rest."""
    return [row for row in last(rollout) if not row["memory"].startswith("dense,")]


def by_memory(rows: Iterable[Row], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            points.setdefault(row["memory"], []).append((row[x], row[y]))
    return points


def by_case(rows: Sequence[Row], x: str, y: str) -> dict[str, dict[str, list[tuple[float, float]]]]:
    cases = dict.fromkeys(row["case"] for row in rows)
    return {case: by_memory((row for row in rows if row["case"] == case), x, y) for case in cases}


def panels(path: Path, cases: Mapping[str, Mapping[str, list[tuple[float, float]]]], axis: str) -> Path:
    """One beside the other, a panel for each case of the paper's shapes; a memory has one mark in all."""
    names = list(dict.fromkeys(name for points in cases.values() for name in points))
    with drawing(path, len(cases)) as plots:
        for plot, (case, points) in zip(plots, cases.items(), strict=True):
            mark(plot, case, points, ("frame", axis), LOG, names)
    return path


def scatter(
    path: Path,
    heading: str,
    points: Mapping[str, list[tuple[float, float]]],
    axes: tuple[str, str],
    scales: tuple[str, str],
) -> Path:
    with drawing(path) as (plot,):
        mark(plot, heading, points, axes, scales)
    return path


@contextmanager
def drawing(path: Path, panels: int = 1) -> Iterator[Sequence[Any]]:
    """So many plots, two in a row, that are written to this file afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, columns = -(-panels // 2), min(panels, 2)
    size = (8 * columns, 5 * rows)
    figure, plots = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for plot in plots.flat[panels:]:
        plot.remove()
    yield list(plots.flat[:panels])
    figure.savefig(path, dpi=110 if panels == 1 else 75)
    pyplot.close(figure)


def mark(
    plot: Any,
    heading: str,
    points: Mapping[str, list[tuple[float, float]]],
    axes: tuple[str, str],
    scales: tuple[str, str],
    names: Sequence[str] = (),
) -> None:
    """Points of each memory; `names` are all that may come, by which its mark is chosen."""
    names = names or list(points)
    for name, pairs in points.items():
        i = names.index(name)
        x, y = zip(*pairs, strict=True)
        first = name in ("tempcache", "fast-ar")
        plot.plot(
            x, y, MARKS[i % len(MARKS)], color=f"C{i % 10}", label=name,
            markersize=9 if first else 6, alpha=1 if first else 0.7,
        )  # fmt: skip
    plot.set(title=heading, xlabel=axes[0], ylabel=axes[1], xscale=scales[0], yscale=scales[1])
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8, ncols=2)

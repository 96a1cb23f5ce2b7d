"""The paper's three figures: recall against density, FPS and memory against the frame.

What was sampled is a point, and between points there is nothing: no line pretends to know.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..evaluation.results import Row

MARKS = "osD^v<>PX*ph"


def draw(out: Path, rollout: Sequence[Row], attention: Sequence[Row]) -> list[Path]:
    """Write what there are rows for as PNG; returns the files."""
    written = []
    for name, heading, rows, axes, log in (
        ("recall", "Attention on what is read in full", last(attention), ("density", "recall"), False),
        ("fps", "Frames per second", rollout, ("frame", "fps"), True),
        ("memory", "Cache in MB", rollout, ("frame", "cache MB"), True),
    ):
        if points := by_memory(rows, *axes):
            written.append(scatter(out / f"{name}.png", heading, points, axes, log))
    return written


def last(rows: Sequence[Row]) -> list[Row]:
    """Those of the longest past."""
    longest = max((row["frame"] for row in rows), default=0)
    return [row for row in rows if row["frame"] == longest]


def by_memory(rows: Iterable[Row], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            points.setdefault(row["memory"], []).append((row[x], row[y]))
    return points


def scatter(
    path: Path,
    heading: str,
    points: Mapping[str, list[tuple[float, float]]],
    axes: tuple[str, str],
    log: bool,
) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plot = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for i, (name, pairs) in enumerate(points.items()):
        x, y = zip(*pairs, strict=True)
        first = name in ("tempcache", "fast-ar")
        plot.plot(
            x, y, MARKS[i % len(MARKS)], label=name, markersize=9 if first else 6, alpha=1 if first else 0.7
        )
    plot.set(title=heading, xlabel=axes[0], ylabel=axes[1])
    if log:
        plot.set(xscale="log", yscale="log")
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path

"""The paper's figures, recall against density, FPS and memory against the frame; and likeness against cost.

What was sampled is a point, and between points there is nothing: no line pretends to know.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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
        ("likeness", "Likeness to dense attention, dB", last(rollout), ("cost", "psnr"), ("log", "linear")),
        ("fps", "Frames per second", rollout, ("frame", "fps"), LOG),
        ("memory", "Cache in MB", rollout, ("frame", "cache MB"), LOG),
    ):
        points = by_memory(rows, *axes)
        if points and (axes[0] != "frame" or len(lengths) > 1):
            written.append(scatter(out / f"{name}.png", heading, points, axes, scales))
    for case in dict.fromkeys(row["case"] for row in paper):
        rows = [row for row in paper if row["case"] == case]
        for axis, what in ("fps", "frames per second"), ("cache GB", "cache in GB"):
            path = out / f"paper {case} {axis}.png".replace(" ", "-")
            written.append(
                scatter(path, f"{case}, {what}", by_memory(rows, "frame", axis), ("frame", axis), LOG)
            )
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
    scales: tuple[str, str],
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
    plot.set(title=heading, xlabel=axes[0], ylabel=axes[1], xscale=scales[0], yscale=scales[1])
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path

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
    rollout = others(rollout)
    written, lengths = [], {row["frame"] for row in rollout}
    for name, heading, rows, axes, scales in (
        ("recall", "Attention on what is read in full", last(attention), ("density", "recall"), LINEAR),
        ("likeness", "Likeness to dense attention, dB", last(rollout), ("cost", "psnr"), ("log", "linear")),
        ("fps", "Frames per second", rollout, ("frame", "fps"), LOG),
        ("memory", "Cache in MB", rollout, ("frame", "cache MB"), LOG),
    ):
        points = by_memory(rows, *axes)
        if points and (axes[0] != "frame" or len(lengths) > 1):
            written.append(scatter(out / f"{name}.png", {heading: points}, axes, scales))
    for axis in ("fps", "cache GB") if paper else ():
        path = out / f"paper-{axis.split()[0]}.png"
        written.append(scatter(path, by_case(paper, "frame", axis), ("frame", axis), LOG))
    return written


def last(rows: Sequence[Row]) -> list[Row]:
    """Those of the longest past."""
    longest = max((row["frame"] for row in rows), default=0)
    return [row for row in rows if row["frame"] == longest]


def others(rollout: Sequence[Row]) -> list[Row]:
    """Without dense attention in another precision, whose likeness would leave no room for the rest."""
    return [row for row in rollout if not row["memory"].startswith("dense,")]


def by_memory(rows: Iterable[Row], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            points.setdefault(row["memory"], []).append((row[x], row[y]))
    return points


def by_case(rows: Sequence[Row], x: str, y: str) -> dict[str, dict[str, list[tuple[float, float]]]]:
    cases = dict.fromkeys(row["case"] for row in rows)
    return {case: by_memory((row for row in rows if row["case"] == case), x, y) for case in cases}


def scatter(
    path: Path,
    plots: Mapping[str, Mapping[str, list[tuple[float, float]]]],
    axes: tuple[str, str],
    scales: tuple[str, str],
) -> Path:
    """A plot of the points of each memory under each heading, two in a row; a memory has one mark in all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, columns = -(-len(plots) // 2), min(len(plots), 2)
    size = (8 * columns, 5 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for plot in grid.flat[len(plots) :]:
        plot.remove()
    names = list(dict.fromkeys(name for points in plots.values() for name in points))
    for plot, (heading, points) in zip(grid.flat, plots.items(), strict=False):
        for name, pairs in points.items():
            i, first = names.index(name), name in ("tempcache", "fast-ar")
            plot.plot(
                *zip(*pairs, strict=True), MARKS[i % len(MARKS)], color=f"C{i % 10}", label=name,
                markersize=9 if first else 6, alpha=1 if first else 0.7,
            )  # fmt: skip
        plot.set(title=heading, xlabel=axes[0], ylabel=axes[1], xscale=scales[0], yscale=scales[1])
        plot.grid(alpha=0.3)
        plot.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=110 if len(plots) == 1 else 75)
    pyplot.close(figure)
    return path

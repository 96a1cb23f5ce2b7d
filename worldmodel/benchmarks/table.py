"""The paper's tables 1 and 2 (arXiv 2602.01801) on our world model, with the paper's figures beside.

The paper's are of other models, frames and lengths: they say in which order its methods came, not what to
expect here. Where a figure could not be read from it there is none.
"""

from collections.abc import Mapping, Sequence

from ..evaluation.results import Row

# memory of configs/bench.yaml -> the paper's name; density %, recall %, speed-up of the whole rollout
PAPER: Mapping[str, tuple[str, float | None, float | None, str]] = {
    "dense": ("Dense FA3", 100, 100, "1"),
    "teacache": ("TeaCache", 93.2, 84.6, ""),
    "flowcache": ("FlowCache", 82.9, 86.9, ""),
    "svg1": ("SVG1", None, None, ".1-.2"),
    "svg2": ("SVG2", 68.8, 38.9, ".1-.2"),
    "radial": ("RadialAttention", 81.6, 58.3, ""),
    "flowcache + radial": ("FlowCache + Radial", None, None, "4.4"),
    "tempcache": ("TempCache-Quant", 16.2, 91.4, "6.9 of the component"),
    "annsa": ("AnnSA-Quant", 28, 92.6, "5.2 of the component"),
    "annca": ("AnnCA-Quant", 29.5, 91.1, "2.3 of the component"),
    "fast-ar": ("All-Quant", None, None, "10.7-10.8"),
}


def joined(memories: Sequence[str], dreamt: Mapping[str, Row], read: Mapping[str, Row]) -> list[Row]:
    """A row for each memory of what was found of its dreams and of its reading; speed-ups are over dense."""
    slowest = dreamt["dense"]["cost"]
    rows = []
    for name in memories:
        dream, reading = dreamt[name], read.get(name, {})
        row: Row = {"memory": name, "frame": dream["frame"], "steps": dream["steps"]}
        row |= {what: reading.get(what) for what in ("density", "recall", "explained", "least")}
        row |= {what: dream.get(what) for what in ("psnr", "ssim", "frechet", "fps")}
        row |= {"speed-up": slowest / dream["cost"], "cache MB": dream["cache MB"]}
        paper = PAPER.get(name, ("", None, None, ""))
        told = ("paper's name", "paper: density %", "paper: recall %", "paper: speed-up")
        rows.append(row | dict(zip(told, paper, strict=True)))
    return rows

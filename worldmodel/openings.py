"""Opening scenes: a few real frames to dream on from, and how the real game gets to the same place.

A scene is an episode of its own in `openings/<name>/`. Its meta also has a title, a prompt, and
`prefix`: the keys of the whole way there, so that the engine can be put beside the dream. Make one from
a collected episode with `python -m worldmodel.openings EPISODE FRAME FOLDER "Title"`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .actions import KEYS
from .episodes import Episode, EpisodeWriter

FRAMES = 16  # a scene's own frames: what the dream begins to remember


@dataclass(frozen=True)
class Opening:
    """Frames uint8 [f, h, w, 3], the keys [f, 9] that led to them, and all keys up to the last: `prefix`."""

    name: str
    title: str
    prompt: str
    world_seed: int
    engine_seed: int
    frames: np.ndarray
    keys: np.ndarray
    prefix: np.ndarray
    meta: dict[str, Any]


def load_openings(folder: Path) -> dict[str, Opening]:
    """The scenes in a weights folder by name, in their order."""
    found = [load_opening(path) for path in sorted((folder / "openings").glob("*")) if path.is_dir()]
    return {
        opening.name: opening for opening in sorted(found, key=lambda opening: opening.meta.get("order", 0))
    }


def load_opening(folder: Path) -> Opening:
    episode = Episode(folder)
    meta = episode.meta
    prefix = (np.array(meta["prefix"], np.int64)[:, None] >> np.arange(len(KEYS)) & 1).astype(np.uint8)
    seeds = meta["world_seed"], meta["engine_seed"]
    return Opening(
        folder.name, meta["title"], meta["prompt"], *seeds, episode.frames(), episode.keys, prefix, meta
    )


def save_opening(episode: Episode, stop: int, folder: Path, title: str, order: int = 0) -> None:
    """Make a scene of the frames of an episode that end at `stop`."""
    from .doom.captions import caption

    prompt = caption(episode.meta, episode.steps, stop, stop + FRAMES)
    prefix = (episode.keys[:stop].astype(np.int64) << np.arange(len(KEYS))).sum(1)
    meta = {
        **episode.meta,
        "title": title,
        "prompt": prompt,
        "order": order,
        "frames": FRAMES,
        "prefix": prefix.tolist(),
    }
    writer = EpisodeWriter(folder, meta)
    for frame, step in zip(
        episode.frames(stop - FRAMES, stop), episode.steps[stop - FRAMES : stop], strict=True
    ):
        writer.add(frame, **{name: fact for name, fact in step.items() if name != "bytes"})
    writer.close()
    (folder / "meta.json").write_text(json.dumps(meta))


if __name__ == "__main__":
    source, stop, target, title = sys.argv[1:5]
    save_opening(Episode(Path(source)), int(stop), Path(target), title)

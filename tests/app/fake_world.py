"""A world that dreams corridors without a network: what the player is tested with."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from app.errors import SaveError
from worldmodel.actions import KEYS, action
from worldmodel.episodes import HEIGHT, WIDTH
from worldmodel.openings import Opening


def openings() -> dict[str, Opening]:
    names = {"cellar": "The Wet Cellar", "hangar": "Hangar of Rust"}
    return {
        name: Opening(
            name=name,
            title=title,
            prompt=f"a {name} of green stone and brown metal",
            world_seed=i,
            engine_seed=i,
            frames=np.stack([paint(i, 0)] * 4),
            keys=np.stack([action()] * 4),
            prefix=np.stack([action()] * 4),
            meta={},
        )
        for i, (name, title) in enumerate(names.items())
    }


def paint(x: float, angle: float) -> np.ndarray:
    """A corridor-like picture that moves with x and turns with angle."""
    v, u = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    v, u = (v - HEIGHT / 2) / HEIGHT, (u - WIDTH / 2) / HEIGHT
    depth = 1 / np.maximum(np.maximum(abs(v), abs(u) * 0.8), 0.03)
    stripes = ((depth * 2 + x).astype(int) + ((u + angle) * 6).astype(int)) % 2
    light = np.clip(1.6 / depth * 4, 0.06, 1) * (0.6 + 0.4 * stripes)
    colour = np.where((abs(v) > abs(u) * 0.8)[..., None], [120, 92, 66], [86, 110, 72])
    return (light[..., None] * colour).astype(np.uint8)


class FakeWorld:
    """Follows the keys. `seconds` is how long a frame takes; `fails_at` the frame that raises `error`."""

    def __init__(
        self, seconds: float = 0.0, fails_at: int | None = None, error: Exception | None = None
    ) -> None:
        self.seconds, self.fails_at, self.error = seconds, fails_at, error
        self.prompt, self.memory = "", "tempcache"
        self.memories = ("dense", "tempcache")
        self.words = ("a", "large", "room", "red", "green", "grey", "stone", "walls", "with", "of")
        self.timings: dict[str, float] = {}
        self.frame_index = 0
        self.steps: list[np.ndarray] = []
        self.loaded, self.restored, self.shrunk = 0, 0, 0

    def reset(self, opening: Opening, seed: int = 0) -> np.ndarray:
        self.x, self.angle, self.frame_index = float(seed), 0.0, len(opening.frames)
        self.prompt = opening.prompt
        return opening.frames[-1]

    def step(self, keys: np.ndarray) -> tuple[float, float]:
        time.sleep(self.seconds)
        self.steps.append(keys)
        if self.error is not None and len(self.steps) == self.fails_at:
            raise self.error
        held = dict(zip(KEYS, keys, strict=True))
        self.x += 0.3 * (int(held["forward"]) - int(held["back"]))
        self.angle += 0.05 * (int(held["turn_right"]) - int(held["turn_left"]))
        self.frame_index += 1
        return self.x, self.angle

    def decode(self, latent: tuple[float, float]) -> np.ndarray:
        self.timings = {"dream": 0.031, "commit": 0.012, "decode": 0.009}
        return paint(*latent)

    def stats(self) -> SimpleNamespace:
        seen = 70 * self.frame_index
        return SimpleNamespace(kept=min(seen, 2240), seen=seen, bytes=min(seen, 2240) * 5120)

    def switch(self, memory: str) -> int:
        self.memory = memory
        return 20

    def shrink(self, memory: str) -> None:
        self.memory, self.shrunk = memory, self.shrunk + 1

    def beside(self, memory: str) -> "FakeWorld":
        other = FakeWorld(self.seconds)
        other.memory = memory
        return other

    def save(self, path: Path, about: Mapping[str, Any], picture: np.ndarray) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"about": dict(about), "at": (self.x, self.angle)}))
        return path.stat().st_size

    def load(self, path: Path) -> tuple[Mapping[str, Any], np.ndarray]:
        if not path.is_file():
            raise SaveError("Nothing is saved yet; <save> saves.")
        saved = json.loads(path.read_text())
        self.x, self.angle = saved["at"]
        self.loaded += 1
        return saved["about"], paint(self.x, self.angle)

    def moment(self) -> Any:
        return self.x, self.angle, self.frame_index, self.prompt, self.memory

    def restore(self, moment: Any) -> None:
        self.x, self.angle, self.frame_index, self.prompt, self.memory = moment
        self.restored += 1

    def say(self, text: str) -> list[str]:
        self.prompt = text
        return [word for word in text.split() if word == "xyzzy"]

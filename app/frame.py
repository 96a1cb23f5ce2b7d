"""What the player asks of a world, and what it knows of each frame that one dreams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np


class Pictures(NamedTuple):
    """Those of a world: height and width, how many make a second of its time, how many it dreams at once."""

    shape: tuple[int, int]
    fps: float
    at_once: int = 1


class Stats(Protocol):
    kept: int
    seen: int
    bytes: int


class World(Protocol):
    """What the dreamer needs of a world; worlds.py makes it of worldmodel.world.World."""

    prompt: str
    memory: str
    words: Sequence[str]  # that a prompt may be made of; none where it may be of any

    @property
    def memories(self) -> Sequence[str]: ...  # that may be switched to
    def switch(self, memory: str) -> int: ...
    def shrink(self, memory: str) -> None: ...  # forget all but the last frames, for want of room
    def beside(self, memory: str) -> "World": ...  # the same networks, another past
    @property
    def timings(self) -> dict[str, float]: ...  # seconds of the last frame's stages
    def reset(self, opening: Any, seed: int = 0) -> np.ndarray: ...
    def step(self, keys: np.ndarray) -> Any: ...
    def decode(self, latent: Any) -> np.ndarray: ...
    def say(self, text: str) -> list[str]: ...
    def save(self, path: Path, about: Mapping[str, Any], picture: np.ndarray) -> int: ...
    def load(self, path: Path) -> tuple[Mapping[str, Any], np.ndarray]: ...
    def moment(self) -> Any: ...  # all that the next frame depends on
    def restore(self, moment: Any) -> None: ...
    def stats(self) -> Stats: ...


@dataclass(frozen=True)
class Frame:
    """One dreamt picture and what is known about it. The picture is read-only: nobody draws on a dream."""

    picture: np.ndarray  # uint8 [h, w, 3]
    keys: np.ndarray  # held when its dreaming began
    index: int  # frames dreamt since the reset; 0 is the opening's own last picture
    run: int  # how many resets came before
    took: float | None  # seconds since the frame before; None after a pause or a reset
    timings: dict[str, float]  # seconds per stage
    kept: int  # cache entries per layer
    seen: int  # tokens they stand for
    bytes: int  # of all layers
    memory: str
    world: str
    prompt: str
    player: str = ""  # who held the keys
    reread: str | None = None  # the prompt under which the memory read the last frames anew just before
    take: int = 1  # counts the branches of one dream
    id: int = 0  # no two frames that were ever dreamt here have the same
    after: int = 0  # id of the frame it was dreamt from

"""Every test here runs without a display and without weights."""

import os

os.environ["SDL_VIDEODRIVER"] = "dummy"

import fake_world
import pytest

from app.frame import Frame
from worldmodel.actions import action


@pytest.fixture
def frame():
    """Makes the n-th frame of a dream; any fact can be given."""

    def make(index: int = 1, **facts) -> Frame:
        known = {
            "picture": fake_world.paint(0.1 * index, 0.02 * index),
            "keys": action(["forward"]),
            "index": index,
            "run": 0,
            "took": 0.05,
            "timings": {"dream": 0.03, "commit": 0.01, "decode": 0.01},
            "kept": 2240,
            "seen": 58800,
            "bytes": 12_340_000,
            "memory": "tempcache",
            "world": "cellar",
            "prompt": "a cellar",
            "id": index,
            "after": index - 1,
        }
        return Frame(**(known | facts))

    return make

"""The shipped opening scenes: complete, from held-out worlds, and where the engine says they are."""

from pathlib import Path

import numpy as np
import pytest

from worldmodel.doom.maze import HELD_OUT_SEEDS
from worldmodel.openings import FRAMES, load_openings

ASSETS = Path(__file__).resolve().parents[2] / "assets"
OPENINGS = load_openings(ASSETS)


def test_there_are_scenes_to_choose_from():
    assert len(OPENINGS) >= 6
    assert [opening.meta["order"] for opening in OPENINGS.values()] == list(range(len(OPENINGS)))


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_a_scene_is_complete_and_was_never_trained_on(opening):
    assert opening.frames.shape == (FRAMES, 112, 160, 3) and opening.keys.shape == (FRAMES, 9)
    assert opening.title and opening.prompt
    assert opening.world_seed in HELD_OUT_SEEDS
    assert np.array_equal(opening.prefix[-FRAMES:], opening.keys)


@pytest.mark.parametrize("name", list(OPENINGS)[:2])
def test_the_engine_gets_to_the_same_place(name):
    """World seed, engine seed and keys are all it takes to put the real game beside a dream."""
    pytest.importorskip("vizdoom")
    from worldmodel.doom.engine import replay

    opening = OPENINGS[name]
    meta = opening.meta
    frames = list(replay(meta["world"], opening.engine_seed, opening.prefix, meta["monsters"]))[-FRAMES:]
    error = np.abs(np.stack(frames).astype(int) - opening.frames).mean()
    assert error < 3  # of 255; JPEG at quality 95

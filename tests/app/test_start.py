"""Any picture can be dreamt on from."""

import json

import numpy as np
import pytest
from fake_world import FakeWorld
from omegaconf import OmegaConf
from PIL import Image
from test_play import main, run

from app.config import ROOT
from app.errors import UsageError
from app.start import opening_of
from app.worlds import open_scenes
from worldmodel.episodes import HEIGHT, WIDTH, Episode
from worldmodel.openings import FRAMES


def test_an_opening_shows_the_middle_of_the_picture_and_nobody_moves(tmp_path):
    wide = np.zeros((HEIGHT, 3 * WIDTH, 4), np.uint8)
    wide[:, WIDTH : 2 * WIDTH] = (200, 30, 10, 255)
    Image.fromarray(wide).save(tmp_path / "lava.png")
    opening = opening_of(tmp_path / "lava.png")
    assert opening.name == "lava" and opening.frames.shape == (FRAMES, HEIGHT, WIDTH, 3)
    assert (abs(opening.frames[:, 8:-8, 8:-8].astype(int) - [200, 30, 10]) < 3).all()
    assert not opening.keys.any() and opening.keys.shape == (FRAMES, 9)


def test_what_is_no_picture_says_so(tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(UsageError, match=r"text.png: no picture that can be read. A PNG or JPEG"):
        opening_of(tmp_path / "text.png")
    done = run("--headless", "--start", "nowhere.png")
    assert done.returncode == 2 and "Cannot read nowhere.png: No such file" in done.stderr


def test_it_is_the_first_of_the_scenes(tmp_path):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    told = {"backbone": None, "weights": str(ROOT / "assets"), "start": str(tmp_path / "red.png")}
    scenes = open_scenes(OmegaConf.create(told))
    assert next(iter(scenes)) == "red" and len(scenes) > 1


def test_the_keys_of_a_recording_are_played_again(tmp_path):
    main("--headless", "--frames", "25", "--record", f"recordings={tmp_path / 'one'}", "seed=8")
    (one,) = (tmp_path / "one").iterdir()
    main("--headless", "--record", f"actions={one}", f"recordings={tmp_path / 'two'}")
    (two,) = (tmp_path / "two").iterdir()
    assert json.loads((two / "meta.json").read_text())["controller"] == "replay"
    assert np.array_equal(Episode(one).keys, Episode(two).keys) and len(Episode(two)) == 25


def test_after_the_last_key_of_a_recording_none_is_pressed(tmp_path):
    main("--headless", "--frames", "5", "--record", f"recordings={tmp_path}", world=FakeWorld())
    world = FakeWorld()
    main("--headless", "--frames", "9", f"actions={next(tmp_path.iterdir())}", world=world)
    assert len(world.steps) == 9 and not np.any(world.steps[5:])

"""The real game does what its keys say, and does it again."""

import os
import sys

import numpy as np
import pytest

from worldmodel.actions import KEYS, action
from worldmodel.doom.engine import BUTTONS, UNSEEN, Doom, replay, shrink
from worldmodel.doom.maze import maze
from worldmodel.doom.players import Uniform
from worldmodel.episodes import HEIGHT, WIDTH


@pytest.fixture
def vizdoom():
    return pytest.importorskip("vizdoom")


@pytest.fixture
def doom(vizdoom):
    with Doom(maze(2, monsters=False), seed=1) as game:
        yield game


def held(doom, name, frames=10):
    seen = doom.first
    for _ in range(frames):
        seen = doom.step(action([name]))
    return seen


def test_shrinking_averages_and_crops():
    screen = np.random.default_rng(0).integers(256, size=(240, 320, 3), dtype=np.uint8)
    mean = screen.reshape(120, 2, 160, 2, 3).mean((1, 3))[4 : 4 + HEIGHT]
    assert np.abs(shrink(screen) - mean).max() <= 0.5


def test_every_key_has_a_button():
    assert len(BUTTONS) == len(KEYS)


def test_without_the_engine_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[data\]'"):
        Doom(maze(1), seed=1)


def test_an_unknown_map_is_refused(vizdoom):
    with pytest.raises(ValueError, match="No stock map 'e9m9'. There are my_way_home"):
        Doom("e9m9", seed=1)


def test_forward_goes_where_the_pose_looks(doom):
    first = doom.first.pose
    last = held(doom, "forward", 4).pose
    step = np.subtract(last[:2], first[:2])
    ahead = np.radians(first[3])
    assert step @ (np.cos(ahead), np.sin(ahead)) > 20
    assert abs(step @ (-np.sin(ahead), np.cos(ahead))) < 1


@pytest.mark.parametrize(("key", "sign"), [("turn_left", 1), ("turn_right", -1)])
def test_left_is_counter_clockwise(doom, key, sign):
    turned = (held(doom, key, 5).pose[3] - doom.first.pose[3] + 180) % 360 - 180
    assert 15 < sign * turned < 45


def test_firing_takes_ammunition(doom):
    assert held(doom, "fire", 15).ammo < doom.first.ammo


def test_nothing_can_kill_the_player(vizdoom):
    """God mode is a toggle; after each start it must be on."""
    with Doom(maze(2), seed=3) as game:
        seen = [game.step(action(["forward", "turn_left"])) for _ in range(200)]
    assert all(s is not None and s.health == 100 for s in seen)


def test_objects_lie_in_the_picture(vizdoom):
    found = []
    for seed in (3, 4):
        with Doom(maze(seed), seed=1) as game:
            for _ in range(60):
                found += game.step(action(["turn_left"])).objects
    assert found
    for name, x, y, width, height, distance in found:
        assert name not in UNSEEN
        assert 0 <= x < x + width <= WIDTH and 0 <= y < y + height <= HEIGHT and distance > 0


@pytest.mark.parametrize("world", [maze(4), "deathmatch"], ids=["maze", "stock"])
def test_a_replay_is_the_episode(vizdoom, world):
    player = Uniform(np.random.default_rng(0))
    keys, frames = [action()], []
    with Doom(world, seed=9) as game:
        seen = game.first
        frames.append(seen.frame)
        for _ in range(60):
            keys.append(player.act(seen))
            seen = game.step(keys[-1])
            frames.append(seen.frame)
    again = list(replay(world, 9, keys))
    assert len(again) == len(frames)
    assert all(np.array_equal(a, b) for a, b in zip(frames, again, strict=True))


def test_playing_leaves_no_files_behind(vizdoom, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Doom(maze(1), seed=1):
        pass
    assert os.listdir(tmp_path) == []

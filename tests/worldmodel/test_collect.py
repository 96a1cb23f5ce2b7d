"""Episodes are complete, repeatable, and collected whatever happens to a worker."""

import os
import signal

import numpy as np
import pytest

from worldmodel.actions import KEYS
from worldmodel.doom.captions import caption
from worldmodel.doom.collect import MIX, Cook, Crew, collect, finished
from worldmodel.doom.engine import STOCK, Doom, replay
from worldmodel.doom.maze import HELD_OUT_SEEDS, SOLID, TRAINING_SEEDS, maze
from worldmodel.episodes import encode_jpeg, episodes

FRAMES = 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three short episodes in generated worlds."""
    pytest.importorskip("vizdoom")
    root = tmp_path_factory.mktemp("collected")
    collect(root, episodes=3, frames=FRAMES, workers=2, seed=5, generated=1.0)
    return root


def cook(**changes):
    return Cook(
        **{"seed": 0, "generated": 0.85, "monsters": 0.5, "players": MIX, "held_out": False} | changes
    )


def test_an_episode_is_its_number():
    assert cook().recipe(3) == cook().recipe(3)
    assert cook().recipe(3) != cook().recipe(4) != cook().recipe(4, attempt=1) != cook(seed=1).recipe(4)


def test_the_mix_is_as_asked():
    recipes = [cook().recipe(number) for number in range(600)]
    generated = [r for r in recipes if isinstance(r.world, dict)]
    assert len(generated) / len(recipes) == pytest.approx(0.85, abs=0.05)
    assert np.mean([r.monsters for r in recipes]) == pytest.approx(0.5, abs=0.07)
    assert np.mean([r.player == "navigator" for r in recipes]) == pytest.approx(0.7, abs=0.07)
    assert len({r.name for r in generated}) > 0.98 * len(generated)
    assert {r.name for r in recipes} > set(STOCK)


def test_a_twin_is_the_episode_before_it_in_other_materials():
    recipes = [cook(generated=0.9, twins=0.5).recipe(number) for number in range(100)]
    twins = [(a, b) for a, b in zip(recipes[::2], recipes[1::2], strict=True) if b.twin_of is not None]
    assert len(twins) == sum(isinstance(a.world, dict) for a in recipes[::2]) > 35
    for number, (a, b) in zip([b.twin_of for _, b in twins], twins, strict=True):
        assert recipes[number] == a
        assert (a.player, a.player_seed, a.engine_seed) == (b.player, b.player_seed, b.engine_seed)
        assert a.world["grid"] == b.world["grid"] and a.world["things"] == b.world["things"]
        assert a.world["sectors"] != b.world["sectors"]
    assert all(cook().recipe(number).twin_of is None for number in range(50))


@pytest.mark.filterwarnings("error")
def test_a_twin_is_played_alike(tmp_path):
    """The engine's dice do not look at materials: the same keys lead to the same poses, in other pictures."""
    pytest.importorskip("vizdoom")
    collect(tmp_path, episodes=2, frames=FRAMES, workers=2, seed=5, generated=1.0, monsters=1.0, twins=0.5)
    first, second = episodes(tmp_path)
    assert second.meta["twin_of"] == 0
    assert np.array_equal(first.keys, second.keys) and np.array_equal(first.pose, second.pose)
    assert not np.array_equal(first.frames(), second.frames())


def test_training_and_held_out_worlds_never_meet():
    training = [cook(generated=1.0).recipe(number).world["seed"] for number in range(100)]
    held_out = [cook(held_out=True).recipe(number).world["seed"] for number in range(40)]
    assert set(training) <= set(TRAINING_SEEDS)
    assert set(held_out) == set(HELD_OUT_SEEDS)


def test_unknown_players_are_refused(tmp_path):
    with pytest.raises(ValueError, match="No such player: ghost. There are navigator"):
        collect(tmp_path, episodes=1, players={"ghost": 1.0})


def test_every_episode_is_there(folder):
    found = list(episodes(folder))
    assert [len(episode) for episode in found] == [FRAMES] * 3
    for number, episode in enumerate(found):
        assert episode.folder.name.startswith(f"{number:06d}-maze") and finished(folder, number)
        meta = episode.meta
        assert meta["frames"] == FRAMES and meta["size"] == [112, 160] and meta["fps"] == 17.5
        assert meta["world"]["seed"] == meta["world_seed"] and not meta["held_out"]


def test_every_frame_has_its_facts(folder):
    for episode in episodes(folder):
        assert not episode.keys[0].any() and episode.keys.shape == (FRAMES, len(KEYS))
        assert episode.pose is not None and episode.pose.shape == (FRAMES, 4)
        for step in episode.steps:
            assert {"health", "ammo", "weapon", "objects", "light"} <= set(step)
            assert step["room"] != SOLID
        assert caption(episode.meta, episode.steps, 16, 32)


def test_the_engine_plays_an_episode_again_to_the_byte(folder):
    """World, engine seed and keys are a full backup of the pictures."""
    for episode in episodes(folder):
        meta = episode.meta
        again = replay(meta["world"], meta["engine_seed"], episode.keys, meta["monsters"])
        data = b"".join(encode_jpeg(frame) for frame in again)
        assert data == (episode.folder / "frames.mjpeg").read_bytes()


def test_a_finished_episode_is_not_played_again(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    collect(folder, episodes=3, frames=FRAMES, workers=2, seed=5, generated=1.0)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_what_a_stopped_run_left_is_played_again(tmp_path):
    (tmp_path / "000004-maze1").mkdir()
    (tmp_path / "000004-maze1" / "meta.json").write_text("{}")
    assert not finished(tmp_path, 4)
    assert list(tmp_path.iterdir()) == []


class Accident(Cook):
    """Episode 0 fails in its first world; in episode 1 the worker dies while its engine runs on."""

    def recipe(self, number, attempt=0):
        if (number, attempt) == (0, 0):
            raise RuntimeError("a bad world")
        if (number, attempt) == (1, 0):
            running = Doom(maze(1), seed=1)
            assert running.first
            os.kill(os.getpid(), signal.SIGKILL)
        return super().recipe(number, attempt)


def test_an_accident_costs_no_episode(tmp_path, capfd):
    pytest.importorskip("vizdoom")
    crew = Crew(Accident(3, 1.0, 0.5, {"uniform": 1.0}, False), tmp_path, frames=70, size=1)
    crew.work([0, 1])
    assert [len(episode) for episode in episodes(tmp_path)] == [70, 70]
    said = capfd.readouterr().err
    assert "a bad world" in said and "took its process down" in said

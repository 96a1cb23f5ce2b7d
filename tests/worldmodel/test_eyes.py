"""Eyes learn what the floor plan says, and what nobody knows teaches them nothing."""

import json

import numpy as np
import pytest
import torch
from rooms import CELL, GRID, HOME, SIDE, path, play
from torch.testing import assert_close

from worldmodel.episodes import HEIGHT, WIDTH, Episode
from worldmodel.eyes import COLUMNS, NAMES, UNKNOWN, Eyes, Truth, load_eyes, save_eyes, sight_loss
from worldmodel.training.eyes import train_eyes, truth_of

SECTOR = {"wall": "BRICK7", "floor": "GRASS1", "ceiling": "F_SKY1"}


def furnished(folder, pose: np.ndarray, **meta) -> Episode:
    """`rooms.play` in full size, in a room of tan brick, grass and open sky."""
    play(folder, pose, size=(HEIGHT, WIDTH))
    about = json.loads((folder / "meta.json").read_text())
    about["world"] = {"grid": GRID, "cell": CELL, "sectors": [SECTOR]} | meta
    (folder / "meta.json").write_text(json.dumps(about | {"frames": len(pose)}))
    lines = [json.loads(line) | {"room": 0} for line in (folder / "actions.jsonl").read_text().splitlines()]
    (folder / "actions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Episode(folder)


def pictures(count: int) -> torch.Tensor:
    return torch.rand(count, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_the_truth_is_what_the_floor_plan_says(tmp_path):
    episode = furnished(tmp_path / "a", path((HOME, 6)))
    truth = truth_of(episode, np.array([1, 4]))
    assert (truth.wall == NAMES["wall"].index("BRICK7")).all() and truth.wall.shape == (2, COLUMNS)
    assert (truth.floor == NAMES["floor"].index("GRASS1")).all()
    assert (truth.ceiling == NAMES["ceiling"].index("F_SKY1")).all()
    assert_close(truth.distance, torch.full((2, COLUMNS), HOME[0] - CELL).log2())
    assert_close(truth.keys, torch.from_numpy(episode.keys[[1, 4]]).float())
    assert len(GRID) == SIDE


def test_a_texture_without_a_name_is_unknown(tmp_path):
    episode = furnished(tmp_path / "a", path((HOME, 3)), sectors=[SECTOR | {"floor": "VELVET"}])
    truth = truth_of(episode, np.array([1]))
    assert (truth.floor == UNKNOWN).all() and (truth.wall != UNKNOWN).all()


def test_a_map_without_a_floor_plan_teaches_the_keys_alone(tmp_path):
    episode = furnished(tmp_path / "a", path((HOME, 3)))
    (episode.folder / "meta.json").write_text(json.dumps({"frames": 3, "world": {}}))
    truth = truth_of(Episode(episode.folder), np.array([1, 2]))
    assert all((getattr(truth, name) == UNKNOWN).all() for name in ("wall", "floor", "ceiling", "distance"))
    assert_close(truth.keys, torch.from_numpy(episode.keys[[1, 2]]).float())
    eyes = Eyes()
    sight_loss(eyes(pictures(2)), truth).backward()
    assert all(p.grad is None or not p.grad.any() for p in eyes.parameters())


def test_columns_are_told_where_they_are():
    """What changes at the left edge of a picture changes the left columns most."""
    torch.manual_seed(0)
    eyes, one = Eyes().eval(), pictures(1)
    other = one.clone()
    other[..., : WIDTH // COLUMNS] *= -1
    apart = (eyes(one).features - eyes(other).features).square().mean(-1)[0]
    assert apart[0] == apart.max() and apart[-1] < apart[0] / 10


def test_saved_eyes_see_the_same(tmp_path):
    eyes = Eyes().half().float().eval()
    save_eyes(tmp_path, eyes)
    with torch.no_grad():
        for a, b in zip(eyes(pictures(2)), load_eyes(tmp_path)(pictures(2)), strict=True):
            assert_close(a, b)


def test_missing_and_other_eyes_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No eyes at .*stages=\[eyes\]"):
        load_eyes(tmp_path)
    save_eyes(tmp_path, Eyes(width=32))
    with pytest.raises(ValueError, match="does not hold these eyes"):
        load_eyes(tmp_path)
    (tmp_path / "eyes.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="does not hold these eyes"):
        load_eyes(tmp_path)


def test_they_learn(tmp_path):
    """A room of one kind, whichever way it looks, is soon named right."""
    episode = furnished(tmp_path / "a", path((HOME, 12)))
    eyes = train_eyes(
        [episode], tmp_path / "run", torch.device("cpu"), pairs=12, batch=4, steps=40, log_every=20
    )
    told = eyes(pictures(1))
    assert (told.wall.argmax(-1) == NAMES["wall"].index("BRICK7")).all()
    assert Truth._fields == ("distance", "wall", "floor", "ceiling", "keys")

"""`run.py eval` from weights and episodes on disk to tables on disk."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rooms import AWAY, HOME, path, play
from tiny import AUTOENCODER, DENOISER, VOCABULARY, autoencoder, clip, denoiser

from worldmodel.checkpoint import load_weights, save_weights
from worldmodel.evaluation import clips
from worldmodel.evaluation.main import PARTS, evaluate
from worldmodel.load import load_world, suited

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = OmegaConf.merge(
    OmegaConf.load(CONFIGS / "eval.yaml"), {"memories": OmegaConf.load(CONFIGS / "memories.yaml")}
)
SMALL = {
    "history": {"lengths": [2, "all"], "games": 2, "past": 200, "frames": 4},
    "returns": {"games": 2, "past": 200, "dreamt": 5},
    "table": {"budgets": [2, 3], "games": 2, "frames": 30, "start": 27, "dreams": 2, "past": 20, "dreamt": 4},
    "calibrate": {"grid": [0.5, 0.99], "gap": 4, "games": 1, "frames": 30, "start": 20, "save": True},
    "fidelity": {"games": 2, "frames": 6},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    manifest = {"autoencoder": AUTOENCODER, "denoiser": DENOISER, "levels": {"1": [1.0]}}
    save_weights(folder / "weights", autoencoder(), denoiser(), VOCABULARY, manifest)
    for game in range(2):
        play(folder / "play" / str(game), path((HOME, 30), (AWAY, 180), (HOME, 20)))
    return folder


@pytest.fixture
def untold(monkeypatch):
    """The rooms have no walls to tell of."""
    monkeypatch.setattr(clips, "_prompt", lambda episode, at: "a room of stone")


def run(data, part: str) -> dict:
    small = {"tempcache": {"cache": {"far": 12}}, "sta": {"attn": {"grid": [2, 3], "tile": [1, 1]}}}
    config = OmegaConf.merge(SHIPPED, {"memories": small, part: SMALL[part]})
    config |= {"weights": str(data / "weights"), "data": str(data / "play"), "out": str(data / part)}
    evaluate(**(config | {"parts": [part]}))
    assert (data / part / "eval.md").exists()
    return json.loads((data / part / "eval.json").read_text())["parts"]


def test_history_is_a_table_of_memories_and_tokens(data):
    rows = run(data, "history")["history"]
    assert [row["memory"] for row in rows[::4]] == ["last 2", "all", "tempcache"]
    assert [row["tokens"] for row in rows[:4]] == ["all", "returns", "back", "new"]
    assert len({row["count"] for row in rows if row["tokens"] == "back"}) == 1


def test_returns_is_a_table_of_memories_and_references(data):
    found = run(data, "returns")
    assert found["return events"] == [{"wanted": 2, "found": 2, "episodes": 2}]
    rows = {(row["memory"], row["frames"]): row for row in found["returns"]}
    for memory in ("autoencoder", "earlier view", "window_sink", "tempcache", "tempcache, far off"):
        assert {"psnr", "psnr +-", "ssim", "ssim +-", "latent", "latent +-"} < set(rows[memory, "return"])
    assert ("tempcache - window_sink", "last 4") in rows


def test_table_has_every_rival_at_every_budget(data, untold):
    rows = run(data, "table")["table"]
    names = ["window_sink", "random", "uniform", "flowcache", "tempcache_paper", "tempcache"]
    names += ["tempcache + annsa", "top-k oracle"]
    floor, *rows = rows
    assert floor["memory"] == "dense, float64" and floor["psnr"] > 40
    others = [("all", name) for name in ("dense", *SHIPPED.table.memories)]
    expected = [*others, *((budget, name) for budget in (2, 3) for name in names)]
    assert [(row["budget"], row["memory"]) for row in rows] == expected
    for row in rows:
        assert {"density", "recall", "explained", "least", "ms"} < set(row)
        assert 0 < row["density"] <= 1 and 0 < row["recall"] <= 1 and row["least"] <= row["explained"] <= 1
        assert ("threshold" in row) == (row["memory"] == "tempcache_paper")
        assert ("psnr" in row) == (row["memory"] != "dense")
    assert rows[0]["density"] == rows[0]["recall"] == 1 and rows[0]["explained"] == pytest.approx(1)


def test_what_suits_the_weights_is_kept_beside_them(data, untold):
    """And used wherever the settings do not say otherwise."""
    rows = run(data, "calibrate")["calibrate"]
    found = [row["threshold"] for row in rows]
    assert set(found) <= {0.5, 0.99} and all(row["explained"] <= 1 for row in rows)
    weights = load_weights(data / "weights")
    assert weights.manifest["suits"] == {"tempcache": {"threshold": found}}
    axes = {"cache": {"kind": "tempcache", "far": 12}}
    assert suited(axes, weights.manifest)["cache"] == {**axes["cache"], "threshold": found}
    said = {"cache": {"kind": "tempcache", "threshold": 0.7}}
    assert suited(said, weights.manifest) == said
    assert suited({"cache": {"kind": "dense"}}, weights.manifest) == {"cache": {"kind": "dense"}}
    world = load_world(weights, "tempcache", {"tempcache": axes})
    assert world.memory.thresholds == found


def test_fidelity_is_held_against_the_noise_floor(data, untold):
    rows = run(data, "fidelity")["fidelity"]
    assert [row["memory"] for row in rows] == ["dense, float64", "window_sink", "tempcache", "fast-ar"]
    for row in rows:
        assert {"psnr", "ssim", "psnr@1", "psnr@4"} < set(row) and "psnr@16" not in row
    assert rows[0]["psnr"] > 40 and rows[0]["ssim"] == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("name", SHIPPED.memories)
def test_every_memory_dreams(data, name):
    """As it is configured, but for the grid; also the rules that skip passes."""
    memories = OmegaConf.to_container(SHIPPED.memories)
    if name == "sta":
        memories[name]["attn"] |= {"grid": [2, 3], "tile": [1, 1]}
    world = load_world(data / "weights", name, memories)
    world.reset_latents(*clip(20), "", seed=0)
    for held in clip(3, seed=1)[1].unbind(1):
        assert world.step(held).isfinite().all()
    assert (world.passes is not None) == ("step" in memories[name])


def test_every_part_has_its_settings():
    assert set(PARTS) == {"calibrate", "judged", "idle", "prompts", *SHIPPED.parts}  # those are asked for
    assert all(part in SHIPPED for part in PARTS)
    with pytest.raises(ValueError, match="No such part: memory"):
        evaluate("", "", "", ["memory"], {})

"""A past that is given is the past that was lived, and every figure is of what it says it is of."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from omegaconf import OmegaConf
from rooms import AWAY, HOME, path, play
from torch.testing import assert_close

from fastar import Dense
from worldmodel.benchmarks import paper, recorded, table
from worldmodel.benchmarks.attention import attention
from worldmodel.benchmarks.figures import by_memory, last
from worldmodel.benchmarks.main import BENCHES, Bench, bench
from worldmodel.benchmarks.paper import decoding
from worldmodel.benchmarks.rollout import PARTS, Split, enough, rollout
from worldmodel.checkpoint import save_weights
from worldmodel.evaluation import clips
from worldmodel.evaluation.clips import Clips
from worldmodel.evaluation.pace import pace
from worldmodel.evaluation.recall import TRACKED
from worldmodel.evaluation.results import Results
from worldmodel.eyes import Eyes, save_eyes

CONFIGS = Path(__file__).parents[2] / "configs"
LENGTHS = [20, 30]


@pytest.fixture(scope="module")
def game():
    random = np.random.default_rng(0)
    frames = random.integers(256, size=(1, 28, 32, 48, 3), dtype=np.uint8)
    return Clips(frames, random.integers(2, size=(1, 28, 9)), ["a red room"])


@pytest.fixture(scope="module")
def recording(game):
    return recorded.play(tiny.world(), game, LENGTHS, questions=2, window=4)


def test_a_given_past_is_the_lived_one(game, recording):
    """A window of the size that the game was played with dreams on as the game went on."""
    played = tiny.world("window_sink")
    played.use(lambda layers, rope: tiny.WindowSink(layers, rope, recent=4))
    played.reset(game.frames[:, :16], game.keys[:, :16], game.prompts)
    given = tiny.world("window_sink")
    given.use(lambda layers, rope: tiny.WindowSink(layers, rope, recent=4))
    filling = recorded.Filling(given.memory, recording, torch.float32)
    while played.frame_index < 33:
        now = played.frame_index
        lived = played.step(recording.keys(now))
        if now in LENGTHS:
            filling.fill(now - 1)
            given.load_state_dict(recording.moments[now])
            assert_close(given.step(recording.keys(now)), lived, rtol=0, atol=1e-5)
            filling.frames = given.frame_index - 1
        if now < game.frames.shape[1]:
            played.see(game.frames[:, now])


def test_it_is_asked_so_often_at_each_length(recording):
    for events in recording.tape.events:
        assert sum(event.answer is not None for event in events) == 2 * len(LENGTHS)
        assert sum(event.answer is None for event in events) == max(LENGTHS) + 1


def test_dense_reads_all_and_a_window_less(recording):
    dense, window = (
        list(attention(recording.tape, LENGTHS, make, TRACKED[name]))
        for name, make in (("dense", Dense), ("window_sink", tiny.WindowSink))
    )
    assert [row["frame"] for row in dense] == LENGTHS
    for row in dense:
        assert row["density"] == row["recall"] == pytest.approx(1) and row["explained"] == pytest.approx(1)
    some = list(attention(recording.tape, LENGTHS, Dense, None))
    assert set(some[0]) == {"frame", "ms", "ms of commit", "cache MB"}
    assert window[1]["density"] < dense[1]["density"] and window[1]["recall"] < 1
    assert dense[1]["cache MB"] > window[1]["cache MB"]


def test_frames_are_held_against_denses(recording):
    kept = {}
    first = list(rollout(tiny.world(), recording, LENGTHS, keep=kept.__setitem__))
    assert list(kept) == LENGTHS and "psnr" not in first[0]
    again = list(rollout(tiny.world(), recording, LENGTHS, kept))
    assert [row["psnr"] for row in again] == pytest.approx([100, 100]) and again[0]["ssim"] == pytest.approx(
        1
    )
    other = list(rollout(tiny.world("window_sink"), recording, LENGTHS, kept, judge=np.mean))
    assert all(0 < row["frechet"] < 255 for row in other) and "frechet" not in first[0]
    assert other[1]["psnr"] < 100 and other[1]["kept"] < again[1]["kept"] == again[1]["seen"]


def test_blocks_are_whole_and_patience_ends_between_them():
    frame = [0.1, 0.1]
    assert [n for n in range(40) if enough([frame] * n)][:1] == [8 * 3]
    assert [n for n in range(40) if enough([[0.1, 9.0]] * n)][:2] == [8, 16]


def test_the_parts_of_a_frame_are_apart(recording):
    """What one part calls is not counted with it, and afterwards nothing is watched."""
    world = tiny.world("tempcache")
    spent = []
    clock = Split(world)
    now = iter(range(1000))
    clock._now = lambda: float(next(now))
    calls = [clock._timed(lambda: None, "search")]
    calls.append(clock._timed(lambda: calls[0](), "commit"))
    clock._timed(lambda: [calls[1](), calls[0]()], "linear")()
    spent = {part: clock.spent[part] for part in ("linear", "commit", "search")}
    assert spent == {"linear": 3, "commit": 2, "search": 2} and sum(spent.values()) == next(now) - 1
    with Split(world).watching():
        assert "attend" in vars(world.memory)
    assert "attend" not in vars(world.memory) and "step" not in vars(world)


def test_a_run_is_told_every_so_often(game):
    rows = list(pace(tiny.world("tempcache"), game, frames=25, every=10))
    assert [row["frame"] for row in rows] == [10, 20, 25]
    assert rows[-1]["seen"] == (16 + 25 - 1) * tiny.TOKENS


def test_speed_ups_are_over_dense_and_the_papers_figures_beside():
    dreamt = {
        name: {"frame": 9, "steps": 2, "fps": fps, "cost": 6 / fps, "cache MB": 1.0}
        for name, fps in (("dense", 2.0), ("svg2", 3.0))
    }
    rows = table.joined(["dense", "svg2"], dreamt, {"svg2": {"density": 0.25}})
    assert [row["speed-up"] for row in rows] == [1, 1.5] and rows[1]["density"] == 0.25
    assert rows[0]["density"] is None and rows[1]["paper: recall %"] == 38.9


def test_a_figure_shows_what_was_measured():
    rows = [{"memory": "a", "frame": n, "fps": 10.0 / n} for n in (1, 2)] + [{"memory": "b", "frame": 2}]
    assert by_memory(rows, "frame", "fps") == {"a": [(1, 10.0), (2, 5.0)]}
    assert last(rows) == rows[1:]


def test_what_was_stopped_goes_on_and_other_facts_begin_anew(tmp_path):
    before = Results(tmp_path, "x", {"weights": "w"}, go_on=True)
    before.add("part", {"memory": "a", "value": np.float32(1)})
    after = Results(tmp_path, "x", {"weights": "w"}, go_on=True)
    assert (
        after.find("part", memory="a") == {"memory": "a", "value": 1.0}
        and after.find("part", memory="b") is None
    )
    assert not Results(tmp_path, "x", {"weights": "w"}, go_on=False).rows("part")
    assert not Results(tmp_path, "x", {"weights": "v"}, go_on=True).rows("part")
    assert json.loads((tmp_path / "x.before.json").read_text())["facts"] == {"weights": "w"}


# ---- from weights and episodes to files


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    manifest = {
        "autoencoder": tiny.AUTOENCODER,
        "denoiser": tiny.DENOISER,
        "levels": {"1": [1.0], "2": [1.0, 0.6]},
    }
    save_weights(folder / "weights", tiny.autoencoder(), tiny.denoiser(), tiny.VOCABULARY, manifest)
    play(folder / "play" / "0", path((HOME, 500), (AWAY, 600)))
    memories = OmegaConf.load(CONFIGS / "memories.yaml")
    small = {"tempcache": {"cache": {"far": 12}}, "sta": {"attn": {"grid": [2, 3], "tile": [1, 1]}}}
    small |= {name: {"cache": {"far": 48}, "attn": {"block": 4}} for name in ("fast-ar", "tempcache + annsa")}
    shipped = OmegaConf.load(CONFIGS / "bench.yaml")
    changed = {
        "memories": OmegaConf.merge(memories, small),
        "lengths": [20, 40],
        "device": "cpu",
        "dtype": "float32",
    }
    changed |= {"weights": str(folder / "weights"), "data": str(folder / "play"), "out": str(folder / "out")}
    changed |= {"eyes": None}  # they were made for larger pictures
    changed |= {
        "ablation": {"games": 1, "frames": 30, "start": 27},
        "run": {"memories": {"dense": 20}, "every": 10},
    }
    merged = OmegaConf.to_container(OmegaConf.merge(shipped, {**changed, "run": None}))
    merged["run"] = {"memories": {"dense": 20}, "steps": 1, "every": 10}
    wan = dict(width=48, heads=2, layers=2, ffn=32, text_width=16)
    case = dict(wan=wan, rows=4, columns=6, frames=96)
    steered = dict(wan={**wan, "taken": 36, "image": True}, pipeline="longvie", run=4)
    steered["branches"] = dict(wide=48, width=24, heads=1, ffn=16, layers=1)
    cases = {
        "a window": {**case, "pipeline": "rolling-forcing", "dense": True},
        "signals": {**case, **steered},
    }
    merged["paper"] |= {"cases": cases, "lengths": [1, 4]}
    del merged["quick"]
    return merged


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    """The rooms have no walls to tell of, and Wan's decoder, whose size is its own, has a test for itself."""
    monkeypatch.setattr(clips, "_prompt", lambda episode, at: "a room of stone")
    monkeypatch.setattr(paper, "decoding", lambda *case: None)


def test_decoding_is_measured_in_chunks():
    pytest.importorskip("diffusers")
    case = paper.Case({}, "self-forcing", 2, 2)
    took = decoding(case, torch.device("cpu"), torch.float32, base_dim=8, num_res_blocks=1)
    assert took is not None and took > 0


def test_the_games_own_pictures_are_nearest_to_it(config, tmp_path, monkeypatch):
    save_eyes(tmp_path, Eyes())
    names = ("weights", "data", "out")
    paths = [Path(config[name]) for name in names]
    found = Bench(*paths, config["memories"], [20], 1, str(tmp_path), {**config, "dtype": "float32"})
    pictures = np.random.default_rng(0).integers(0, 255, (1, recorded.HISTORY + 20, 112, 160, 3), np.uint8)
    monkeypatch.setitem(vars(found), "recording", SimpleNamespace(clips=SimpleNamespace(frames=pictures)))
    assert found.judge is not None
    own, others = pictures[0, recorded.HISTORY :], pictures[0, recorded.HISTORY :] // 4
    assert found.judge(own) == pytest.approx(0, abs=1e-3) and found.judge(others) > 1


@pytest.mark.parametrize("what", BENCHES)
def test_every_shipped_memory_is_measured_once(what, config, capsys):
    bench(what, **config)
    out = Path(config["out"])
    found = json.loads((out / "bench.json").read_text())["parts"]
    names = config[what].get("memories", [])
    match what:
        case "table":
            assert all(f"| {name} |" in (out / "table.md").read_text() for name in names)
        case "ablation":
            assert [row["setting"] for row in found["ablation"]] == list(config["ablation"]["settings"])
            assert all(0 < row["overlap"] <= 1 and 0 < row["density"] <= 1 for row in found["ablation"])
        case _:
            assert {row["memory"] for row in found[what]} >= set(names)
    if what == "rollout":
        row = next(row for row in found["rollout"] if row["memory"] == "fast-ar")
        assert all(row[f"ms of {part}"] >= 0 for part in PARTS) and 0 < row["psnr"] < 100
        assert (out / "fps.png").exists() and (out / "memory.png").exists()
    capsys.readouterr()
    if what != "ablation":
        bench(what, **config)
        assert f"{what} memory" not in capsys.readouterr().out  # all of it was known


def test_there_are_so_many_benchmarks(config):
    with pytest.raises(ValueError, match="No benchmark 'speed'; there is attention, rollout"):
        bench("speed", **config)

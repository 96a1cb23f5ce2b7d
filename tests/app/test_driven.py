"""LongVie 2 in the player, from a small random checkpoint in the published layout."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "worldmodel" / "backbones"))
import published

from app import compare, driven, play, replay, serve
from app.dreamer import Dreamer
from app.errors import SaveError, UsageError, WeightsError
from app.frame import Frame, World
from app.past import Past
from app.worlds import open_scenes, open_world, pictures
from worldmodel.actions import action
from worldmodel.episodes import Episode

pytest.importorskip("diffusers", reason="needs diffusers: pip install -e '.[backbones]'")
pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[backbones]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

SMALL = ["longvie.height=32", "longvie.width=48", "steps=1", "device=cpu", "dtype=float32", "seed=1"]
SMALL += ["longvie.tracks.every=8", "memories.fast-ar.cache.far=36", "memories.tempcache.cache.far=36"]
AHEAD, LEFT = action(["forward"]), action(["turn_left"])


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return published.longvie_folder(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "shore.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 90, 3), np.uint8)).save(path)
    return path


@pytest.fixture
def words(weights, picture) -> list[str]:
    return ["--backbone", "longvie2", "--weights", str(weights), "--start", str(picture), *SMALL]


@pytest.fixture
def world(words) -> World:
    cfg, _ = play.settings([*words, "--prompt", "a red room"])
    world = open_world(cfg, {}, lambda state: None)
    world.reset(open_scenes(cfg)["shore"], seed=1)
    return world


def played(world: World, frames: int, keys: np.ndarray = AHEAD) -> np.ndarray:
    return np.stack([world.decode(world.step(keys)) for _ in range(frames)])


def recorded(words: list[str], out: Path) -> Episode:
    headless = ["--headless", "--frames", "24", "--record", f"recordings={out}"]
    assert play.main([*words, *headless]) == 0
    (folder,) = out.iterdir()
    return Episode(folder)


@pytest.mark.parametrize("memory", ["dense", "window_sink", "tempcache", "fast-ar"])
def test_it_plays_headless_and_is_recorded(words, tmp_path, capsys, memory):
    episode = recorded([*words, "--memory", memory, "--prompt", "a red room"], tmp_path)
    assert episode.frames().shape == (24, 32, 48, 3)
    assert episode.meta["complete"] and episode.meta["frames"] == 24 and episode.meta["fps"] == 16
    assert (episode.meta["backbone"], episode.meta["memory"]) == ("longvie2", memory)
    assert episode.meta["prompt"] == "a red room" and (episode.folder / "video.mp4").stat().st_size > 0
    told = capsys.readouterr().out
    assert f"{memory} keeps" in told and "over 24 frames" in told


def test_frame_rates_are_those_of_whole_chunks(words, tmp_path):
    """Twelve pictures come at once, eleven of them in no time: a median over single ones would be a lie."""
    rates = recorded(words, tmp_path).meta["fps_played"]
    assert rates["p99"] < 3 * rates["p1"]


def test_keys_make_another_dream(world, words):
    ahead = played(world, 8)
    cfg, _ = play.settings([*words, "--prompt", "a red room"])
    world.reset(open_scenes(cfg)["shore"], seed=1)
    assert np.array_equal(played(world, 8), ahead)
    world.reset(open_scenes(cfg)["shore"], seed=1)
    assert not np.array_equal(played(world, 8, LEFT), ahead)


def test_a_moment_is_gone_back_to_also_under_another_memory(world):
    played(world, 10)
    moment = world.moment()
    expected = played(world, 12, LEFT)
    world.switch("window_sink")
    world.say("a room")
    played(world, 5)
    world.restore(moment)
    assert (world.memory, world.prompt) == ("fast-ar", "a red room")
    assert np.array_equal(played(world, 12, LEFT), expected)


def test_a_rewind_into_the_middle_of_a_chunk_dreams_the_same_again(words):
    """From the moment some frames before, with the keys there were."""
    cfg, _ = play.settings(words)
    openings = open_scenes(cfg)
    world, frames = open_world(cfg, {}, lambda state: None), list[Frame]()
    dreamer = Dreamer(
        lambda report: world,
        openings,
        "shore",
        lambda index: LEFT if index % 3 else AHEAD,
        fps=0,
        frames=26,
        past=Past(every=8, megabytes=100),
        remember=frames.append,
    )
    dreamer.run()
    dreamer.check()
    assert [frame.index for frame in frames] == list(range(1, 27))
    dreamer.past.go_back(world, frames[12])
    again = [world.decode(world.step(frame.keys)) for frame in frames[13:]]
    assert all(np.array_equal(one, frame.picture) for one, frame in zip(again, frames[13:], strict=True))


def test_a_save_is_loaded_and_belongs_to_its_settings(world, words, tmp_path):
    shown = played(world, 10)[-1]
    world.save(tmp_path / "quick.save", {"index": 10}, shown)
    expected = played(world, 12, LEFT)
    about, found = world.load(tmp_path / "quick.save")
    assert about == {"index": 10} and np.array_equal(found, shown)
    assert np.array_equal(played(world, 12, LEFT), expected)
    cfg, _ = play.settings([*words, "longvie.pace.walk=3.0"])
    with pytest.raises(SaveError, match="start it with the former"):
        open_world(cfg, {}, lambda state: None).load(tmp_path / "quick.save")


def test_where_there_is_no_room_the_last_chunks_are_read_by_a_smaller_memory(world):
    played(world, 10)
    world.shrink("window_sink")
    assert world.memory == "window_sink" and world.stats().seen == 36
    played(world, 12)


def test_depth_of_the_picture_may_be_given(words, world, tmp_path):
    Image.fromarray(np.full((20, 30), 255, np.uint8)).save(tmp_path / "depth.png")
    cfg, _ = play.settings([*words, "--prompt", "a red room", f"longvie.depth={tmp_path / 'depth.png'}"])
    near = open_world(cfg, {}, lambda state: None)
    near.reset(open_scenes(cfg)["shore"], seed=1)
    assert not np.array_equal(played(near, 8), played(world, 8))


def test_memories_are_compared(words, picture, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    flags = [f"{name[2:]}={value}" for name, value in zip(words[:6:2], words[1:6:2], strict=True)]
    asked = ["dense", "window_sink", "frames=9", f"out={tmp_path / 'out'}", *flags, *SMALL]
    assert compare.main(asked) == 0
    assert json.loads((tmp_path / "out" / "compare.json").read_text())


def test_browsers_may_play_it(words):
    flags = [f"{name[2:]}={value}" for name, value in zip(words[:6:2], words[1:6:2], strict=True)]
    cfg = serve.settings([*flags, *SMALL])
    assert pictures(cfg) == ((32, 48), driven.FPS, 12) and "shore" in open_scenes(cfg)


def test_a_recording_is_not_replayed(words, tmp_path):
    folder = recorded(words, tmp_path).folder
    with pytest.raises(UsageError, match="was dreamt by longvie2"):
        replay.main([str(folder)])


@pytest.mark.parametrize(
    "words, told",
    [
        (["--backbone", "longvie"], "No backbone 'longvie'; did you mean longvie2"),
        (["backbone=longvie2"], "Wanted below it: diffusion_pytorch_model.*dit.safetensors.*models_clip"),
        (["--backbone", "longvie2", "--weights", "."], "begins with a picture: --start"),
        (["backbone=longvie2", "weights=.", "start=.", "longvie.width=50"], "longvie.width is 50, but a mul"),
        (["backbone=longvie2", "weights=.", "start=.", "longvie.camera.eye=0.0"], "camera.eye is 0.0"),
        (["backbone=longvie2", "weights=.", "start=.", "longvie.camera.far=1.0"], "far above near"),
        (["backbone=longvie2", "weights=.", "start=.", "longvie.depth=no.png"], "Cannot read no.png"),
        (["--backbone", "longvie2", "longvie.tracks.ever=3"], "did you mean longvie.tracks.every"),
        (["--backbone", "longvie2", "--memory", "sparse"], "No memory 'sparse'"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_loaded(words, told):
    with pytest.raises(UsageError, match=told):
        play.main([*words, "--headless"])


def test_files_that_are_missing_or_of_something_else_are_named(words, weights, picture, tmp_path):
    empty = [*words[:2], "--weights", str(tmp_path), *words[4:], "--headless"]
    with pytest.raises(WeightsError, match=r"no dit.safetensors, no control.safetensors, .*wanted: diff"):
        play.main(empty)
    for path in weights.rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(weights)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / "LongVie" / "control.safetensors").write_bytes(
        (weights / "LongVie" / "dit.safetensors").read_bytes()
    )
    with pytest.raises(WeightsError, match="not the branches of LongVie 2"):
        play.main([*empty, "--frames", "1"])

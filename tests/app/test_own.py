"""What a person has played is data: recorded, trained on, and played again."""

import json

import numpy as np
import pytest
import torch
from fake_world import openings, paint

import run
from app import own, play
from app.config import ROOT
from app.errors import UsageError
from app.record import Recorder
from worldmodel.autoencoder import Autoencoder
from worldmodel.checkpoint import load_weights, save_weights
from worldmodel.denoiser import Denoiser
from worldmodel.doom.captions import VOCABULARY, sentences
from worldmodel.episodes import Episode, EpisodeWriter, episodes
from worldmodel.vocabulary import Vocabulary

ROPE = "denoiser.rope=[16,8,8]"


@pytest.fixture
def recorded(tmp_path, frame):
    """Eight frames: after the fifth back to the second and two on, then a branch after the first."""
    recorder = Recorder(tmp_path / "recordings", {}, 17.5)
    recorder.start()
    for each in (
        *(frame(i, prompt="red") for i in range(1, 6)),
        *(frame(i, id=100 + i, after=2 if i == 3 else 99 + i, prompt="blue") for i in (3, 4)),
        frame(2, id=200, after=1, take=2, prompt="blue"),
    ):
        recorder.see(each)
    recorder.close()
    return tmp_path / "recordings"


def test_a_recording_becomes_episodes_without_cuts_and_each_frame_is_in_one(recorded, tmp_path):
    out = own.written(own.recordings(recorded), tmp_path / "out")
    found = list(episodes(out))
    pictures = [episode.frames() for episode in found]
    indices = [[nearest(picture) for picture in episode] for episode in pictures]
    assert indices == [[1, 2], [2, 3, 4], [3, 4, 5]]
    prompts = [[step["prompt"] for step in episode.steps] for episode in found]
    assert prompts == [["red", "blue"], ["red", "blue", "blue"], ["red"] * 3]
    assert all("hash" not in step for episode in found for step in episode.steps)


def nearest(picture):
    """Which of the recorded pictures this is."""
    apart = [abs(paint(0.1 * i, 0.02 * i).astype(int) - picture).mean() for i in range(1, 6)]
    return 1 + int(np.argmin(apart))


def test_what_was_written_is_an_episode_like_any_other_and_is_made_anew_each_time(recorded, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        own.written(own.recordings(recorded), out)
    assert len(list(episodes(out))) == 3 and own.recordings(out) == []


def test_a_dream_is_captioned_by_its_prompt(recorded, tmp_path):
    (first, *_) = episodes(own.written(own.recordings(recorded), tmp_path / "out"))
    assert sentences(first.meta, first.steps, 0, 16) == [("world", "blue")]


def test_recordings_among_collected_episodes_are_refused(recorded):
    EpisodeWriter(recorded / "collected", {"world": "deathmatch"}).close()
    with pytest.raises(UsageError, match="1 recordings among 2 episodes"):
        own.recordings(recorded)


def test_an_odometer_cannot_learn_from_recordings_and_what_can_is_named(recorded, tmp_path):
    settings = [
        "--config",
        str(ROOT / "configs" / "tiny.yaml"),
        f"data={recorded}",
        f"out={tmp_path / 'out'}",
    ]
    with pytest.raises(UsageError, match=r"start_from=assets stages=\[autoencoder,flow,"):
        run.main(["train", *settings])
    assert not (tmp_path / "out").exists()


@pytest.fixture
def weights(tmp_path):
    """A weights folder of a tiny world that knows nothing, with a scene to begin in."""
    torch.manual_seed(0)
    autoencoder = {"channels": 4, "widths": (8, 8, 16)}
    denoiser = {
        **dict(width=32, depth=2, heads=1, rope=(16, 8, 8), prompt_width=16, prompt_depth=1, channels=16),
        **dict(control_width=16, control_depth=1, focus=True, refine=8, words=len(VOCABULARY) + 2),
    }
    about = {"autoencoder": autoencoder, "denoiser": denoiser, "levels": {"1": [1.0]}}
    networks = Autoencoder(**autoencoder), Denoiser(**denoiser), Vocabulary(VOCABULARY)
    save_weights(tmp_path / "weights", *networks, about)
    scene = openings()["cellar"]
    about = {"title": scene.title, "prompt": "a room", "world_seed": 0, "engine_seed": 0, "prefix": [0] * 4}
    writer = EpisodeWriter(tmp_path / "weights" / "openings" / "cellar", about)
    for picture, keys in zip(scene.frames, scene.keys, strict=True):
        writer.add(picture, keys)
    writer.close()
    return tmp_path / "weights"


def test_play_is_recorded_trained_on_and_played(weights, tmp_path, monkeypatch):
    played = ["--headless", "--memory", "window_sink", "device=cpu", "dtype=float32"]
    record = ["--record", f"recordings={tmp_path / 'recordings'}"]
    assert play.main([*played, *record, "--frames", "40", f"weights={weights}"]) == 0
    (folder,) = (tmp_path / "recordings").iterdir()
    assert len(Episode(folder)) == 40

    mine = tmp_path / "mine"
    settings = [
        "--config",
        str(ROOT / "configs" / "tiny.yaml"),
        f"out={mine}",
        f"data={tmp_path / 'recordings'}",
    ]
    goes_on = [f"start_from={weights}", "stages=[flow,adversarial]", "flow.reach=20", "adversarial.reach=20"]
    monkeypatch.setattr(run, "on_stop", lambda handler: [])
    assert run.main(["train", *settings, *goes_on, "adversarial.alone=4", ROPE]) == 0
    assert load_weights(mine / "weights").hash != load_weights(weights).hash
    told = [json.loads(line) for line in (mine / "log.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in told} == {"flow", "adversarial"}

    assert play.main([*played, "--frames", "5", f"weights={mine / 'weights'}"]) == 0

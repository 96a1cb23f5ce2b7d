"""An episode is what was put in it, up to the moment its writer was killed."""

import io
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from worldmodel.actions import KEYS, action, held
from worldmodel.episodes import Episode, EpisodeWriter, decode_jpeg, encode_jpeg, episodes

META = {"world": "basic", "seed": 3}


def picture(i: int) -> np.ndarray:
    """A smooth frame, as JPEG likes it, that is told from its neighbours."""
    y, x = np.mgrid[:32, :48]
    return np.stack([5 * x, 7 * y, np.full_like(x, 20 * i % 256)], -1).astype(np.uint8)


def write(folder, frames: int = 8, **facts) -> Episode:
    writer = EpisodeWriter(folder, META)
    for i in range(frames):
        writer.add(picture(i), action([KEYS[i % 9]]), pose=[i, 2.0, 0.0, 90.0], **facts)
    writer.close()
    return Episode(folder)


def test_an_episode_comes_back(tmp_path):
    episode = write(tmp_path / "one", health=77)
    assert len(episode) == 8 and episode.meta == META
    assert episode.keys.dtype == np.uint8 and episode.keys.shape == (8, 9)
    assert [held(keys) for keys in episode.keys] == [(KEYS[i],) for i in range(8)]
    assert episode.pose.dtype == np.float32
    assert episode.pose[:, 0].tolist() == list(range(8))
    assert [step["health"] for step in episode.steps] == [77] * 8
    frames = episode.frames()
    assert frames.shape == (8, 32, 48, 3) and frames.dtype == np.uint8
    for i, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - picture(i)).mean() < 2


def test_facts_nobody_knows_are_not_there(tmp_path):
    writer = EpisodeWriter(tmp_path, META)
    writer.add(picture(0), action())
    writer.close()
    assert Episode(tmp_path).pose is None


@pytest.mark.parametrize("start, stop, stride", [(0, None, 1), (0, None, 3), (2, 7, 1), (1, 8, 4), (7, 8, 5)])
def test_frames_are_a_slice(tmp_path, start, stop, stride):
    episode = write(tmp_path)
    assert np.array_equal(episode.frames(start, stop, stride), episode.frames()[start:stop:stride])


def test_pictures_are_a_stream_of_jpegs(tmp_path):
    """One after the other with nothing between, so a video player opens them."""
    episode = write(tmp_path)
    data, start = (tmp_path / "frames.mjpeg").read_bytes(), 0
    for step, frame in zip(episode.steps, episode.frames(), strict=True):
        one = data[start : start + step["bytes"]]
        assert Image.open(io.BytesIO(one)).format == "JPEG" and one.endswith(b"\xff\xd9")
        assert np.array_equal(decode_jpeg(one), frame)
        start += step["bytes"]
    assert start == len(data)


def test_jpeg_is_close_and_keeps_its_colours():
    """Without chroma subsampling a thin red line stays red."""
    frame = np.zeros((32, 48, 3), np.uint8)
    frame[:, 20] = 255, 0, 0
    back = decode_jpeg(encode_jpeg(frame))
    assert back[:, 20, 0].min() > 230 and back[:, 20, 1:].max() < 30


def test_cut_anywhere_the_facts_end_a_little_early(tmp_path):
    """Whatever byte the lines end at, the frames whose lines are complete are an episode."""
    steps = write(tmp_path).steps
    data = (tmp_path / "actions.jsonl").read_bytes()
    for cut in range(len(data) + 1):
        (tmp_path / "actions.jsonl").write_bytes(data[:cut])
        episode = Episode(tmp_path)
        complete = sum(cut >= end for end in ends_of_lines(data))
        assert len(episode) == len(episode.keys) == complete
        assert episode.steps == steps[:complete]


def ends_of_lines(data: bytes) -> list[int]:
    """Where the closing brace of each line ends; the line break after it does not matter."""
    return [i for i, byte in enumerate(data) if byte == ord("\n")]


def test_cut_anywhere_the_pictures_end_a_little_early(tmp_path):
    """Whatever byte the pictures end at, the frames whose pictures are complete are an episode."""
    whole = write(tmp_path)
    frames = whole.frames()
    data = (tmp_path / "frames.mjpeg").read_bytes()
    ends = np.cumsum([step["bytes"] for step in whole.steps])
    for cut in range(len(data), -1, -1):
        os.truncate(tmp_path / "frames.mjpeg", cut)
        episode = Episode(tmp_path)
        complete = int((ends <= cut).sum())
        assert len(episode) == complete
        if complete and cut in (*ends, *(ends - 1)):
            assert np.array_equal(episode.frames(), frames[:complete])


def test_a_killed_writer_leaves_an_episode(tmp_path):
    """Killed without warning after a flush: all up to the flush is there, and what follows is whole."""
    program = f"""
import os, signal
from pathlib import Path
import numpy as np
from worldmodel.episodes import EpisodeWriter
writer = EpisodeWriter(Path({str(tmp_path)!r}), {META!r})
random = np.random.default_rng(0)
for i in range(40):
    writer.add(random.integers(0, 256, (32, 48, 3), np.uint8), np.zeros(9))
    if i == 9:
        writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    episode = Episode(tmp_path)
    assert 10 <= len(episode) < 40
    assert len(episode.frames()) == len(episode.keys) == len(episode)


def test_an_episode_of_nothing_is_empty(tmp_path):
    episode = write(tmp_path, frames=0)
    assert len(episode) == 0 and episode.keys.shape == (0, 9) and episode.pose is None


def test_a_folder_without_lines_is_no_episode(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not an episode: it has no actions.jsonl"):
        Episode(tmp_path)


def test_episodes_are_found_in_a_fixed_order(tmp_path):
    for name in ("b/2", "a", "b/1"):
        write(tmp_path / name, frames=1)
    (tmp_path / "c").mkdir()
    found = [episode.folder.relative_to(tmp_path).as_posix() for episode in episodes(tmp_path)]
    assert found == ["a", "b/1", "b/2"]


def test_keys_have_names():
    assert held(action(["run", "forward"])) == ("forward", "run")
    assert not action().any() and action(KEYS).all()
    with pytest.raises(ValueError, match="No such key: jump. Keys are forward, back"):
        action(["jump"])

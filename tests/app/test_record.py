import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
import pytest

from app import record
from app.errors import DiskError
from app.record import ENLARGED, Recorder, Video, check_writable
from worldmodel.actions import FPS
from worldmodel.episodes import Episode

FACTS = {"version": "0", "seed": 7, "steps": 1, "weights": "abc", "device": "cpu", "dtype": "float32"}


def pictures(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]


def recorded(root: Path, *frames) -> Recorder:
    recorder = Recorder(root, FACTS, FPS)
    recorder.start()
    for frame in frames:
        recorder.see(frame)
    recorder.close()
    return recorder


def test_a_recording_is_an_episode(tmp_path, frame):
    frames = [frame(i) for i in range(1, 11)]
    (folder,) = recorded(tmp_path, *frames).folders
    episode = Episode(folder)
    assert len(episode) == 10
    assert np.array_equal(episode.keys, np.stack([frame.keys for frame in frames]))
    assert abs(episode.frames()[4].astype(int) - frames[4].picture).mean() < 3


def test_the_video_shows_the_dream_and_nothing_else(tmp_path, frame):
    frames = [frame(i) for i in range(1, 31)]
    (folder,) = recorded(tmp_path, *frames).folders
    shown = pictures(folder / "video.mp4")
    assert len(shown) == len(frames)
    for enlarged, dreamt in zip(shown, frames, strict=True):
        assert enlarged.shape[:2] == (ENLARGED * 112, ENLARGED * 160)
        assert abs(enlarged[1::ENLARGED, 1::ENLARGED].astype(int) - dreamt.picture).mean() < 5


def test_meta_says_what_it_takes_to_dream_it_again(tmp_path, frame):
    (folder,) = recorded(tmp_path, *(frame(i) for i in range(1, 9))).folders
    assert folder.name.endswith("_cellar_tempcache")
    meta = json.loads((folder / "meta.json").read_text())
    assert meta.items() >= FACTS.items()
    assert meta["world"] == "cellar" and meta["memory"] == "tempcache" and meta["prompt"] == "a cellar"
    assert meta["complete"] is True and meta["frames"] == 8
    assert meta["fps_played"] == {"p1": 20.0, "p50": 20.0, "p99": 20.0}


def test_a_new_prompt_is_an_event(tmp_path, frame):
    (folder,) = recorded(
        tmp_path, frame(1), frame(2, prompt="a red hall"), frame(3, prompt="a red hall")
    ).folders
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events == [{"frame": 1, "prompt": "a red hall"}]


def test_a_reset_ends_one_recording_and_begins_another(tmp_path, frame):
    recorder = recorded(tmp_path, frame(1), frame(2), frame(1, run=1, world="hangar"))
    assert [len(Episode(folder)) for folder in recorder.folders] == [2, 1]
    assert recorder.folders[1].name.endswith("_hangar_tempcache")


def test_the_window_may_be_filmed_beside_the_dream(tmp_path, frame):
    """In its own size, but for a last odd row or column; a window resized on the way is brought to that."""
    recorder = Recorder(tmp_path, FACTS, FPS)
    recorder.start()
    for i, shape in enumerate([(97, 131), (97, 131), (60, 80)]):
        recorder.see(frame(i))
        recorder.wait()
        recorder.see_screen(np.full((*shape, 3), 200, np.uint8))
        recorder.wait()
    recorder.close()
    (folder,) = recorder.folders
    film = iio.imread(folder / "screen.mp4", plugin="pyav")
    assert film.shape == (3, 96, 130, 3) and abs(film.astype(int) - 200).max() < 6
    assert len(iio.imread(folder / "video.mp4", plugin="pyav")) == 3


def test_a_window_is_not_filmed_while_nothing_is_recorded(tmp_path, frame):
    recorder = Recorder(tmp_path, FACTS, FPS)
    recorder.see_screen(np.zeros((8, 8, 3), np.uint8))
    recorder.start()
    recorder.see_screen(np.zeros((8, 8, 3), np.uint8))  # no frame has come yet
    recorder.see(frame(1))
    recorder.close()
    assert not (recorder.folders[0] / "screen.mp4").exists()


def test_frames_outside_start_and_stop_are_not_kept(tmp_path, frame):
    recorder = Recorder(tmp_path, FACTS, FPS)
    recorder.see(frame(1))
    recorder.start()
    recorder.see(frame(2))
    recorder.stop()
    recorder.see(frame(3))
    recorder.close()
    assert [len(Episode(folder)) for folder in recorder.folders] == [1]


KILLED = """
import sys
import time
from pathlib import Path
import fake_world
from app.record import Recorder
from app.frame import Frame
from worldmodel.actions import action

recorder = Recorder(Path(sys.argv[1]), {}, 17.5)
recorder.start()
for i in range(105):
    picture = fake_world.paint(i / 10, 0)
    facts = (picture, action(), i + 1, 0, 0.05, {}, 1, 1, 1, "tempcache", "cellar", "")
    recorder.see(Frame(*facts, id=i, after=i - 1))
while recorder.frames < 105:
    time.sleep(0.01)
print("written", flush=True)
sys.stdin.read()
"""


def test_sigkill_loses_at_most_the_last_two_seconds_of_video_and_nothing_of_the_episode(tmp_path):
    here = Path(__file__).resolve()
    paths = os.pathsep.join([str(here.parents[2]), str(here.parent)])
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    (folder,) = tmp_path.iterdir()
    assert len(pictures(folder / "video.mp4")) >= 105 - 2 * FPS
    assert len(Episode(folder)) == 105
    assert json.loads((folder / "meta.json").read_text())["complete"] is False


def test_a_full_disk_stops_the_recording_says_so_and_keeps_what_was_written(tmp_path, frame, monkeypatch):
    recorder = Recorder(tmp_path, FACTS, FPS)
    written = Video.add

    def full(self, picture):
        if recorder.frames == 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(self, picture)

    monkeypatch.setattr(Video, "add", full)
    recorder.start()
    for i in range(40):
        recorder.see(frame(i))
    recorder.close()
    assert not recorder.rolling
    with pytest.raises(DiskError, match="No space left on device.*recordings=FOLDER"):
        recorder.check()
    (folder,) = recorder.folders
    assert len(Episode(folder)) >= 20
    assert len(pictures(folder / "video.mp4")) >= 17


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_that_is_really_full_leaves_no_file_open(tmp_path, frame, monkeypatch):
    """Also when the episode's own buffers cannot be flushed, and closing them fails in turn."""
    monkeypatch.setattr(record, "unused", lambda folder: full_folder(tmp_path))
    with pytest.raises(DiskError, match="No space left"):
        recorded(tmp_path, *(frame(i) for i in range(5))).check()


def full_folder(root: Path) -> Path:
    folder = root / "full"
    folder.mkdir()
    for name in ("frames.mjpeg", "actions.jsonl", "video.mp4"):
        (folder / name).symlink_to("/dev/full")
    return folder


def test_recording_may_be_tried_again_after_a_failure(tmp_path, frame):
    root = tmp_path / "recordings"
    root.write_text("in the way")
    recorder = Recorder(root, FACTS, FPS)
    recorder.start()
    recorder.see(frame(1))
    recorder.wait()
    assert isinstance(recorder.error, DiskError)
    root.unlink()
    recorder.start()
    recorder.see(frame(2))
    recorder.close()
    recorder.check()
    assert len(recorder.folders) == 1


def test_a_folder_that_cannot_be_written_is_found_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="recordings=FOLDER"):
        check_writable(tmp_path / "file" / "recordings")

"""The whole player with a fake world: stages, flags, exit codes, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import imageio.v3 as iio
import pygame
import pytest
from fake_world import FakeWorld, openings

from app import play
from app.errors import DiskError, DisplayError, UsageError
from app.pen import NIGHT
from worldmodel.actions import held
from worldmodel.episodes import Episode

ROOT = Path(__file__).resolve().parents[2]


def main(*words: str, world: FakeWorld | None = None) -> int:
    return play.main(words, lambda cfg, facts, report: world or FakeWorld(), lambda cfg: openings())


def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "run.py"), *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


class Watched(FakeWorld):
    """A world that tells of each frame begun; what `watch` yields happens to the window."""

    def __init__(self, watch: Callable[["Watched"], Iterator[pygame.Event | None]]) -> None:
        super().__init__(seconds=0.005)
        self._happens = watch(self)

    def step(self, keys):
        latent = super().step(keys)
        if event := next(self._happens, None):
            pygame.event.post(event)
        return latent


def at_each_lap(monkeypatch: pytest.MonkeyPatch, happens: Iterator[pygame.Event | None]) -> None:
    """What `happens` yields happens to the window, also while nothing is dreamt."""
    get = pygame.event.get

    def watched_get():
        if event := next(happens, None):
            pygame.event.post(event)
        return get()

    monkeypatch.setattr(pygame.event, "get", watched_get)


def until(condition: Callable[[], bool]) -> Iterator[None]:
    while not condition():
        yield


def shows_panes() -> bool:
    """The panes leave a dark margin at the left, where a dream alone has its own pixels."""
    left = pygame.surfarray.array3d(pygame.display.get_surface())[:, 2:8]
    return bool((left == NIGHT).mean() > 0.9)


def press(key: int) -> pygame.Event:
    return pygame.Event(pygame.KEYDOWN, key=key)


@pytest.fixture
def no_display(monkeypatch):
    if sys.platform in ("win32", "darwin"):
        pytest.skip("a desktop always has a display")
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def test_headless_dreams_records_and_says_how_fast(tmp_path, capsys):
    assert main("--headless", "--frames", "40", "--record", f"recordings={tmp_path}") == 0
    (folder,) = tmp_path.iterdir()
    out = capsys.readouterr().out
    assert "FPS: " in out and " median, " in out and "tempcache keeps 2,240 of 3,080 tokens" in out
    assert f"Recorded: {folder}" in out
    assert len(Episode(folder)) == 40
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["complete"] and meta["controller"] == "autopilot" and meta["seed"] == 0


def test_headless_play_repeats_itself(tmp_path):
    for part in ("one", "two"):
        main("--headless", "--frames", "60", "--seed", "5", "--record", f"recordings={tmp_path / part}")
    one, two = (next((tmp_path / part).iterdir()) for part in ("one", "two"))
    for name in ("frames.mjpeg", "actions.jsonl"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_without_a_display_the_autopilot_plays_and_says_how_to_get_a_window(no_display, tmp_path, capsys):
    assert main(f"recordings={tmp_path}") == 0
    out = capsys.readouterr().out
    assert "No display" in out and "FPS" in out and "set DISPLAY" in out
    (folder,) = tmp_path.iterdir()
    assert len(Episode(folder)) == 300 and f"Recorded: {folder}" in out


def test_a_window_demanded_without_a_display_is_an_error_that_names_headless(no_display):
    with pytest.raises(DisplayError, match="--headless"):
        main("--window")


def test_in_a_window_the_keys_reach_the_world():
    def watch(world):
        yield press(pygame.K_w)
        yield from until(lambda: held(world.steps[-1]) == ("forward",))
        yield press(pygame.K_LEFT)
        yield from until(lambda: held(world.steps[-1]) == ("forward", "turn_left"))
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    assert main("--fps", "0", "--frames", "20000", world=world) == 0
    assert not world.steps[0].any() and len(world.steps) < 20000


def test_f8_starts_and_stops_a_recording_of_clean_frames(tmp_path):
    def recordings(complete):
        return [
            meta for meta in tmp_path.glob("*/meta.json") if f'"complete": {complete}' in meta.read_text()
        ]

    def watch(world):
        yield from (None for _ in range(5))
        yield press(pygame.K_F8)
        yield from until(lambda: bool(recordings("false")))
        yield from (None for _ in range(5))
        yield press(pygame.K_F8)
        yield from until(lambda: bool(recordings("true")))
        yield pygame.Event(pygame.QUIT)

    words = ["--fps", "0", "--frames", "20000", "overlay=2", "film=true", f"recordings={tmp_path}"]
    assert main(*words, world=Watched(watch)) == 0
    (folder,) = tmp_path.iterdir()
    height, width = iio.improps(folder / "screen.mp4", plugin="pyav").shape[1:3]
    assert height * 160 == width * 112 and height > 2 * 112  # the window, larger than the dream
    episode = Episode(folder)
    assert 0 < len(episode) < 20000
    assert episode.meta["controller"] == "human" and episode.meta["first_frame"] > 1
    assert abs(episode.frames()[0].astype(int) - openings()["cellar"].frames[-1]).mean() < 3  # nobody moved


def test_the_menu_holds_the_game_and_quits_it(monkeypatch):
    world = Watched(lambda world: iter([press(pygame.K_ESCAPE)]))
    laps = []  # how many frames had been begun, at each look for events
    get = pygame.event.get

    def watched_get():
        laps.append(len(world.steps))
        if laps[-1] and laps[-20:] == [laps[-1]] * 20:
            pygame.event.post(press(pygame.K_ESCAPE))
        return get()

    monkeypatch.setattr(pygame.event, "get", watched_get)
    assert main("--fps", "0", "--frames", "20000", world=world) == 0
    assert len(world.steps) < 20000


def test_a_failing_disk_does_not_end_play_in_a_window_but_is_told_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(play, "check_writable", lambda root: None)
    (tmp_path / "recordings").write_text("in the way")
    world = FakeWorld(seconds=0.01)
    with pytest.raises(DiskError):
        main("--frames", "30", "--fps", "0", "--record", f"recordings={tmp_path / 'recordings'}", world=world)
    assert len(world.steps) == 30


def test_a_failing_disk_ends_headless_play(tmp_path, monkeypatch):
    monkeypatch.setattr(play, "check_writable", lambda root: None)
    (tmp_path / "recordings").write_text("in the way")
    world = FakeWorld(seconds=0.01)
    with pytest.raises(DiskError):
        main(
            "--headless", "--frames", "5000", "--record", f"recordings={tmp_path / 'recordings'}", world=world
        )
    assert len(world.steps) < 5000


def test_an_unwritable_folder_is_found_before_the_weights_are_loaded(tmp_path):
    (tmp_path / "file").write_text("")

    def never(cfg, facts, report):
        raise AssertionError("loaded")

    with pytest.raises(DiskError):
        words = ["--headless", "--record", f"recordings={tmp_path / 'file' / 'in'}"]
        play.main(words, never, lambda cfg: openings())


def test_a_crash_of_the_world_is_raised_in_play(tmp_path):
    world = FakeWorld(fails_at=5, error=MemoryError("cache"))
    with pytest.raises(MemoryError, match="cache"):
        main("--headless", "--record", f"recordings={tmp_path}", world=world)
    (folder,) = tmp_path.iterdir()
    assert len(Episode(folder)) == 4 and Episode(folder).meta["complete"]


def test_an_unknown_world_lists_those_there_are():
    with pytest.raises(UsageError, match="No world 'cave'; there is cellar, hangar"):
        main("--headless", "--world", "cave")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--memory", "tempcash"], "No memory 'tempcash'; did you mean tempcache?"),
        (
            ["memories.tempcache.cache.recnt=1"],
            "No setting memories.tempcache.cache.recnt; did you mean memories.tempcache.cache.recent?",
        ),
        (["--headles"], "No flag --headles; did you mean --headless?"),
        (["--frames", "many"], "argument --frames: invalid int value: 'many'"),
        (["--frames", "0"], "frames is 0, but at least 1 is needed."),
        (["--headless", "--window"], "not allowed with argument"),
        (["--config", "nowhere.yaml"], "No settings at nowhere.yaml"),
        (["trian"], "No verb trian; did you mean train?"),
        (["imprt", "footage"], "No verb imprt; did you mean import?"),
        (["import", "nowhere"], "nowhere is no folder"),
        (["doctor", "wieghts=x"], "No setting wieghts; did you mean weights?"),
        (["train", "--config", "nowhere.yaml"], "No settings at nowhere.yaml"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_one_line_and_exit_code_2(words, line):
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("run.py: ") and len(done.stderr.splitlines()) == 1
    assert line.lower() in done.stderr.lower()


def test_missing_weights_are_exit_code_4(tmp_path):
    done = run("--headless", f"weights={tmp_path / 'none'}")
    assert done.returncode == 4 and "No weights at" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_version_needs_neither_torch_nor_pygame():
    code = "import sys, run; run.main(['--version']); print({'torch', 'pygame'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    version, loaded = done.stdout.splitlines()
    assert version.startswith("FAST-AR Play ") and loaded == "set()"


HEADLESS = """
import sys
import fake_world
from app import play

words = ["--headless", "--frames", "3"]
play.main(words, lambda cfg, facts, report: fake_world.FakeWorld(), lambda cfg: fake_world.openings())
print("pygame" in sys.modules)
"""


def test_headless_play_never_loads_pygame():
    command = [sys.executable, "-c", HEADLESS]
    done = subprocess.run(command, env=with_tests(), capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def with_tests() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}


INTERRUPTED = """
import sys, time
import fake_world, run
from app import play

def loads(cfg, facts, report):
    report("loading weights")
    if sys.argv[1] == "loading":
        time.sleep(600)
    return fake_world.FakeWorld(seconds=0.01)

words = ["--headless", "--frames", "100000", "--record", "recordings=" + sys.argv[2]]
run.leave(run.guard(lambda: play.main(words, loads, lambda cfg: fake_world.openings())))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("moment", "line"), [("loading", "loading weights"), ("dreaming", "frame ")])
def test_being_stopped_at_any_moment_closes_the_recording_and_is_exit_code_130(tmp_path, moment, line, stop):
    command = [sys.executable, "-c", INTERRUPTED, moment, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=with_tests(), **pipes) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(line):
            pass
        process.send_signal(getattr(signal, stop))
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.split() == ["Stopped."]
    for folder in tmp_path.iterdir():
        assert Episode(folder).meta["complete"] and len(Episode(folder)) > 0
    assert len(list(tmp_path.iterdir())) == (moment == "dreaming")

"""What goes wrong in the dream is survived with less, or told where it can be read."""

import pygame
import pytest
import torch
from fake_world import FakeWorld, openings
from test_dreamer import Session, eventually
from test_play import at_each_lap, main, press, until
from test_saves import opening, solo

from app import play
from app.autopilot import Autopilot
from app.dreamer import Dreamer
from app.errors import UsageError
from app.past import Past
from app.window import Window
from worldmodel.episodes import Episode

OUT_OF_MEMORY = [
    MemoryError("cache"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_without_room_play_goes_on_with_a_smaller_memory_and_says_so(error):
    world = FakeWorld(fails_at=5, error=error)
    with Session(world, frames=9, fallback="dense", past=Past(2, 100)) as session:
        session.dreamer.join(20)
    assert session.dreamer.error is None and world.shrunk == 1
    assert [frame.index for frame in session.seen] == list(range(1, 10))
    assert [frame.memory for frame in session.seen] == ["tempcache"] * 4 + ["dense"] * 5
    assert [frame.run for frame in session.seen] == [0] * 4 + [1] * 5  # a recording ends, another begins
    assert list(session.dreamer.notices) == [
        "Out of memory: dense plays on in place of tempcache. There is no way back beyond this frame."
    ]
    assert session.dreamer.past.frames[0].index == 4


@pytest.mark.parametrize("fallback", [None, "tempcache"])
def test_where_there_is_nothing_smaller_it_is_explained(fallback):
    world = FakeWorld(fails_at=5, error=MemoryError("cache"))
    with Session(world, fallback=fallback) as session:
        session.dreamer.join(20)
    with pytest.raises(MemoryError, match="cache"):
        session.dreamer.check()
    assert not world.shrunk


def test_a_comparison_without_room_ends_and_the_memory_played_stays():
    class Heavy(FakeWorld):
        def beside(self, memory):
            return FakeWorld(fails_at=3, error=MemoryError())

    with Session(Heavy(0.002), fallback="dense") as session:
        session.dreamer.compare()
        eventually(lambda: session.world.shrunk)
        session.until(lambda: session.seen[-1].run == 2)
        assert session.dreamer.race is None and session.world.memory == "tempcache"
        assert any("tempcache plays on alone" in line for line in session.dreamer.notices)


def test_a_real_world_dreams_on_from_the_last_frames():
    world, seen = solo("fast-ar"), []
    step, room = world._world.step, [True]

    def crowded(keys):
        if world._world.frame_index == 8 and room:
            room.clear()
            raise MemoryError
        return step(keys)

    world._world.step = crowded
    dreamer = Dreamer(
        lambda report: world, {"hall": opening()}, "hall", Autopilot(),
        fps=0, frames=8, fallback="tempcache", past=Past(2, 100), remember=seen.append,
    )  # fmt: skip
    dreamer.start()
    dreamer.join(60)
    dreamer.check()
    assert [frame.index for frame in seen] == list(range(1, 9)) and not room
    assert world.memory == seen[-1].memory == "tempcache" and seen[-1].seen == seen[0].seen + 7 * 2


def test_weights_without_room_are_tried_again_with_a_smaller_memory(tmp_path, capsys):
    tried = []

    def opens(cfg, facts, report):
        tried.append(cfg.memory)
        if len(tried) == 1:
            raise MemoryError
        return FakeWorld()

    words = ["--headless", "--frames", "3", "--record", f"recordings={tmp_path}"]
    assert play.main(words, opens, lambda cfg: openings()) == 0
    assert tried == ["tempcache", "window_sink"]
    assert "Out of memory: window_sink plays in place of tempcache." in capsys.readouterr().err
    assert len(Episode(*tmp_path.glob("*"))) == 3


def test_the_smaller_memory_is_one_there_is():
    with pytest.raises(UsageError, match="No memory 'window_snik'; did you mean window_sink"):
        main("--headless", "fallback=window_snik")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError("cache"), "Out of memory: cache. Close other programs"),
        (KeyError("kind"), "A bug: KeyError: 'kind'. The terminal has the details."),
    ],
)
def test_a_window_shows_why_the_dream_has_ended_until_somebody_has_read_it(monkeypatch, error, line):
    shown, windows = [], []
    attach = Window.attach

    def watched(window, *others):
        windows.append(window)
        attach(window, *others)

    def hands():
        yield from until(lambda: windows and windows[0]._view.failure)
        yield from (None for _ in range(5))  # it is still there
        shown.append(windows[0]._view.failure)
        yield press(pygame.K_ESCAPE)
        yield press(pygame.K_ESCAPE)

    monkeypatch.setattr(Window, "attach", watched)
    at_each_lap(monkeypatch, hands())
    with pytest.raises(type(error)):
        main("--window", "fps=0", world=FakeWorld(fails_at=3, error=error))
    assert shown[0].startswith(line)

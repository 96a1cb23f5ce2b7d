"""What is gone back to is what it was, to the bit; what is kept fits in what was granted."""

import json

import numpy as np
import pygame
import pytest
from fake_world import FakeWorld
from test_dreamer import Session, eventually
from test_play import at_each_lap, main, press, until
from test_saves import AXES, solo

from app.autopilot import Autopilot
from app.controls import Controls
from app.past import Past
from app.record import Recorder
from worldmodel.actions import FPS, action
from worldmodel.episodes import Episode

PILOT = Autopilot(1)


class Game:
    """A tiny world played as the dreamer plays it, each of its frames remembered by a Past."""

    def __init__(self, frame, memory: str, past: Past):
        self.make, self.past, self.world, self.index = frame, past, solo(memory), 0
        self.frames = [self.frame(self.world.decode(self.world._world._frames[-1][0][:, 0]), action())]
        past.begin(self.world, self.frames[0])

    def frame(self, picture, keys):
        facts = {"memory": self.world.memory, "prompt": self.world.prompt}
        return self.make(self.index, picture=picture, keys=keys, **facts)

    def play(self, count: int, pilot: Autopilot = PILOT) -> list:
        for _ in range(count):
            keys = pilot(self.index)
            picture = self.world.decode(self.world.step(keys))
            self.index += 1
            self.frames.append(self.frame(picture, keys))
            self.past.see(self.world, self.frames[-1])
        return self.frames[-count:]

    def go_back(self, index: int) -> None:
        self.past.go_back(self.world, self.frames[index])
        self.index, self.frames = index, self.frames[: index + 1]


def pictures(frames):
    return np.stack([frame.picture for frame in frames])


@pytest.mark.parametrize("memory", AXES)
@pytest.mark.parametrize("index", [0, 5, 16, 23, 40])
def test_a_moment_gone_back_to_goes_on_to_the_bit(frame, memory, index):
    """Also between two moments, and where the prompt changed on the way from one to the other."""
    game = Game(frame, memory, Past(every=8, megabytes=100))
    game.play(19)
    game.world.say("dark room")
    game.play(41)
    first = pictures(game.frames)
    game.go_back(index)
    game.play(19 - index) if index < 19 else None
    game.world.say("dark room")
    game.play(60 - game.index)
    assert np.array_equal(pictures(game.frames), first)
    assert [frame.index for frame in game.past.frames] == list(range(61))


def test_other_keys_lead_elsewhere_and_back_again(frame):
    """The law above is sharp: what the keys were matters, and one may go back as often as one likes."""
    game = Game(frame, "tempcache", Past(every=8, megabytes=100))
    game.play(30)
    first = pictures(game.frames)
    game.go_back(13)
    other = game.play(17, Autopilot(2))
    assert not np.array_equal(pictures(other), first[14:])
    game.go_back(13)
    assert np.array_equal(pictures(game.play(17)), first[14:])


def test_a_rewind_across_a_switch_of_memory_brings_the_old_one_back(frame):
    game = Game(frame, "tempcache", Past(every=8, megabytes=100))
    game.play(21)
    game.world.switch("fast-ar")
    game.past.keep(game.world)
    game.play(14)
    first = pictures(game.frames)
    game.go_back(30)
    assert game.world.memory == "fast-ar" and np.array_equal(pictures(game.play(5)), first[31:])
    game.go_back(10)
    assert game.world.memory == "tempcache" and np.array_equal(pictures(game.play(11)), first[11:22])


def test_no_more_moments_are_kept_than_fit_and_the_frames_they_lead_to(frame):
    world, past = FakeWorld(), Past(every=10, megabytes=30)
    world.x = world.angle = 0.0
    world.frame_index = 1000  # 11.5 MB a moment
    past.begin(world, frame(0))
    for i in range(1, 96):
        past.see(world, frame(i))
    assert [moment.index for moment in past.moments] == [80, 90]
    assert [frame.index for frame in past.frames] == list(range(80, 96))
    assert past.bytes <= 30e6
    past.megabytes = 1
    past.see(world, frame(96))
    past.keep(world)
    assert past.moments == [] and [frame.index for frame in past.frames] == [96]


class Rewinding(Session):
    """A dreamer that is paused once so many frames are there, and its past."""

    def __init__(self, frames: int, **options):
        super().__init__(past=Past(every=8, megabytes=1000), **options)
        self.until_paused_at = frames

    def _remember(self, frame):
        super()._remember(frame)
        if len(self.seen) == self.until_paused_at:
            self.dreamer.pause()

    def note(self) -> str:
        eventually(lambda: self.dreamer.notices)
        return self.dreamer.notices.popleft()


def test_the_dream_goes_on_from_where_a_rewind_has_come_to():
    with Rewinding(20) as session:
        session.until(lambda: len(session.seen) == 20)
        session.dreamer.rewind()
        eventually(lambda: session.dreamer.rewound and session.dreamer.rewound.at <= 17)
        session.dreamer.let_go()
        note = session.note()
        session.dreamer.single_step()
        session.until(lambda: len(session.seen) == 21)
    back = session.seen[-1].index - 1
    assert back <= 17 and note == f"Back at frame {back}: {20 - back} frames are undone."
    first = next(frame for frame in session.seen if frame.index == back + 1)
    again = session.seen[-1]
    assert np.array_equal(again.picture, first.picture) and again.id != first.id
    assert again.run == 0 and again.take == 1 and again.after == first.after


def test_both_takes_are_kept_by_a_branch():
    with Rewinding(12) as session:
        session.until(lambda: len(session.seen) == 12)
        session.dreamer.rewind()
        eventually(lambda: session.dreamer.rewound)
        session.dreamer.branch()
        assert session.note().startswith("Take 2 begins at frame ")
        session.dreamer.single_step()
        session.until(lambda: len(session.seen) == 13)
        session.dreamer.branch()
        assert session.note() == "Take 1 at frame 12; <branch> goes back to the other."
        session.dreamer.single_step()
        session.until(lambda: len(session.seen) == 14)
    second, first = session.seen[-2:]
    assert (second.take, first.take) == (2, 1)
    assert first.index == 13 and first.after == session.seen[11].id


def test_without_room_for_a_moment_a_rewind_is_refused_and_says_why():
    with Session(past=Past(every=8, megabytes=0)) as session:
        session.until(lambda: len(session.seen) > 3)
        session.dreamer.rewind()
        session.dreamer.branch()
        session.dreamer.branch()
        eventually(lambda: len(session.dreamer.notices) == 2)
    refused, alone = session.dreamer.notices
    assert "rewind.megabytes 0" in refused and alone.startswith("There is one take only")


def test_a_rewind_ends_once_when_its_key_is_let_go_or_the_window_loses_the_keys():
    pygame.display.init()
    for ending in (pygame.Event(pygame.KEYUP, key=pygame.K_BACKSPACE), pygame.Event(pygame.WINDOWFOCUSLOST)):
        controls = Controls()
        controls.feed(press(pygame.K_BACKSPACE))
        controls.feed(ending)
        controls.feed(pygame.Event(pygame.KEYUP, key=pygame.K_BACKSPACE))
        assert controls.wishes() == ["rewind", "let go"]
    controls.feed(press(pygame.K_BACKSPACE))
    controls.feed(press(pygame.K_ESCAPE))
    assert controls.wishes() == ["rewind", "let go", "menu"]
    pygame.quit()


def test_a_recording_goes_on_through_rewinds_and_numbers_its_frames_on(tmp_path, frame):
    recorder = Recorder(tmp_path, {}, FPS)
    recorder.start()
    for each in (
        *(frame(i) for i in range(1, 6)),
        *(frame(i, id=100 + i, after=2 if i == 3 else 99 + i) for i in (3, 4)),
        frame(1, id=200, after=0, take=2),
        frame(5, id=201, after=104, take=1),
    ):
        recorder.see(each)
    recorder.close()
    (folder,) = recorder.folders
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events == [
        {"frame": 5, "rewind": {"from": 4, "to": 1}},
        {"frame": 7, "take": 2, "branch": {"from": 6, "to": -1}},
        {"frame": 8, "take": 1, "branch": {"from": 7, "to": 6}},
    ]
    assert len(Episode(folder)) == 9


def test_backspace_and_b_in_a_window(tmp_path, monkeypatch):
    def go_on(times):
        yield from until(lambda: world.restored == times)
        count = len(world.steps)
        yield from until(lambda: len(world.steps) > count + 40)  # up to 31 of them are dreamt again

    def hands():
        yield press(pygame.K_F8)
        yield from until(lambda: len(world.steps) > 30)
        yield press(pygame.K_BACKSPACE)
        yield from (None for _ in range(5))
        yield pygame.Event(pygame.KEYUP, key=pygame.K_BACKSPACE)
        yield from go_on(1)
        yield press(pygame.K_BACKSPACE)
        yield press(pygame.K_b)
        yield from go_on(2)
        yield press(pygame.K_b)
        yield from go_on(3)
        yield pygame.Event(pygame.QUIT)

    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    words = ["--window", "fps=0", "--frames", "20000", f"recordings={tmp_path}"]
    assert main(*words, world=world) == 0
    (events,) = tmp_path.glob("*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [sorted(event)[-1 if "rewind" in event else 0] for event in told] == ["rewind", "branch", "branch"]
    assert [event.get("take") for event in told] == [None, 2, 1]

"""Followers dream what the leader was told, frame by frame, and get as much time as it had."""

import numpy as np
import pygame
from fake_world import FakeWorld, openings
from test_dreamer import Session, eventually
from test_play import at_each_lap, main, press, shows_panes, until

from app.autopilot import Autopilot
from app.pane import difference
from app.race import Race, rivals_of

PILOT = Autopilot(1)


class Ticking(FakeWorld):
    """A world whose frames take so many seconds by a clock that the test holds."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.took, self.said = clock, seconds, []

    def beside(self, memory):
        other = Ticking(self.clock, self.took[1:])
        other.memory = memory
        return other

    def decode(self, latent):
        self.clock[0] += self.took[0]
        self.said.append(self.prompt)
        return super().decode(latent)


def race(monkeypatch, *seconds):
    clock = [0.0]
    monkeypatch.setattr("app.pane.time.perf_counter", lambda: clock[0])
    world = Ticking(clock, seconds)
    running = Race(world, [world.beside("dense")])
    running.begin(openings()["cellar"], seed=0)
    return running


def run(running, frames):
    for i in range(frames):
        running.lead(PILOT(i))
        running.follow()


def test_a_slower_memory_gets_the_same_time_and_falls_behind(monkeypatch):
    running = race(monkeypatch, 1.0, 4.0)
    run(running, 40)
    leader, other = (pane.costs for pane in running.panes)
    assert leader.index == 40 and other.index == 10
    assert leader.clock == other.clock == 40.0 and other.behind(leader) == 30


def test_a_faster_memory_waits_for_keys(monkeypatch):
    running = race(monkeypatch, 4.0, 1.0)
    run(running, 10)
    assert [pane.costs.index for pane in running.panes] == [10, 10]
    assert running.panes[1].costs.behind(running.panes[0].costs) == -8


def test_followers_press_the_keys_and_say_the_prompts_of_each_frame(monkeypatch):
    running = race(monkeypatch, 1.0, 3.0)
    leader, other = (pane.world for pane in running.panes)
    run(running, 15)
    leader.say("a red room")
    run(running, 15)
    count = len(other.steps)
    assert 0 < count < 30
    assert np.array_equal(other.steps, leader.steps[:count]) and other.said == leader.said[:count]
    running.panes[0].costs.ends[-1] = 1e9
    running.follow()
    assert np.array_equal(other.steps, leader.steps) and other.said == leader.said


def test_a_difference_compares_frames_of_one_index(monkeypatch):
    running = race(monkeypatch, 1.0, 3.0)
    running.panes[1].world.reset(openings()["cellar"], seed=5)  # another dream
    dreamt = []
    for i in range(31):
        dreamt.append(running.lead(PILOT(i)))
        running.follow()
    newest, shown = running.panes[1].picture, running.pictures(differences=True)[1]
    at = running.panes[1].costs.index
    assert at < 31 and shown.any() and np.array_equal(shown, difference(newest, dreamt[at - 1]))
    assert set(running._ahead) == set(range(at + 1, 32))  # no picture is kept for longer than needed


def test_what_is_enough_ends_a_turn(monkeypatch):
    running = race(monkeypatch, 1.0, 1.0)
    running.lead(PILOT(0))
    running.follow(lambda: True)
    assert running.panes[1].costs.index == 0


def test_the_rival_is_dense_or_if_that_is_played_another():
    world = FakeWorld()
    assert rivals_of(world) == ["dense"]
    world.memory = "dense"
    assert rivals_of(world) == ["tempcache"]
    world.memories = ("dense",)
    assert rivals_of(world) == []


def test_a_race_begins_again_goes_on_and_leaves_the_leader_to_play_alone():
    with Session() as session:
        session.until(lambda: len(session.seen) > 3)
        session.dreamer.compare()
        session.until(lambda: session.seen[-1].run == 1 and session.seen[-1].index > 5)
        running = session.dreamer.race
        assert running is not None and running.panes[0].world is session.world
        session.dreamer.reset()
        session.until(lambda: session.seen[-1].run == 2 and session.seen[-1].index > 5)
        eventually(lambda: running.panes[1].costs.index > 3)
        for refused in (session.dreamer.rewind, session.dreamer.switch_memory, session.dreamer.load):
            session.dreamer.notices.clear()
            refused()
            eventually(lambda: session.dreamer.notices)
            assert session.dreamer.notices[0] == "Not while memories are compared; <compare> ends that."
        session.dreamer.compare()
        eventually(lambda: session.dreamer.race is None)
        last = len(session.seen)
        session.until(lambda: len(session.seen) > last + 3)
    assert session.seen[-1].run == 2 and len(session.dreamer.past.frames) > 0


def test_f3_and_x_in_a_window(monkeypatch):
    def hands():
        yield from until(lambda: len(world.steps) > 5 and not shows_panes())
        yield press(pygame.K_x)
        yield press(pygame.K_F3)
        yield from until(shows_panes)
        yield press(pygame.K_x)
        count = len(world.steps)
        yield from until(lambda: len(world.steps) > count + 30)
        yield press(pygame.K_F3)
        yield from until(lambda: not shows_panes())
        yield pygame.Event(pygame.QUIT)

    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    assert main("--window", "fps=0", "scale=6", "--frames", "20000", world=world) == 0
    assert len(world.steps) < 20000

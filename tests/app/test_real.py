"""F10 puts the real game beside the dream: the same opening, the same keys, and no memory to measure."""

import sys

import numpy as np
import pygame
import pytest
from fake_world import FakeWorld, openings, paint
from test_dreamer import Session, eventually
from test_play import at_each_lap, main, press, shows_panes, until

from app.config import ROOT
from app.dreamer import Dreamer
from app.errors import PackageError
from app.pane import Costs
from app.panes import figures, standing
from app.race import Race
from app.real import Nothing, RealGame
from worldmodel.actions import action
from worldmodel.openings import load_openings


class Engine(RealGame):
    """The real game without its engine: it counts what it is asked to do."""

    def __init__(self, tell):
        self.keys, self.closed, self.prompt = [], 0, ""

    def reset(self, opening, seed=0):
        self.keys = []
        return opening.frames[-1]

    def step(self, keys):
        self.keys.append(keys)
        return paint(len(self.keys), 0)

    def close(self):
        self.closed += 1


@pytest.fixture(scope="module")
def opening():
    pytest.importorskip("vizdoom")
    return load_openings(ROOT / "assets")["torch-hall"]


def test_it_begins_where_the_dream_does_and_goes_on_with_the_same_keys(opening):
    from worldmodel.doom.engine import replay

    keys = [action(["forward"]), action(["turn_left"]), action(["turn_left", "fire"])]
    game = RealGame(print)
    first = game.reset(opening, seed=7)
    assert abs(first.astype(int) - opening.frames[-1]).mean() < 3  # of 255; the opening went through JPEG
    played = [first, *(game.decode(game.step(held)) for held in keys)]
    everything = [*opening.prefix, *keys]
    truth = list(replay(opening.meta["world"], opening.engine_seed, everything, opening.meta["monsters"]))
    assert np.array_equal(played, truth[-len(played) :])
    assert np.array_equal(game.reset(opening), first)  # and again
    game.close()


def test_a_scene_that_is_no_place_of_the_game_stays_what_it_is():
    pytest.importorskip("vizdoom")
    told, scene = [], openings()["cellar"]
    game = RealGame(told.append)
    assert np.array_equal(game.reset(scene), scene.frames[-1])
    assert np.array_equal(game.step(action(["forward"])), scene.frames[-1])
    assert told == ["The real game does not know this scene."]


def test_a_game_that_has_ended_says_so_once_and_keeps_its_last_picture(opening):
    told = []
    game = RealGame(told.append)
    game.reset(opening)
    last = game.step(action())
    game._doom.step = lambda keys: None
    assert all(np.array_equal(game.step(action(["fire"])), last) for _ in range(3))
    assert told == ["The real game has ended here; its last picture stays."]


def test_without_the_engine_a_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    with pytest.raises(PackageError, match=r"pip install -e '\.\[data\]'"):
        RealGame(print)
    with Session() as session:
        session.dreamer.show_real()
        eventually(lambda: session.dreamer.notices)
        assert "pip install" in session.dreamer.notices[0] and session.dreamer.race is None
        session.until(lambda: len(session.seen) > 3)


def test_both_have_the_same_keys_and_the_engine_is_closed_in_the_end():
    opened = []

    def opens(tell):
        opened.append(Engine(tell))
        return opened[-1]

    with Session(FakeWorld(0.002), open_real=opens) as session:
        session.until(lambda: len(session.seen) > 3)
        session.dreamer.show_real()
        session.until(lambda: session.seen[-1].run == 1 and session.seen[-1].index > 20)
        engine = opened[0]
        eventually(lambda: len(engine.keys) > 15)
        dreamt = [frame.keys for frame in session.seen if frame.run == 1]
        assert all(map(np.array_equal, engine.keys, dreamt))
        session.dreamer.show_real()
        eventually(lambda: session.dreamer.race is None)
        assert engine.closed == 1
        session.dreamer.show_real()
        eventually(lambda: session.dreamer.race is not None)
    assert opened[1].closed == 1  # also when the game ends beside it


def test_the_engine_has_every_frame_when_the_dream_has_it_even_if_it_is_slower():
    world, engine = FakeWorld(), Engine(print)
    race = Race(world, [engine], together=True)
    race.begin(openings()["cellar"], seed=0)
    for count in range(1, 9):
        race.lead(action(["forward"]))
        race.panes[1].costs.ends[-1] = 1e9  # what its clock says does not matter
        assert len(engine.keys) == count
        assert np.array_equal(race.pictures(False)[1], paint(count, 0))
        race.follow()
    assert [standing(pane.costs, [each.costs for each in race.panes]) for pane in race.panes] == [
        "frame 8"
    ] * 2


def test_beside_the_engine_no_other_memory_may_be_taken_and_what_ends_that_is_told():
    with Session(FakeWorld(0.002), open_real=Engine) as session:
        session.until(lambda: len(session.seen) > 3)
        session.dreamer.show_real()
        eventually(lambda: session.dreamer.race is not None)
        session.dreamer.switch_memory()
        eventually(lambda: "Not beside the real game; <real> ends that." in session.dreamer.notices)


def test_the_engine_has_no_memory_to_chart():
    dream, engine = Costs("tempcache"), Costs("real game")
    dream.add(0.1, FakeWorldStats())
    engine.add(0.001, Nothing())
    for lines in figures([dream, engine]).values():
        assert list(lines) == ["tempcache"]


class FakeWorldStats:
    kept, seen, bytes = 70, 70, 1000


def test_f10_in_a_window(monkeypatch):
    monkeypatch.setitem(Dreamer.__init__.__kwdefaults__, "open_real", Engine)

    def hands():
        yield from until(lambda: len(world.steps) > 5 and not shows_panes())
        yield press(pygame.K_F10)
        yield from until(shows_panes)
        yield press(pygame.K_F10)
        yield from until(lambda: not shows_panes())
        yield pygame.Event(pygame.QUIT)

    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    assert main("--window", "fps=0", "scale=6", "--frames", "20000", world=world) == 0
    assert len(world.steps) < 20000

import json

import numpy as np
import pygame
import pytest
from fake_world import FakeWorld
from test_play import Watched, at_each_lap, main, press, until

from app.autopilot import Autopilot
from app.errors import UsageError
from app.menu import Menu
from app.players import Players
from worldmodel.actions import action


def test_players_take_turns():
    players = Players(human=lambda index: action(["fire"]), autopilot=Autopilot(3))
    assert players.now == "human" and players(0).any()
    assert players.next() == "autopilot"
    assert all(np.array_equal(players(i), Autopilot(3)(i)) for i in range(20))
    assert players.next() == "human"


def test_another_may_begin(tmp_path):
    def watch(world):
        yield from until(lambda: sum(keys.any() for keys in world.steps) > 10)
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    words = "player=autopilot", "record=true", "fps=0", f"recordings={tmp_path}"
    assert main("--window", *words, world=world) == 0
    (meta,) = tmp_path.glob("*/meta.json")
    assert json.loads(meta.read_text())["controller"] == "autopilot"


@pytest.mark.parametrize(
    "word, line", [("player=robot", "No player 'robot'"), ("player=replay", "say which, by actions=FOLDER")]
)
def test_who_may_not_begin(word, line):
    with pytest.raises(UsageError, match=line):
        main(word)


def test_f6_hands_the_keys_over_and_a_recording_says_so(tmp_path):
    def watch(world):
        yield press(pygame.K_F8)
        yield from (None for _ in range(5))
        yield press(pygame.K_F6)
        yield from until(lambda: sum(keys.any() for keys in world.steps) > 10)
        yield press(pygame.K_F6)
        yield from (None for _ in range(30))
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    assert main("--window", "fps=0", f"recordings={tmp_path}", world=world) == 0
    (events,) = tmp_path.glob("*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["player"] for event in told] == ["autopilot", "human"]
    assert not world.steps[0].any() and not world.steps[-1].any()


def test_from_the_menu_another_plays_and_play_goes_on(monkeypatch):
    def hands():
        yield from until(lambda: len(world.steps) > 3)
        yield press(pygame.K_ESCAPE)
        for _ in range(len(Menu.ITEMS) - Menu.ITEMS.index("player")):
            yield press(pygame.K_UP)  # from the first item over the last
        yield press(pygame.K_RETURN)
        yield from until(lambda: sum(keys.any() for keys in world.steps) > 10)
        yield pygame.Event(pygame.QUIT)

    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    assert main("--window", "fps=0", "--frames", "20000", world=world) == 0
    assert len(world.steps) < 20000

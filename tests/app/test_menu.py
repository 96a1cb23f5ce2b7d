"""The menu offers whatever a key does, and says whose work the game rests on."""

import tomllib

import pygame
import pytest
from fake_world import FakeWorld
from omegaconf import OmegaConf
from test_controls import controls, down, post  # noqa: F401
from test_play import at_each_lap, main, press, until

from app.config import ROOT
from app.credits import CREDITS, PACKAGES, PAPERS
from app.keys import WISHES
from app.menu import Menu

NOT_IN_IT = {  # of what a key may ask for, and why
    "menu": "it is the menu",
    "pause": "the dream holds still while the menu is open",
    "step": "a frame at a time is for a finger on a key, in a pause",
    "rewind": "it lasts as long as its key is held",
}
WITHOUT_KEYS = {"resume", "diagnostics", "credits", "quit"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_whatever_a_key_may_ask_for_is_in_the_menu_unless_there_is_a_reason():
    assert set(Menu.ITEMS) - WITHOUT_KEYS == set(WISHES) - set(NOT_IN_IT)


def press_all(controls, *keys):  # noqa: F811
    for key in keys:
        post(controls, *down(key))


def test_arrows_go_through_all_items_and_to_the_other_column_and_back(controls):  # noqa: F811
    controls.open_menu()
    menu, visited = controls.menu, []
    for _ in menu.ITEMS:
        visited.append(menu.chosen)
        press_all(controls, pygame.K_DOWN)
    assert visited == list(range(len(menu.ITEMS))) and menu.chosen == 0
    press_all(controls, pygame.K_DOWN, pygame.K_RIGHT)
    assert menu.chosen == 1 + menu.ROWS
    press_all(controls, pygame.K_a)
    assert menu.chosen == 1


def chosen(item):
    """The keys that lead from the game into the menu and to an item of it."""
    return [pygame.K_ESCAPE, *[pygame.K_UP] * (len(Menu.ITEMS) - Menu.ITEMS.index(item)), pygame.K_RETURN]


@pytest.mark.parametrize("key", [pygame.K_ESCAPE, pygame.K_w, pygame.K_F5])
def test_credits_stay_until_any_key_which_does_nothing_else(controls, key):  # noqa: F811
    press_all(controls, *chosen("credits"))
    assert controls.menu.credits and controls.wishes() == ["menu"]
    press_all(controls, key)
    assert controls.menu.open and not controls.menu.credits and controls.wishes() == []
    assert controls.menu.ITEMS[controls.menu.chosen] == "credits"
    press_all(controls, pygame.K_ESCAPE)
    assert controls.wishes() == ["quit"]


@pytest.mark.parametrize("item", ["overlay", "help", "screenshot", "gif", "difference", "branch", "resume"])
def test_play_goes_on_after_any_item(monkeypatch, tmp_path, item):
    def hands():
        yield from until(lambda: len(world.steps) > 3)
        for key in chosen(item):
            yield press(key)
        reached = len(world.steps)
        yield from until(lambda: len(world.steps) > reached + 10)
        yield pygame.Event(pygame.QUIT)

    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    assert main("--window", "fps=0", f"recordings={tmp_path}", "--frames", "20000", world=world) == 0
    assert len(world.steps) < 20000


def test_every_package_is_credited():
    extras = [
        word for name, words in PROJECT["optional-dependencies"].items() if name != "dev" for word in words
    ]
    needed = {
        word.partition(";")[0].partition(">")[0].partition("=")[0]
        for word in [*PROJECT["dependencies"], *extras]
    }
    credited = {word.split()[0] for names in PACKAGES.values() for word in names.split(", ")}
    assert credited == needed


def test_the_citation_is_of_this_game_and_of_the_papers_credited():
    cited = OmegaConf.load(ROOT / "CITATION.cff")
    assert cited["cff-version"] == "1.2.0" and cited.title == "FAST-AR Play"
    assert cited.license == PROJECT["license"] and cited.version == PROJECT["version"]
    assert {f"https://arxiv.org/abs/{number}" for number in PAPERS} == {each.url for each in cited.references}
    for number, told in zip(PAPERS, CREDITS["Papers"], strict=True):
        assert told.endswith(f"arXiv {number}")

"""What is typed is a line, not a walk; and it becomes the prompt of the next frame."""

import pygame
import pytest
from fake_world import FakeWorld
from test_controls import controls, down, now, post  # noqa: F401
from test_play import Watched, main, press, until

from app.prompt import PromptLine

WORDS = ("red", "room", "rooms", "with", "grey", "walls")


def typed(*letters: str) -> list[tuple]:
    return [(pygame.TEXTINPUT, {"text": x}) for x in letters]


@pytest.fixture
def line(controls) -> PromptLine:  # noqa: F811
    controls.line.begin()
    controls.line.know(WORDS, "a hall")
    return controls.line


def test_letters_do_not_walk(controls):  # noqa: F811
    post(controls, *down(pygame.K_w))
    post(controls, *down(pygame.K_t), *down(pygame.K_w, pygame.K_r), *typed("w", "r"))
    assert now(controls) == set() and controls.line.text == "wr" and controls.wishes() == ["prompt"]
    post(controls, *down(pygame.K_RETURN))
    assert controls.wishes() == ["say wr"] and not controls.line.open
    post(controls, *down(pygame.K_w))
    assert now(controls) == {"forward"}


@pytest.mark.parametrize("text", ["", "red"])
def test_escape_leaves_the_line_and_says_nothing(controls, line, text):  # noqa: F811
    post(controls, *typed(*text), *down(pygame.K_ESCAPE))
    assert controls.wishes() == ["resume"] and not controls.line.open


def test_backspace_takes_a_letter_and_with_control_a_word(line):
    line.text = "red room"
    line.feed(press(pygame.K_BACKSPACE))
    assert line.text == "red roo"
    line.feed(pygame.Event(pygame.KEYDOWN, key=pygame.K_BACKSPACE, mod=pygame.KMOD_CTRL))
    assert line.text == "red "


def test_known_words_are_suggested_and_completed(line):
    line.text = "A Red ro"
    assert line.suggestions() == ["room", "rooms"] and line.suggestions(1) == ["room"]
    line.feed(press(pygame.K_TAB))
    assert line.text == "A Red room " and line.suggestions() == []


def test_words_that_mean_nothing_are_known_as_such(line):
    """But not the one being typed, while it may still become a word."""
    line.text = "Red xyzzy, ro"
    assert [part for part, known in line.parts() if not known] == ["xyzzy,"]
    line.text = "red rox"
    assert [part for part, known in line.parts() if not known] == ["rox"]
    assert "".join(part for part, _ in line.parts()) == line.text


def test_up_brings_back_what_was_said(line):
    for said in ("grey walls", "red room"):
        line.begin()
        line.text = said
        assert line.feed(press(pygame.K_RETURN)) == said
    line.begin()
    found = []
    for key in (pygame.K_UP, pygame.K_UP, pygame.K_UP, pygame.K_UP, pygame.K_DOWN):
        line.feed(press(key))
        found.append(line.text)
    assert found == ["red room", "grey walls", "a hall", "a hall", "grey walls"]


def test_t_changes_the_prompt_of_a_running_game():
    """The game waits while the line is open, then goes on with the new prompt, its memory kept."""

    def watch(world: FakeWorld):
        yield from until(lambda: len(world.steps) > 3)
        for event in (press(pygame.K_t), *(pygame.Event(pygame.TEXTINPUT, text=x) for x in "red room")):
            pygame.event.post(event)
        pygame.event.post(press(pygame.K_RETURN))
        yield from until(lambda: world.prompt == "red room")
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    assert main("--window", "fps=0", world=world) == 0
    assert world.prompt == "red room"


def test_a_world_without_words_of_its_own_takes_any(line):
    line.know((), "a hall")
    line.text = "Red xyzzy, ro"
    assert all(known for _, known in line.parts()) and line.suggestions() == []

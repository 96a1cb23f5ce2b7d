"""Captions say what is so, in words that are all in the vocabulary."""

import numpy as np
import pytest

from worldmodel.actions import action
from worldmodel.doom.captions import THINGS, VOCABULARY, caption, sentences, words
from worldmodel.doom.engine import STOCK
from worldmodel.doom.maze import HELD_OUT_SEEDS, SOLID, WALLS, maze, room_at

FRAMES = 32


def step(world, x, y, angle=0.0, keys=(), **facts):
    known = {
        "keys": action(keys).tolist(),
        "pose": [x, y, 0.0, angle],
        "health": 100,
        "ammo": 50,
        "weapon": 2,
    }
    known |= {"objects": [], "light": 60} | facts
    return known if isinstance(world, str) else known | {"room": room_at(world, x, y)}


def random_steps(world, rng, count=FRAMES):
    """Made-up facts of every kind a collected episode can hold."""
    steps = []
    for _ in range(count):
        x, y = _open_spot(world, rng)
        some = [
            [str(n), int(rng.integers(150)), 9, 9, 9, int(rng.integers(900))]
            for n in rng.choice(list(THINGS), 6)
        ]
        keys = rng.choice(
            ["forward", "back", "turn_left", "strafe_right", "fire", "use", "run"], 4, replace=False
        )
        health, ammo, weapon = (int(rng.integers(low, high)) for low, high in ((1, 200), (-1, 80), (-1, 8)))
        facts = dict(health=health, ammo=ammo, weapon=weapon, objects=some, light=int(rng.integers(120)))
        steps.append(step(world, x, y, float(rng.integers(360)), keys, **facts))
    return steps


def _open_spot(world, rng):
    if isinstance(world, str):
        return 0.0, 0.0
    cells = np.argwhere(np.array(world["grid"]) >= 0)
    row, column = cells[rng.integers(len(cells))]
    return (column + 0.5) * world["cell"], (row + 0.5) * world["cell"]


def room_centre(world, room):
    row, column = np.argwhere(np.array(world["grid"]) == room)[0]
    return (column + 0.5) * world["cell"], (row + 0.5) * world["cell"]


def parts(world, steps, start=0, stop=16):
    return dict(sentences({"world": world}, steps, start, stop))


@pytest.mark.parametrize("worlds", [range(150), HELD_OUT_SEEDS, STOCK], ids=["training", "held out", "stock"])
def test_the_vocabulary_covers_every_caption(worlds):
    rng, known = np.random.default_rng(0), set(VOCABULARY)
    for name in worlds:
        world = maze(name) if isinstance(name, int) else name
        steps = random_steps(world, rng)
        for start in (0, 16):
            text = " ".join(text for _, text in sentences({"world": world}, steps, start, start + 16))
            assert "{" not in text
            assert set(words(text)) <= known
            assert text == text.lower()
            assert len(words(text)) <= 240


def test_captions_are_short_enough():
    """Few objects at most and no part twice: an encoder of text can count on an upper end."""
    rng, worlds = np.random.default_rng(1), [maze(seed) for seed in range(100)]
    lengths = [len(words(caption({"world": w}, random_steps(w, rng), 0, 16))) for w in worlds]
    assert np.mean(lengths) < 150 and max(lengths) < 180


def test_without_dice_everything_but_the_motion_is_told():
    world = maze(4)
    steps = random_steps(world, np.random.default_rng(0))
    told = sentences({"world": world}, steps, 0, 16)
    assert caption({"world": world}, steps, 0, 16) == " ".join(
        text for part, text in told if part != "motion"
    )


def test_with_dice_half_the_sentences_go_and_motion_mostly():
    world = maze(4)
    steps = random_steps(world, np.random.default_rng(0))
    told, rng = parts(world, steps), np.random.default_rng(1)
    drawn = [caption({"world": world}, steps, 0, 16, rng) for _ in range(1000)]
    share = {part: np.mean([text in one for one in drawn]) for part, text in told.items()}
    assert share["world"] == pytest.approx(0.5, abs=0.06)
    assert share["motion"] == pytest.approx(0.3, abs=0.06)
    assert len(set(drawn)) > 500


def test_a_caption_is_never_empty():
    world = maze(4)
    steps = random_steps(world, np.random.default_rng(0))
    drawn = {
        caption({"world": world}, steps, 0, 16, np.random.default_rng(dice), drop=1.0) for dice in range(20)
    }
    told = parts(world, steps)
    assert drawn == {told["here"], told["motion"]}


def test_the_wall_ahead_is_the_one_that_is_there():
    world = maze(4)
    grid = np.array(world["grid"])
    row, column = np.argwhere((grid > 0) & (np.roll(grid, 1, axis=1) == SOLID))[0]
    steps = [step(world, (column + 0.5) * world["cell"], (row + 0.5) * world["cell"], 180.0)] * 16
    wall = WALLS[world["sectors"][grid[row, column]]["wall"]]
    assert f"straight ahead a {wall} wall very close" in parts(world, steps)["view"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["forward"], "the player walks forward."),
        (["forward", "run", "turn_left"], "the player runs forward and turns left sharply."),
        (["back"], "the player steps backward."),
        ([], "the player stays in place."),
        (["strafe_right", "fire"], "the player stays in place and sidesteps right and fires."),
    ],
)
def test_motion_is_the_keys_of_the_chunk(keys, text):
    world = maze(4)
    x, y = room_centre(world, 1)
    assert parts(world, [step(world, x, y, keys=keys)] * 16)["motion"] == text


def test_equal_things_are_one_phrase():
    world = maze(4)
    x, y = room_centre(world, 1)
    two = [["DoomImp", 10, 9, 9, 9, 200], ["DoomImp", 20, 9, 9, 9, 210], ["Medikit", 75, 9, 9, 9, 50]]
    told = parts(world, [step(world, x, y, objects=two)] * 16)["objects"]
    assert told == (
        "in view: a group of two brown imp on the left, near; a medical kit in the middle, very close."
    )


def test_an_unknown_thing_is_not_told():
    world = maze(4)
    x, y = room_centre(world, 1)
    told = parts(world, [step(world, x, y, objects=[["Gizmo", 10, 9, 9, 9, 200]])] * 16)["objects"]
    assert told == "no creature or item is in view."


@pytest.mark.parametrize(
    ("away", "text"),
    [
        (None, "new"),
        (40, "stays around"),
        (120, "a few seconds ago"),
        (300, "some time ago"),
        (600, "long ago"),
    ],
)
def test_a_room_is_remembered(away, text):
    """17.5 frames a second: a room left for more than 5 s counts as visited before."""
    world = maze(4)
    here, there = room_centre(world, 1), room_centre(world, 2)
    before = [] if away is None else [step(world, *here)] * 5 + [step(world, *there)] * away
    steps = before + [step(world, *here)] * 16
    assert text in parts(world, steps, len(before), len(before) + 16)["memory"]


def test_a_shot_is_an_event():
    world = maze(4)
    x, y = room_centre(world, 1)
    steps = [step(world, x, y, ammo=50 - i // 8) for i in range(16)]
    assert parts(world, steps)["event"] == "a shot was just fired."

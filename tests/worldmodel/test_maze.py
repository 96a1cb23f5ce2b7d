"""What holds in every random world."""

import json
import struct

import numpy as np
import pytest

from worldmodel.doom.floorplan import CLIMB
from worldmodel.doom.maze import (
    HELD_OUT_PAIRS,
    HELD_OUT_SEEDS,
    LOOKALIKES,
    MONSTERS,
    SOLID,
    TRAINING_SEEDS,
    edges,
    maze,
    pwad,
    room_at,
    solid_lines,
)

SEEDS = [*range(200), *HELD_OUT_SEEDS]


def pairs(world):
    return {(sector["wall"], sector["floor"]) for sector in world["sectors"]}


def test_a_seed_is_a_world():
    assert maze(7) == maze(7)
    assert maze(7) != maze(8)


def test_a_world_survives_json():
    """Episodes store worlds as JSON, and replays read them back."""
    assert json.loads(json.dumps(maze(3))) == maze(3)


def test_without_monsters_it_is_the_same_world():
    full, empty = maze(5), maze(5, monsters=False)
    assert full["grid"] == empty["grid"] and full["sectors"] == empty["sectors"]
    assert empty["things"] == [thing for thing in full["things"] if thing[2] not in MONSTERS]
    assert len(empty["things"]) < len(full["things"])


def test_training_never_sees_a_held_out_pair():
    assert not any(pairs(maze(seed)).intersection(HELD_OUT_PAIRS) for seed in range(1500))


def test_held_out_worlds_show_every_held_out_pair():
    shown = set().union(*(pairs(maze(seed)) for seed in HELD_OUT_SEEDS))
    assert shown.issuperset(HELD_OUT_PAIRS)
    assert not set(HELD_OUT_SEEDS).intersection(TRAINING_SEEDS)


@pytest.mark.parametrize("kind", ["walls", "floors"])
def test_materials_of_a_world_can_be_told_apart(kind):
    for seed in range(200):
        names = maze(seed)["palette"][kind]
        assert len(set(names)) == 3
        assert all(len(group.intersection(names)) < 2 for group in LOOKALIKES)


def test_every_place_can_be_walked_to():
    for seed in SEEDS:
        grid = np.array(maze(seed)["grid"])
        open_cells = {tuple(cell) for cell in np.argwhere(grid != SOLID)}
        queue = [next(iter(open_cells))]
        while queue:
            r, c = queue.pop()
            near = open_cells.intersection([(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)])
            open_cells -= near
            queue += near
        assert len(open_cells) <= 1, f"seed {seed} has places cut off"


def test_no_step_is_too_high():
    for seed in SEEDS:
        world = maze(seed)
        floors = [sector["floor_height"] for sector in world["sectors"]]
        steps = [floors[e.front] - floors[e.back] for e in edges(world["grid"]) if e.back != SOLID]
        assert max(map(abs, steps), default=0) <= CLIMB


def test_the_front_of_a_line_is_on_its_right():
    """The map format's rule; a line the other way round is a hole in the world."""
    world = maze(11)
    for edge in edges(world["grid"]):
        (x1, y1), (x2, y2) = edge.start, edge.end
        right = ((x1 + x2) / 2 + (y2 - y1) / 2, (y1 + y2) / 2 - (x2 - x1) / 2)
        assert room_at(world, right[0] * world["cell"], right[1] * world["cell"]) == edge.front


def test_walls_are_where_rock_begins():
    world = maze(11)
    inside = [edge for edge in edges(world["grid"]) if edge.back == SOLID]
    assert solid_lines(world).shape == (len(inside), 4)


def test_the_player_starts_in_the_open():
    for seed in SEEDS:
        world = maze(seed)
        x, y, kind, _ = world["things"][0]
        assert kind == 1 and room_at(world, x, y) != SOLID


def test_a_map_file_holds_one_map():
    data = pwad(maze(1))
    magic, count, directory = struct.unpack_from("<4sii", data)
    lumps = [struct.unpack_from("<ii8s", data, directory + 16 * i) for i in range(count)]
    assert magic == b"PWAD" and len(data) == directory + 16 * count
    assert [name.rstrip(b"\0") for _, _, name in lumps] == [b"MAP01", b"TEXTMAP", b"ENDMAP"]
    start, size, _ = lumps[1]
    assert data[start : start + size].startswith(b'namespace="zdoom";')

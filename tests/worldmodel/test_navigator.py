"""Finding ways, and holding keys like a person."""

from types import SimpleNamespace

import numpy as np
import pytest

from worldmodel.actions import KEYS, action
from worldmodel.doom.engine import Observation
from worldmodel.doom.floorplan import Floorplan, hard_lines
from worldmodel.doom.maze import maze, obstacles, room_at, solid_lines
from worldmodel.doom.navigator import Navigator
from worldmodel.doom.players import Idle, Macro, Uniform, bearing

BOX = [(0, 0, 640, 0), (640, 0, 640, 640), (640, 640, 0, 640), (0, 640, 0, 0)]
WALL = [(320, 0, 320, 500)]  # leaves a gap of 140 at the top


def plan(*lines):
    return Floorplan(np.array([*BOX, *lines], float), (100.0, 100.0))


def seen_at(pose):
    return Observation(np.zeros((112, 160, 3), np.uint8), pose, 100, 50, 2, [])


class Toy:
    """A frictionless body in a world without things: 14 units and 7 degrees a frame, walls that stop."""

    def __init__(self, world):
        self.plan = Floorplan(solid_lines(world), tuple(world["things"][0][:2]), obstacles(world))
        self.world = world
        x, y, _, angle = world["things"][0]
        self.pose = (float(x), float(y), 0.0, float(angle))

    def step(self, keys):
        held = dict(zip(KEYS, map(int, keys), strict=True))
        x, y, z, angle = self.pose
        angle += 7 * (held["turn_left"] - held["turn_right"])
        ahead, side = held["forward"] - held["back"], held["strafe_left"] - held["strafe_right"]
        a = np.radians(angle)
        dx, dy = 14 * (ahead * np.cos(a) - side * np.sin(a)), 14 * (ahead * np.sin(a) + side * np.cos(a))
        x = x + dx if self._free(x + dx, y) else x
        y = y + dy if self._free(x, y + dy) else y
        self.pose = (float(x), float(y), z, angle % 360)
        return seen_at(self.pose)

    def _free(self, x, y):
        return all(room_at(self.world, x + dx, y + dy) >= 0 for dx in (-16, 16) for dy in (-16, 16))


def journey(player, toy, frames):
    keys, poses = action(), []
    for _ in range(frames):
        seen = toy.step(keys)
        poses.append(seen.pose)
        keys = player.act(seen)
        yield keys, seen.pose


def test_a_path_goes_round_a_wall():
    path = plan(*WALL).path((100, 100), (540, 100))
    assert max(y for _, y in path) > 500
    assert np.hypot(path[-1][0] - 540, path[-1][1] - 100) < 16
    steps = np.diff(path, axis=0)
    assert np.abs(steps).max() == 16


def test_a_path_keeps_out_of_walls():
    floor = plan(*WALL)
    for x, y in floor.path((100, 100), (540, 100)):
        assert abs(x - 320) > 16 or y > 516


def test_no_way_is_an_empty_path():
    closed = plan((320, 0, 320, 640))
    assert closed.path((100, 100), (540, 100)) == []
    assert (closed.centres[:, 0] < 320).all()


def test_sight_stops_at_walls():
    floor = plan(*WALL)
    assert floor.sees((100, 100), (260, 400))
    assert not floor.sees((100, 100), (540, 100))


def test_a_blocked_cell_is_walked_around():
    floor = plan()
    straight = floor.path((100, 104), (400, 104))
    for _, point in zip(range(3), straight[4:7], strict=True):
        floor.block(point)
    assert not set(straight[4:7]).intersection(floor.path((100, 104), (400, 104)))


def sector(floor, ceiling, *lines):
    made = [SimpleNamespace(x1=a, y1=b, x2=c, y2=d, is_blocking=blocking) for a, b, c, d, blocking in lines]
    return SimpleNamespace(floor_height=floor, ceiling_height=ceiling, lines=made)


@pytest.mark.parametrize(
    ("other", "hard"),
    [
        (sector(24, 128, (0, 8, 0, 0, False)), 0),  # a step
        (sector(25, 128, (0, 8, 0, 0, False)), 1),  # too high
        (sector(0, 55, (0, 8, 0, 0, False)), 1),  # too low
        (sector(0, 0, (0, 8, 0, 0, False)), 0),  # a closed door
        (sector(0, 128, (0, 8, 0, 0, True)), 1),  # a fence
        (sector(0, 128), 1),  # nothing on the other side
    ],
    ids=["step", "cliff", "crawl", "door", "fence", "wall"],
)
def test_what_stops_a_player(other, hard):
    assert len(hard_lines([sector(0, 128, (0, 0, 0, 8, False)), other])) == hard


def test_bearing_is_positive_to_the_left():
    assert bearing((0, 0, 0, 0), (0, 5)) == pytest.approx(90)
    assert bearing((0, 0, 0, 350), (5, 0)) == pytest.approx(10)


def test_the_navigator_sees_most_rooms_and_comes_back():
    world = maze(21, monsters=False)
    toy = Toy(world)
    rooms = [
        room_at(world, *pose[:2])
        for _, pose in journey(Navigator(toy.plan, np.random.default_rng(0)), toy, 2000)
    ]
    entries = [b for a, b in zip(rooms, rooms[1:], strict=False) if a != b and b > 0]
    assert len(set(entries)) >= 0.7 * (len(world["sectors"]) - 1)
    assert len(entries) > len(set(entries))


def test_the_navigator_fires_at_what_it_turned_to():
    toy = Toy(maze(21))
    player = Navigator(toy.plan, np.random.default_rng(0))
    monster = ["DoomImp", 120, 40, 20, 30, 200]
    player._fight(Observation(np.zeros((112, 160, 3), np.uint8), toy.pose, 100, 50, 2, [monster]))
    held = [tuple(keys) for keys in player.macro[::-1]]
    turn, fire = tuple(action(["turn_right"])), tuple(action(["fire"]))
    assert held == sorted(held, key=[turn, fire].index) and set(held) == {turn, fire}


def test_uniform_holds_each_key_three_tenths_of_the_time():
    player = Uniform(np.random.default_rng(0))
    shares = np.mean([player.act(seen_at((0, 0, 0, 0))) for _ in range(4000)], 0)
    assert np.abs(shares - 0.3).max() < 0.03


def test_idle_mostly_holds_nothing():
    toy = Toy(maze(3))
    keys = np.array([keys for keys, _ in journey(Idle(np.random.default_rng(0)), toy, 3000)])
    still = ~keys.any(1)
    assert 0.7 < still.mean() < 0.97
    runs = np.diff(np.flatnonzero(np.diff(np.pad(still.astype(int), 1))))[::2]
    assert runs.max() >= 40


def test_macro_holds_keys_and_uses_every_kind():
    toy = Toy(maze(3))
    keys = np.array([keys for keys, _ in journey(Macro(np.random.default_rng(0)), toy, 4000)])
    assert keys.any(0)[[0, 1, 2, 3, 4, 5, 6, 8]].all()
    assert (keys[1:] != keys[:-1]).any(1).mean() < 0.3


@pytest.mark.parametrize("make", [Uniform, Macro, Idle])
def test_a_player_is_its_dice(make):
    first, second = (
        [tuple(keys) for keys, _ in journey(make(np.random.default_rng(4)), Toy(maze(3)), 200)]
        for _ in range(2)
    )
    assert first == second

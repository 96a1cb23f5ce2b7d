"""What a player looks at, by the floor plan."""

import numpy as np
import pytest
from rooms import CELL, SIDE, WORLD

from worldmodel.doom.rays import sight


def at(x: float, y: float, angle: float) -> np.ndarray:
    return np.array([[x, y, 0.0, angle]])


def walls(pose: np.ndarray, columns: int) -> np.ndarray:
    return sight(WORLD, pose, columns).wall


@pytest.mark.parametrize(
    "angle, row, column", [(0, 2, SIDE - 1), (90, SIDE - 1, 3), (180, 2, 0), (270, 0, 3), (-90, 0, 3)]
)
def test_straight_ahead_is_the_wall_that_the_player_faces(angle, row, column):
    (wall,) = walls(at(3.5 * CELL, 2.5 * CELL, angle), 1)
    assert wall // 4 == row * SIDE + column


@pytest.mark.parametrize("angle", [0, 10, 77, 145, 200, 301])
def test_a_wall_is_the_same_from_wherever_it_is_seen(angle):
    ahead = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
    steps = np.arange(0, 80, 7)[:, None] * ahead + [300, 280]
    pose = np.column_stack([steps, np.zeros(len(steps)), np.full(len(steps), angle)])
    assert len(np.unique(walls(pose, 1))) == 1


@pytest.mark.parametrize("columns", [2, 3, 10])
def test_columns_go_from_left_to_right_over_ninety_degrees(columns):
    pixel = (2 * np.arange(columns) + 1) / columns - 1
    for angle in (3, 50, 200):
        each = [walls(at(300, 280, angle - np.degrees(np.arctan(x))), 1)[0, 0] for x in pixel]
        assert walls(at(300, 280, angle), columns)[0].tolist() == each


def test_the_distance_is_that_of_the_picture():
    """A wall that is faced squarely is equally far in all columns, as it is equally high in the picture."""
    (far,) = sight(WORLD, at(3.5 * CELL, 2.5 * CELL, 0), 10).distance
    assert np.allclose(far, (SIDE - 1 - 3.5) * CELL)


def test_the_room_is_the_one_before_the_wall():
    """Of two rooms beside each other, the far one where the player looks through to it."""
    grid = np.array(WORLD["grid"])
    grid[:, 3:][grid[:, 3:] == 0] = 1
    two = {**WORLD, "grid": grid.tolist()}
    assert (sight(two, at(1.5 * CELL, 2.5 * CELL, 0), 4).room == 1).all()
    assert (sight(two, at(1.5 * CELL, 2.5 * CELL, 180), 4).room == 0).all()

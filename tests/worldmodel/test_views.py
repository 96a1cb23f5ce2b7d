"""When a view and when a wall was last in sight."""

import numpy as np
import pytest
from rooms import AWAY, CELL, HOME, SIDE, WORLD, path, play

from worldmodel.evaluation.views import last_sight, misfit, remembered, returns, track, walls
from worldmodel.training.latents import RETURN_AFTER

LEAD, LONG = 8, 60


def at(x: float, y: float, angle: float) -> np.ndarray:
    return np.array([[x, y, 0.0, angle]])


@pytest.mark.parametrize(
    "angle, row, column", [(0, 2, SIDE - 1), (90, SIDE - 1, 3), (180, 2, 0), (270, 0, 3), (-90, 0, 3)]
)
def test_straight_ahead_is_the_wall_that_the_player_faces(angle, row, column):
    (wall,) = walls(WORLD, at(3.5 * CELL, 2.5 * CELL, angle), 1)
    assert wall // 4 == row * SIDE + column


@pytest.mark.parametrize("angle", [0, 10, 77, 145, 200, 301])
def test_a_wall_is_the_same_from_wherever_it_is_seen(angle):
    ahead = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
    steps = np.arange(0, 80, 7)[:, None] * ahead + [300, 280]
    pose = np.column_stack([steps, np.zeros(len(steps)), np.full(len(steps), angle)])
    assert len(np.unique(walls(WORLD, pose, 1))) == 1


@pytest.mark.parametrize("columns", [2, 3, 10])
def test_columns_go_from_left_to_right_over_ninety_degrees(columns):
    pixel = (2 * np.arange(columns) + 1) / columns - 1
    for angle in (3, 50, 200):
        each = [walls(WORLD, at(300, 280, angle - np.degrees(np.arctan(x))), 1)[0, 0] for x in pixel]
        assert walls(WORLD, at(300, 280, angle), columns)[0].tolist() == each


def test_last_sight_is_in_any_column_of_an_earlier_frame():
    wall = np.random.default_rng(0).integers(30, size=(50, 4))
    sight = last_sight(wall)
    for i, row in enumerate(wall):
        for j, number in enumerate(row):
            seen = np.nonzero((wall[:i] == number).any(1))[0]
            assert sight[i, j] == (seen[-1] if len(seen) else -1)


def test_misfit_is_one_where_a_view_ends():
    pose = np.concatenate([at(100, 100, 350), at(148, 100, 350), at(100, 100, 20), at(124, 88, 5)])
    assert misfit(pose, 0).tolist() == pytest.approx([0, 1, 1, 0.5])


@pytest.mark.parametrize("gone", [RETURN_AFTER - 21, RETURN_AFTER, 400])
def test_a_return_is_the_arrival_at_a_view_of_long_ago(gone):
    view = returns(path((HOME, 20), (AWAY, gone), (HOME, 30)), lead=LEAD, away=LONG)
    back = 20 + gone
    arrival = np.arange(back, back + LEAD)
    arrival = arrival[arrival >= RETURN_AFTER]
    assert np.nonzero(view >= 0)[0].tolist() == arrival.tolist()
    assert (view[arrival] == np.minimum(19, arrival - RETURN_AFTER)).all()


@pytest.mark.parametrize("since, counts", [(LONG + 1, True), (LONG - 1, False), (5, False)])
def test_a_glimpse_just_before_spoils_a_return(since, counts):
    pose = path((HOME, 20), (AWAY, 300), (HOME, 1), (AWAY, since), (HOME, 1))
    assert (returns(pose, lead=1, away=LONG)[-1] >= 0) == counts


@pytest.mark.parametrize("gone, share", [(LONG + LEAD, 1.0), (LONG - LEAD, 0.0)])
def test_remembered_is_what_only_the_far_past_has_in_sight(gone, share):
    pose = path((HOME, 20), (AWAY, gone), (HOME, 1))
    wall = walls(WORLD, pose, 3)
    i = len(pose) - 1
    assert remembered(wall, i, lead=LEAD, away=LONG) == share
    assert remembered(wall, i, start=20, lead=LEAD, away=LONG) == 0  # the past begins after home
    assert remembered(walls(WORLD, path((AWAY, 200), (HOME, 1)), 3), 200, lead=LEAD, away=LONG) == 0


def test_an_episode_without_a_plan_is_refused(tmp_path):
    episode = play(tmp_path, path((HOME, 3)))
    pose, wall = track(episode, 3)
    assert pose.shape == (3, 4) and wall.shape == (3, 3)
    episode.meta.pop("world")
    with pytest.raises(ValueError, match="no floor plan.*run.py collect held_out=true"):
        track(episode, 3)

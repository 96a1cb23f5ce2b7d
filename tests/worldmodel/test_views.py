"""When a view and when a wall was last in sight."""

import numpy as np
import pytest
from rooms import AWAY, HOME, WORLD, path, play

from worldmodel.doom.rays import sight
from worldmodel.evaluation.views import last_sight, misfit, remembered, returns, track
from worldmodel.training.latents import RETURN_AFTER

LEAD, LONG = 8, 60


def at(x: float, y: float, angle: float) -> np.ndarray:
    return np.array([[x, y, 0.0, angle]])


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
    wall = sight(WORLD, pose, 3).wall
    i = len(pose) - 1
    assert remembered(wall, i, lead=LEAD, away=LONG) == share
    assert remembered(wall, i, start=20, lead=LEAD, away=LONG) == 0  # the past begins after home
    assert remembered(sight(WORLD, path((AWAY, 200), (HOME, 1)), 3).wall, 200, lead=LEAD, away=LONG) == 0


def test_an_episode_without_a_plan_is_refused(tmp_path):
    episode = play(tmp_path, path((HOME, 3)))
    pose, wall = track(episode, 3)
    assert pose.shape == (3, 4) and wall.shape == (3, 3)
    episode.meta.pop("world")
    with pytest.raises(ValueError, match="no floor plan.*run.py collect held_out=true"):
        track(episode, 3)

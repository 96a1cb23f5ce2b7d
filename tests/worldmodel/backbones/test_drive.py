"""Keys to signals: what a camera among the points of a picture sees."""

import numpy as np
import pytest

from worldmodel.actions import action
from worldmodel.backbones.cloud import Camera, Cloud, Optics, without_holes
from worldmodel.backbones.drive import Drive, Pace

HEIGHT, WIDTH = 48, 80
OPTICS = Optics(HEIGHT, WIDTH)
WALL = np.full((HEIGHT, WIDTH), 0.2)  # everything as near as that
BOX = WALL.copy()
BOX[12:36, 30:50] = 0.6


def drive(nearness: np.ndarray | None = None) -> Drive:
    return Drive(Cloud(OPTICS, nearness), Pace(), every=8, radius=1)


def going(driven: Drive, pictures: int, *keys: str) -> tuple[np.ndarray, np.ndarray]:
    """What is seen after so many pictures with these keys held."""
    for _ in range(pictures):
        driven.go(action(keys))
        seen = driven.look()
    return seen


SCENES = pytest.mark.parametrize("nearness", [None, WALL, BOX], ids=["prior", "wall", "box"])


@SCENES
def test_without_a_key_nothing_changes(nearness):
    """Nor with the keys that move nobody."""
    driven = drive(nearness)
    first = driven.look()
    for keys in ((), ("fire", "use", "run"), ("forward", "back"), ("turn_left", "turn_right")):
        assert all(np.array_equal(*pair) for pair in zip(first, going(driven, 3, *keys), strict=True))


@SCENES
def test_forward_brings_everything_nearer_and_back_takes_it_farther(nearness):
    """But for flat ground, which looks the same from everywhere, give or take the rounding to a row."""
    driven = drive(nearness)
    first = driven.look()[0].astype(int)
    nearer = going(driven, 8, "forward")[0].astype(int)
    assert (nearer >= first - 4).all()
    if nearness is not None:
        assert (nearer > first).all()
        farther = drive(nearness)
        farther.look()
        inside = np.s_[8:-8, 12:-12]  # beyond the edges of the picture is the prior
        assert (going(farther, 8, "back")[0].astype(int)[inside] < first[inside]).all()


@SCENES
@pytest.mark.parametrize("keys", [("turn_left", "turn_right"), ("strafe_left", "strafe_right")])
def test_to_one_side_and_as_far_to_the_other_is_where_it_was(nearness, keys):
    driven = drive(nearness)
    first = driven.look()[0]
    away = going(driven, 10, keys[0])[0]
    assert np.array_equal(going(driven, 10, keys[1])[0], first)
    assert nearness is None or not np.array_equal(away, first)


def test_a_turn_to_the_left_moves_what_is_seen_to_the_right():
    middle = [
        np.argwhere(going(drive(BOX), 4, key)[0][..., 0] > 120)[:, 1].mean() for key in ("use", "turn_left")
    ]
    assert middle[1] > middle[0] + 5


def test_running_is_twice_as_fast():
    slow, fast = drive(), drive()
    going(slow, 6, "forward", "turn_right")
    going(fast, 3, "forward", "turn_right", "run")
    assert fast.camera.turned == pytest.approx(slow.camera.turned)
    assert Pace().move(Camera(), action(["forward"])).z == pytest.approx(1.4 / 16)


@SCENES
@pytest.mark.parametrize("keys", [("forward",), ("turn_right", "forward"), ("strafe_left",), ("back", "run")])
def test_a_track_keeps_its_colour_as_long_as_it_is_seen(nearness, keys):
    """And its place in the world. What is drawn of the nearest is that colour."""
    driven, known = drive(nearness), {}
    driven.look()
    for _ in range(20):
        picture = going(driven, 1, *keys)[1]
        now = dict(zip(map(tuple, driven.tracks), map(tuple, driven.colours), strict=True))
        assert all(known[track] == colour for track, colour in now.items() if track in known)
        known |= now
        index, z = OPTICS.project(driven.camera.sees(driven.tracks))
        assert (index >= 0).all()
        assert (picture.reshape(-1, 3)[index[z.argmin()]] == driven.colours[z.argmin()]).all()
    assert len(known) > len(now)  # some have left, others have begun


def test_tracks_stand_everywhere_again_after_a_turn():
    """In each cell of the grid one at least, and those behind the camera are gone."""
    driven = drive(BOX)
    going(driven, 64, "turn_left", "run")  # all the way round
    rows, columns = np.divmod(OPTICS.project(driven.camera.sees(driven.tracks))[0], WIDTH)
    assert len(set(zip(rows // 8, columns // 8, strict=True))) == (HEIGHT // 8) * (WIDTH // 8)


def test_what_is_hidden_is_not_tracked():
    """The box comes before points of the wall, which are let go of."""
    driven = drive(BOX)
    driven.look()
    walls = {tuple(track) for track in driven.tracks if track[2] > 5}
    going(driven, 6, "strafe_right", "run")
    gone = walls - set(map(tuple, driven.tracks))
    index, _ = OPTICS.project(driven.camera.sees(np.array(list(gone))))
    assert (index >= 0).any()


def test_the_prior_is_ground_below_a_far_wall():
    depth = Cloud(OPTICS).depth(Camera())
    assert depth[0, 0] == OPTICS.far and (np.diff(depth[HEIGHT // 2 + 5 :, 0]) < 0).all()
    ground = OPTICS.rays[-1, :, 1] * depth[-1]
    assert ground == pytest.approx(OPTICS.eye)


def test_nearness_and_depth_are_inverse():
    nearness = np.linspace(0, 1, 9)
    assert OPTICS.nearness(OPTICS.depth(nearness)) == pytest.approx(nearness)


def test_a_camera_places_what_it_sees():
    points, camera = np.random.default_rng(0).normal(size=(9, 3)), Camera(1.0, -2.0, 0.7)
    assert camera.places(camera.sees(points)) == pytest.approx(points)


def test_small_holes_are_filled_by_what_is_farthest_around_them():
    depth = np.array([[1.0, 2, 0, 4], [1, 0, 3, 4], [0, 0, 0, 0], [0, 0, 0, 5]])
    filled = without_holes(depth, 1)
    assert filled[0, 2] == 4 and filled[1, 1] == 2 and filled[2, 0] == 0 and filled[2, 2] == 5
    assert without_holes(np.zeros((3, 5)), 2).shape == (3, 5)


def test_what_was_seen_is_seen_again_after_going_back():
    driven = drive(BOX)
    driven.look()
    going(driven, 3, "forward")
    state = driven.state_dict()
    first = going(driven, 4, "turn_left", "forward")
    driven.load_state_dict(state)
    assert all(
        np.array_equal(*pair) for pair in zip(first, going(driven, 4, "turn_left", "forward"), strict=True)
    )

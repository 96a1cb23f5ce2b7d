"""Both control signals move the picture as the keys move the player."""

import math

import pytest
import torch
from torch.testing import assert_close

from worldmodel.actions import KEYS, action
from worldmodel.control import FOCAL, STRAFE, TURN, WALK, EgoMotion, carried, motion

GRID, CELL = (7, 10), 16
HORIZON = GRID[0] * CELL / 2
EGO = EgoMotion(GRID)
FREE = [(x, y) for x in (-70.0, -25.0, 10.0, 60.0) for y in (4.0, 30.0, 50.0, 70.0, 108.0)]


def keys(*held: str) -> torch.Tensor:
    return torch.from_numpy(action(held)).double()


def flow(*held: str, points=FREE) -> torch.Tensor:
    return carried(torch.tensor(points, dtype=torch.float64), motion(keys(*held)), HORIZON)


def turned(x: float, y: float, degrees: float) -> tuple[float, float]:
    """Where a point of a picture taken by a pinhole goes when the camera turns left: by trigonometry.

    Its ray is at an angle from straight ahead, which grows by the turn; its height over the horizon
    goes with the distance to the picture plane along that ray.
    """
    before = math.atan(x / FOCAL[0])
    after = before + math.radians(degrees)
    return FOCAL[0] * math.tan(after), (y - HORIZON) * math.cos(before) / math.cos(after) + HORIZON


@pytest.mark.parametrize(
    "held, degrees",
    [(["turn_left"], TURN), (["turn_right"], -TURN), (["turn_left", "run"], 2 * TURN)],
)
def test_turning_is_exact_whatever_the_depth(held, degrees):
    expected = [[a - x, b - y] for x, y in FREE for a, b in [turned(x, y, degrees)]]
    assert_close(flow(*held), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5)


def test_turning_left_moves_every_point_right():
    assert (flow("turn_left")[:, 0] > 0).all()
    assert (flow("turn_right")[:, 0] < 0).all()


@pytest.mark.parametrize("held", [["forward"], ["forward", "run"]])
def test_walking_forward_expands_the_picture_about_its_centre(held):
    moved, points = flow(*held), torch.tensor(FREE, dtype=torch.float64)
    out = points - torch.tensor([0.0, HORIZON])
    growth = moved / out
    assert (growth > 0).all()
    assert_close(growth[:, 0], growth[:, 1])


def test_walking_back_shrinks_it():
    points = torch.tensor(FREE, dtype=torch.float64) - torch.tensor([0.0, HORIZON])
    assert (flow("back") / points < 0).all()


def test_the_floor_nears_by_one_step():
    """A point of the floor at depth z is at depth z - WALK afterwards, so it falls by z / (z - WALK)."""
    y = 100.0
    depth = 41.0 * FOCAL[1] / (y - HORIZON)
    expected = (y - HORIZON) * (depth / (depth - WALK) - 1)
    assert flow("forward", points=[(0.0, y)])[0, 1].item() == pytest.approx(expected, abs=1e-5)


def test_a_step_aside_moves_the_near_more_than_the_far():
    low, middle, high = flow("strafe_right", points=[(0.0, 105.0), (0.0, 75.0), (0.0, 5.0)])[:, 0]
    assert low < high < middle < 0  # the ceiling is farther than the floor
    depth = 41.0 * FOCAL[1] / (105.0 - HORIZON)
    assert low.item() == pytest.approx(-FOCAL[0] * STRAFE / depth, abs=1e-5)


@pytest.mark.parametrize(
    "held",
    [[], ["fire"], ["use", "run"], ["forward", "back"], ["turn_left", "turn_right"],
     ["strafe_left", "strafe_right", "run"]],
)  # fmt: skip
def test_keys_that_move_nobody_move_nothing(held):
    assert flow(*held).abs().max() < 1e-9
    assert EGO.dense(keys(*held)).abs().max() < 1e-5


def test_opposite_keys_are_mirror_images():
    mirrored = [(-x, y) for x, y in FREE]
    for left, right in [("turn_left", "turn_right"), ("strafe_left", "strafe_right")]:
        assert_close(flow(left), flow(right, points=mirrored) * torch.tensor([-1.0, 1.0]))


def test_no_motion_is_larger_than_half_the_picture():
    every = torch.tensor([[int(bit) for bit in f"{i:09b}"] for i in range(2 ** len(KEYS))]).float()
    for signal in (EGO.dense(every), EGO.sparse(every)):
        assert signal.isfinite().all()
    assert EGO.dense(every).abs().max() <= 80 / CELL


def test_dense_tells_each_token_the_flow_of_its_four_quarters():
    """Rows of tokens from the top, quarters in reading order, (right, down), in tokens."""
    signal = EGO.dense(keys("turn_left"))
    assert signal.shape == (70, 8)
    for token in (0, 9, 34, 60):
        row, column = divmod(token, GRID[1])
        for quarter in range(4):
            y = (row + 0.25 + 0.5 * (quarter // 2)) * CELL
            x = (column + 0.25 + 0.5 * (quarter % 2)) * CELL - GRID[1] * CELL / 2
            a, b = turned(x, y, TURN)
            found = signal[token, 2 * quarter : 2 * quarter + 2] * CELL
            assert_close(found, torch.tensor([a - x, b - y]), rtol=0, atol=1e-3)


def test_frames_are_independent():
    several = torch.stack([keys("forward"), keys("turn_left"), keys()])
    for signal in (EGO.dense, EGO.sparse):
        assert_close(signal(several[None])[0], torch.stack([signal(frame) for frame in several]))


def test_sparse_carries_all_points_at_rest():
    splat = EGO.sparse(keys())
    assert splat.shape == (70, 3 + len(KEYS))
    assert splat[:, 0].sum().item() == pytest.approx(len(EGO.points))
    assert splat[:, 1:3].abs().max() < 1e-5


@pytest.mark.parametrize("held", [["turn_left"], ["turn_right"], ["back"], ["strafe_left"]])
def test_a_point_that_stays_in_the_picture_keeps_its_mass_and_its_place(held):
    """Splatting spreads a point over four tokens whose weighted mean is where it landed."""
    ego = EgoMotion(GRID)
    middle = torch.stack(torch.meshgrid(torch.arange(10), torch.arange(7), indexing="ij"), -1).flatten(0, 1)
    centres = middle.view(10, 7, 2).transpose(0, 1).reshape(-1, 2) + 0.5
    for x, y in [(-30.0, 40.0), (3.0, 80.0), (22.0, 66.0), (-11.0, 20.0)]:
        ego.points = torch.tensor([[x, y]])
        splat = ego.sparse(keys(*held))
        went = carried(ego.points, motion(keys(*held).float()), HORIZON)[0] / CELL
        landed = torch.tensor([x / CELL + GRID[1] / 2, y / CELL]) + went
        assert splat[:, 0].sum().item() == pytest.approx(1, abs=1e-5)
        assert_close((splat[:, :1] * centres).sum(0), landed, rtol=0, atol=1e-4)
        assert_close(splat[:, 1:3].sum(0), went, rtol=0, atol=1e-4)


def test_a_point_that_leaves_the_picture_takes_its_mass_along():
    assert EGO.sparse(keys("turn_left"))[:, 0].sum() < len(EGO.points) - 0.5


def test_sparse_tells_every_token_the_keys():
    signal = EGO.sparse(keys("forward", "fire"))
    assert_close(signal[:, 3:], keys("forward", "fire").float().expand(70, -1))

"""Where the player stands, by dead reckoning: what tells a place seen again from one that looks like it.

Turning is exact, since the game turns by the keys alone. Walking is not, since walls stop it: a small
network sees in the pictures how far it went (visual odometry), and guesses how far the next frame goes.
No one is asked for a map, so it works in a dream as well as in the game.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .autoencoder import Residual, conv, to_cells
from .control import TURN

SLOW = 2.5  # frames for which the game turns at half pace after a turn key goes down: 5 tics of 2 a frame
PACE = 8.0  # map units: the size of a step
FINEST, COARSEST = 256.0, 2304.0  # map units: a place turns a key once in the one, and returns in the other
AHEAD = 8.0  # times that the finest pair of channels turns when the player turns once
AXES = 3  # of a place: x and y in map units, heading in radians


class Odometer(nn.Module):
    """How far the player went between two frames, and will go in the next: forward and right, in map units.

    channels, grid  numbers per token, rows and columns of tokens
    hidden          channels of the convolutions
    """

    def __init__(
        self, channels: int, grid: tuple[int, int], keys: int, *, hidden: int = 48, patch: int = 2
    ) -> None:
        super().__init__()
        self.grid, self.patch = grid, patch
        rows, columns = (-(-side * patch // 4) for side in grid)
        self.see = nn.Sequential(
            conv(2 * channels // patch**2, hidden), nn.SiLU(),
            conv(hidden, hidden, stride=2), Residual(hidden),
            conv(hidden, hidden, stride=2), Residual(hidden),
        )  # fmt: skip
        self.tell = nn.Sequential(
            nn.Linear(hidden * rows * columns + 2 * keys, 256), nn.SiLU(), nn.Linear(256, 4)
        )

    def forward(self, frames: Tensor, keys: Tensor) -> Tensor:
        """Clean frames [b, 2, n, c], keys [b, 2, k] of the second and of the one to come -> steps [b, 2, 2].

        Both steps are told in the heading of the second frame.
        """
        dtype = next(self.parameters()).dtype
        cells = to_cells(frames.flatten(0, 1).to(dtype), self.grid, self.patch).unflatten(0, (-1, 2))
        seen = self.see(cells.flatten(1, 2)).flatten(1)
        return PACE * self.tell(torch.cat([seen, keys.flatten(1).to(dtype)], 1)).float().unflatten(1, (2, 2))


def odometry_loss(odometer: Odometer, frames: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    """How wrong the steps between consecutive frames [b, f, n, c] are, in steps; places [b, f, 3]."""
    pairs = torch.stack([frames[:, :-2], frames[:, 1:-1]], 2).flatten(0, 1)
    held = torch.stack([keys[:, 1:-1], keys[:, 2:]], 2).flatten(0, 1)
    went = places[:, 1:, :2] - places[:, :-1, :2]
    both = torch.stack([went[:, :-1], went[:, 1:]], 2)
    ahead, right = compass(places[:, 1:-1, None])
    true = torch.stack([(both * ahead).sum(-1), (both * right).sum(-1)], -1).flatten(0, 1)
    return F.smooth_l1_loss(odometer(pairs, held) / PACE, true / PACE)


def compass(place: Tensor) -> tuple[Tensor, Tensor]:
    """The directions ahead and to the right [..., 2] of someone at a place [..., 3]."""
    cos, sin = place[..., 2].cos(), place[..., 2].sin()
    return torch.stack([cos, sin], -1), torch.stack([sin, -cos], -1)


def stepped(place: Tensor, step: Tensor, heading: Tensor) -> Tensor:
    """Where a step [b, 2] in some heading [b] leads from a place [b, 4]; that is the heading there."""
    ahead, right = compass(heading[:, None].expand(-1, AXES))
    at = place[:, :2] + step[:, :1] * ahead + step[:, 1:] * right
    return torch.cat([at.remainder(COARSEST), heading[:, None], place[:, 3:]], 1)


def turned(place: Tensor, keys: Tensor) -> Tensor:
    """The place [b, 4] once the keys [b, 9] were held for a frame; its last number is frames of turning."""
    _, _, left, right, *_, run = keys.float().unbind(-1)
    held = (place[:, 3] + 1) * ((left + right) > 0)
    slow = (SLOW + 1 - held).clamp(0, 1)  # the share of the frame at half a walker's pace
    pace = slow * 0.5 + (1 - slow) * (1 + run)
    heading = place[:, 2] + (left - right) * pace * (TURN * torch.pi / 180)
    return torch.cat([place[:, :2], heading.remainder(2 * torch.pi)[:, None], held[:, None]], 1)


def reckoned(odometer: Odometer, frames: Tensor, keys: Tensor) -> Tensor:
    """Places [b, f, 4] of consecutive frames [b, f, n, c] and the keys [b, f, 9] that led to each of them."""
    b, f = frames.shape[:2]
    place = torch.zeros(b, AXES + 1, device=frames.device)
    pairs = torch.stack([frames[:, :-1], frames[:, 1:]], 2).flatten(0, 1)
    steps = odometer(pairs, keys[:, 1:, None].expand(-1, -1, 2, -1).flatten(0, 1))[:, 0]
    places = [place]
    for held, step in zip(keys[:, 1:].unbind(1), steps.unflatten(0, (b, f - 1)).unbind(1), strict=True):
        place = turned(place, held)
        place = stepped(place, step, place[:, 2])
        places.append(place)
    return torch.stack(places, 1)


def onward(odometer: Odometer, frames: Tensor, keys: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The place of the last of two frames [b, 2, n, c], now that it is seen, and that of the frame to come.

    keys [b, 2, 9] of the last frame and of the one to come; places [b, 2, 4] of the two as known so far.
    Both [b, 4].
    """
    went, goes = odometer(frames, keys).unbind(1)
    before, last = places.unbind(1)
    seen = torch.cat([stepped(before, went, last[:, 2])[:, :2], last[:, 2:]], 1)
    return seen, turned(stepped(seen, goes, last[:, 2]), keys[:, 1])


def phases(places: Tensor) -> Tensor:
    """Places [..., 3] as positions of a rope: heading, x, y, each times the rate of its finest channels."""
    x, y, heading = places[..., :AXES].unbind(-1)
    turn = 2 * torch.pi / FINEST
    return torch.stack([AHEAD * heading, turn * x, turn * y], -1)

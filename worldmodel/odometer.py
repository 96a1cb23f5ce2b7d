"""Where the player stands, by dead reckoning: what tells a place seen again from one that looks like it.

Turning is exact, since the game turns by the keys alone. Walking would be, too, by the game's thrust and
friction, but for what stands in the way: a small network sees in the pictures where it goes otherwise (visual
odometry). No one is asked for a map, so it works in a dream as well as in the game.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .actions import SLOW, TURN
from .autoencoder import Residual, conv, to_cells

FRICTION = 0.844  # of a step is left in the next frame
THRUST = (2.66, 2.24)  # map units a frame that walking and strafing add; running doubles them
LOST = 0.2  # of the steps before in training are far from true
UNIT = 8.0  # map units: the size of a step as the network is told of it
FINEST, COARSEST = 256.0, 2304.0  # map units: a place turns a key once in the one, and returns in the other
AHEAD = 8.0  # times that the finest pair of channels turns when the player turns once
AXES = 3  # of a place as attention is told of it: x, y, heading
KNOWN = 6  # numbers that are known of a place: x, y, heading, frames of turning, and the last step in x and y


class Odometer(nn.Module):
    """How far the player went between two frames, and will go in the next: ahead and right, in map units.

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
            nn.Linear(hidden * rows * columns + 2 * keys + 4, 256), nn.SiLU(), nn.Linear(256, 8)
        )
        for parameter in self.tell[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, frames: Tensor, keys: Tensor, before: Tensor, turn: Tensor) -> Tensor:
        """Clean frames [b, 2, n, c] -> steps [b, 2, 2] between them and to the one to come.

        keys [b, 2, 9] of the second frame and of the one to come; `before`, the step [b, 2] that led to the
        first, and both answers are told in the heading of the second; `turn` [b] is from there to the third.
        """
        dtype = next(self.parameters()).dtype
        cells = to_cells(frames.flatten(0, 1).to(dtype), self.grid, self.patch).unflatten(0, (-1, 2))
        seen = self.see(cells.flatten(1, 2)).flatten(1)
        push = thrust(keys)
        first = FRICTION * before + push[:, 0]  # if nothing is in the way
        told = torch.cat([before, first], 1) / UNIT
        answer = self.tell(torch.cat([seen, keys.flatten(1).to(dtype), told.to(dtype)], 1)).float()
        # How much is left of a step in the open, 1 untaught, and what comes to it from elsewhere.
        free, other = 2 * answer[:, :4].sigmoid(), answer[:, 4:]
        first = free[:, :2] * first + UNIT * other[:, :2]
        second = free[:, 2:] * (FRICTION * first + turned_by(push[:, 1], turn)) + UNIT * other[:, 2:]
        return torch.stack([first, second], 1)


def thrust(keys: Tensor) -> Tensor:
    """What keys [..., 9] add to a step, ahead and right [..., 2]."""
    forward, back, _, _, left, right, *_, run = keys.float().unbind(-1)
    pace = 1 + run
    return torch.stack([(forward - back) * pace * THRUST[0], (right - left) * pace * THRUST[1]], -1)


def turned_by(step: Tensor, turn: Tensor) -> Tensor:
    """A step [..., 2], ahead and right, of someone who has turned left by so much [...], as told before."""
    ahead, right = step.unbind(-1)
    cos, sin = turn.cos(), turn.sin()
    return torch.stack([ahead * cos + right * sin, right * cos - ahead * sin], -1)


def compass(heading: Tensor) -> tuple[Tensor, Tensor]:
    """The directions in x and y, ahead and to the right [..., 2], of a heading [...]."""
    cos, sin = heading.cos(), heading.sin()
    return torch.stack([cos, sin], -1), torch.stack([sin, -cos], -1)


def seen_from(heading: Tensor, step: Tensor) -> Tensor:
    """A step in x and y [..., 2], ahead and right of a heading [...]."""
    return torch.stack([(step * way).sum(-1) for way in compass(heading)], -1)


def odometry_loss(
    odometer: Odometer, frames: Tensor, keys: Tensor, places: Tensor, doubt: float = 0.5
) -> Tensor:
    """How wrong the steps between consecutive frames [b, f, n, c] are, about in map units; places [b, f, 3].

    `doubt` is how far off, in map units, the odometer is about the step before; now and then it is lost,
    since in play it has to go by what it said itself.
    """
    went, heading = places[..., :2].diff(dim=1), places[..., 2]
    here = heading[:, 2:-1].flatten()  # of the second frame of each pair
    before, first, second = (
        seen_from(here, went[:, i : went.shape[1] - 2 + i].flatten(0, 1)) for i in range(3)
    )
    pairs = torch.stack([frames[:, 1:-2], frames[:, 2:-1]], 2).flatten(0, 1)
    held = torch.stack([keys[:, 2:-1], keys[:, 3:]], 2).flatten(0, 1)
    turn = heading.diff(dim=1)[:, 2:].flatten()
    lost = torch.rand(len(before), 1, device=before.device) < LOST * (doubt > 0)
    before = before + torch.where(lost, 2 * UNIT, doubt) * torch.randn_like(before)
    told = odometer(pairs, held, before, turn)
    return F.smooth_l1_loss(told, torch.stack([first, second], 1), beta=0.1)


class Moment(NamedTuple):
    """Two frames in a row: what was seen [b, 2, n, c], the keys that led there [b, 2, 9], from where."""

    frames: Tensor
    keys: Tensor
    places: Tensor  # [b, 2, KNOWN]


def onward(odometer: Odometer, moment: Moment, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The place of the last frame, now that it is seen, and where the keys [b, 9] lead, both [b, KNOWN]."""
    first, last = moment.places.unbind(1)
    coming = turned(last, keys)
    held = torch.stack([moment.keys[:, 1], keys.to(moment.keys.dtype)], 1)
    before, turn = seen_from(last[:, 2], first[:, 4:]), coming[:, 2] - last[:, 2]
    went, goes = odometer(moment.frames, held, before, turn).unbind(1)
    seen = stepped(first, went, last)
    return seen, stepped(seen, goes, coming, last[:, 2])


def stepped(start: Tensor, step: Tensor, end: Tensor, heading: Tensor | None = None) -> Tensor:
    """The place `end` [b, KNOWN], put where a step [b, 2] in its own heading, or another one, leads."""
    ahead, right = compass(end[:, 2] if heading is None else heading)
    moved = step[:, :1] * ahead + step[:, 1:] * right
    return torch.cat([(start[:, :2] + moved).remainder(COARSEST), end[:, 2:4], moved], 1)


def turned(place: Tensor, keys: Tensor) -> Tensor:
    """The place [b, KNOWN] once the keys [b, 9] were held for a frame, as far as turning goes."""
    _, _, left, right, *_, run = keys.float().unbind(-1)
    held = (place[:, 3] + 1) * ((left + right) > 0)
    slow = (SLOW + 1 - held).clamp(0, 1)  # the share of the frame at half a walker's pace
    pace = slow * 0.5 + (1 - slow) * (1 + run)
    heading = place[:, 2] + (left - right) * pace * (TURN * torch.pi / 180)
    heading = heading.remainder(2 * torch.pi)
    return torch.cat([place[:, :2], heading[:, None], held[:, None], place[:, 4:]], 1)


def reckoned(odometer: Odometer, frames: Tensor, keys: Tensor) -> Tensor:
    """Places [b, f, KNOWN] of consecutive frames [b, f, n, c] and the keys [b, f, 9] that led to each."""
    b, f = frames.shape[:2]
    places = [torch.zeros(b, KNOWN, device=frames.device)]
    for i in range(1, f):
        two, guess = slice(i - 1, i + 1), turned(places[-1], keys[:, i])
        moment = Moment(frames[:, two], keys[:, two], torch.stack([places[-1], guess], 1))
        places.append(onward(odometer, moment, keys[:, i])[0])
    return torch.stack(places, 1)


def phases(places: Tensor) -> Tensor:
    """Places [..., 3 or more] as positions of a rope: heading, x, y, in turns of their finest channels."""
    x, y, heading = places[..., :AXES].unbind(-1)
    turn = 2 * torch.pi / FINEST
    return torch.stack([AHEAD * heading, turn * x, turn * y], -1)

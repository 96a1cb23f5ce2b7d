"""Eyes: a small network, taught on the real game, that says what a picture shows. It judges dreams.

Of one picture: what the walls ahead are made of and how far they are, column by column, and what the floor
and the ceiling are. Of two in a row: which keys were held between them (inverse dynamics). What it makes of a
picture before it answers, its features, says how alike two places are where pixels are too strict.
"""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .actions import KEYS
from .autoencoder import Residual, conv
from .doom.maze import CEILINGS, FLOORS, WALLS
from .episodes import HEIGHT

COLUMNS = 10  # in which the walls are told
NAMES = {"wall": list(WALLS), "floor": list(FLOORS), "ceiling": list(CEILINGS)}  # the engine's, in order
UNKNOWN = -1  # in place of a name or a distance that nobody knows
FILE = "eyes.safetensors"


class Sight(NamedTuple):
    """What is seen in pictures.

    features  [n, COLUMNS, width], of unit variance
    distance  [n, COLUMNS] to the wall, log2 of map units
    wall      [n, COLUMNS, names], floor and ceiling [n, names]: logits
    motion    [n, c, h, w]: what `Eyes.pressed` compares
    """

    features: Tensor
    distance: Tensor
    wall: Tensor
    floor: Tensor
    ceiling: Tensor
    motion: Tensor


class Eyes(nn.Module):
    """Pictures [n, 3, 112, 160] in -1..1. `width` is that of the features, `channels` of the layers."""

    def __init__(self, *, width: int = 64, channels: tuple[int, int, int] = (48, 96, 128)) -> None:
        super().__init__()
        fine, middle, coarse = channels
        rows = HEIGHT // 16
        self.near = nn.Sequential(
            nn.PixelUnshuffle(4), conv(48, fine), Residual(fine),
            conv(fine, middle, stride=2), Residual(middle),
        )  # fmt: skip
        self.far = nn.Sequential(conv(middle, coarse, stride=2), Residual(coarse), Residual(coarse))
        self.column = nn.Sequential(
            nn.Linear(coarse * rows, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.distance, self.wall = nn.Linear(width, 1), nn.Linear(width, len(WALLS))
        self.floor, self.ceiling = nn.Linear(2 * coarse, len(FLOORS)), nn.Linear(2 * coarse, len(CEILINGS))
        self.between = nn.Sequential(
            conv(2 * middle, middle), nn.SiLU(), conv(middle, fine, stride=2), Residual(fine), nn.SiLU()
        )
        self.keys = nn.Sequential(nn.Linear(fine * rows * COLUMNS, 128), nn.SiLU(), nn.Linear(128, len(KEYS)))

    def forward(self, pictures: Tensor) -> Sight:
        near = self.near(pictures)
        far = self.far(near)  # [n, c, rows, COLUMNS]
        features = self.column(far.flatten(1, 2).mT)
        halves = [half.amax((2, 3)) for half in far.tensor_split(2, 2)]  # above and below the horizon
        both = torch.cat(halves, 1)
        walls = self.distance(features)[..., 0], self.wall(features)
        return Sight(features, *walls, self.floor(both), self.ceiling(both), near)

    def pressed(self, before: Tensor, after: Tensor) -> Tensor:
        """Logits [n, 9] of the keys held between two pictures, from the `motion` of each."""
        return self.keys(self.between(torch.cat([before, after], 1)).flatten(1))


class Truth(NamedTuple):
    """What pictures show: names and distances as in `Sight`, and the keys held since the picture before."""

    distance: Tensor
    wall: Tensor
    floor: Tensor
    ceiling: Tensor
    keys: Tensor


def sight_loss(told: Sight, true: Truth) -> Tensor:
    """How wrong the eyes are about single pictures; what nobody knows does not count."""
    known = true.distance != UNKNOWN
    apart = F.smooth_l1_loss(told.distance, true.distance, reduction="none")
    loss = (apart * known).sum() / known.sum().clamp_min(1)
    for name in ("wall", "floor", "ceiling"):
        logits, named = getattr(told, name).flatten(0, -2), getattr(true, name).flatten()
        each = F.cross_entropy(logits, named.clamp_min(0), reduction="none")
        loss = loss + (each * (named != UNKNOWN)).sum() / (named != UNKNOWN).sum().clamp_min(1)
    return loss


def save_eyes(folder: Path, eyes: Eyes) -> None:
    """Beside other weights, in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: x.half().contiguous() for name, x in eyes.state_dict().items()}, folder / FILE)


def load_eyes(folder: Path) -> Eyes:
    """On the CPU. Raises FileNotFoundError where there are none, ValueError where they are not these eyes."""
    path = folder / FILE
    if not path.exists():
        raise FileNotFoundError(f"No eyes at {path}. `python run.py train stages=[eyes]` teaches some.")
    eyes = Eyes()
    try:
        eyes.load_state_dict({name: x.float() for name, x in load_file(path).items()})
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"{path} does not hold these eyes: {error}. Teach them anew.") from None
    return eyes.eval()

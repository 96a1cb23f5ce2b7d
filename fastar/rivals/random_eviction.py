"""Control: a far memory of tokens chosen by lot, at the budget of a cache that chooses with care.

At any time it is a fair sample of all tokens that have left the window (reservoir sampling by random keys,
Efraimidis and Spirakis, 2006, with equal weights).
"""

from torch import Tensor

from ..memory import Pattern
from ..rope import AxialRope
from .evicting import Evicting

LOT_BITS, NUMBER_BITS = 31, 32  # of the lot and, so that no two are equal, of the token's number


class RandomEviction(Evicting):
    """Every token draws a lot when it leaves the window; the `far` tokens with the highest are kept.

    Lots depend on the `seed` and on the token's number in the game alone, so heads, layers and games of a
    batch keep the same tokens, and nothing but the seed needs to be saved.
    """

    _state = (*Evicting._state, "seed")

    def __init__(
        self,
        layers: int,
        rope: AxialRope,
        *,
        sink: int = 1,
        recent: int = 16,
        reach: int | None = None,
        far: int = 1120,
        seed: int = 0,
        pattern: Pattern | None = None,
    ) -> None:
        self.seed = seed
        super().__init__(layers, rope, sink=sink, recent=recent, reach=reach, far=far, pattern=pattern)

    def _worth(self, layer: int, number: Tensor, place: Tensor) -> Tensor:
        return lots(number, self.seed) << NUMBER_BITS | number.clamp_min(0)


def lots(number: Tensor, seed: int) -> Tensor:
    """A lot for each number, int64 in [0, 2^31): its hash, by odd multiplications and shifts in turns.

    A generator would have to be asked in order, which a CUDA graph does not allow.
    """
    most = (1 << LOT_BITS) - 1
    x = number * 0x2545F491 + seed * 0x5851F42D
    for odd in (0x2C1B3C6D, 0x297A2D39, 0x1B56C4E9):
        x = x & most
        x = (x ^ (x >> 15)) * odd
    return (x ^ (x >> 31)) & most

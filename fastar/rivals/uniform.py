"""Control: a far memory of frames evenly spaced over the whole game, at the budget of one that chooses.

As a game goes on the spacing doubles again and again, and no frame that was let go is wanted back: of 0, 1,
2, ..., first the odd frames go, then the odd multiples of 2, then of 4.
"""

from torch import Tensor

from .evicting import Evicting

RULER_BITS, NUMBER_BITS = 22, 40  # frames and tokens that can be told apart


class UniformFrames(Evicting):
    """Keep the frames whose number is divisible most often by two; of equals the newest.

    So all multiples of some power of two since the window are kept, and the newest of the next smaller one.
    The last of the `far` tokens may be a part of a frame.
    """

    def _worth(self, layer: int, number: Tensor, place: Tensor) -> Tensor:
        frame = number // self.tokens
        power = (frame & -frame).masked_fill(frame == 0, 1 << RULER_BITS)
        return (power << NUMBER_BITS) + number

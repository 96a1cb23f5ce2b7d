"""RadialAttention: the farther back a frame, the narrower the strip of it that a token reads.

arXiv 2506.19852. Attention fades with distance in time and in the order of tokens, so the share
that is read halves each time the distance in time doubles: F frames cost as much as about log F.
"""

import torch
from torch import Tensor

from .masked import Seen, apart


class Radial(Seen):
    """Read of a frame D frames ago the tokens within `width(D)` of the query's own place.

    block  width below which a strip narrows no more: then whole frames are left out, all but one in 2, 4, ...
    decay  how wide strips are, in terms of the paper's

    The present frame, the one before and the first are read whole. Block 0 with an infinite decay is
    attention over everything. The original's block is 128, for frames of 1,560 tokens, and it rounds strips
    to its kernel's blocks; ours are exact. Which frames are left out changes with every frame, so each is
    wanted again: a memory under this pattern may not forget.
    """

    def __init__(
        self, *, block: int = 16, decay: float = 1.0, dense_layers: int = 0, dense_steps: int = 0
    ) -> None:
        if block < 0 or decay <= 0:
            raise ValueError(f"block is at least 0 and decay above 0, got {block} and {decay}.")
        super().__init__(dense_layers=dense_layers, dense_steps=dense_steps)
        self.block, self.decay = block, decay

    def within(self, age: Tensor, frame: Tensor, place: Tensor, n: int) -> Tensor:
        near = apart(place, n) <= self.width(age, n)[..., None, :]
        return near | ((age <= 1) | (frame == 0))[..., None, :]

    def width(self, age: Tensor, n: int) -> Tensor:
        """Tokens to either side that are read of frames of n tokens so long ago [...]; -1 where none are."""
        whole = 1 << n.bit_length()
        strip = whole / torch.exp2(torch.frexp(age.float()).exponent.float())  # 2^bits of n / 2^bits of age
        kept = age % (self.block / strip).clamp_min(1).long() == 0
        return torch.where(kept, (strip * self.decay).clamp_min(self.block), -1.0)

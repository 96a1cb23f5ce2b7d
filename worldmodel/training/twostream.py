"""Two streams in one sequence: the history as it will be remembered, and the frames being dreamt.

A history token of frame i attends to history up to frame i. A noisy token of frame i attends to the
history before frame i and to its own noisy frame. So every frame of a clip is trained at once under
exactly the attention it has in play. Several candidates for the same frames lie side by side after
one history and know nothing of each other.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fastar.rope import turn

from ..denoiser import Denoiser, Prompt


class TwoStream:
    """Attention over `history` clean frames of `tokens` each, then candidates for the last `noisy` frames.

    Without a history each of these frames is alone.
    """

    def __init__(
        self, tokens: int, history: int, noisy: int, device: torch.device, candidates: int = 1
    ) -> None:
        self.history, self.noisy, self.candidates = history, noisy, candidates
        clean, first = history * tokens, history - noisy

        def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            q_frame, k_frame = q // tokens, k // tokens  # where they lie in the sequence
            same = q_frame == k_frame
            when = torch.where(q >= clean, (q_frame - history) % noisy + first, q_frame)
            return same | ((k < clean) & (k_frame < when))

        length = (history + candidates * noisy) * tokens
        if device.type == "cuda":
            self.mask = create_block_mask(visible, None, None, length, length, device=device)
        else:
            index = torch.arange(length, device=device)
            self.mask = visible(index, index, index[:, None], index[None])

    def read(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        """`where` are angles here, computed once for all layers."""
        cos, sin = where[:, None].cos(), where[:, None].sin()
        q, k = (turn(x, cos, sin).to(v.dtype) for x in (q, k))
        if isinstance(self.mask, Tensor):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return flex_attention(q, k, v, block_mask=self.mask)  # type: ignore[return-value]

    def __call__(
        self,
        network: Denoiser,
        history: tuple[Tensor, Tensor],
        dream: tuple[Tensor, Tensor],
        keys: Tensor,
        times: Tensor,
        prompt: Prompt,
        controls: list[Tensor],
        seen: list[Tensor] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """What the network says of the dreamt frames [b, candidates * noisy, n, c].

        history, dream  frames [b, f, n, c] and their levels [b, f]
        keys, times     of the whole clip [b, f, 9], [b, f], which ends with the dreamt frames
        controls        of the whole clip, from `Denoiser.control`
        seen            takes the features of each block, of all frames of both streams
        places          where each frame of the clip was seen from [b, f, 3], if the network wants to know
        """
        along = [self._along(x) for x in (keys, times, *controls)]
        all_keys, all_times, *all_controls = along
        frames = torch.cat([history[0], dream[0]], 1)
        levels = torch.cat([history[1], dream[1]], 1)
        last = torch.arange(1, self.noisy + 1, device=levels.device) + self.history - self.noisy
        span = torch.cat([torch.arange(1, self.history + 1, device=levels.device), *[last] * self.candidates])
        all_places = None if places is None or network.odometer is None else self._along(places)
        angles = network.rope.angles(network.positions(all_times, all_places)).float()
        reads = [self.read] * len(network.blocks)
        span = span.clamp_min(1)[None]
        out = network(frames, levels, all_keys, angles, prompt, reads, all_controls, span=span, seen=seen)
        return out[:, self.history :].float()

    def _along(self, x: Tensor) -> Tensor:
        """What belongs to the frames of a clip [b, f, ...], for all frames of the sequence."""
        return torch.cat([x[:, : self.history], *[x[:, -self.noisy :]] * self.candidates], 1)


def compile_network(*networks: Denoiser) -> None:
    """Compile, in place, the parts that take nearly all of the time; equal blocks are compiled once."""
    torch._dynamo.reset()  # an earlier stage's shapes would make this one's look dynamic
    torch._dynamo.config.recompile_limit = 32
    for network in networks:
        ends = [network.refiner] if network.refiner is not None else []
        for part in (*network.blocks, network.dense, network.sparse, *ends):
            part.compile(dynamic=False)

"""The denoiser: a transformer over the tokens of frames that predicts the velocity of the flow.

A frame is a grid of tokens with its own noise level and keys, so frames of any level share one
sequence. Self-attention is handed in: in training all frames of a clip attend at once under a mask,
in play each layer reads its memory. Everything a frame is conditioned on enters here: noise level
and keys by adaptive norms, the prompt by cross-attention, the keys' two control signals by
half-width branches summed into the first layers (LongVie 2, arXiv 2512.13604).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastar import AxialRope, Cross, WholePrompt

from .actions import KEYS
from .autoencoder import Residual, conv, to_cells, to_tokens
from .control import DENSE_CHANNELS, SPARSE_CHANNELS, EgoMotion
from .odometer import Odometer, phases

SelfAttention = Callable[[Tensor, Tensor, Tensor, Any], Tensor]
"""(q, k, v) un-rotated [b, h, f n, d], where they are, as `Denoiser` was given it -> [b, h, f n, d]."""


WHOLE_PROMPT = WholePrompt()
BASES = (2000.0, 30.0, 30.0)  # of the rope's axes: time, row, column
PLACE_BASES = (16.0, 27.0, 27.0)  # heading, x, y: from the finest channels each step is 2, 3, 3 times as wide
NEAR_SPAN = 16  # frames over which attention is as sharp as its logits are


class Prompt(NamedTuple):
    """A read prompt: per layer its keys and values [b, h, l, d], and one bias [b, l]: -inf at padding."""

    keys: list[Tensor]
    values: list[Tensor]
    bias: Tensor


class PromptReader(nn.Module):
    """Word indices [b, l] to token states [b, l, width]: a small transformer over a fixed vocabulary.

    Index 0 is padding. Position 0 of every prompt is a learned null token, so that an empty prompt
    is a prompt like any other.
    """

    def __init__(self, words: int, *, width: int = 256, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.null = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        nn.init.normal_(self.embed.weight, std=0.5)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Token states [b, 1 + l, width] and their bias [b, 1 + l]: 0, or -inf at padding."""
        b, l = words.shape
        x = torch.cat([self.null.expand(b, -1, -1), self.embed(words)], 1)
        x = x + sinusoid(torch.arange(l + 1, device=words.device).float(), x.shape[-1]).to(x.dtype)
        bias = torch.zeros(b, l + 1, device=words.device).masked_fill(F.pad(words == 0, (1, 0)), -torch.inf)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=bias.to(x.dtype))
        return x, bias


class ControlBranch(nn.Module):
    """One control signal [b, f, n, channels] to what it adds at each layer: a list of [b, f, n, width].

    Attends within a frame only and depends on nothing but the keys, so play computes it once a frame.
    """

    def __init__(self, channels: int, *, width: int, depth: int, tokens: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(channels, width)
        self.place = nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )

    def forward(self, signal: Tensor) -> list[Tensor]:
        x = (self.embed(signal.to(self.place.dtype)) + self.place).flatten(0, 1)
        outputs = []
        for layer in self.layers:
            x = layer(x)
            outputs.append(x.unflatten(0, signal.shape[:2]))
        return outputs


class Block(nn.Module):
    """Self-attention, cross-attention to the prompt, MLP; norms adapted per frame."""

    def __init__(
        self, width: int, heads: int, prompt_width: int, *, focus: bool = False, longest: int | None = None
    ) -> None:
        super().__init__()
        self.heads, self.longest = heads, math.inf if longest is None else longest
        self.focus = nn.Parameter(torch.zeros(heads)) if focus else None
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.norm_cross = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.norm_q, self.norm_k = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.cross_q, self.cross_out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.cross_kv = nn.Linear(prompt_width, 2 * width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.adapt = nn.Linear(width, 6 * width)
        zero(self.adapt, self.cross_out)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        where: Any,
        prompt: tuple[Tensor, Tensor, Tensor],
        read: SelfAttention,
        cross: Cross,
        span: Tensor | None = None,
    ) -> Tensor:
        """x [b, f, n, width] and condition [b, f, width] -> like x; `span` [b, f] as told to `Denoiser`.

        Where `read` answers for the last frames only, the others have left their keys and go no further.
        """
        q, k, v, late = self.ask(x, condition, span)
        return self.answer(x, read(q, k, v, where), late, prompt, cross)

    def ask(
        self, x: Tensor, condition: Tensor, span: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Queries, keys and values [b, h, f n, d], and what adapts the rest of the block."""
        shift, scale, *late = self.adapt(F.silu(condition))[:, :, None].chunk(6, -1)
        q, k, v = (self.split(y) for y in self.qkv(adapted(self.norm1(x), shift, scale)).chunk(3, -1))
        q = self.norm_q(q)
        if self.focus is not None and span is not None:
            q = q * self.focused(span, x.shape[2]).to(q.dtype)
        return q, self.norm_k(k), v, late

    def answer(
        self,
        x: Tensor,
        attended: Tensor,
        late: list[Tensor],
        prompt: tuple[Tensor, Tensor, Tensor],
        cross: Cross,
    ) -> Tensor:
        """What becomes of the frames that self-attention answered for [b, h, f n, d]."""
        frames = attended.shape[2] // x.shape[2]
        x, gate, shift, scale, gate_mlp = (y[:, -frames:] for y in (x, *late))
        x = torch.addcmul(x, gate, self.out(self.join(attended, frames)))

        attended = cross.read(self.split(self.cross_q(self.norm_cross(x))), *prompt)
        x = x + self.cross_out(self.join(attended, frames))

        inner = F.gelu(self.up(adapted(self.norm2(x), shift, scale)), approximate="tanh")
        return torch.addcmul(x, gate_mlp, self.down(inner))

    def focused(self, span: Tensor, tokens: int) -> Tensor:
        """What sharpens the attention of each head over so many frames [b, f]: [b, h, f n, 1].

        Spread over more keys, the same logits give flatter attention, so they grow with the log of their
        number, as much as each head has learnt (scalable softmax, arXiv 2501.19399). It has learnt so from
        short clips; in a game of a thousand frames it would look at next to nothing but the latest.
        """
        assert self.focus is not None
        more = (span.float().clamp(max=self.longest) / NEAR_SPAN).log().repeat_interleave(tokens, 1)
        return 1 + self.focus[:, None, None] * more[:, None, :, None]

    def split(self, x: Tensor) -> Tensor:
        """[b, f, n, width] -> [b, h, f n, d]."""
        return x.flatten(1, 2).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def join(self, x: Tensor, frames: int) -> Tensor:
        """The inverse of `split`."""
        return x.transpose(1, 2).flatten(2).unflatten(1, (frames, -1))

    def read_prompt(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Token states [b, l, prompt width] -> keys and values [b, h, l, d]."""
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.cross_kv(states).chunk(2, -1))
        return k, v


class Refiner(nn.Module):
    """Lets neighbouring tokens agree on what lies across their border: convolutions over latent cells.

    Token features [b, f, n, width] -> what to add to the prediction [b, f, n, channels]; nothing at first.
    """

    def __init__(self, width: int, channels: int, grid: tuple[int, int], hidden: int, patch: int = 2) -> None:
        super().__init__()
        self.grid, self.patch = grid, patch
        self.spread = nn.Linear(width, hidden * patch**2)
        self.layers = nn.Sequential(Residual(hidden), Residual(hidden), conv(hidden, channels // patch**2))
        zero(self.layers[-1])

    def forward(self, x: Tensor) -> Tensor:
        cells = to_cells(self.spread(x).flatten(0, 1), self.grid, self.patch)
        return to_tokens(self.layers(cells), self.patch).unflatten(0, x.shape[:2])


class Denoiser(nn.Module):
    """Predicts v = noise - clean for every token of every frame, whatever the frames' levels.

    channels       numbers per token
    grid           rows and columns of tokens in a frame
    rope           channels of a head that turn with time, row and column; also with the player's heading, x
                   and y, if attention is to know where each frame was seen from
    words          size of the prompt vocabulary
    control_width  of the two control branches; control_depth is the number of layers they feed
    focus          attention sharpens with the number of frames it is spread over
    longest        such number, beyond which more sharpen it no further; None if there is no end
    refine         channels of the convolutions between tokens at the end; 0 for none
    """

    def __init__(
        self,
        *,
        channels: int = 32,
        grid: tuple[int, int] = (7, 10),
        width: int = 384,
        depth: int = 8,
        heads: int = 6,
        rope: Sequence[int] = (24, 20, 20),
        words: int = 512,
        prompt_width: int = 256,
        prompt_depth: int = 2,
        control_width: int = 192,
        control_depth: int = 3,
        focus: bool = False,
        longest: int | None = None,
        refine: int = 0,
    ) -> None:
        super().__init__()
        if sum(rope) != width // heads or len(rope) not in (3, 6):
            raise ValueError(
                f"rope needs 3 or 6 widths that add up to the head width {width // heads}, not {tuple(rope)}."
            )
        self.channels, self.grid, self.heads = channels, (grid[0], grid[1]), heads
        self.fused = False
        tokens = grid[0] * grid[1]
        self.rope = AxialRope(rope, (*BASES, *PLACE_BASES)[: len(rope)])
        self.odometer = Odometer(channels, self.grid, len(KEYS)) if len(rope) == 6 else None
        self.embed = nn.Linear(channels, width)
        self.level = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.keys = nn.Sequential(nn.Linear(len(KEYS), width), nn.SiLU(), nn.Linear(width, width))
        self.reader = PromptReader(words, width=prompt_width, depth=prompt_depth)
        self.ego = EgoMotion(self.grid)
        branch = dict(
            width=control_width, depth=control_depth, tokens=tokens, heads=max(1, control_width // 64)
        )
        self.dense = ControlBranch(DENSE_CHANNELS, **branch)
        self.sparse = ControlBranch(SPARSE_CHANNELS, **branch)
        self.inject = nn.ModuleList(nn.Linear(control_width, width) for _ in range(control_depth))
        self.blocks = nn.ModuleList(
            Block(width, heads, prompt_width, focus=focus, longest=longest) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.adapt = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, channels)
        self.refiner = Refiner(width, channels, self.grid, refine) if refine else None
        zero(self.adapt, self.out, *self.inject)

    def forward(
        self,
        x: Tensor,
        level: Tensor,
        keys: Tensor,
        where: Any,
        prompt: Prompt,
        reads: Sequence[SelfAttention],
        controls: list[Tensor] | None = None,
        cross: Cross = WHOLE_PROMPT,
        span: Tensor | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Velocity of x [b, f, n, channels], or of its last frames if the last read answers for these only.

        level    [b, f] noise level of each frame, 0 clean to 1 pure noise
        keys     [b, f, 9] pressed during the frame
        where    positions of the tokens in the form that `reads` take; see `positions`
        prompt   from `read_prompt`
        reads    self-attention, one per layer
        controls from `control`; computed from the keys when not given
        cross    how the prompt is read
        span     [b or 1, f] how many frames each frame's attention is spread over, itself included
        seen     a list that takes what each block makes of the frames, [b, f, n, width]
        """
        condition = self.condition(level, keys)
        if controls is None:
            controls = self.control(keys)
        h = self.embed(x)
        for i, (block, read) in enumerate(zip(self.blocks, reads, strict=True)):
            h = block(h, condition, where, (prompt.keys[i], prompt.values[i], prompt.bias), read, cross, span)
            if i < len(controls):
                h = h + controls[i][:, -h.shape[1] :]
            if seen is not None:
                seen.append(h)
        return self.tell(h, condition[:, -h.shape[1] :])

    def tell(self, h: Tensor, condition: Tensor) -> Tensor:
        """The velocity [b, f, n, channels] that the blocks have found [b, f, n, width]."""
        shift, scale = self.adapt(F.silu(condition))[:, :, None].chunk(2, -1)
        h = adapted(self.norm(h), shift, scale)
        return self.out(h) + self.refiner(h) if self.refiner is not None else self.out(h)

    def fuse(self) -> None:
        """Compile what lies between the reads of a memory. For a GPU, where small kernels take the time.

        It takes about half a minute, when the first frames are dreamt.
        """
        if self.fused:
            return
        self.fused = True
        for owner, part in [(self, "tell"), *((x, part) for x in self.blocks for part in ("ask", "answer"))]:
            setattr(owner, part, torch.compile(getattr(owner, part), dynamic=False))

    def condition(self, level: Tensor, keys: Tensor) -> Tensor:
        """What adapts the norms of each frame [b, f, width]."""
        return self.noisiness(level) + self.keys(keys.to(self.out.weight.dtype))

    def noisiness(self, level: Tensor) -> Tensor:
        """What the network takes noise levels [...] for: [..., width]."""
        return self.level(sinusoid(1000 * level, 256).to(self.out.weight.dtype))

    def control(
        self, keys: Tensor, dense: Tensor | float = 1.0, sparse: Tensor | float = 1.0
    ) -> list[Tensor]:
        """What the two branches add after each of the first layers, scaled per frame [b, f, 1, 1]."""
        a, b = self.dense(self.ego.dense(keys)), self.sparse(self.ego.sparse(keys))
        return [inject(x * dense + y * sparse) for inject, x, y in zip(self.inject, a, b, strict=True)]

    def read_prompt(self, words: Tensor) -> Prompt:
        """Word indices [b, l] to what every layer's cross-attention reads."""
        states, bias = self.reader(words)
        pairs = [cast(Block, block).read_prompt(states) for block in self.blocks]
        return Prompt([k for k, _ in pairs], [v for _, v in pairs], bias)

    def positions(self, times: Tensor, places: Tensor | None = None) -> Tensor:
        """Frame times [..., f] -> token positions (t, y, x) [..., f n, 3].

        With an odometer also the places [..., f, 3] they were seen from, and positions [..., f n, 6].
        """
        if (places is None) != (self.odometer is None):
            raise ValueError("Places of the frames are wanted exactly where the rope has widths for them.")
        rows, columns = self.grid
        y = torch.arange(rows, device=times.device).repeat_interleave(columns)
        x = torch.arange(columns, device=times.device).repeat(rows)
        space = torch.stack([y, x], -1).float().expand(*times.shape, -1, 2)
        time = times.float()[..., None, None].expand(*times.shape, rows * columns, 1)
        axes = [time, space]
        if places is not None:
            axes.append(phases(places)[..., None, :].expand(*times.shape, rows * columns, 3))
        return torch.cat(axes, -1).flatten(-3, -2)


def adapted(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalised x [b, f, n, width], scaled and shifted per frame [b, f, 1, width]."""
    return torch.addcmul(shift, x, 1 + scale)


def zero(*layers: nn.Module) -> None:
    """Make layers add nothing at the start of training."""
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)


def sinusoid(x: Tensor, width: int) -> Tensor:
    """x [...] -> [..., width]: cosines and sines of 1 to 1/1000 turns of x."""
    rates = torch.exp(-math.log(1000.0) * torch.arange(width // 2, device=x.device) / (width // 2))
    angles = x[..., None] * rates
    return torch.cat([angles.cos(), angles.sin()], -1)

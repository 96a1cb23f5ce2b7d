"""The transformer of Wan 2.1, causal: latent frames come in chunks and read what came before from a memory.

Arithmetic and parameter names are those of the published checkpoints (arXiv 2503.20314; with a timestep for
every latent frame as in Self-Forcing, arXiv 2506.08009), so these load as they are, see `checkpoints.py`. Two
things differ in form only. Attention pairs channels (i, i + d/2) where the published weights pair neighbours,
so the rows of q and k are put in another order when they are loaded. And the padding of a prompt, hundreds
of equal tokens, is read as one that counts as often as they are, which is exact (Lemma 5.1 of arXiv
2602.01801).

Axes: b games, f latent frames of a chunk, n tokens of a frame, d channels of a head.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastar import AxialRope, Cross
from fastar.attention import attend
from fastar.kernels.buckets import UNIT
from fastar.rope import positions

from ..denoiser import WHOLE_PROMPT, adapted

ROPE = 10_000.0  # base of all three axes
TIME_WIDTH = 256
IMAGE_WIDTH = 1280  # of CLIP's features


class Read(Protocol):
    """Self-attention of one layer: q, k, v [b, h, f n, d] at positions [f n, 3] -> [b, h, f n, d]."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor: ...


class Control(Protocol):
    """What is added after layer `i`: tokens [b, f, n, width], e [b, f, 6, width], positions -> tokens."""

    def __call__(self, i: int, tokens: Tensor, e: Tensor, where: Tensor) -> Tensor: ...


class Told(NamedTuple):
    """What the cross-attention of a layer reads: keys and values [b, h, l, d] of the text, and of an image.

    bias  [b, l], log m for a token of the text that stands for m
    """

    keys: Tensor
    values: Tensor
    bias: Tensor
    image: tuple[Tensor, Tensor] | None = None


class RMSNorm(nn.Module):
    """Over all heads at once, in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Attention(nn.Module):
    """The four projections and two norms of an attention; what is done between them is said by its owner."""

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm_q, self.norm_k = RMSNorm(width, eps), RMSNorm(width, eps)

    def split(self, x: Tensor) -> Tensor:
        """[b, l, width] -> [b, h, l, d]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        return self.o(x.transpose(1, 2).flatten(2))

    def queries(self, x: Tensor) -> Tensor:
        return self.split(self.norm_q(self.q(x)))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.norm_k(self.k(x))), self.split(self.v(x))


class ImageAttention(Attention):
    """Cross-attention with keys and values of an image beside those of the text."""

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__(width, heads, eps)
        self.k_img, self.v_img = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_k_img = RMSNorm(width, eps)

    def image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.norm_k_img(self.k_img(x))), self.split(self.v_img(x))


class Block(nn.Module):
    """Self-attention, cross-attention, MLP; the first and the last adapted by the frame's timestep."""

    def __init__(self, width: int, heads: int, ffn: int, eps: float, *, image: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps, elementwise_affine=False) for _ in range(2))
        self.norm3 = nn.LayerNorm(width, eps)
        self.self_attn = Attention(width, heads, eps)
        self.cross_attn = (ImageAttention if image else Attention)(width, heads, eps)
        self.ffn = nn.Sequential(nn.Linear(width, ffn), nn.GELU("tanh"), nn.Linear(ffn, width))
        self.modulation = nn.Parameter(torch.randn(1, 6, width) / width**0.5)

    def forward(self, x: Tensor, e: Tensor, where: Tensor, read: Read, cross: Cross, told: Told) -> Tensor:
        """x [b, f, n, width], e [b, f, 6, width] -> like x."""
        attended = read(*self.ask(x, e), where)
        x, q = self.turn(x, e, attended)
        heard = cross.read(q, told.keys, told.values, told.bias)
        if told.image is not None:
            heard = heard + attend(q, *told.image)
        return self.answer(x, e, heard)

    def ask(self, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self-attention, [b, h, f n, d] each."""
        shift, scale, _ = self._adapt(e)[:3]
        inner = adapted(self.norm1(x), shift, scale).flatten(1, 2)
        return self.self_attn.queries(inner), *self.self_attn.keys_values(inner)

    def turn(self, x: Tensor, e: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with what self-attention found, and what they ask the prompt [b, h, f n, d]."""
        gate = self._adapt(e)[2]
        x = x + gate * self.self_attn.join(attended).unflatten(1, (x.shape[1], -1))
        return x, self.cross_attn.queries(self.norm3(x).flatten(1, 2))

    def answer(self, x: Tensor, e: Tensor, heard: Tensor) -> Tensor:
        """The tokens with what cross-attention found, after the MLP."""
        shift, scale, gate = self._adapt(e)[3:]
        x = x + self.cross_attn.join(heard).unflatten(1, (x.shape[1], -1))
        return x + gate * self.ffn(adapted(self.norm2(x), shift, scale))

    def _adapt(self, e: Tensor) -> Sequence[Tensor]:
        """Shift, scale and gate of self-attention, then of the MLP, [b, f, 1, width] each."""
        return (self.modulation[:, None] + e)[:, :, :, None].unbind(2)

    def fuse(self) -> None:
        """Compile what lies between the reads, for a GPU: norms, gates and projections become few kernels."""
        for part in ("ask", "turn", "answer"):
            if part not in vars(self):  # else it is done
                setattr(self, part, torch.compile(getattr(self, part), dynamic=False))


class Head(nn.Module):
    def __init__(self, width: int, channels: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps, elementwise_affine=False)
        self.head = nn.Linear(width, channels)
        self.modulation = nn.Parameter(torch.randn(1, 2, width) / width**0.5)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x [b, f, n, width], time [b, f, width] -> [b, f, n, channels]."""
        shift, scale = (self.modulation[:, None] + time[:, :, None])[:, :, :, None].unbind(2)
        return self.head(adapted(self.norm(x), shift, scale))


class ImageReader(nn.Module):
    """CLIP's features [b, 257, 1280] -> tokens [b, 257, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(
            nn.LayerNorm(IMAGE_WIDTH),
            nn.Linear(IMAGE_WIDTH, IMAGE_WIDTH),
            nn.GELU(),
            nn.Linear(IMAGE_WIDTH, width),
            nn.LayerNorm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Wan(nn.Module):
    """Velocity (noise - clean) of latent frames, each at a timestep of its own, 0 clean to 1,000 noise.

    taken, given  channels of the latent that go in and come out; 36 and 16 with an image to start from
    image         whether cross-attention also reads an image
    """

    def __init__(
        self,
        *,
        width: int = 1536,
        heads: int = 12,
        layers: int = 30,
        ffn: int = 8960,
        taken: int = 16,
        given: int = 16,
        patch: tuple[int, int, int] = (1, 2, 2),
        text_width: int = 4096,
        text_length: int = 512,
        image: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if patch[0] != 1:
            raise ValueError(f"A frame must keep its tokens to itself, so patch begins with 1; got {patch}.")
        self.heads, self.patch, self.given, self.text_length = heads, patch, given, text_length
        self.head_width = d = width // heads
        third = 2 * (d // 6)
        self.rope = AxialRope((d - 2 * third, third, third), (ROPE,) * 3)
        self.patch_embedding = nn.Conv3d(taken, width, self.patch, self.patch)
        self.text_embedding = nn.Sequential(
            nn.Linear(text_width, width), nn.GELU("tanh"), nn.Linear(width, width)
        )
        self.time_embedding = nn.Sequential(nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.blocks = nn.ModuleList(Block(width, heads, ffn, eps, image=image) for _ in range(layers))
        self.head = Head(width, given * self.patch[1] * self.patch[2], eps)
        self.img_emb = ImageReader(width) if image else None

    def fuse(self) -> None:
        """Compile what lies between the reads of every layer, see `Block.fuse`."""
        fuse(self.blocks)

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        start: int | Tensor,
        prompt: Sequence[Told],
        reads: Sequence[Read],
        cross: Cross = WHOLE_PROMPT,
        control: Control | None = None,
    ) -> Tensor:
        """x [b, f, c, h, w] at timesteps [b, f], the first of them latent frame number `start`."""
        tokens, grid = self.tokens(x), self.grid(x)
        where = positions(start, (x.shape[1], *grid), x.device)
        late, e = self.timed(time)
        for i, (block, read, told) in enumerate(zip(self.blocks, reads, prompt, strict=True)):
            tokens = block(tokens, e, where, read, cross, told)
            if control is not None:
                tokens = control(i, tokens, e, where)
        return self.pixels(self.head(tokens, late), grid)

    def grid(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of tokens of latents [..., h, w]."""
        return x.shape[-2] // self.patch[1], x.shape[-1] // self.patch[2]

    def tokens(self, x: Tensor) -> Tensor:
        """[b, f, c, h, w] -> [b, f, n, width]."""
        return self.patch_embedding(x.transpose(1, 2)).flatten(3).permute(0, 2, 3, 1)

    def timed(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """What the head is told of timesteps [b, f], [b, f, width], and the blocks, [b, f, 6, width]."""
        told = self.time_embedding(sinusoid(time).to(self.head.head.weight.dtype))
        return told, self.time_projection(told).unflatten(-1, (6, -1))

    def pixels(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """What the head gives [b, f, n, channels] -> [b, f, c, h, w]."""
        _, high, wide = self.patch
        x = x.unflatten(2, grid).unflatten(-1, (high, wide, self.given))
        return x.permute(0, 1, 6, 2, 4, 3, 5).flatten(5).flatten(3, 4)

    def read_prompt(self, texts: Sequence[Tensor], image: Tensor | None = None) -> list[Told]:
        """What each layer reads of T5's features of each prompt [l, text width] and CLIP's [b, 257, 1280]."""
        return heard(self.blocks, *self.context(texts, image))

    def context(
        self, texts: Sequence[Tensor], image: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """States of the text's tokens [b, l, width], their bias [b, l], and states of the image's, if any."""
        longest = max(len(text) for text in texts)
        if longest > self.text_length:
            raise ValueError(f"A prompt has at most {self.text_length} tokens, got {longest}.")
        if (image is None) != (self.img_emb is None):
            raise ValueError(
                "This transformer wants " + ("no image." if self.img_emb is None else "an image.")
            )
        some = min(longest + 1, self.text_length)
        length = min(-(-some // UNIT) * UNIT, self.text_length)  # whole tiles of attention, if there is room
        padded = torch.stack([F.pad(text, (0, 0, 0, length - len(text))) for text in texts])
        states = self.text_embedding(padded)
        wide = torch.promote_types(states.dtype, torch.float32)
        bias = torch.zeros(len(texts), length, device=states.device, dtype=wide)
        bias[:, some - 1] = math.log(self.text_length - some + 1)  # the last one is all of the padding
        bias[:, some:] = -torch.inf
        features = self.img_emb(image) if image is not None and self.img_emb is not None else None
        return states, bias, features


def fuse(blocks: nn.ModuleList) -> None:
    for block in blocks:
        cast(Block, block).fuse()


def heard(blocks: nn.ModuleList, states: Tensor, bias: Tensor, features: Tensor | None) -> list[Told]:
    """What the cross-attention of each block reads of the states of a text and an image."""
    prompt = []
    for block in blocks:
        attention = cast(Block, block).cross_attn
        seen = None
        if isinstance(attention, ImageAttention) and features is not None:
            seen = attention.image(features)
        prompt.append(Told(*attention.keys_values(states), bias, seen))
    return prompt


def sinusoid(time: Tensor, width: int = TIME_WIDTH) -> Tensor:
    """Timesteps [...] -> [..., width]: cosines, then sines, of wavelengths up to 10,000 times 2 pi."""
    rates = 10_000.0 ** -(torch.arange(width // 2, device=time.device, dtype=torch.float64) / (width // 2))
    angles = time.double()[..., None] * rates
    return torch.cat([angles.cos(), angles.sin()], -1)

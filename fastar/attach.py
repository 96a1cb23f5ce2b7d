"""FAST-AR in a video transformer of diffusers, for a video made chunk by chunk.

    past = attach(transformer, {"kind": "tempcache", "recent": 3, "far": 32_760})
    for each chunk: denoise it with `transformer(...)` as ever, call it once more on the clean latents,
    and `past.commit()`

Works on `WanTransformer3DModel` and `SkyReelsV2Transformer3DModel`, by their attention processors; nothing of
diffusers is imported. Their causal relatives are what it is for: a transformer that was trained on whole
clips runs, but was never taught to have a past. Guidance that asks the transformer twice must ask it
once, for a batch of two.
"""

from typing import Any

import torch
from torch import Tensor

from .attention import attend
from .memory import Memory
from .method import Cross, Node, method
from .rope import AxialRope, positions

TEXT = 512  # tokens of a prompt, after those of an image


class Attached:
    """A transformer whose self-attention reads, besides the chunk it is given, all chunks committed so far.

    memory  their memory; a chunk is to it what a frame is elsewhere, and all must have as many tokens
    frames  latent frames committed
    """

    def __init__(self, transformer: Any, memory: Memory, cross: Cross | None) -> None:
        self.transformer, self.memory, self.frames = transformer, memory, 0
        self.present = 0  # latent frames of the chunk that was seen last
        self.where = torch.empty(0)  # of its tokens [n, 3]
        self._before = [block.attn1.processor for block in transformer.blocks]
        self._before_cross = [block.attn2.processor for block in transformer.blocks]
        self._hook = transformer.register_forward_pre_hook(self._see, with_kwargs=True)
        for layer, block in enumerate(transformer.blocks):
            block.attn1.set_processor(SelfRead(self, layer))
            if cross is not None:
                block.attn2.set_processor(CrossRead(cross))

    def commit(self) -> None:
        """The chunk that the transformer was given last, clean, is part of the past."""
        for layer in range(len(self._before)):
            self.memory.commit(layer)
        self.frames, self.present = self.frames + self.present, 0

    def reset(self) -> None:
        """Begin another video."""
        self.memory.reset()
        self.frames = self.present = 0

    def detach(self) -> None:
        """Leave the transformer as it was."""
        self._hook.remove()
        for block, own, cross in zip(self.transformer.blocks, self._before, self._before_cross, strict=True):
            block.attn1.set_processor(own)
            block.attn2.set_processor(cross)

    def _see(self, transformer: Any, given: tuple, named: dict[str, Any]) -> None:
        latents = named["hidden_states"] if "hidden_states" in named else given[0]
        sizes = zip(latents.shape[2:], transformer.config.patch_size, strict=True)
        grid = [size // patch for size, patch in sizes]
        self.where = positions(self.frames, grid, latents.device)
        self.present = grid[0]


class SelfRead:
    """An attention processor: self-attention through a memory."""

    def __init__(self, attached: Attached, layer: int) -> None:
        self.attached, self.layer = attached, layer

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        q, k, v = projected(attn, hidden_states, hidden_states)
        read = self.attached.memory.attend(self.layer, in_halves(q), in_halves(k), v, self.attached.where)
        return given_out(attn, read)


class CrossRead:
    """An attention processor: the prompt is read as `cross` says, an image beside it as a whole."""

    def __init__(self, cross: Cross) -> None:
        self.cross = cross

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, *_: Any, **__: Any
    ) -> Tensor:
        image = encoder_hidden_states[:, :-TEXT] if attn.add_k_proj is not None else None
        if image is not None:
            encoder_hidden_states = encoder_hidden_states[:, -TEXT:]
        q, k, v = projected(attn, hidden_states, encoder_hidden_states)
        wide = torch.promote_types(k.dtype, torch.float32)
        read = self.cross.read(q, k, v, k.new_zeros(k.shape[0], k.shape[2], dtype=wide))
        if image is not None:
            read = read + attend(q, *(split(x, attn.heads) for x in of_image(attn, image)))
        return given_out(attn, read)


def projected(attn: Any, asking: Tensor, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [b, h, l, d], normed and not turned."""
    if getattr(attn, "fused_projections", False):
        raise ValueError(
            "The projections of this transformer are fused; call unfuse_qkv_projections() first."
        )
    parts = attn.norm_q(attn.to_q(asking)), attn.norm_k(attn.to_k(asked)), attn.to_v(asked)
    q, k, v = (split(x, attn.heads) for x in parts)
    return q, k, v


def of_image(attn: Any, image: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of an image's tokens [b, l, width]."""
    return attn.norm_added_k(attn.add_k_proj(image)), attn.add_v_proj(image)


def split(x: Tensor, heads: int) -> Tensor:
    """[b, l, width] -> [b, h, l, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def given_out(attn: Any, x: Tensor) -> Tensor:
    x = x.transpose(1, 2).flatten(2)
    for layer in attn.to_out:
        x = layer(x)
    return x


def in_halves(x: Tensor) -> Tensor:
    """Channels paired (i, i + d/2), as a memory turns them, from channels paired (2i, 2i + 1)."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def attach(transformer: Any, cache: Node, attn: Node | None = None, cross: Node | None = None) -> Attached:
    """Give a transformer of diffusers the memory of this method, see `method`. Undone by `detach`.

    A chunk is to the memory what a frame is elsewhere: `recent` and `sink` count chunks. Raises ValueError
    for a transformer of another kind.
    """
    if not all(hasattr(block, "attn1") and hasattr(block, "attn2") for block in _blocks(transformer)):
        raise ValueError(
            f"Expected a transformer of diffusers with attn1 and attn2 in its blocks, such as "
            f"WanTransformer3DModel, got {type(transformer).__name__}."
        )
    d = transformer.config.attention_head_dim
    third = 2 * (d // 6)
    chosen = method(cache, attn, cross)
    rope = AxialRope((d - 2 * third, third, third), (10_000.0,) * 3)
    memory = chosen.cache(len(transformer.blocks), rope)
    return Attached(transformer, memory, chosen.cross if cross else None)


def _blocks(transformer: Any) -> list[Any]:
    return list(getattr(transformer, "blocks", [])) or [None]

"""The transformer of Wan 2.1 against one written down plainly from its published description."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from fastar import Dense
from worldmodel.backbones.checkpoints import CheckpointError, forcing_generator, load_into, read_checkpoint
from worldmodel.backbones.wan import Wan

EXACT = dict(rtol=0, atol=1e-10)
HEADS, LAYERS, WIDTH, TEXT = 2, 2, 48, 20
GRID = 2, 3
SIZE: dict[str, Any] = dict(
    width=WIDTH, heads=HEADS, layers=LAYERS, ffn=64, taken=4, given=4, text_width=TEXT, text_length=9
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def published(**how) -> dict[str, Tensor]:
    """A checkpoint in the published layout, of random numbers."""
    names = Wan(**{**SIZE, **how}).state_dict()
    return {name: 0.2 * normal(*x.shape, seed=i) for i, (name, x) in enumerate(names.items())}


def network(**how) -> Wan:
    made = Wan(**{**SIZE, **how}).double()
    load_into(made, published(**how), HEADS)
    return made


# ---- the plain one: whole sequences, complex rotations, all padding, no memory


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def rms(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w[f"{name}.weight"]


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def rotated(x: Tensor, where: list[tuple[int, int, int]]) -> Tensor:
    """x [l, heads, d]: neighbouring channels are one complex number."""
    d = x.shape[-1]
    widths = d - 4 * (d // 6), 2 * (d // 6), 2 * (d // 6)
    out = x.clone()
    for token, place in enumerate(where):
        first = 0
        for coordinate, width in zip(place, widths, strict=True):
            for j in range(width // 2):
                angle = coordinate * 10_000.0 ** (-2 * j / width)
                even, odd = x[token, :, first + 2 * j], x[token, :, first + 2 * j + 1]
                out[token, :, first + 2 * j] = even * math.cos(angle) - odd * math.sin(angle)
                out[token, :, first + 2 * j + 1] = even * math.sin(angle) + odd * math.cos(angle)
            first += width
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """[l, heads, d] each."""
    out = [
        F.scaled_dot_product_attention(q[:, i], k[:, i], v[:, i], attn_mask=mask) for i in range(q.shape[1])
    ]
    return torch.cat(out, -1)


def block(
    w: dict[str, Tensor],
    name: str,
    tokens: Tensor,
    e: Tensor,
    where: list[tuple[int, int, int]],
    mask: Tensor,
    context: Tensor,
    seen: Tensor | None,
) -> Tensor:
    """One layer: tokens [l, width], e [l, 6, width]."""
    m = w[f"{name}.modulation"] + e

    def heads(x: Tensor) -> Tensor:
        return x.view(len(x), -1, WIDTH // HEADS)

    y = norm(tokens) * (1 + m[:, 1]) + m[:, 0]
    own = f"{name}.self_attn"
    q, k = (rotated(heads(rms(w, f"{own}.norm_{z}", linear(w, f"{own}.{z}", y))), where) for z in "qk")
    y = attention(q, k, heads(linear(w, f"{own}.v", y)), mask)
    tokens = tokens + linear(w, f"{own}.o", y) * m[:, 2]

    width = tokens.shape[1]
    y = F.layer_norm(tokens, (width,), w[f"{name}.norm3.weight"], w[f"{name}.norm3.bias"], eps=1e-6)
    cross = f"{name}.cross_attn"
    q = heads(rms(w, f"{cross}.norm_q", linear(w, f"{cross}.q", y)))
    k = heads(rms(w, f"{cross}.norm_k", linear(w, f"{cross}.k", context)))
    y = attention(q, k, heads(linear(w, f"{cross}.v", context)))
    if seen is not None:
        k = heads(rms(w, f"{cross}.norm_k_img", linear(w, f"{cross}.k_img", seen)))
        y = y + attention(q, k, heads(linear(w, f"{cross}.v_img", seen)))
    tokens = tokens + linear(w, f"{cross}.o", y)

    y = norm(tokens) * (1 + m[:, 4]) + m[:, 3]
    y = linear(w, f"{name}.ffn.2", F.gelu(linear(w, f"{name}.ffn.0", y), approximate="tanh"))
    return tokens + y * m[:, 5]


def patched(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Tokens [l, width] of latent frames [f, c, h, w]."""
    f, _, high, wide = x.shape
    kernel = w["patch_embedding.weight"][:, :, 0]
    parts = (
        x[t, :, y : y + 2, z : z + 2] for t in range(f) for y in range(0, high, 2) for z in range(0, wide, 2)
    )
    return torch.stack([(kernel * part).sum((1, 2, 3)) + w["patch_embedding.bias"] for part in parts])


def plain(
    w: dict[str, Tensor],
    x: Tensor,
    time: Tensor,
    text: Tensor,
    chunk: int,
    image: Tensor | None = None,
    last: int = 0,
    control: Callable[..., Tensor] | None = None,
) -> Tensor:
    """One game: x [f, c, h, w], time [f], text [l, width]; a chunk sees itself and what came before.

    The `last` frames are one chunk, however many they are.
    """
    f, _, high, wide = x.shape
    rows, columns = high // 2, wide // 2
    where = [(t, y, z) for t in range(f) for y in range(rows) for z in range(columns)]
    tokens = patched(w, x)
    rates = torch.exp(-math.log(10_000) * torch.arange(128, dtype=torch.float64) / 128)
    angles = time.double()[:, None] * rates
    told = linear(w, "time_embedding.0", torch.cat([angles.cos(), angles.sin()], 1))
    told = linear(w, "time_embedding.2", F.silu(told))
    e = linear(w, "time_projection.1", F.silu(told)).view(f, 6, -1)
    context = torch.cat([text, text.new_zeros(9 - len(text), TEXT)])
    context = linear(
        w, "text_embedding.2", F.gelu(linear(w, "text_embedding.0", context), approximate="tanh")
    )
    seen = None
    if image is not None:
        seen = F.layer_norm(image, (1280,), w["img_emb.proj.0.weight"], w["img_emb.proj.0.bias"])
        seen = linear(w, "img_emb.proj.3", F.gelu(linear(w, "img_emb.proj.1", seen)))
        seen = F.layer_norm(seen, (WIDTH,), w["img_emb.proj.4.weight"], w["img_emb.proj.4.bias"])
    frame = torch.tensor([t for t, _, _ in where])
    number = torch.where(frame >= f - last, f, frame // chunk)
    mask = number[:, None] >= number[None]
    for i in range(LAYERS):
        tokens = block(w, f"blocks.{i}", tokens, e[frame], where, mask, context, seen)
        if control is not None:
            tokens = control(i, tokens, e[frame], where, mask, context, seen)
    m = (w["head.modulation"] + told[:, None])[frame]
    tokens = linear(w, "head.head", norm(tokens) * (1 + m[:, 1]) + m[:, 0])
    out = x.new_zeros(f, 4, high, wide)
    for (t, y, z), token in zip(where, tokens, strict=True):
        out[t, :, 2 * y : 2 * y + 2, 2 * z : 2 * z + 2] = token.view(2, 2, 4).permute(2, 0, 1)
    return out


# ---- laws


def whole(q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
    """Self-attention of a chunk that remembers nothing."""
    rope = network().rope
    return F.scaled_dot_product_attention(rope(q, where), rope(k, where), v)


@pytest.mark.parametrize("image", [False, True])
@torch.no_grad()
def test_it_is_what_was_published(image):
    """Also with different timesteps in one chunk, prompts of different lengths, and an image."""
    made, w = network(image=image), published(image=image)
    x, time = normal(2, 3, 4, 4, 6), torch.tensor([[900.0, 500.0, 0.0], [250.0, 250.0, 1000.0]])
    texts = [normal(5, TEXT, seed=1), normal(2, TEXT, seed=2)]
    pictures = normal(2, 257, 1280, seed=3) if image else None
    found = made(x, time, 0, made.read_prompt(texts, pictures), [whole] * LAYERS)
    for i, text in enumerate(texts):
        picture = None if pictures is None else pictures[i]
        assert_close(found[i], plain(w, x[i], time[i], text, 3, picture), **EXACT)


@pytest.mark.parametrize("length", [1, 8, 9])
@torch.no_grad()
def test_padding_is_read_as_one_token(length):
    """Up to a prompt that leaves room for one token of it, or for none."""
    made, text = network(), normal(length, TEXT, seed=1)
    x, time = normal(1, 1, 4, 4, 6), torch.full((1, 1), 700.0)
    prompt = made.read_prompt([text])
    assert (prompt[0].bias > -torch.inf).sum() == min(length + 1, 9)
    found = made(x, time, 0, prompt, [whole] * LAYERS)
    assert_close(found[0], plain(published(), x[0], time[0], text, 1), **EXACT)


@torch.no_grad()
def test_chunks_through_a_memory_are_the_masked_whole():
    """Clean chunks one after the other, each remembered, are causal attention over all of them at once."""
    made, text = network(), normal(3, TEXT, seed=1)
    x, prompt = normal(1, 6, 4, 4, 6), network().read_prompt([text])
    memory = Dense(LAYERS, made.rope)
    reads = [lambda *told, layer=i: memory.attend(layer, *told) for i in range(LAYERS)]
    found = []
    for start in (0, 2, 4):
        found.append(made(x[:, start : start + 2], torch.zeros(1, 2), start, prompt, reads))
        for layer in range(LAYERS):
            memory.commit(layer)
    expected = plain(published(), x[0], torch.zeros(6), text, 2)
    assert_close(torch.cat(found, 1)[0], expected, **EXACT)


def test_a_prompt_that_is_too_long_and_an_image_that_is_not_wanted_are_refused():
    made = network()
    with pytest.raises(ValueError, match="at most 9 tokens, got 10"):
        made.read_prompt([normal(10, TEXT)])
    with pytest.raises(ValueError, match="wants no image"):
        made.read_prompt([normal(3, TEXT)], normal(1, 257, 1280))
    with pytest.raises(ValueError, match="wants an image"):
        network(image=True).read_prompt([normal(3, TEXT)])


# ---- checkpoints


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_lists():
    given = published()
    given["blocks.0.extra"] = given.pop("head.head.bias")
    given["blocks.1.modulation"] = normal(1, 5, WIDTH)
    with pytest.raises(CheckpointError) as told:
        load_into(Wan(**SIZE), given, HEADS)
    text = str(told.value)
    assert "1 missing: head.head.bias" in text and "1 not expected: blocks.0.extra" in text
    assert "blocks.1.modulation (1, 5, 48) instead of (1, 6, 48)" in text


@pytest.mark.parametrize("wrapped", ["", "_fsdp_wrapped_module."])
def test_the_generator_of_a_forcing_checkpoint_is_its_average(wrapped, tmp_path):
    given = published()
    named = {f"model.{wrapped}{name}": x for name, x in given.items()}
    torch.save({"generator": {}, "generator_ema": named, "step": 3}, tmp_path / "forcing.pt")
    found = forcing_generator(read_checkpoint(tmp_path / "forcing.pt"))
    assert found.keys() == given.keys() and all(torch.equal(found[name], given[name]) for name in given)
    with pytest.raises(CheckpointError, match="generator_ema.*got critic"):
        forcing_generator({"critic": {}})


def test_what_is_no_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="No checkpoint at"):
        read_checkpoint(tmp_path / "missing.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        read_checkpoint(tmp_path / "broken.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="No .safetensors files in"):
        read_checkpoint(tmp_path / "empty")

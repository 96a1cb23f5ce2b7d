"""Transformers of diffusers: ours compute the same, and theirs can be given a memory."""

import pytest
import torch
from test_wan import normal
from torch import Tensor, nn
from torch.testing import assert_close

from fastar import Dense
from fastar.attach import attach
from worldmodel.backbones.checkpoints import from_diffusers, load_into
from worldmodel.backbones.wan import Wan

diffusers = pytest.importorskip("diffusers", reason="needs diffusers: pip install diffusers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

HEADS, D, LAYERS, TEXT, SPACE, CHUNK = 2, 24, 2, 20, (4, 6), 2
CLOSE = dict(rtol=0, atol=5e-4)  # theirs takes sines of timesteps in fp32


def theirs(kind: str = "WanTransformer3DModel", image: bool = False, **how):
    torch.manual_seed(0)
    shape = dict(
        num_attention_heads=HEADS, attention_head_dim=D, in_channels=4, out_channels=4, text_dim=TEXT
    )
    picture = dict(image_dim=1280, added_kv_proj_dim=HEADS * D) if image else {}
    made = getattr(diffusers, kind)(**shape, **picture, ffn_dim=64, num_layers=LAYERS, **how)
    for x in made.parameters():
        nn.init.normal_(x, std=0.2)
    return made.float().eval()


def ours(transformer, image: bool = False) -> Wan:
    made = Wan(
        width=HEADS * D, heads=HEADS, layers=LAYERS, ffn=64, taken=4, given=4, text_width=TEXT, image=image
    )
    load_into(made, from_diffusers(transformer.state_dict()), HEADS)
    return made


def asked(transformer, latents: Tensor, text: Tensor, time: float, image: Tensor | None = None) -> Tensor:
    """Theirs, told as ours is: latents [b, f, c, h, w], text of 512 tokens."""
    told = dict(encoder_hidden_states_image=image) if image is not None else {}
    out = transformer(
        hidden_states=latents.transpose(1, 2), timestep=torch.tensor([time] * len(latents)).long(),
        encoder_hidden_states=text, return_dict=False, **told,
    )  # fmt: skip
    return out[0].transpose(1, 2)


def text(batch: int = 1) -> Tensor:
    """Features of a prompt of five tokens, padded as theirs are."""
    return torch.cat([normal(batch, 5, TEXT, seed=1), torch.zeros(batch, 507, TEXT)], 1).float()


def through(memory: Dense):
    return [lambda *told, layer=i: memory.attend(layer, *told) for i in range(LAYERS)]


@pytest.mark.parametrize("image", [False, True])
@torch.no_grad()
def test_ours_is_theirs(image):
    transformer = theirs(image=image)
    made, latents = ours(transformer, image), normal(2, 3, 4, *SPACE).float()
    picture = normal(2, 257, 1280, seed=3).float() if image else None
    prompt = made.read_prompt(list(text(2)[:, :5]), picture)
    found = made(latents, torch.full((2, 3), 500.0), 0, prompt, through(Dense(LAYERS, made.rope)))
    assert_close(found, asked(transformer, latents, text(2), 500, picture), **CLOSE)


@torch.no_grad()
def test_chunks_of_theirs_remember_as_ours_do():
    """Two passes over every chunk, the second clean, then commit: the same video either way."""
    transformer = theirs()
    made = ours(transformer)
    memory = Dense(LAYERS, made.rope)
    prompt, reads = made.read_prompt([text()[0, :5]]), through(memory)
    alone = asked(transformer, normal(1, CHUNK, 4, *SPACE, seed=9).float(), text(), 500)
    past = attach(transformer, {"kind": "dense"})
    for i in range(3):
        latents = normal(1, CHUNK, 4, *SPACE, seed=i).float()
        for time in (700, 0):
            found = asked(transformer, latents, text(), time)
            told = torch.full((1, CHUNK), float(time)), CHUNK * i, prompt, reads
            assert_close(found, made(latents, *told), **CLOSE)
        past.commit()
        for layer in range(LAYERS):
            memory.commit(layer)
    assert past.frames == 3 * CHUNK
    past.reset()
    again = asked(transformer, normal(1, CHUNK, 4, *SPACE, seed=9).float(), text(), 500)
    assert_close(again, alone, **CLOSE)
    past.detach()
    whole = asked(transformer, normal(1, CHUNK, 4, *SPACE, seed=9).float(), text(), 500)
    assert torch.equal(whole, alone)


@pytest.mark.parametrize("kind", ["WanTransformer3DModel", "SkyReelsV2Transformer3DModel"])
@torch.no_grad()
def test_a_bounded_memory_and_a_choosy_reading_run(kind):
    """All words of a prompt are read where all may be; the memory stays within its budget."""
    transformer = theirs(kind)
    latents = normal(1, CHUNK, 4, *SPACE).float()
    expected, tokens = asked(transformer, latents, text(), 500), CHUNK * 6
    cache = {"kind": "tempcache", "sink": 1, "recent": 1, "far": 2 * tokens, "threshold": 0.5}
    past = attach(transformer, cache, cross={"kind": "annca", "density": 1.0})
    assert_close(asked(transformer, latents, text(), 500), expected, **CLOSE)
    for i in range(8):
        assert asked(transformer, normal(1, CHUNK, 4, *SPACE, seed=i).float(), text(), 0).isfinite().all()
        past.commit()
        stats = past.memory.stats()
        assert stats.seen == (i + 1) * tokens and stats.kept <= 4 * tokens


def test_another_network_is_refused():
    with pytest.raises(ValueError, match="with attn1 and attn2 in its blocks.*got Linear"):
        attach(nn.Linear(2, 2), {"kind": "dense"})

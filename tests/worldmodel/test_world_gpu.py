"""The laws that must also hold on a GPU: play and training agree there with the CPU."""

import numpy as np
import pytest
import tiny
import torch
from torch.testing import assert_close

from fastar import AnnSA, TempCache
from worldmodel.training.twostream import TwoStream, compile_network
from worldmodel.vocabulary import pad

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.mark.parametrize("memory", tiny.MEMORIES)
def test_a_world_dreams_as_on_the_cpu(memory, monkeypatch):
    latents, keys = tiny.clip(4)
    draws, frames = tiny.noise(12, seed=3), []
    for device in ("cpu", "cuda"):
        game = tiny.world(memory, tiny.denoiser().to(device))
        game.reset_latents(latents.to(device), keys, "a red room")
        given = iter(draws)
        monkeypatch.setattr(game, "_draw", lambda given=given, device=device: next(given)[:, None].to(device))
        frames.append(torch.stack([game.step(np.ones(9)).cpu() for _ in range(12)]))
    assert_close(frames[0], frames[1], rtol=0, atol=3e-2)


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@torch.no_grad()
def test_flex_attention_is_the_masked_definition():
    """Training's two streams, compiled, against the plain mask."""
    latents, keys = tiny.clip(5)
    (x,) = tiny.noise(1)
    outputs = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        network = tiny.denoiser().to(device)
        if device.type == "cuda":
            compile_network(network)
        words = pad([[2, 3]] * 2).to(device)
        outputs.append(
            TwoStream(tiny.TOKENS, 5, 3, device)(
                network,
                (latents.to(device), torch.zeros(2, 5, device=device)),
                (x[:, None].expand(-1, 3, -1, -1).to(device), torch.ones(2, 3, device=device)),
                keys.to(device),
                torch.arange(5, device=device).expand(2, -1),
                network.read_prompt(words),
                network.control(keys.to(device)),
            ).cpu()
        )
    assert_close(outputs[0], outputs[1], rtol=0, atol=2e-2)


BOUNDED = [name for name in tiny.MEMORIES if name != "dense"]


def fast_ar(layers, rope):
    pattern = AnnSA(density=0.5, block=4, every=3)
    return TempCache(layers, rope, sink=1, recent=2, far=20, threshold=0.5, drift=0.0, pattern=pattern)


@pytest.mark.parametrize("memory", [*BOUNDED, "fast-ar"])
@pytest.mark.parametrize("levels", [(1.0,), (1.0, 0.6)])
def test_a_graph_dreams_what_its_kernels_do(memory, levels):
    """At once or one by one: the same dream, also with another prompt and from a saved moment."""
    latents, keys = tiny.clip(4)
    games = [tiny.world(network=tiny.denoiser().cuda(), levels=levels, graphs=x) for x in (True, False)]
    frames = [[], []]
    for game, seen in zip(games, frames, strict=True):
        game.use((tiny.MEMORIES | {"fast-ar": fast_ar})[memory])
        game.reset_latents(latents.cuda(), keys, "a red room", seed=3)
        held = np.random.default_rng(0).random((60, 9)) < 0.3
        for i in range(60):
            if i == 40:
                game.say("a dark room")
            if i == 50:
                game.load_state_dict(game.state_dict())
            seen.append(game.step(held[i]).cpu())
    assert games[0]._graphs.known
    assert_close(torch.stack(frames[0]), torch.stack(frames[1]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("memory", ["window_sink", "tempcache", "fast-ar"])
def test_fused_layers_dream_what_they_did(memory):
    """Compiled between the reads, and then launched as graphs."""
    latents, keys = tiny.clip(4)
    frames = []
    for fused in (True, False):
        game = tiny.world(network=tiny.denoiser().cuda(), graphs=fused, fuse=fused)
        game.use((tiny.MEMORIES | {"fast-ar": fast_ar})[memory])
        game.reset_latents(latents.cuda(), keys, "a red room", seed=3)
        frames.append(torch.stack([game.step(np.ones(9)).cpu() for _ in range(40)]))
    assert_close(*frames, rtol=0, atol=1e-3)

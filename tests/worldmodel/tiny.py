"""Worlds of six tokens a frame, with random weights: what the laws of the world model are tried on."""

import torch
from torch import Tensor, nn

from fastar import Dense, TempCache, WindowSink
from fastar.rivals import R1KV, RandomEviction, UniformFrames
from worldmodel.autoencoder import Autoencoder
from worldmodel.denoiser import Denoiser
from worldmodel.vocabulary import Vocabulary
from worldmodel.world import World

GRID, TOKENS, CHANNELS = (2, 3), 6, 16
VOCABULARY = Vocabulary(["a", "red", "room", "of", "stone", "dark"])
AUTOENCODER = dict(channels=4, widths=(8, 8, 16))
DENOISER = dict(
    channels=CHANNELS, grid=GRID, words=len(VOCABULARY), width=32, depth=2, heads=2, rope=(8, 4, 4),
    prompt_width=16, prompt_depth=1, control_width=16, control_depth=1,
)  # fmt: skip


def shaken(module: nn.Module, by: float = 0.1, seed: int = 0) -> nn.Module:
    """The module with every parameter moved a little, so that none of its branches is silent."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += by * torch.randn(parameter.shape, generator=random)
    return module.eval()


def denoiser(seed: int = 0) -> Denoiser:
    torch.manual_seed(seed)
    return shaken(Denoiser(**DENOISER))


def autoencoder(seed: int = 0) -> Autoencoder:
    torch.manual_seed(seed)
    return shaken(Autoencoder(**AUTOENCODER))


MEMORIES = {
    "dense": Dense,
    "window_sink": lambda layers, rope: WindowSink(layers, rope, sink=1, recent=2),
    "tempcache": lambda layers, rope: TempCache(
        layers, rope, sink=1, recent=2, far=20, threshold=0.5, drift=0.0
    ),
    "random": lambda layers, rope: RandomEviction(layers, rope, sink=1, recent=2, far=20),
    "uniform": lambda layers, rope: UniformFrames(layers, rope, sink=1, recent=2, far=20),
    "flowcache": lambda layers, rope: R1KV(layers, rope, sink=1, recent=2, far=20),
}


def world(memory: str = "dense", network: Denoiser | None = None, **options) -> World:
    network = network or denoiser()
    return World(autoencoder(), network, VOCABULARY, MEMORIES[memory], **options)


def clip(frames: int, *, batch: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Latents [b, f, n, c] and keys [b, f, 9] of made-up play."""
    random = torch.Generator().manual_seed(seed)
    latents = torch.randn(batch, frames, TOKENS, CHANNELS, generator=random)
    return latents, (torch.rand(batch, frames, 9, generator=random) < 0.3).float()


def noise(draws: int, *, batch: int = 2, seed: int = 0) -> list[Tensor]:
    """The noise that a world of this seed draws, in order."""
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, TOKENS, CHANNELS, generator=random) for _ in range(draws)]

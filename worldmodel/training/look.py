"""A look at what has been learnt: dreams of held-out worlds beside the real ones, on a contact sheet."""

import copy
from pathlib import Path

import torch
from PIL import Image

from fastar import WindowSink

from ..autoencoder import Autoencoder
from ..denoiser import Denoiser
from ..evaluation.clips import held_out
from ..evaluation.quality import quality, sheet
from ..vocabulary import Vocabulary
from ..world import World

SHOWN = (1, 4, 8, 16, 32, 64)  # frames after the history


def look(
    data: Path,
    target: Path,
    autoencoder: Autoencoder,
    network: Denoiser,
    vocabulary: Vocabulary,
    levels: list[float],
    games: int = 8,
) -> dict[str, float]:
    """Dream from the history of held-out clips; write the sheet to `target`, return PSNR and sharpness."""
    clips = held_out(data, games, 16 + SHOWN[-1] + 3)
    half = torch.bfloat16 if autoencoder.mean.is_cuda else torch.float32
    coder, dreamer = copy.deepcopy(autoencoder).to(half).eval(), copy.deepcopy(network).to(half).eval()
    world = World(coder, dreamer, vocabulary, WindowSink, levels=levels)
    figures, dreamt = quality(world, clips, likeness=[1, 8, 32], crispness=[16, 64])
    Image.fromarray(sheet(clips, dreamt, list(SHOWN), games=games)).save(target)
    return figures

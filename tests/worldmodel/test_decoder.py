"""A decoder that goes on learning draws other pictures, of the same latents."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tiny import VOCABULARY
from torch.testing import assert_close

from worldmodel.autoencoder import Autoencoder, to_frames
from worldmodel.denoiser import Denoiser
from worldmodel.episodes import HEIGHT, WIDTH, Episode, EpisodeWriter
from worldmodel.training.autoencoder import sharpness
from worldmodel.training.decoder import Critic, dreams, train_decoder
from worldmodel.training.latents import Library

CONFIG = OmegaConf.to_container(OmegaConf.load(Path(__file__).parents[2] / "configs/tiny.yaml"))
FRAMES = 24


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[Episode]:
    """Two games whose every frame has a colour of its own."""
    root = tmp_path_factory.mktemp("play")
    for game in range(2):
        writer = EpisodeWriter(root / str(game), {"world": {"grid": [[0]], "cell": 96}, "frames": FRAMES})
        for i in range(FRAMES):
            picture = np.full((HEIGHT, WIDTH, 3), (10 * i, 255 * game, 255 - 10 * i), np.uint8)
            writer.add(picture, np.zeros(9, np.uint8), pose=[0.0, 0.0, 0.0, 0.0])
        writer.close()
    return [Episode(root / str(game)) for game in range(2)]


@pytest.fixture(scope="module")
def parts(found):
    torch.manual_seed(0)
    coder = Autoencoder(**CONFIG["autoencoder"]["model"]).eval()
    network = Denoiser(words=len(VOCABULARY), channels=16, **CONFIG["denoiser"]).eval()
    pictures = [to_frames(torch.from_numpy(episode.frames())) for episode in found]
    with torch.no_grad():
        latents = [coder.encode(x) for x in pictures]
    nothing = [np.full(FRAMES, -1)] * 2
    captions = [[[("world", [2])] for _ in range(0, FRAMES, 16)]] * 2
    books = Library(latents, [torch.zeros(FRAMES, 9)] * 2, captions, nothing)
    books.places = torch.zeros(2 * FRAMES, 3)
    return found, books, coder, VOCABULARY, network


def test_a_picture_is_that_of_its_latents_and_trust_falls_with_what_is_dreamt(parts):
    _, books, coder, *_ = parts
    for latents, frames, trust in islice(dreams(*parts, batch=32, games=3, alone=4, uses=2), 4):
        known = 0.5 ** (torch.arange(5) / 4)
        assert torch.isin(trust, known).all() and (trust == 1).any() and (trust < 1).any()
        real = trust == 1
        with torch.no_grad():
            assert_close(latents[real], coder.encode(to_frames(frames[real])), rtol=0, atol=1e-4)


def test_only_the_decoder_learns(parts, tmp_path):
    before = {name: x.clone() for name, x in parts[2].state_dict().items()}
    how = dict(batch=4, games=2, alone=4, uses=2, width=8, steps=3)
    alone = train_decoder(*parts, tmp_path / "warm", warm=3, **how).state_dict()
    assert all(torch.equal(x, before[name]) for name, x in alone.items())  # only the critic has learnt
    after = train_decoder(*parts, tmp_path, warm=1, **how).state_dict()
    assert all(torch.equal(x, before[name]) == (not name.startswith("decoder")) for name, x in after.items())
    assert all(torch.equal(x, before[name]) for name, x in parts[2].state_dict().items())


def test_the_critic_sees_two_sizes_and_is_bounded():
    """Spectral normalisation: however loud its weights, its verdicts are the same."""
    torch.manual_seed(0)
    critic, frames = Critic(8), torch.randn(2, 3, 32, 48)
    verdicts, seen = critic(frames)
    assert verdicts.shape == (2, 4 * 6 + 2 * 3) and len(seen) == 8
    for _ in range(20):
        critic(frames)
    before = critic(frames)[0]
    with torch.no_grad():
        for name, x in critic.named_parameters():
            if name.endswith("original"):
                x *= 100
    assert_close(critic(frames)[0], before, rtol=0.05, atol=0.05)


def test_sharpness_is_that_of_luma():
    stripes = torch.zeros(1, 3, 4, 4)
    stripes[..., ::2] = 0.5
    assert sharpness(stripes) == pytest.approx(0.5)
    assert sharpness(torch.zeros(1, 3, 4, 4)) == 0

"""Latents to pictures as they come, and the layouts in which the network is published."""

import numpy as np
import pytest
import torch
from published import autoencoder, autoencoder_weights
from test_wan import normal
from torch import Tensor

from worldmodel.backbones.checkpoints import CheckpointError
from worldmodel.backbones.vae import StreamingDecoder, load_decoder

pytest.importorskip("diffusers", reason="needs diffusers: pip install diffusers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture(scope="module")
def vae():
    return autoencoder()


@pytest.fixture
def latents() -> Tensor:
    return normal(1, 5, 16, 4, 6).float()


def pictures(vae, latents: Tensor) -> np.ndarray:
    """All at once, by diffusers, as its pipelines do it."""
    scales = vae.config.latents_mean, vae.config.latents_std
    mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in scales)
    with torch.no_grad():
        video = vae.decode(latents.transpose(1, 2) * std + mean).sample
    return ((video + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy()


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_decode_as_the_whole_does(vae, latents, chunk):
    """To the last picture: 1 of the first latent frame, 4 of every other one. Also of a second video."""
    decoder = StreamingDecoder(vae)
    for _ in range(2):
        found = np.concatenate([decoder(part) for part in latents.split(chunk, 1)], 1)
        assert found.shape == (1, 17, 32, 48, 3)
        assert np.abs(found.astype(int) - pictures(vae, latents)).max() <= 1
        decoder.reset()


def test_both_layouts_are_the_same_network(vae, latents, tmp_path):
    torch.save(autoencoder_weights(vae), tmp_path / "Wan2.1_VAE.pth")
    vae.save_pretrained(tmp_path / "vae")
    for path in (tmp_path / "Wan2.1_VAE.pth", tmp_path / "vae"):
        assert np.abs(load_decoder(path)(latents).astype(int) - pictures(vae, latents)).max() <= 1


def test_what_is_no_autoencoder_says_so(vae, tmp_path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="is not Wan's autoencoder: it has no"):
        load_decoder(tmp_path / "other.pth")
    given = autoencoder_weights(vae)
    del given["decoder.conv1.bias"]
    torch.save(given | {"more": torch.zeros(1)}, tmp_path / "part.pth")
    with pytest.raises(CheckpointError, match="1 missing: .*conv_in.bias"):
        load_decoder(tmp_path / "part.pth")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read as an autoencoder"):
        load_decoder(tmp_path / "empty")

"""Latents to pictures as they come, and the layouts in which the network is published."""

import numpy as np
import pytest
import torch
from published import autoencoder, autoencoder_weights
from test_wan import normal
from torch import Tensor

from worldmodel.backbones.checkpoints import CheckpointError
from worldmodel.backbones.vae import StreamingDecoder, StreamingEncoder, load_decoder, to_video

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


def encoded(vae, video: Tensor) -> Tensor:
    """All at once, by diffusers, as its pipelines do it."""
    scales = vae.config.latents_mean, vae.config.latents_std
    mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in scales)
    with torch.no_grad():
        found = vae.encode(video.transpose(1, 2)).latent_dist.mode()
    return ((found - mean) / std).transpose(1, 2)


@pytest.mark.parametrize("chunks", [(17,), (1, 4, 12), (9, 8)])
def test_chunks_encode_as_the_whole_does(vae, chunks):
    """A picture for the first latent frame, 4 for every other one. Also of a second video."""
    encoder, video = StreamingEncoder(vae), normal(1, 17, 3, 32, 48).float().clamp(-1, 1)
    for _ in range(2):
        found = torch.cat([encoder(part) for part in video.split(chunks, 1)], 1)
        assert found.shape == (1, 5, 16, 4, 6)
        assert torch.allclose(found, encoded(vae, video), atol=1e-5)
        encoder.reset()


def test_videos_do_not_mix(vae):
    """Two encoders of one network, and one that goes on from where it was."""
    videos = [normal(1, 9, 3, 16, 16, seed=i).float() for i in range(2)]
    alone = [StreamingEncoder(vae)(video) for video in videos]
    first, second, later = (StreamingEncoder(vae) for _ in range(3))
    assert torch.allclose(first(videos[0][:, :5]), alone[0][:, :2], atol=1e-5)
    later.load_state_dict(first.state_dict())
    assert torch.allclose(second(videos[1]), alone[1], atol=1e-5)
    rest = first(videos[0][:, 5:])
    assert torch.allclose(rest, alone[0][:, 2:], atol=1e-5)
    assert torch.equal(later(videos[0][:, 5:]), rest)


def test_half_a_latent_frame_cannot_be_encoded(vae):
    with pytest.raises(ValueError, match="Expected 1 pictures and any number of times 4 more, got 3"):
        StreamingEncoder(vae)(torch.zeros(1, 3, 3, 16, 16))


def test_pictures_go_from_black_to_white():
    picture = np.array([0, 255], np.uint8).reshape(1, 1, 1, 2, 1).repeat(3, -1)
    assert to_video(picture).flatten(2).tolist() == [[[-1, 1] * 3]]


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

"""Latent frames to pictures and back, as they come: Wan's causal convolutions keep what they have seen.

The network is `AutoencoderKLWan` of diffusers. Its own `decode` and `encode` forget between calls, so that a
video made chunk by chunk would be coded anew each time, or flicker where chunks meet; these go on where they
were.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checkpoints import CheckpointError, check_names, read_checkpoint
from .packages import package

TIME = 4  # pictures of a latent frame, but for the first, which is one
SPACE = 8  # pixels of a latent's side


class Streaming:
    """One side of the autoencoder on its way through a video. Several may go through videos of their own."""

    def __init__(self, vae: Any) -> None:
        self.vae = vae.eval()
        weight = vae.post_quant_conv.weight
        self.device, self.dtype = weight.device, weight.dtype
        scales = vae.config.latents_mean, vae.config.latents_std
        mean, std = (torch.tensor(x, device=self.device) for x in scales)
        self.mean, self.std = (x.view(1, 1, -1, 1, 1) for x in (mean, std))
        self.reset()

    def reset(self) -> None:
        """Begin another video."""
        self.vae.clear_cache()
        self._seen: list[Any] = [None] * self._convolutions()
        self._first = True

    def _convolutions(self) -> int:
        """Those that keep what they have seen."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Where in the video it is. Nothing is copied: the network never writes into a tensor kept here."""
        return {"seen": list(self._seen), "first": self._first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen, self._first = list(state["seen"]), state["first"]


class StreamingDecoder(Streaming):
    """Pictures of consecutive latents; the first latent frame gives one picture, every other one four."""

    def _convolutions(self) -> int:
        return len(self.vae._feat_map)

    @torch.no_grad()
    def __call__(self, latents: Tensor) -> np.ndarray:
        """Latents [b, f, c, h, w] of the transformer -> RGB uint8 [b, pictures, height, width, 3]."""
        z = (latents.to(self.device) * self.std + self.mean).to(self.dtype).transpose(1, 2)
        z = self.vae.post_quant_conv(z)
        pictures = []
        for frame in z.split(1, 2):
            cache = dict(feat_cache=self._seen, feat_idx=[0], first_chunk=self._first)
            pictures.append(self.vae.decoder(frame, **cache))
            self._first = False
        shown = torch.cat(pictures, 2).float().clamp(-1, 1)
        return ((shown + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).cpu().numpy()


class StreamingEncoder(Streaming):
    """Latents of consecutive pictures; one picture makes the first latent frame, four every other one."""

    def _convolutions(self) -> int:
        return len(self.vae._enc_feat_map)

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures [b, n, 3, height, width] from -1 to 1 -> latents [b, f, c, h, w] of the transformer, fp32.

        Raises ValueError unless n makes whole latent frames.
        """
        first = 1 if self._first else TIME
        if pictures.shape[1] < first or (pictures.shape[1] - first) % TIME:
            raise ValueError(
                f"Expected {first} pictures and any number of times {TIME} more, got {pictures.shape[1]}."
            )
        x = pictures.to(self.device, self.dtype).transpose(1, 2)
        found = []
        for part in (x[:, :, :first], *x[:, :, first:].split(TIME, 2)):
            if part.shape[2]:
                found.append(self.vae.encoder(part, feat_cache=self._seen, feat_idx=[0]))
        self._first = False
        mean, _ = self.vae.quant_conv(torch.cat(found, 2)).chunk(2, 1)
        return (mean.transpose(1, 2).float() - self.mean) / self.std


def to_video(pictures: np.ndarray) -> Tensor:
    """RGB uint8 [b, n, height, width, 3] -> what is encoded, [b, n, 3, height, width] from -1 to 1."""
    return torch.from_numpy(np.array(pictures)).movedim(-1, 2).float() / 127.5 - 1


def load_decoder(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> StreamingDecoder:
    """From a folder in the layout of diffusers, or `Wan2.1_VAE.pth`. Raises CheckpointError."""
    return StreamingDecoder(load_autoencoder(path, device, dtype))


def load_autoencoder(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """`AutoencoderKLWan` of diffusers, see `load_decoder`."""
    diffusers = package("diffusers")
    if path.is_dir():
        try:
            vae = diffusers.AutoencoderKLWan.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} cannot be read as an autoencoder of diffusers: {error}") from error
    else:
        published = read_checkpoint(path)
        vae = diffusers.AutoencoderKLWan(**_sizes(published, path))
        converted = package("diffusers.loaders.single_file_utils").convert_wan_vae_to_diffusers(published)
        missing, strange = vae.load_state_dict(converted, strict=False)
        check_names(path, "Wan's autoencoder", missing, strange)
    return vae.to(device, dtype)


def _sizes(published: dict[str, Tensor], path: Path) -> dict[str, Any]:
    try:
        return {"base_dim": len(published["encoder.conv1.weight"]), "z_dim": len(published["conv2.weight"])}
    except KeyError as error:
        raise CheckpointError(f"{path} is not Wan's autoencoder: it has no {error}.") from None

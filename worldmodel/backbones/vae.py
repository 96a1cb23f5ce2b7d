"""Latent frames to pictures, as they come: Wan's decoder keeps what its causal convolutions have seen.

The network is `AutoencoderKLWan` of diffusers. Its own `decode` forgets between calls, so that a video made
chunk by chunk would be decoded anew each time, or flicker where chunks meet; this goes on where it was.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checkpoints import CheckpointError, check_names, read_checkpoint
from .packages import package

TIME = 4  # pictures of a latent frame, but for the first, which is one


class StreamingDecoder:
    """Pictures of consecutive latents; the first latent frame gives one picture, every other one four."""

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
        self._seen: list[Any] = [None] * len(self.vae._feat_map)  # by each convolution
        self._first = True

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


def load_decoder(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> StreamingDecoder:
    """From a folder in the layout of diffusers, or `Wan2.1_VAE.pth`. Raises CheckpointError."""
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
    return StreamingDecoder(vae.to(device, dtype))


def _sizes(published: dict[str, Tensor], path: Path) -> dict[str, Any]:
    try:
        return {"base_dim": len(published["encoder.conv1.weight"]), "z_dim": len(published["conv2.weight"])}
    except KeyError as error:
        raise CheckpointError(f"{path} is not Wan's autoencoder: it has no {error}.") from None

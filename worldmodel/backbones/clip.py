"""A picture to features: the visual tower of the CLIP that Wan's image-to-video was trained with.

The published file holds a whole CLIP, XLM-RoBERTa and ViT-H/14. Only the latter is read here, and carried by
transformers; what the transformer attends to are the states before its last block.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .checkpoints import CheckpointError, check_names, check_shapes, count, read_checkpoint
from .packages import package

VISUAL = "visual."
UNUSED = "visual.head"  # from the state of the picture to the space of texts
OTHERS = ("textual.", "log_scale")  # the tower of texts, and the scale between both
HEAD = 80  # channels of an attention's head in ViT-H
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's pictures
NAMES = [  # published -> transformers
    (r"^cls_embedding$", "embeddings.class_embedding"),
    (r"^patch_embedding\.", "embeddings.patch_embedding."),
    (r"^pos_embedding$", "embeddings.position_embedding.weight"),
    (r"^pre_norm\.", "pre_layrnorm."),
    (r"^post_norm\.", "post_layernorm."),
    (r"^transformer\.(\d+)\.norm([12])\.", r"encoder.layers.\1.layer_norm\2."),
    (r"^transformer\.(\d+)\.attn\.([qkv])\.", r"encoder.layers.\1.self_attn.\2_proj."),
    (r"^transformer\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.out_proj."),
    (r"^transformer\.(\d+)\.mlp\.0\.", r"encoder.layers.\1.mlp.fc1."),
    (r"^transformer\.(\d+)\.mlp\.2\.", r"encoder.layers.\1.mlp.fc2."),
]


class ImageEncoder:
    """The visual tower, a `CLIPVisionModel` of transformers."""

    def __init__(self, tower: Any) -> None:
        self.tower, self.side = tower.eval(), tower.config.image_size
        weight = tower.embeddings.patch_embedding.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.mean, self.std = (torch.tensor(x, device=self.device).view(1, 3, 1, 1) for x in (MEAN, STD))

    @torch.no_grad()
    def __call__(self, picture: np.ndarray) -> Tensor:
        """Features of RGB uint8 [h, w, 3], squeezed to a square: [1, 1 + patches, width]."""
        pixels = torch.from_numpy(np.array(picture)).to(self.device).movedim(-1, 0)[None].float() / 255
        pixels = F.interpolate(pixels, size=(self.side, self.side), mode="bicubic")
        given = ((pixels - self.mean) / self.std).to(self.dtype)
        return self.tower(given, output_hidden_states=True).hidden_states[-2]


def load_image_encoder(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> ImageEncoder:
    """From `models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth`. Raises CheckpointError."""
    transformers = package("transformers")
    published = read_checkpoint(path)
    config = transformers.CLIPVisionConfig(**sizes(published, path))
    tower = transformers.CLIPVisionModel(config).to(dtype)
    given, wanted = converted(published), tower.state_dict()
    check_names(
        path, "CLIP's visual tower", sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    )
    check_shapes(path, given, wanted)
    tower.load_state_dict(given)
    return ImageEncoder(tower.to(device))


def converted(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the visual tower, and whatever is none of CLIP's, as transformers has them."""
    found = {}
    for name, x in published.items():
        if name.startswith((*OTHERS, UNUSED)):
            continue
        name = name.removeprefix(VISUAL)
        if ".to_qkv." in name:
            parts = {
                name.replace("to_qkv", part): third for part, third in zip("qkv", x.chunk(3), strict=True)
            }
        else:
            parts = {name: x}
        found |= {renamed(part): tensor for part, tensor in parts.items()}
    for name in ("embeddings.class_embedding", "embeddings.position_embedding.weight"):
        if name in found:  # with axes of length 1 before, as published
            found[name] = found[name].flatten() if "class" in name else found[name].flatten(0, -2)
    return found


def renamed(name: str) -> str:
    """A published name, without its beginning, as transformers has it."""
    for published, theirs in NAMES:
        name = re.sub(published, theirs, name)
    return name


def sizes(published: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """The configuration of the tower that has such tensors, of heads of 80 channels."""
    try:
        width, _, patch, _ = published["visual.patch_embedding.weight"].shape
        side = round((published["visual.pos_embedding"].shape[-2] - 1) ** 0.5)
        hidden = len(published["visual.transformer.0.mlp.0.weight"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is not CLIP's visual tower: it has no {error}.") from None
    layers = count(published, f"{VISUAL}transformer.")
    return dict(
        hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=width // HEAD, image_size=side * patch, patch_size=patch, hidden_act="gelu",
    )  # fmt: skip

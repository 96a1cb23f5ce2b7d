"""A picture to features, against a plain ViT."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from published import clip_weights
from torch import Tensor
from torch.testing import assert_close

from worldmodel.backbones.checkpoints import CheckpointError
from worldmodel.backbones.clip import HEAD, MEAN, STD, load_image_encoder

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

WIDTH, LAYERS, HIDDEN, PATCH = 2 * HEAD, 3, 48, 7


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return clip_weights(WIDTH, LAYERS, HIDDEN, PATCH, side=3)


def plain(w: dict[str, Tensor], picture: np.ndarray) -> Tensor:
    """States [1, 1 + patches, width] before the last block, of a picture of the right size."""
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 255
    pixels = (pixels - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    patches = F.conv2d(pixels, w["visual.patch_embedding.weight"], stride=PATCH).flatten(2).mT
    x = torch.cat([w["visual.cls_embedding"], patches], 1) + w["visual.pos_embedding"]
    x = norm(w, "pre_norm", x)
    for i in range(LAYERS - 1):
        q, k, v = linear(w, f"transformer.{i}.attn.to_qkv", norm(w, f"transformer.{i}.norm1", x)).chunk(3, -1)
        heads = []
        for head in range(WIDTH // HEAD):
            own = slice(head * HEAD, (head + 1) * HEAD)
            heads.append((q[..., own] @ k[..., own].mT / HEAD**0.5).softmax(-1) @ v[..., own])
        x = x + linear(w, f"transformer.{i}.attn.proj", torch.cat(heads, -1))
        inner = F.gelu(linear(w, f"transformer.{i}.mlp.0", norm(w, f"transformer.{i}.norm2", x)))
        x = x + linear(w, f"transformer.{i}.mlp.2", inner)
    return x


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"visual.{name}.weight"].mT + w[f"visual.{name}.bias"]


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    return x * w[f"visual.{name}.weight"] + w[f"visual.{name}.bias"]


def test_features_are_those_of_a_plain_vit(weights, tmp_path):
    torch.save(weights, tmp_path / "clip.pth")
    picture = np.random.default_rng(0).integers(0, 256, (3 * PATCH, 3 * PATCH, 3), np.uint8)
    found = load_image_encoder(tmp_path / "clip.pth")(picture)
    assert found.shape == (1, 10, WIDTH)
    assert_close(found, plain(weights, picture), rtol=0, atol=1e-5)


def test_any_picture_is_squeezed_to_a_square(weights, tmp_path):
    torch.save(weights, tmp_path / "clip.pth")
    encode = load_image_encoder(tmp_path / "clip.pth")
    grey, wide = (np.full((h, w, 3), 90, np.uint8) for h, w in ((21, 21), (40, 64)))
    assert_close(encode(wide), encode(grey), rtol=0, atol=1e-4)


def test_what_is_no_clip_says_so(weights, tmp_path):
    path = tmp_path / "clip.pth"
    for change, told in (
        ({"visual.cls_embedding": None}, "1 missing: embeddings.class_embedding"),
        ({"visual.more": torch.zeros(1)}, "1 not expected: more"),
        ({"more": torch.zeros(1)}, "1 not expected: more"),
        ({"visual.post_norm.bias": torch.zeros(3)}, r"post_layernorm.bias \(3,\) instead of \(160,\)"),
        ({"visual.patch_embedding.weight": None}, "is not CLIP's visual tower: it has no"),
    ):
        given = {name: x for name, x in (weights | change).items() if x is not None}
        torch.save(given, path)
        with pytest.raises(CheckpointError, match=told):
            load_image_encoder(path)

"""Small random checkpoints in the layouts and under the names in which the large ones are published."""

from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from worldmodel.backbones.text import renamed
from worldmodel.backbones.wan import Wan

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "room"]
TEXT = 16


def folder(root: Path) -> Path:
    """What `run.py generate` wants for both backbones, the transformer with one head of 128 channels."""
    save_tokenizer(root / "google" / "umt5-xxl")
    torch.save(encoder_weights(text_encoder()), root / "models_t5_umt5-xxl-enc-bf16.pth")
    torch.save(autoencoder_weights(autoencoder()), root / "Wan2.1_VAE.pth")
    torch.manual_seed(0)
    wan = Wan(width=128, heads=1, layers=2, ffn=64, text_width=TEXT)
    named = {f"model.{name}": x for name, x in wan.state_dict().items()}
    for name in ("self_forcing_dmd.pt", "rolling_forcing_dmd.pt"):
        torch.save({"generator_ema": named}, root / name)
    return root


# ---- the text encoder


def text_encoder():
    import transformers

    torch.manual_seed(0)
    shape = dict(vocab_size=len(WORDS), d_model=TEXT, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    config = transformers.UMT5Config(**shape, feed_forward_proj="gated-gelu")  # type: ignore[arg-type]
    return transformers.UMT5EncoderModel(config).eval()


def encoder_weights(encoder) -> dict[str, Tensor]:
    parts = ["norm1.weight", *(f"attn.{x}.weight" for x in "qkvo"), "pos_embedding.embedding.weight"]
    parts += ["norm2.weight", "ffn.gate.0.weight", "ffn.fc1.weight", "ffn.fc2.weight"]
    names = [
        "token_embedding.weight",
        "norm.weight",
        *(f"blocks.{i}.{part}" for i in (0, 1) for part in parts),
    ]
    tensors = encoder.state_dict()
    return {name: tensors[renamed(name)].clone() for name in names}


def save_tokenizer(path: Path) -> Path:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(path)
    return path


# ---- the autoencoder


def autoencoder():
    import diffusers

    torch.manual_seed(0)
    return diffusers.AutoencoderKLWan(base_dim=8, z_dim=16).eval()


def autoencoder_weights(vae) -> dict[str, Tensor]:
    """Under Wan's own names, found by asking how these are converted."""
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers as converted

    convolutions = "residual.2", "residual.6", "shortcut", "resample.1", "time_conv"
    parts = ["residual.0.gamma", "residual.3.gamma", *of(convolutions)]
    middle = [
        *(f"middle.{i}.{part}" for i in (0, 2) for part in parts[:6]),
        "middle.1.norm.gamma",
        "head.0.gamma",
    ]
    middle += of(("middle.1.to_qkv", "middle.1.proj", "head.2", "conv1"))
    steps = {
        "encoder": [f"downsamples.{i}" for i in range(12)],
        "decoder": [f"upsamples.{i}" for i in range(16)],
    }
    names = [f"{side}.{step}.{part}" for side, found in steps.items() for step in found for part in parts]
    names += [f"{side}.{part}" for side in steps for part in middle] + of(("conv1", "conv2"))
    wanted, found = vae.state_dict(), {}
    for name in names:
        for theirs in converted({name: torch.empty(0)}):
            if theirs in wanted:
                found[name] = wanted[theirs]
    return found


def of(layers: tuple[str, ...]) -> list[str]:
    return [f"{layer}.{part}" for layer, part in product(layers, ("weight", "bias"))]

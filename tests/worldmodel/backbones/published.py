"""Small random checkpoints in the layouts and under the names in which the large ones are published."""

from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from worldmodel.backbones.longvie import STILL, DualControl
from worldmodel.backbones.text import renamed
from worldmodel.backbones.wan import IMAGE_WIDTH, Wan

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "room"]
TEXT = 16


def folder(root: Path) -> Path:
    """What `run.py generate` wants for both backbones, the transformer with one head of 128 channels."""
    shared(root)
    torch.manual_seed(0)
    wan = Wan(width=128, heads=1, layers=2, ffn=64, text_width=TEXT)
    named = {f"model.{name}": x for name, x in wan.state_dict().items()}
    for name in ("self_forcing_dmd.pt", "rolling_forcing_dmd.pt"):
        torch.save({"generator_ema": named}, root / name)
    return root


def shared(root: Path) -> None:
    """What all backbones have in common."""
    save_tokenizer(root / "google" / "umt5-xxl")
    torch.save(encoder_weights(text_encoder()), root / "models_t5_umt5-xxl-enc-bf16.pth")
    torch.save(autoencoder_weights(autoencoder()), root / "Wan2.1_VAE.pth")


# ---- LongVie 2


def longvie_folder(root: Path) -> Path:
    """What `run.py play --backbone longvie2` wants: two heads of 128 channels, one in the branches."""
    shared(root)
    torch.manual_seed(0)
    wan = Wan(width=256, heads=2, layers=2, ffn=64, taken=16 + STILL, text_width=TEXT, image=True)
    base = {name: x.detach().clone() for name, x in wan.state_dict().items()}
    halves = [{name: base[name] for name in list(base)[i::2]} for i in range(2)]
    (root / "base").mkdir()
    for i, half in enumerate(halves, 1):
        save_file(half, root / "base" / f"diffusion_pytorch_model-0000{i}-of-00002.safetensors")
    tuned = {name: torch.randn_like(x) / 16 for name, x in base.items() if "self_attn.o" in name}
    (root / "LongVie").mkdir()
    save_file(tuned, root / "LongVie" / "dit.safetensors")
    branches = DualControl(wide=256, width=128, heads=1, ffn=32, layers=1)
    named = {f"pipe.dual_controller.{name}": x.clone() for name, x in branches.state_dict().items()}
    save_file(named, root / "LongVie" / "control.safetensors")
    clip = clip_weights(IMAGE_WIDTH, layers=2, hidden=32)
    torch.save(clip, root / "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth")
    return root


def clip_weights(width: int, layers: int, hidden: int, patch: int = 14, side: int = 2) -> dict[str, Tensor]:
    """A CLIP of pictures of side x side patches, with a stub of the tower of texts."""
    shapes = {
        "log_scale": (),
        "textual.norm.weight": (4,),
        "visual.patch_embedding.weight": (width, 3, patch, patch),
        "visual.cls_embedding": (1, 1, width),
        "visual.pos_embedding": (1, 1 + side * side, width),
        "visual.head": (width, 8),
    }
    parts = {"norm1": (), "attn.to_qkv": (3 * width, width), "attn.proj": (width, width)}
    parts |= {"norm2": (), "mlp.0": (hidden, width), "mlp.2": (width, hidden)}
    named = {f"transformer.{i}.{part}": shape for i in range(layers) for part, shape in parts.items()}
    for name, shape in {"pre_norm": (), **named, "post_norm": ()}.items():
        shapes |= {f"visual.{name}.weight": shape or (width,), f"visual.{name}.bias": shape[:1] or (width,)}
    torch.manual_seed(0)
    return {name: torch.randn(shape) / 16 for name, shape in shapes.items()}


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

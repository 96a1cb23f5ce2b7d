"""Prompts to features: the encoder of umT5 that Wan was trained with, carried by transformers."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoints import CheckpointError, check_names, count, read_checkpoint
from .packages import package

LENGTH = 512  # tokens, the last one that of the end
NAMES = [  # published -> transformers
    (r"^token_embedding\.", "shared."),
    (r"^norm\.", "encoder.final_layer_norm."),
    (r"^blocks\.(\d+)\.norm1\.", r"encoder.block.\1.layer.0.layer_norm."),
    (r"^blocks\.(\d+)\.attn\.", r"encoder.block.\1.layer.0.SelfAttention."),
    (
        r"^blocks\.(\d+)\.pos_embedding\.embedding\.",
        r"encoder.block.\1.layer.0.SelfAttention.relative_attention_bias.",
    ),
    (r"^blocks\.(\d+)\.norm2\.", r"encoder.block.\1.layer.1.layer_norm."),
    (r"^blocks\.(\d+)\.ffn\.gate\.0\.", r"encoder.block.\1.layer.1.DenseReluDense.wi_0."),
    (r"^blocks\.(\d+)\.ffn\.fc1\.", r"encoder.block.\1.layer.1.DenseReluDense.wi_1."),
    (r"^blocks\.(\d+)\.ffn\.fc2\.", r"encoder.block.\1.layer.1.DenseReluDense.wo."),
]


class TextEncoder:
    """A tokenizer and an encoder of transformers."""

    def __init__(self, tokenizer: Any, encoder: Any) -> None:
        self.tokenizer, self.encoder = tokenizer, encoder.eval()

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str]) -> list[Tensor]:
        """Features of each prompt [l, width], without padding."""
        found = []
        for prompt in prompts:
            tidy = re.sub(r"\s+", " ", prompt).strip()
            words = self.tokenizer(tidy, truncation=True, max_length=LENGTH, return_tensors="pt")["input_ids"]
            found.append(self.encoder(words.to(self.encoder.device)).last_hidden_state[0])
        return found


def load_text_encoder(
    tokenizer: Path, weights: Path, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> TextEncoder:
    """From a folder with a tokenizer, and `models_t5_umt5-xxl-enc-bf16.pth` as published.

    Raises CheckpointError.
    """
    transformers = package("transformers")
    try:
        words = transformers.AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"No tokenizer in {tokenizer}: {error}") from error
    published = read_checkpoint(weights)
    encoder = transformers.UMT5EncoderModel(transformers.UMT5Config(**sizes(published, weights)))
    encoder = encoder.to(dtype)  # before the weights come: in fp32 they would not fit everywhere
    given = {renamed(name): x for name, x in published.items()}
    given["encoder.embed_tokens.weight"] = given["shared.weight"]
    missing, strange = encoder.load_state_dict(given, strict=False)
    check_names(weights, "the encoder of umT5", missing, strange)
    return TextEncoder(words, encoder.to(device))


def renamed(name: str) -> str:
    """A published name as transformers has it."""
    for published, theirs in NAMES:
        name = re.sub(published, theirs, name)
    return name


def sizes(published: dict[str, Tensor], path: Path) -> dict[str, Any]:
    """The configuration of the encoder that has such tensors."""
    try:
        words, width = published["token_embedding.weight"].shape
        buckets, heads = published["blocks.0.pos_embedding.embedding.weight"].shape
        inner, hidden = len(published["blocks.0.attn.q.weight"]), len(published["blocks.0.ffn.fc1.weight"])
    except KeyError as error:
        raise CheckpointError(f"{path} is not the encoder of umT5: it has no {error}.") from None
    layers = count(published, "blocks.")
    return dict(
        vocab_size=words, d_model=width, d_kv=inner // heads, d_ff=hidden, num_layers=layers, num_heads=heads,
        relative_attention_num_buckets=buckets, feed_forward_proj="gated-gelu",
    )  # fmt: skip

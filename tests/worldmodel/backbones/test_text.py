"""Prompts to features, from the files in which tokenizer and encoder are published."""

import pytest
import torch
from published import encoder_weights, save_tokenizer, text_encoder

from worldmodel.backbones.checkpoints import CheckpointError
from worldmodel.backbones.text import NAMES, load_text_encoder, renamed

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture(scope="module")
def encoder():
    return text_encoder()


@pytest.fixture
def files(encoder, tmp_path):
    """A folder with a tokenizer, and a checkpoint in the published layout."""
    torch.save(encoder_weights(encoder), tmp_path / "encoder.pth")
    return save_tokenizer(tmp_path / "tokenizer"), tmp_path / "encoder.pth"


@torch.no_grad()
def test_features_are_those_of_the_encoder(files, encoder):
    """Without padding, spaces tidied, with the token of the end."""
    found = load_text_encoder(*files)([" a  red\nroom ", "a"])
    expected = encoder(torch.tensor([[3, 4, 5, 1]])).last_hidden_state[0]
    assert torch.allclose(found[0], expected, atol=1e-6)
    assert [len(x) for x in found] == [4, 2]


def test_every_tensor_has_a_published_name(encoder):
    assert {renamed(name) for name in encoder_weights(encoder)} == set(encoder.state_dict()) - {
        "encoder.embed_tokens.weight"
    }
    assert len(NAMES) == 9


def test_what_is_no_encoder_says_so(files, tmp_path):
    tokenizer, weights = files
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="is not the encoder of umT5: it has no"):
        load_text_encoder(tokenizer, tmp_path / "other.pth")
    given = torch.load(weights)
    del given["norm.weight"]
    torch.save(given, tmp_path / "part.pth")
    with pytest.raises(CheckpointError, match="1 missing: .*final_layer_norm"):
        load_text_encoder(tokenizer, tmp_path / "part.pth")
    with pytest.raises(CheckpointError, match="No tokenizer in"):
        load_text_encoder(tmp_path / "nowhere", weights)

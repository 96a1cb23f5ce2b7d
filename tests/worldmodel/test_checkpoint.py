"""Weights survive the disk, and say what is wrong with them when they did not."""

import hashlib
import json
import shutil

import pytest
import torch
from tiny import AUTOENCODER, DENOISER, MEMORIES, VOCABULARY, autoencoder, clip, denoiser
from torch.testing import assert_close

from worldmodel import checkpoint
from worldmodel.autoencoder import Autoencoder
from worldmodel.checkpoint import MANIFEST, WeightsError, load_weights, quantised, restored, save_weights
from worldmodel.world import World

ABOUT = {"autoencoder": AUTOENCODER, "denoiser": DENOISER, "levels": [1.0], "recipe": {"seed": 3}}
RESTORE = "Restore it with `git checkout -- "


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    save_weights(folder, autoencoder(), denoiser(), VOCABULARY, ABOUT)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that may be broken."""
    return shutil.copytree(saved, tmp_path / "weights")


def test_weights_come_back_within_half_a_step(saved):
    """A matrix within half a 127th of its row's largest number; everything else as in half precision."""
    weights = load_weights(saved)
    for before, after in ((denoiser(), weights.denoiser), (autoencoder(), weights.autoencoder)):
        assert list(before.state_dict()) == list(after.state_dict())
        for name, x in before.state_dict().items():
            y = after.state_dict()[name]
            assert y.dtype == torch.float32
            if x.ndim == 2:
                assert ((x - y).abs() <= x.abs().amax(1, keepdim=True) / 127 * 0.5001).all()
            else:
                assert_close(y, x.half().float(), rtol=0, atol=0)


def test_matrices_of_the_denoiser_are_bytes_on_disk():
    network = denoiser()
    tensors = quantised(network.state_dict())
    matrices = [name for name, x in network.state_dict().items() if x.ndim == 2]
    assert matrices
    for name in matrices:
        assert tensors[f"{name}.int8"].dtype == torch.int8 and name not in tensors
        assert tensors[f"{name}.int8"].abs().amax() == 127
    assert all(x.dtype != torch.float32 for name, x in tensors.items() if not name.endswith(".scale"))


def test_a_row_of_zeros_stays_zero():
    x = torch.randn(3, 4)
    x[1] = 0
    assert not restored(quantised({"x": x}))["x"][1].any()


def test_saving_what_was_loaded_changes_nothing(saved, tmp_path):
    """What has been rounded once is not rounded again, so weights may be copied without end."""
    once = load_weights(saved)
    save_weights(tmp_path / "again", once.autoencoder, once.denoiser, once.vocabulary, once.manifest)
    twice = load_weights(tmp_path / "again")
    for name, x in once.denoiser.state_dict().items():
        assert_close(twice.denoiser.state_dict()[name], x, rtol=1e-6, atol=0)


def test_everything_else_comes_back_as_it_was(saved):
    weights = load_weights(saved)
    assert weights.vocabulary.words == VOCABULARY.words
    assert weights.manifest["levels"] == [1.0] and weights.manifest["recipe"] == {"seed": 3}
    assert not weights.denoiser.training and not weights.autoencoder.training


def test_loaded_weights_dream_nearly_the_same(saved):
    weights = load_weights(saved)
    dreams = []
    for networks in ((autoencoder(), denoiser()), (weights.autoencoder, weights.denoiser)):
        game = World(*networks, VOCABULARY, MEMORIES["dense"])
        game.reset_latents(*clip(3), "red room", seed=1)
        dreams.append(game.step(torch.ones(9)))
    assert 0 < (dreams[0] - dreams[1]).abs().max() < 0.1


def test_a_large_network_is_cut_in_shards(monkeypatch, saved, tmp_path):
    monkeypatch.setattr(checkpoint, "SHARD", 4000)
    save_weights(tmp_path, autoencoder(), denoiser(), VOCABULARY, ABOUT)
    shards = list(tmp_path.glob("denoiser-*.safetensors"))
    assert len(shards) > 5
    whole, cut = load_weights(saved), load_weights(tmp_path)
    for name, x in whole.denoiser.state_dict().items():
        assert torch.equal(cut.denoiser.state_dict()[name], x)


def test_what_suits_a_memory_is_added_to_what_did(folder):
    load_weights(folder).suit("tempcache", {"far": 12, "threshold": 0.9})
    load_weights(folder).suit("tempcache", {"threshold": 0.8})
    assert load_weights(folder).manifest["suits"] == {"tempcache": {"far": 12, "threshold": 0.8}}


def test_weights_have_a_name_of_their_own(saved, tmp_path):
    save_weights(tmp_path / "same", autoencoder(), denoiser(), VOCABULARY, ABOUT)
    save_weights(tmp_path / "other", autoencoder(), denoiser(1), VOCABULARY, ABOUT)
    unlike = {**ABOUT, "denoiser": {**ABOUT["denoiser"], "longest": 9}}  # equal weights, and other dreams
    save_weights(tmp_path / "unlike", autoencoder(), denoiser(), VOCABULARY, unlike)
    folders = saved, tmp_path / "same", tmp_path / "other", tmp_path / "unlike"
    mine, same, *others = (load_weights(folder).hash for folder in folders)
    assert mine == same and len({mine, *others}) == 3 and len(mine) == 12


# ---- what may be wrong with a folder


def complaint(folder) -> str:
    with pytest.raises(WeightsError) as error:
        load_weights(folder)
    return str(error.value)


def test_no_weights_at_all(tmp_path):
    text = complaint(tmp_path)
    assert str(tmp_path / MANIFEST) in text
    assert "`python run.py train` makes them" in text and "`git checkout -- assets`" in text


def test_a_missing_shard(folder):
    (folder / "denoiser-0.safetensors").unlink()
    text = complaint(folder)
    assert f"{folder / 'denoiser-0.safetensors'} is missing" in text and RESTORE in text


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_truncated_shard(folder, keep):
    shard = folder / "autoencoder-0.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[: int(keep * len(data))])
    text = complaint(folder)
    assert f"{shard} is damaged or from other weights" in text and RESTORE in text


def test_a_shard_of_other_weights(folder, tmp_path):
    save_weights(tmp_path / "other", autoencoder(), denoiser(1), VOCABULARY, ABOUT)
    shutil.copy(tmp_path / "other/denoiser-0.safetensors", folder)
    text = complaint(folder)
    expected = json.loads((folder / MANIFEST).read_text())["files"]["denoiser-0.safetensors"][:12]
    assert (
        "denoiser-0.safetensors is damaged or from other weights" in text and f"expected {expected}" in text
    )


def test_a_shard_that_is_no_shard(folder):
    """With a SHA-256 that fits: somebody made the manifest for it."""
    shard = folder / "denoiser-0.safetensors"
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][shard.name] = hashlib.sha256(shard.read_bytes()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    text = complaint(folder)
    assert f"{shard} cannot be read" in text and RESTORE in text


def test_shards_of_another_network(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["denoiser"]["width"] = 48
    manifest["denoiser"]["rope"] = [8, 8, 8]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert f"The shards in {folder} do not fit the networks its manifest describes" in complaint(folder)


@pytest.mark.parametrize("text", ["", "{", '{"files": '])
def test_a_truncated_manifest(folder, text):
    (folder / MANIFEST).write_text(text)
    complained = complaint(folder)
    assert f"{folder / MANIFEST} cannot be read" in complained and RESTORE in complained


def test_an_autoencoder_keeps_its_scale(saved):
    """Mean and spread of the tokens are weights like any other."""
    net = Autoencoder(**AUTOENCODER)
    net.mean.fill_(0.5), net.std.fill_(2.0)
    state = restored(checkpoint.halved(net.state_dict()))
    assert torch.equal(state["mean"], net.mean) and torch.equal(state["std"], net.std)

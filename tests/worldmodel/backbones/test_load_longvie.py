"""The published layout of LongVie 2 is read whole, or it is told what is wrong with it."""

from pathlib import Path

import pytest
import torch
from published import longvie_folder
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from fastar import method
from worldmodel.backbones.checkpoints import CheckpointError
from worldmodel.backbones.load_longvie import open_branches, open_longvie, open_wan

pytest.importorskip("diffusers", reason="needs diffusers: pip install -e '.[backbones]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
ON = "cpu", torch.float32


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return longvie_folder(tmp_path_factory.mktemp("published"))


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """The transformers alone, to be changed."""
    for path in whole.rglob("*.safetensors"):
        target = tmp_path / path.relative_to(whole)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path


def changed(path: Path, **change) -> None:
    """With tensors put in place of others, or taken away where that is None; `__` stands for a dot."""
    tensors = load_file(path) | {name.replace("__", "."): x for name, x in change.items()}
    save_file({name: x for name, x in tensors.items() if x is not None}, path)


def test_sizes_are_those_of_the_tensors(whole):
    longvie = open_longvie(whole, method({"kind": "dense"}), *ON, steps=4)
    assert (longvie.wan.heads, len(longvie.wan.blocks), len(longvie.branches)) == (2, 2, 1)
    assert len(longvie.steps) == 4 and longvie.steps[0] == 1000


def test_what_longvie_changed_takes_the_place_of_the_base(whole):
    tuned = load_file(whole / "LongVie" / "dit.safetensors")
    found = open_wan(whole, *ON).state_dict()
    assert_close(found["blocks.1.self_attn.o.weight"], tuned["blocks.1.self_attn.o.weight"])


def test_heads_of_the_branches_are_turned_too(whole):
    """Even channels first, where the published ones are next to each other."""
    name = "control_blocks_dense.0.self_attn.q.bias"
    published = load_file(whole / "LongVie" / "control.safetensors")[f"pipe.dual_controller.{name}"]
    found = open_branches(whole, *ON).state_dict()[name]
    assert_close(found, torch.cat([published[0::2], published[1::2]]))


@pytest.mark.parametrize(
    "file, change, told",
    [
        ("dit", {"blocks__9__self_attn__o__bias": torch.zeros(256)}, "1 not expected: blocks.9"),
        ("dit", {"blocks__1__self_attn__o__bias": torch.zeros(7)}, r"o.bias \(7,\) instead of \(256,\)"),
        ("control", {"blocks__0": torch.zeros(1)}, "1 not expected: blocks.0"),
        ("control", {"pipe__dual_controller__control_t_mod__bias": None}, "1 missing: control_t_mod.bias"),
        ("control", {"pipe__dual_controller__more": torch.zeros(1)}, "1 not expected: more"),
        (
            "control",
            {"pipe__dual_controller__control_t_mod__bias": torch.zeros(3)},
            r"control_t_mod.bias \(3,\) instead of \(128,\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(folder, file, change, told):
    changed(folder / "LongVie" / f"{file}.safetensors", **change)
    with pytest.raises(CheckpointError, match=told):
        open_longvie(folder, method({"kind": "dense"}), *ON)


def test_a_base_that_lacks_a_tensor_or_reads_no_image_is_refused(folder):
    for path in (folder / "base").iterdir():
        changed(path, head__head__bias=None)
    with pytest.raises(CheckpointError, match="1 missing: head.head.bias"):
        open_wan(folder, *ON)
    for path in (folder / "base").iterdir():
        changed(path, **{name: None for name in load_file(path) if name.startswith("img_emb.")})
    with pytest.raises(CheckpointError, match="reads no image"):
        open_wan(folder, *ON)


def test_two_bases_below_one_folder_are_refused(folder):
    (folder / "other").mkdir()
    shard = next((folder / "base").iterdir())
    (folder / "other" / shard.name).write_bytes(shard.read_bytes())
    with pytest.raises(CheckpointError, match="lies in .*base.*other"):
        open_wan(folder, *ON)


def test_files_that_are_missing_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no diffusion_pytorch_model\*.safetensors"):
        open_longvie(tmp_path, method({"kind": "dense"}), *ON)

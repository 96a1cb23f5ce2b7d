"""A video of a prompt, from small random checkpoints in the published layouts."""

import sys
from pathlib import Path

import av
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "worldmodel" / "backbones"))
import published

from app import generate
from app.errors import INTERRUPTED, PackageError, UsageError, WeightsError, guard

pytest.importorskip("diffusers", reason="needs diffusers: pip install -e '.[backbones]'")
pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[backbones]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

SMALL = ["height=64", "width=64", "prompt=a red room", "device=cpu", "dtype=float32"]
MEMORIES = ["memories.tempcache.cache.far=96", "memories.fast-ar.cache.far=192"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return published.folder(tmp_path_factory.mktemp("published"))


def pictures(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


def made(weights: Path, out: Path, *words: str) -> Path:
    assert generate.main([*SMALL, *MEMORIES, f"weights={weights}", f"out={out}", *words]) == 0
    (path,) = out.glob("*.mp4")
    return path


@pytest.mark.parametrize("backbone", ["self-forcing", "rolling-forcing"])
@pytest.mark.parametrize("memory", ["dense", "window_sink", "tempcache", "fast-ar"])
def test_a_prompt_becomes_a_video(weights, tmp_path, capsys, backbone, memory):
    """Whole chunks of three latent frames: 9 pictures of the first, 12 of each other."""
    path = made(weights, tmp_path, f"backbone={backbone}", f"memory={memory}", "frames=40")
    found = pictures(path)
    assert len(found) == 45 and found[0].shape == (64, 64, 3)
    assert "45/40 frames" in capsys.readouterr().out
    assert np.abs(found[5].astype(int) - found[40]).mean() > 1  # something happens


def test_a_seed_is_a_video(weights, tmp_path):
    same, again, other = (
        made(weights, tmp_path / name, "frames=9", f"seed={seed}")
        for name, seed in zip("abc", (1, 1, 2), strict=True)
    )
    assert np.array_equal(pictures(same), pictures(again)) and not np.array_equal(
        pictures(same), pictures(other)
    )


def test_what_is_stopped_plays(weights, tmp_path, monkeypatch, capsys):
    """Ctrl-C between two chunks."""
    told = generate.line

    def stop(made: int, *facts) -> str:
        if made > 30:
            raise KeyboardInterrupt
        return told(made, *facts)

    monkeypatch.setattr(generate, "line", stop)
    words = [*SMALL, *MEMORIES, f"weights={weights}", f"out={tmp_path}", "frames=1000"]
    assert guard(lambda: generate.main(words)) == INTERRUPTED
    (path,) = tmp_path.glob("*.mp4")
    assert len(pictures(path)) == 33 and "33 frames in" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, told",
    [
        (["backbone=self-forced"], "did you mean self-forcing"),
        (["memory=sparse"], "No memory 'sparse'"),
        ([], "Wanted below it: self_forcing_dmd.pt, Wan2.1_VAE.pth"),
        (["weights=.", "height=70"], "height is 70, but a multiple of 16"),
        (["weights=.", "frames=0"], "at least 1"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_loaded(words, told):
    with pytest.raises(UsageError, match=told):
        generate.main(words)


def test_files_that_are_missing_or_of_something_else_are_named(weights, tmp_path, monkeypatch):
    words = [*SMALL, f"out={tmp_path / 'out'}"]
    with pytest.raises(WeightsError, match="there is no self_forcing_dmd.pt"):
        generate.main([*words, f"weights={tmp_path}"])
    (tmp_path / "self_forcing_dmd.pt").write_bytes((weights / "Wan2.1_VAE.pth").read_bytes())
    with pytest.raises(WeightsError, match="Expected 'generator_ema' or 'generator'"):
        generate.main([*words, f"weights={tmp_path}"])

    def missing(*_):
        raise ModuleNotFoundError("Backbones need diffusers, which is not installed: pip install")

    monkeypatch.setattr(generate, "generate", missing)
    with pytest.raises(PackageError, match="Backbones need diffusers"):
        generate.main([*words, f"weights={weights}"])

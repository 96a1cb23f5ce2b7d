"""Doctor finds what play would, in an order that says what to mend first."""

import tomllib

import pygame
import pytest
import torch
from fake_world import FakeWorld, openings
from test_play import at_each_lap, press, until
from test_play import main as play

from app import clipboard, device, doctor
from app.config import ROOT
from app.errors import DeviceError, PackageError, WeightsError
from app.menu import Menu


def main(*words, world=None) -> int:
    return doctor.main(words, lambda cfg, facts, report: world or FakeWorld(), lambda cfg: openings())


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", 0)


def test_a_machine_that_can_play_is_told_so_with_what_it_uses_and_how_fast_it_is(capsys):
    world = FakeWorld()
    assert main("device=cpu", "dtype=float32", world=world) == 0
    out = capsys.readouterr().out
    assert f"torch {torch.__version__}" in out and "frames a second" in out
    assert "cpu: as asked for" in out and "float32: as asked for" in out
    assert len(world.steps) == 2  # one to warm up, one that counts
    assert out.endswith("It can play: python run.py\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["weights=nowhere"], WeightsError),
        (["--device", "gpu"], DeviceError),
        (["device=cuda:77"], DeviceError),
    ],
)
def test_what_keeps_from_playing_is_said_once_and_is_the_exit_code(capsys, words, error):
    world = FakeWorld()
    assert main(*words, world=world) == error.code
    out = capsys.readouterr().out
    assert f"It cannot play: exit code {error.code}." in out
    assert "Speed" not in out and not world.steps


def test_the_first_error_is_the_exit_code():
    assert main("weights=nowhere", "device=gpu") == DeviceError.code


def test_a_missing_package_ends_the_examination(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "version", lambda name: "" if name in ("av", "torch") else "1.0")
    assert main() == PackageError.code
    out = capsys.readouterr().out
    assert "Not installed: torch, av. Run: pip install -e ." in out and "Devices" not in out


def test_a_torch_without_cuda_beside_an_nvidia_gpu_is_a_warning_and_still_plays(monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert main("dtype=float32") == 0
    out = capsys.readouterr().out
    assert "built without CUDA" in out and "WARNING" in out


def test_a_dream_that_fails_is_an_error_of_its_own(capsys):
    assert main("dtype=float32", world=FakeWorld(fails_at=2, error=MemoryError())) == 6
    assert "Speed     Out of memory" in capsys.readouterr().out


def test_a_missing_extra_is_named_with_its_command(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "vizdoom" else object())
    lines = list(doctor.extras())
    assert [line.split()[0] for line in lines if "pip install -e '.[data]'" in line] == ["data"]
    assert sum("pip" in line for line in lines) == 1


def test_it_knows_every_package_and_extra_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(word.partition("=")[0].rstrip(">") for word in project["dependencies"]) == doctor.NEEDED
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def diagnose(monkeypatch, tmp_path, done):
    """Play, choose Copy diagnostics in the menu, and end when that is `done`."""

    def hands():
        yield from until(lambda: len(world.steps) > 3)
        yield press(pygame.K_ESCAPE)
        for _ in range(len(Menu.ITEMS) - Menu.ITEMS.index("diagnostics")):
            yield press(pygame.K_UP)
        yield press(pygame.K_RETURN)
        yield from until(done)
        yield pygame.Event(pygame.QUIT)

    monkeypatch.setattr(doctor, "examine", lambda cfg, speed: [doctor.Finding("Speed", list(speed()))])
    world = FakeWorld(seconds=0.002)
    at_each_lap(monkeypatch, hands())
    assert play("--window", "fps=0", f"recordings={tmp_path}", world=world) == 0


def test_the_menu_puts_the_text_on_the_clipboard(monkeypatch, tmp_path):
    copied = []
    monkeypatch.setattr(clipboard.pygame.scrap, "put_text", copied.append)
    diagnose(monkeypatch, tmp_path, lambda: copied)
    assert copied[0].startswith("Speed     ") and "at frame" in copied[0]
    assert not list(tmp_path.iterdir())


def test_without_a_clipboard_the_text_is_in_a_file(monkeypatch, tmp_path):
    def none(text):
        raise pygame.error("no clipboard")

    monkeypatch.setattr(clipboard.pygame.scrap, "put_text", none)
    diagnose(monkeypatch, tmp_path, lambda: list(tmp_path.glob("*_diagnostics.txt")))
    (path,) = tmp_path.iterdir()
    assert path.read_text().startswith("Speed     ")

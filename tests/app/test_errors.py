import errno
import sys
import types

import pytest

from app import errors
from fastar import AnnSA


def raises(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.DisplayError("x"), 3),
        (errors.WeightsError("x"), 4),
        (errors.DeviceError("x"), 5),
        (MemoryError(), 6),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), 6),
        (errors.DiskError("x"), 7),
        (errors.PackageError("x"), 9),
        (OSError(errno.ENOSPC, "No space left on device", "a/file"), 7),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_of_the_user_is_one_line_and_its_code(capsys, error, code):
    assert errors.guard(raises(error)) == code
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1 and "Traceback" not in err


def test_a_line_stays_a_line(capsys):
    assert errors.guard(raises(errors.UsageError("one\n  two"))) == 2
    assert capsys.readouterr().err == "run.py: one two\n"


def test_weights_that_do_not_fit_are_known_by_their_class(monkeypatch, capsys):
    checkpoint = types.ModuleType("worldmodel.checkpoint")
    checkpoint.WeightsError = type("WeightsError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "worldmodel.checkpoint", checkpoint)
    assert errors.guard(raises(checkpoint.WeightsError("hash of a.safetensors"))) == 4
    assert "hash of a.safetensors" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback():
    with pytest.raises(KeyError):
        errors.guard(raises(KeyError("ours")))


def test_success_is_the_code_main_returns():
    assert errors.guard(lambda: 0) == 0


def test_what_our_own_lines_complain_about_is_for_the_user(capsys):
    """A setting that does not fit, found deep in the work of a verb."""
    assert errors.guard(lambda: errors.for_the_user(lambda: AnnSA(density=2))) == 2
    assert capsys.readouterr().err.startswith("run.py: density and mass are shares")


def test_what_others_complain_about_is_a_bug():
    with pytest.raises(ValueError):
        errors.for_the_user(raises(ValueError("not from our packages")))

"""The examples that people will copy run as they are printed."""

import re
from pathlib import Path

import pytest

import fastar

README = Path(fastar.__file__).parent / "README.md"
OURS, DIFFUSERS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def test_the_example_runs(capsys):
    assert len([line for line in OURS.splitlines() if line.strip()]) <= 25
    exec(OURS, {})
    assert "kept=2310, seen=2800" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_example_with_diffusers_runs(capsys):
    pytest.importorskip("diffusers", reason="needs diffusers: pip install diffusers")
    exec(DIFFUSERS, {})
    assert "seen=144" in capsys.readouterr().out

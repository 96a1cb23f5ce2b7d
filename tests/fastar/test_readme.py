"""The example that people will copy runs as it is printed."""

import re
from pathlib import Path

import fastar

README = Path(fastar.__file__).parent / "README.md"


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    exec(example, {})
    assert "kept=2310, seen=2800" in capsys.readouterr().out

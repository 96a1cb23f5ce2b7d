"""Who may know whom: the attention knows nobody, the world knows the attention, the player knows both."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNOWS = {"fastar": set(), "worldmodel": {"fastar"}, "app": {"fastar", "worldmodel"}}


def imported(path: Path) -> set[str]:
    """The packages that a file imports by name, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", KNOWS)
def test_arrows_point_down(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        known = imported(path) & set(KNOWS) - {package}
        assert known <= KNOWS[package], f"{path.relative_to(ROOT)} imports {known - KNOWS[package]}"


def test_the_attention_needs_no_more_than_torch():
    every = {name for path in (ROOT / "fastar").rglob("*.py") for name in imported(path)}
    assert every & {"numpy", "pygame", "vizdoom", "omegaconf", "PIL"} == set()

"""What has been measured so far, on disk after every row: what is stopped loses nothing and can go on."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


class Results:
    """Rows of `out`/`name`.json, and the same as tables in `out`/`name`.md.

    `facts` say what the rows depend on. To `go_on` is to begin with the rows that are there; under other
    facts they are put aside as `name`.before.json.
    """

    def __init__(self, out: Path, name: str, facts: Mapping[str, Any], *, go_on: bool) -> None:
        self.out, self.name, self.facts = out, name, dict(facts)
        self.parts: dict[str, list[Row]] = {}
        out.mkdir(parents=True, exist_ok=True)
        if not go_on or not self.path.exists():
            return
        known = json.loads(self.path.read_text(encoding="utf-8"))
        if known.get("facts") == json.loads(json.dumps(self.facts)):
            self.parts = known["parts"]
        else:
            self.path.replace(self.path.with_suffix(".before.json"))

    @property
    def path(self) -> Path:
        return self.out / f"{self.name}.json"

    def rows(self, part: str) -> list[Row]:
        return self.parts.get(part, [])

    def find(self, part: str, **names: Any) -> Row | None:
        """The row of these names, if it was found already."""
        return next((row for row in self.rows(part) if names.items() <= row.items()), None)

    def add(self, part: str, row: Row) -> None:
        """Print a row and write everything."""
        self.parts.setdefault(part, []).append({k: plain(x) for k, x in row.items()})
        print(part, " ".join(f"{k}={cell(x)}" for k, x in row.items()), flush=True)
        told = json.dumps({"facts": self.facts, "parts": self.parts}, indent=1)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(told, encoding="utf-8")
        fresh.replace(self.path)
        self.path.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        told = ", ".join(f"{name} {x}" for name, x in self.facts.items())
        tables = [f"### {part}\n\n{table(rows)}\n" for part, rows in self.parts.items()]
        return "\n".join([told, "", *tables])


def table(rows: Iterable[Row]) -> str:
    """Rows as Markdown; what a row does not have stays empty."""
    rows = list(rows)
    columns: Sequence[str] = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else "" if value is None else str(value)


def plain(value: Any) -> Any:
    """As JSON has it."""
    return value.item() if isinstance(value, np.generic) else value


def commit() -> str:
    """Of the checkout this runs from, if it is one."""
    here = Path(__file__).parent
    try:
        told = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return told.stdout.strip() or "unknown"

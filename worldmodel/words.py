"""How a text falls into words; here, so that a window can tell without loading torch."""

import re


def split(text: str) -> list[str]:
    """Runs of letters and digits, small."""
    return re.findall(r"[a-z0-9]+", text.lower())

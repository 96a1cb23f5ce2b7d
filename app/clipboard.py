"""Text on the clipboard; or in a file, where there is none."""

from pathlib import Path

import pygame


def copy(text: str, otherwise: Path) -> Path | None:
    """Put a text on the clipboard. Without one, write it to a file and return that. Raises OSError."""
    try:
        pygame.scrap.put_text(text)
    except (pygame.error, NotImplementedError):
        otherwise.parent.mkdir(parents=True, exist_ok=True)
        otherwise.write_text(text, encoding="utf-8")
        return otherwise
    return None

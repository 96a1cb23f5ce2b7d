"""Packages that only backbones need: the extra `backbones`."""

from importlib import import_module
from typing import Any


def package(name: str) -> Any:
    """Import it. Raises ModuleNotFoundError that says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Backbones need {error.name}, which is not installed: pip install -e '.[backbones]'",
            name=error.name,
        ) from None

"""Being stopped from outside: Ctrl-C by a person, SIGTERM by whatever supervises the process."""

import signal
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[..., Any] | signal.Handlers | int | None


def on_stop(handler: Handler) -> list[Handler]:
    """Answer both in this way. Returns how each was answered before, for `restore`."""
    return [signal.signal(which, handler) for which in SIGNALS]


def restore(before: list[Handler]) -> None:
    for which, handler in zip(SIGNALS, before, strict=True):
        signal.signal(which, handler)

"""What can go wrong that is not a bug, the exit code of each, and the one place that says so.

0    all went well
1    a bug: a traceback, please report it
2    a flag, a setting, a world or a memory that does not exist
3    no display where a window was demanded
4    weights that are missing or not what they should be
5    a device that cannot be used
6    out of memory
7    the disk, or the folder of recordings
8    a replay that differs from its recording
9    a package that is not installed; the line says how to
130  Ctrl-C; the recording is closed and plays
"""

import errno
import sys
from collections.abc import Callable
from pathlib import Path


class PlayError(Exception):
    """One clear line for the user: what was found, what was expected, what to change."""

    code = 1


class UsageError(PlayError):
    code = 2


class DisplayError(PlayError):
    code = 3


class WeightsError(PlayError):
    code = 4


class DeviceError(PlayError):
    code = 5


class OutOfMemoryError(PlayError):
    code = 6


class DiskError(PlayError):
    code = 7


class ReplayError(PlayError):
    code = 8


class PackageError(PlayError):
    code = 9


class SaveError(PlayError):
    """A save that cannot be played on. Told in the window, where play goes on."""


INTERRUPTED = 130
DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
SMALLER = "Close other programs, or take a smaller memory, such as --memory tempcache, or --device cpu."


def guard(main: Callable[[], int]) -> int:
    """Run `main` to its exit code; a user's error becomes one line on stderr and the code it has above."""
    try:
        return main()
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        told = translate(error)
        if told is None:
            raise
        print("run.py: " + " ".join(str(told).split()), file=sys.stderr)
        return told.code


def translate(error: Exception) -> PlayError | None:
    """The user's side of an error from below, or None if it is a bug of ours."""
    if isinstance(error, PlayError):
        return error
    if isinstance(error, foreign("worldmodel.checkpoint", "WeightsError")):
        return WeightsError(str(error))
    # torch reports its CPU allocator's failure as a plain RuntimeError
    exhausted = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    if exhausted or isinstance(error, (MemoryError, *foreign("torch", "OutOfMemoryError"))):
        return OutOfMemoryError(f"Out of memory: {first_sentence(error)} {SMALLER}")
    if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
        return DiskError(
            f"{error.strerror}: {error.filename or 'the file being written'}. Make room, try again."
        )
    return None


def reason(error: BaseException) -> str:
    """Why play has ended, for a window that has no room for a traceback."""
    told = translate(error) if isinstance(error, Exception) else None
    return str(told) if told else f"A bug: {type(error).__name__}: {error}. The terminal has the details."


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(translate(error), OutOfMemoryError)


def for_the_user(work: Callable[[], object]) -> None:
    """Do some work whose own complaints, about settings or files, are for the user: one line, no traceback.

    What other packages complain about is a bug of ours all the same.
    """
    try:
        work()
    except (ValueError, FileNotFoundError) as error:
        if not _ours(error):
            raise
        raise UsageError(str(error)) from error


def _ours(error: Exception) -> bool:
    """Whether one of our own lines raised it."""
    root, trace = Path(__file__).resolve().parents[1], error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised = Path(trace.tb_frame.f_code.co_filename).resolve() if trace is not None else Path()
    return any(raised.is_relative_to(root / part) for part in ("app", "worldmodel", "fastar"))


def foreign(module: str, name: str) -> tuple[type, ...]:
    """An exception class of a heavy module, for isinstance. A module never imported cannot have raised."""
    return (getattr(sys.modules[module], name),) if hasattr(sys.modules.get(module), name) else ()


def first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text.split(". ")[0].rstrip(".") + "." if text else ""

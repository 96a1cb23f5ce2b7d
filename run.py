"""One door: run.py VERB [flags] [key=value ...], with the verbs of USAGE. Without one, play."""

import os
import signal
import sys
import threading
from importlib import import_module

from app.errors import INTERRUPTED, UsageError, for_the_user, guard
from app.stopping import on_stop

# What a verb calls, with configs/VERB.yaml for its arguments. Its module is imported only when asked for:
# training loads no pygame, playing loads no game engine.
VERBS = {
    "collect": ("worldmodel.doom.collect", "collect"),
    "train": ("app.own", "train"),
    "eval": ("worldmodel.evaluation.main", "evaluate"),
}
# Verbs with flags and words of their own: the module of app whose `main` takes them.
MAINS = {verb: verb for verb in ("play", "compare", "replay", "generate", "serve", "doctor", "bench")}
MAINS |= {"import": "foreign", "gif": "excerpt"}  # what no module can be called, and what one is already
USAGE = """\
run.py [play] [flags] [key=value ...]                         play; flags: run.py play --help
run.py compare A B [C ...] [key=value ...]                    memories side by side: video, table, plots
run.py replay DIR [key=value ...]                             dream a recording again: is it the same?
run.py serve [--host HOST] [--port N] [key=value ...]         play in a browser
run.py generate [flags] [key=value ...]                       a video of a prompt, by a published backbone
run.py doctor [flags] [key=value ...]                         what is here, and can it play?
run.py bench WHAT [--quick] [key=value ...]                   methods side by side; `player`: what play costs
run.py import FOLDER [key=value ...]                          a video and its keys become a recording
run.py gif VIDEO [key=value ...]                              some seconds of a recorded video, to share
run.py {collect|train|eval} [--config FILE] [key=value ...]   make data, train on it, measure
run.py --version
"""


def main(argv: list[str]) -> int:
    from app import config

    match argv:
        case ["--version"]:
            print(f"FAST-AR Play {config.version()}")
        case ["--help" | "-h"]:
            print(USAGE, end="")
        case [verb, *words] if verb in VERBS:
            module, function = VERBS[verb]
            cfg = config.of_verb(verb, words)
            work = getattr(import_module(module), function)
            on_stop(signal.default_int_handler)
            for_the_user(lambda: work(**cfg))
        case [verb, *words] if verb in MAINS:
            return import_module(f"app.{MAINS[verb]}").main(words)
        case [word, *_] if word[0] != "-" and "=" not in word:
            raise UsageError(f"No verb {word}{config.suggestion(word, [*MAINS, *VERBS])}")
        case words:
            return import_module("app.play").main(words)
    return 0


def leave(code: int) -> None:
    """Exit, even from under a dreamer deep inside torch, which no one can interrupt."""
    if any(thread.name == "dreamer" for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def stop_at_once(*_) -> None:
    """Ctrl-C while modules load: nothing needs closing yet, and an import may swallow a KeyboardInterrupt."""
    os.write(2, b"\nStopped.\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    on_stop(stop_at_once)
    leave(guard(lambda: main(sys.argv[1:])))

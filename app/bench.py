"""`run.py bench WHAT`: memories beside each other, or, of the `player`, what it costs beside the dream."""

import signal
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from . import config
from .errors import PackageError, UsageError, for_the_user
from .stopping import on_stop

WHAT = ("attention", "rollout", "table", "ablation", "run", "paper", "player")


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "player":
        from .cost import main

        return main(argv[1:])
    what, cfg = settings(argv)
    if find_spec("matplotlib") is None:
        raise PackageError("Figures need matplotlib, which is not installed: pip install -e '.[bench]'.")
    from worldmodel.benchmarks.main import bench

    from .device import pick_device, pick_dtype

    told = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    del told["quick"]
    device = pick_device(told.pop("device"))
    dtype = pick_dtype(told.pop("dtype"), device)
    on_stop(signal.default_int_handler)
    for_the_user(lambda: bench(what, device=device, dtype=dtype, **told))
    return 0


def settings(argv: Sequence[str]) -> tuple[str, DictConfig]:
    """What to measure, and configs/bench.yaml under the words. Raises UsageError for what cannot be."""
    parser = config.Parser("bench", f"Measure one of {', '.join(WHAT)}.")
    parser.add_argument("--quick", action="store_true", help="at the lengths of `quick` alone")
    flags, plain, changes = parser.sort(argv)
    if len(plain) != 1 or plain[0] not in WHAT:
        raise UsageError(
            f"Say what to measure, one of {', '.join(WHAT)}; got {' '.join(plain) or 'nothing'}."
        )
    cfg = config.load(flags.config, changes)
    if flags.quick:
        cfg.lengths = cfg.quick
    return plain[0], cfg

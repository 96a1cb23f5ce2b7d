"""`run.py serve`: play in a browser, for machines that have a GPU and no screen.

The same game as in a window, with a web page for its stage. Only this machine may come unless another
`host` is asked for, and then only with a token.
"""

from collections.abc import Sequence

from omegaconf import DictConfig

from . import config
from .errors import PackageError, UsageError
from .keys import Keys
from .play import OpenScenes, OpenWorld, check, players_of, run
from .worlds import open_scenes, open_world


def main(
    argv: Sequence[str], open_world: OpenWorld = open_world, open_scenes: OpenScenes = open_scenes
) -> int:
    cfg = settings(argv)
    try:
        from .site import Site
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise PackageError("To play in a browser aiohttp is needed: pip install -e '.[serve]'") from None

    def stage() -> Site:
        keys = Keys(cfg["keys"])
        return Site(cfg.host, cfg.port, cfg.token, cfg.quality, keys, players_of(cfg))

    return run(cfg, stage, open_world, open_scenes)


def settings(argv: Sequence[str]) -> DictConfig:
    parser = config.Parser("serve", "Play in a browser.")
    parser.add_argument(
        "--host", help="127.0.0.1 for this machine alone, 0.0.0.0 for all that have the token"
    )
    parser.add_argument("--port", type=int, help="0 takes a free one")
    flags = parser.parse_intermixed_args(argv)
    cfg = config.above_play(flags.config, flags.settings)
    cfg.host, cfg.port = flags.host or cfg.host, cfg.port if flags.port is None else flags.port
    check(cfg)
    if not 0 <= cfg.port < 65536:
        raise UsageError(f"port is {cfg.port}, but ports go from 0 to 65535.")
    if not 1 <= cfg.quality <= 95:
        raise UsageError(f"quality is {cfg.quality}, but JPEG has 1 to 95.")
    return cfg

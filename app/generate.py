"""`run.py generate`: a video of a prompt by a published backbone, its past kept by one of our memories.

The video is written as it comes, a fragment a second, so what there is plays whenever it is stopped.
"""

import signal
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from . import config
from .errors import PackageError, UsageError, WeightsError
from .record import Video, check_writable, disk_error
from .stopping import on_stop

CELL = 16  # pixels of a token's side


def main(argv: Sequence[str]) -> int:
    cfg = settings(argv)
    from worldmodel.backbones.checkpoints import CheckpointError

    out = Path(cfg.out).expanduser()
    try:
        check_writable(out)
        on_stop(signal.default_int_handler)
        generate(cfg, out)
    except CheckpointError as error:
        raise WeightsError(str(error)) from error
    except ModuleNotFoundError as error:
        raise PackageError(str(error)) from error
    return 0


def settings(argv: Sequence[str]) -> DictConfig:
    """Flags and key=value words on top of configs/generate.yaml. Raises UsageError for what cannot be."""
    parser = config.Parser("generate", "Make a video of a prompt.", "configs/generate.yaml")
    for name in ("backbone", "weights", "prompt", "memory", "device", "dtype", "out"):
        parser.add_argument(f"--{name}")
    for name in ("frames", "height", "width", "seed"):
        parser.add_argument(f"--{name}", type=int)
    flags = parser.parse_intermixed_args(argv)
    cfg = config.load(flags.config, flags.settings)
    for name, value in vars(flags).items():
        if name in cfg and value is not None:
            cfg[name] = value
    from worldmodel.backbones.load import BACKBONES, DECODER, ENCODER, TOKENIZER

    for name, known in {"backbone": list(BACKBONES), "memory": [str(name) for name in cfg.memories]}.items():
        if cfg[name] not in known:
            raise UsageError(f"No {name} {cfg[name]!r}{config.suggestion(cfg[name], known)}")
    if cfg.weights is None:
        wanted = ", ".join([BACKBONES[cfg.backbone].checkpoint, DECODER, ENCODER, f"{TOKENIZER}/"])
        raise UsageError(f"Say where the published files are, by weights=FOLDER. Wanted below it: {wanted}.")
    for name in ("height", "width"):
        if cfg[name] < CELL or cfg[name] % CELL:
            raise UsageError(f"{name} is {cfg[name]}, but a multiple of {CELL} is needed.")
    if cfg.frames < 1:
        raise UsageError(f"frames is {cfg.frames}, but at least 1 is needed.")
    return cfg


def generate(cfg: DictConfig, out: Path) -> Path:
    """Make the video and return where it is."""
    import torch

    from fastar import method
    from worldmodel.backbones.load import features, open_decoder, open_forcing

    from .device import DTYPES, pick_device

    device, folder = pick_device(cfg.device), Path(cfg.weights).expanduser()
    if cfg.dtype not in DTYPES:
        raise UsageError(f"No dtype {cfg.dtype!r}{config.suggestion(cfg.dtype, DTYPES)}")
    dtype = getattr(torch, DTYPES[cfg.dtype])
    chosen = method(**cast(dict[str, Any], OmegaConf.to_container(cfg.memories[cfg.memory])))
    forcing = open_forcing(cfg.backbone, folder, chosen, device, dtype, fuse=cfg.fuse)
    decoder = open_decoder(folder, device, dtype)
    print("reading the prompt ...", flush=True)
    forcing.begin(features(folder, [cfg.prompt], device, dtype), (cfg.height // 8, cfg.width // 8), cfg.seed)

    path = out / f"{datetime.now():%Y%m%d-%H%M%S}_{cfg.backbone}_{cfg.memory}.mp4"
    about = f"{cfg.prompt} | {cfg.backbone}, {cfg.memory}, seed {cfg.seed}, FAST-AR Play {config.version()}"
    made = 0
    try:
        video = Video(path, (cfg.height, cfg.width), cfg.fps, about, enlarged=1)
        try:
            while made < cfg.frames:
                start = time.perf_counter()
                pictures = decoder(forcing.step())[0]
                for picture in pictures:
                    video.add(picture)
                made += len(pictures)
                print(
                    line(made, cfg.frames, len(pictures) / (time.perf_counter() - start), forcing.memory),
                    flush=True,
                )
        finally:
            video.close()
            print(f"{made} frames in {path}", flush=True)
    except OSError as error:
        raise disk_error(error, out) from error
    return path


def line(made: int, wanted: int, fps: float, memory: Any) -> str:
    """What a chunk came to."""
    stats = memory.stats()
    kept = f"{stats.kept:,} of {stats.seen:,} tokens kept, {stats.bytes / 1e6:,.0f} MB"
    return f"{made}/{wanted} frames  {fps:.2f} a second  {kept}"

"""A published backbone that is driven with the keys, as the player wants it: settings, scene, world.

torch is imported only when the world is opened, as in `worlds.py`.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from worldmodel.openings import Opening

from .errors import PackageError, UsageError, WeightsError
from .frame import Pictures, World
from .start import opening_of, picture_of

CELL = 16  # pixels of a token's side
AT_ONCE = 12  # pictures of a chunk
FPS = 16.0  # pictures a second that the published model was trained on


def check(cfg: DictConfig) -> None:
    """Raise UsageError for what cannot be played."""
    from worldmodel.backbones.load_longvie import FILES

    if cfg.weights is None:
        raise UsageError(
            f"Say where the published files are, by weights=FOLDER. Wanted below it: {', '.join(FILES)}."
        )
    if cfg.start is None:
        raise UsageError(f"{cfg.backbone} begins with a picture: --start picture.png.")
    for name in ("height", "width"):
        if cfg.longvie[name] < CELL or cfg.longvie[name] % CELL:
            raise UsageError(f"longvie.{name} is {cfg.longvie[name]}, but a multiple of {CELL} is needed.")
    for name in ("camera.field", "camera.eye", "camera.near", "tracks.every", "tracks.radius"):
        if (given := OmegaConf.select(cfg.longvie, name)) <= 0:
            raise UsageError(f"longvie.{name} is {given}, but it must be above 0.")
    if cfg.longvie.camera.field >= 180 or cfg.longvie.camera.far <= cfg.longvie.camera.near:
        raise UsageError("longvie.camera wants a field below 180 degrees, and far above near.")
    if cfg.longvie.depth is not None:
        picture_of(Path(cfg.longvie.depth).expanduser(), pictures(cfg).shape)
    for name, axes in cfg.memories.items():
        if "step" in axes:
            raise UsageError(f"memories.{name} has a step, but {cfg.backbone} skips no passes.")


def pictures(cfg: DictConfig) -> Pictures:
    return Pictures((cfg.longvie.height, cfg.longvie.width), FPS, AT_ONCE)


def open_scenes(cfg: DictConfig) -> Mapping[str, Opening]:
    """The scene that begins with the picture. Raises UsageError, or WeightsError where a file is missing."""
    files(cfg)
    picture = Path(cfg.start).expanduser()
    return {picture.stem: opening_of(picture, str(cfg.prompt or ""), pictures(cfg).shape)}


def files(cfg: DictConfig) -> list[Path]:
    """Those that are published, found below cfg.weights."""
    from worldmodel.backbones.checkpoints import CheckpointError
    from worldmodel.backbones.load import find
    from worldmodel.backbones.load_longvie import FILES, shards

    check(cfg)
    folder = Path(cfg.weights).expanduser()
    try:
        _, *others = find(folder, FILES)
        return [*shards(folder), *others]
    except CheckpointError as error:
        raise WeightsError(str(error)) from error


def fingerprint(paths: list[Path]) -> str:
    """Which files these are, by their names and sizes: to read some 100 GB for it would take too long."""
    known = ", ".join(f"{path.name} {path.stat().st_size}" for path in paths if path.is_file())
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def open_world(cfg: DictConfig, facts: dict[str, Any], report: Callable[[str], None]) -> World:
    """As `worlds.open_world`. Raises WeightsError and PackageError."""
    from worldmodel.backbones.checkpoints import CheckpointError

    try:
        return opened(cfg, facts, report)
    except CheckpointError as error:
        raise WeightsError(str(error)) from error
    except ModuleNotFoundError as error:
        raise PackageError(str(error)) from error


def opened(cfg: DictConfig, facts: dict[str, Any], report: Callable[[str], None]) -> World:
    report("waking up torch")
    import torch

    from fastar import method
    from worldmodel.backbones.load_longvie import (
        open_autoencoder,
        open_image_encoder,
        open_longvie,
        open_text_encoder,
    )
    from worldmodel.backbones.longvie_game import LongVieGame
    from worldmodel.processor import processor

    from .device import pick_device, pick_dtype
    from .worlds import Solo

    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    folder, precision = Path(cfg.weights).expanduser(), getattr(torch, dtype)
    memories = cast(dict[str, dict[str, Any]], OmegaConf.to_container(cfg.memories))
    methods = {name: partial(method, **axes) for name, axes in memories.items()}
    try:
        chosen = methods[cfg.memory]()
    except ValueError as error:  # a setting it will not have; the text says which
        raise UsageError(str(error)) from error
    report("loading the encoders")
    vae = open_autoencoder(folder, device, precision)
    text = open_text_encoder(folder, device, precision)
    image = open_image_encoder(folder, device, precision)
    report("loading LongVie 2")
    longvie = open_longvie(folder, chosen, device, precision, steps=cfg.steps, fuse=cfg.fuse)
    world = LongVieGame(longvie, vae, text, image, drive_of(cfg), pictures(cfg).shape)
    weights = fingerprint(files(cfg))
    facts.update(backbone=cfg.backbone, device=device, dtype=dtype, torch=torch.__version__, weights=weights)
    facts.update(processor=processor(device))
    settings = f"{memories} {cfg.steps} {cfg.longvie}"
    belongs = {"weights": weights, "dtype": dtype, "settings": settings, "memory": cfg.memory}
    return Solo(world, cfg.memory, belongs, methods)


def drive_of(cfg: DictConfig) -> Callable[[], Any]:
    """What makes the drive of a game that begins."""
    from worldmodel.backbones.cloud import Cloud, Optics
    from worldmodel.backbones.drive import Drive, Pace

    nearness = None
    if cfg.longvie.depth is not None:
        grey = picture_of(Path(cfg.longvie.depth).expanduser(), pictures(cfg).shape)
        nearness = grey.mean(-1, dtype=np.float64) / 255
    cloud = Cloud(Optics(*pictures(cfg).shape, **cfg.longvie.camera), nearness)
    return partial(Drive, cloud, Pace(**cfg.longvie.pace, fps=FPS), **cfg.longvie.tracks)

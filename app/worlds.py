"""The seam to the world model: what is in a weights folder, and a World as the dreamer wants it.

Nothing else in app knows how a world is loaded. torch is imported here and only when asked for: a
window opens, and a wrong flag is told, without waiting for it.
"""

import gc
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from worldmodel.actions import FPS
from worldmodel.episodes import HEIGHT, WIDTH
from worldmodel.openings import Opening

from . import driven
from .config import shipped
from .errors import UsageError, WeightsError
from .frame import Pictures, Stats, World


class Solo:
    """One game, of a World that plays as many at once as it is given."""

    def __init__(
        self,
        world: Any,
        memory: str,
        belongs: Mapping[str, Any],
        methods: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        """`belongs` says what kind of world it is; saves of another kind are refused.

        `methods` make the `fastar.Method` of each memory that may be switched to.
        """
        self._world = world
        self._belongs = dict(belongs)
        self._methods = methods or {}
        self.memory = memory
        self.words = world.vocabulary.words
        self.prompt = ""

    def reset(self, opening: Opening, seed: int = 0) -> np.ndarray:
        self.prompt = opening.prompt
        self._world.reset(opening.frames[None], opening.keys[None], opening.prompt, seed)
        return opening.frames[-1]

    def step(self, keys: np.ndarray) -> Any:
        return self._world.step(keys)

    @property
    def memories(self) -> list[str]:
        return list(self._methods)

    def switch(self, memory: str) -> int:
        """Remember in another way from here on. Returns the frames that were read again for it."""
        method = self._methods[memory]()
        self._name(memory)
        return self._world.switch(method.cache, method.cross, method.step)

    def shrink(self, memory: str) -> None:
        """Let go of all that is remembered, then remember the last frames, if there are any, in this way."""
        import torch

        self._world.forget()
        gc.collect()
        torch.cuda.empty_cache()
        if self._world.frame_index:
            self.switch(memory)
        else:
            self._use(memory)

    def _use(self, memory: str) -> None:
        """Begin with an empty memory of this kind."""
        method = self._methods[memory]()
        self._name(memory)
        self._world.use(method.cache)
        self._world.cross, self._world.passes = method.cross, method.step

    def _name(self, memory: str) -> None:
        self.memory = self._belongs["memory"] = memory

    def moment(self) -> Any:
        """Everything the next frame depends on."""
        return self.memory, self._world.state_dict()

    def restore(self, moment: Any) -> None:
        """Go on from a moment to the bit, also from one of another memory."""
        memory, state = moment
        if memory != self.memory:
            self._use(memory)
        self._world.load_state_dict(state)
        self.prompt = self._world.prompts[0]

    def beside(self, memory: str) -> "Solo":
        """Another game over the same networks that remembers in this way; it has yet to begin."""
        method = self._methods[memory]()
        world = self._world.beside(method.cache, method.cross, method.step)
        return Solo(world, memory, {**self._belongs, "memory": memory}, self._methods)

    def decode(self, latent: Any) -> np.ndarray:
        return self._world.decode(latent)[0]

    def say(self, text: str) -> list[str]:
        self.prompt = text
        return self._world.say(text)

    def save(self, path: Path, about: Mapping[str, Any], picture: np.ndarray) -> int:
        """Everything the next frame depends on, and the picture on screen. Returns bytes; raises OSError."""
        from . import saves

        moment = {"world": self._world.state_dict(), "about": dict(about), "picture": saves.tensor(picture)}
        return saves.write(path, self._belongs, moment)

    def load(self, path: Path) -> tuple[Mapping[str, Any], np.ndarray]:
        """Go on from a save: what was said about it, its picture. Raises SaveError; then nothing changed."""
        from . import saves

        moment = saves.read(path, self._belongs, self._world.device)
        self._world.load_state_dict(moment["world"])
        self.prompt = self._world.prompts[0]
        return moment["about"], moment["picture"].cpu().numpy()

    def stats(self) -> Stats:
        return self._world.stats()

    @property
    def timings(self) -> dict[str, float]:
        return self._world.timings


def open_world(cfg: DictConfig, facts: dict[str, Any], report: Callable[[str], None]) -> World:
    """The world model of these settings; adds what it found out about weights and machine to `facts`."""
    if cfg.backbone is not None:
        return driven.open_world(cfg, facts, report)
    report("waking up torch")
    import torch

    from worldmodel.checkpoint import load_weights
    from worldmodel.load import load_world, method_of
    from worldmodel.processor import processor

    from .device import pick_device, pick_dtype

    report("looking for a device")
    device = pick_device(cfg.device)
    dtype = pick_dtype(cfg.dtype, device)
    report("loading weights")
    memories = cast(dict[str, dict[str, Any]], OmegaConf.to_container(cfg.memories))
    weights = load_weights(shipped(cfg.weights))
    try:
        how = {"device": device, "dtype": dtype, "graphs": True, "fuse": cfg.fuse}
        world = load_world(weights, cfg.memory, memories, steps=cfg.steps, **how)
    except ValueError as error:  # a setting it will not have; the text says which
        raise UsageError(str(error)) from error
    facts.update(device=device, dtype=dtype, torch=torch.__version__, weights=weights.hash)
    facts.update(processor=processor(device))
    belongs = {"weights": weights.hash, "dtype": dtype, "settings": str(memories), "memory": cfg.memory}
    methods = {name: partial(method_of, weights, axes) for name, axes in memories.items()}
    return Solo(world, cfg.memory, belongs, methods)


def pictures(cfg: DictConfig) -> Pictures:
    """What pictures the world of these settings makes."""
    return Pictures((HEIGHT, WIDTH), FPS) if cfg.backbone is None else driven.pictures(cfg)


def open_scenes(cfg: DictConfig) -> Mapping[str, Opening]:
    """The opening scenes there are, by name; first the one made of `start`."""
    if cfg.backbone is not None:
        return driven.open_scenes(cfg)
    from worldmodel.openings import load_openings

    first = {} if cfg.start is None else begun_by(Path(cfg.start).expanduser())
    weights = shipped(cfg.weights)
    if not weights.is_dir():
        raise WeightsError(f"No weights at {weights}: `python run.py train` makes them; or weights=FOLDER.")
    openings = first | load_openings(weights)
    if not openings:
        raise WeightsError(f"No opening scenes in {weights}: a fresh clone has some; or set weights=FOLDER.")
    return openings


def begun_by(picture: Path) -> dict[str, Opening]:
    from .start import opening_of

    return {picture.stem: opening_of(picture)}

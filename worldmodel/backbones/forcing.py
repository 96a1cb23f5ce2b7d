"""Two ways to make a video of any length with a causal transformer: chunk by chunk, or by a rolling window.

Self-Forcing (arXiv 2506.08009) denoises a chunk of latent frames in a few passes and then remembers it by a
pass of its own over the clean frames. Rolling Forcing (arXiv 2509.25161) has a window of chunks on its way at
once, each one noise level further than the next; a pass brings all of them one level down, and the first is
then finished and remembered. What has been remembered is read through a memory of `fastar`, and merged,
evicted or chosen there; only clean passes add to it.

Levels are timesteps from 0, clean, to 1,000, noise; x_t = (1 - t/1000) clean + t/1000 noise.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fastar import AxialRope, Beside, Cross, Memory

from ..denoiser import WHOLE_PROMPT
from .wan import Wan

NOISE = 1000.0
MakeMemory = Callable[[int, AxialRope], Memory]


def shifted(steps: Sequence[float], shift: float) -> tuple[float, ...]:
    """Timesteps moved towards noise, as larger pictures want it: t -> s t / (1 + (s - 1) t) of 1,000."""
    return tuple(NOISE * shift * t / (NOISE + (shift - 1) * t) for t in steps)


class Recall:
    """Self-attention of one layer: the first `kept` tokens may be kept, the others only take part."""

    def __init__(self, memory: Memory, layer: int, kept: int) -> None:
        self.memory, self.layer, self.kept = memory, layer, kept

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        own, other = slice(self.kept), slice(self.kept, None)
        beside = Beside(k[:, :, other], v[:, :, other], where[other]) if len(where) > self.kept else None
        return self.memory.attend(self.layer, q, k[:, :, own], v[:, :, own], where[own], beside)


class Forcing:
    """What both have in common: a transformer, a memory of chunks, and passes over some of them.

    memory  makes the memory of so many layers with this rope; a chunk is to it what a frame is elsewhere
    steps   timesteps of the passes before `shift`; chunk, latent frames of one
    clean   timestep at which a finished chunk is remembered
    """

    def __init__(
        self,
        wan: Wan,
        memory: MakeMemory,
        *,
        steps: Sequence[float],
        shift: float = 5.0,
        chunk: int = 3,
        clean: float = 0.0,
        cross: Cross = WHOLE_PROMPT,
    ) -> None:
        if list(steps) != sorted(steps, reverse=True) or not steps or not 0 < steps[-1] <= steps[0] <= NOISE:
            raise ValueError(f"steps must fall from at most {NOISE:g} and stay above 0, got {tuple(steps)}.")
        self.wan, self.chunk, self.clean, self.cross = wan, chunk, clean, cross
        self.steps = shifted(steps, shift)
        self.memory = memory(len(wan.blocks), wan.rope)
        self.device, self.dtype = wan.patch_embedding.weight.device, wan.patch_embedding.weight.dtype
        self._noise = torch.Generator(self.device)

    @torch.no_grad()
    def begin(self, texts: Sequence[Tensor], size: tuple[int, int], seed: int = 0) -> None:
        """A video for each prompt, T5's features [l, text width], of so many rows and columns of latents."""
        self.memory.reset()
        self._noise.manual_seed(seed)
        self.shape = len(texts), self.chunk, self.wan.given, *size
        tokens = self.chunk * (size[0] // self.wan.patch[1]) * (size[1] // self.wan.patch[2])
        self._reads = [Recall(self.memory, layer, tokens) for layer in range(len(self.wan.blocks))]
        self.say(texts)
        self.finished = 0  # latent frames

    @torch.no_grad()
    def say(self, texts: Sequence[Tensor]) -> None:
        """Another prompt from here on; the memory stays."""
        self._prompt = self.wan.read_prompt([text.to(self.device, self.dtype) for text in texts])

    def step(self) -> Tensor:
        """The next chunk, clean latents [b, chunk, c, h, w]."""
        raise NotImplementedError

    def _remember(self, latents: Tensor) -> None:
        """The next chunk of the video, finished [b, chunk, c, h, w]."""
        self._run(latents, torch.full((self.chunk,), self.clean, device=self.device))
        for layer in range(len(self.wan.blocks)):
            self.memory.commit(layer)
        self.finished += self.chunk

    def _run(self, x: Tensor, time: Tensor) -> Tensor:
        """Velocity of what follows the finished frames [b, f, c, h, w], at timesteps [f]."""
        told = time.expand(len(x), -1), self.finished, self._prompt, self._reads, self.cross
        return self.wan(x.to(self.dtype), *told).float()

    def _draw(self) -> Tensor:
        return torch.randn(self.shape, generator=self._noise, device=self.device)


class SelfForcing(Forcing):
    """A chunk at a time, one pass for each step and one to remember it."""

    def __init__(
        self, wan: Wan, memory: MakeMemory, *, steps: Sequence[float] = (1000, 750, 500, 250), **how
    ) -> None:
        super().__init__(wan, memory, steps=steps, **how)

    @torch.no_grad()
    def step(self) -> Tensor:
        """The next chunk, clean latents [b, chunk, c, h, w]."""
        x = self._draw()
        for i, time in enumerate(self.steps):
            velocity = self._run(x, torch.full((self.chunk,), time, device=self.device))
            clean = x - time / NOISE * velocity
            if i + 1 < len(self.steps):
                x = renoised(clean, self.steps[i + 1], self._draw())
        self._remember(clean)
        return clean


class RollingForcing(Forcing):
    """A window of as many chunks as there are steps, each a step further than the one after it."""

    def __init__(
        self, wan: Wan, memory: MakeMemory, *, steps: Sequence[float] = (1000, 800, 600, 400, 200), **how
    ) -> None:
        super().__init__(wan, memory, steps=steps, **how)

    @torch.no_grad()
    def begin(self, texts: Sequence[Tensor], size: tuple[int, int], seed: int = 0) -> None:
        super().begin(texts, size, seed)
        self._window: list[Tensor] = []  # chunks on their way, the cleanest first

    @torch.no_grad()
    def step(self) -> Tensor:
        """The next chunk, clean latents [b, chunk, c, h, w]; the first takes a pass for every step."""
        while True:
            self._window.append(self._draw())
            times = self.steps[len(self._window) - 1 :: -1]  # the newest is at the first step
            x = torch.cat(self._window, 1)
            time = torch.tensor(times, device=self.device).repeat_interleave(self.chunk)
            clean = x - time.view(1, -1, 1, 1, 1) / NOISE * self._run(x, time)
            chunks = clean.split(self.chunk, 1)
            first = 1 if len(times) == len(self.steps) else 0  # to go on with
            self._window = [
                renoised(chunk, self.steps[self.steps.index(t) + 1], self._draw())
                for chunk, t in zip(chunks[first:], times[first:], strict=True)
            ]
            if first:
                self._remember(chunks[0])
                return chunks[0]


def renoised(clean: Tensor, time: float, noise: Tensor) -> Tensor:
    return (1 - time / NOISE) * clean + time / NOISE * noise

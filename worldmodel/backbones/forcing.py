"""Two ways to make a video of any length with a causal transformer: chunk by chunk, or by a rolling window.

Self-Forcing (arXiv 2506.08009) denoises a chunk of latent frames in a few passes and then remembers it by a
pass of its own over the clean frames. Rolling Forcing (arXiv 2509.25161) has a window of chunks on its way at
once, each one noise level further than the next; a pass brings all of them one level down, and the first is
then finished and remembered. What has been remembered is read through a memory of `fastar`, and merged,
evicted or chosen there; only clean passes add to it.

Levels are timesteps from 0, clean, to 1,000, noise; x_t = (1 - t/1000) clean + t/1000 noise.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastar import AxialRope, Beside, Cross, Memory

from ..denoiser import WHOLE_PROMPT
from ..graphs import Graphs
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
    graphs  launch all passes of a chunk as one CUDA graph once the window is full; elsewhere it does nothing
    fuse    compile what the layers do between their reads, after the first chunk; likewise
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
        graphs: bool = False,
        fuse: bool = False,
    ) -> None:
        if list(steps) != sorted(steps, reverse=True) or not steps or not 0 < steps[-1] <= steps[0] <= NOISE:
            raise ValueError(f"steps must fall from at most {NOISE:g} and stay above 0, got {tuple(steps)}.")
        self.wan, self.chunk, self.clean, self.cross = wan, chunk, clean, cross
        self.steps = shifted(steps, shift)
        self.memory = memory(len(wan.blocks), wan.rope)
        self.device, self.dtype = wan.patch_embedding.weight.device, wan.patch_embedding.weight.dtype
        self.graphs, self.fuse = (wanted and self.device.type == "cuda" for wanted in (graphs, fuse))
        self._noise = torch.Generator(self.device)
        self._times = torch.tensor(self.steps, device=self.device)
        self._graphs: Graphs | None = None

    @torch.no_grad()
    def begin(self, texts: Sequence[Tensor], size: tuple[int, int], seed: int = 0) -> None:
        """A video for each prompt, T5's features [l, text width], of so many rows and columns of latents."""
        for memory in self.memories:
            memory.reset()
        self._noise.manual_seed(seed)
        self.shape = len(texts), self.chunk, self.wan.given, *size
        tokens = self.chunk * (size[0] // self.wan.patch[1]) * (size[1] // self.wan.patch[2])
        self._reads = [Recall(self.memory, layer, tokens) for layer in range(len(self.wan.blocks))]
        self.say(texts)
        self.finished = 0  # latent frames

    @property
    def memories(self) -> list[Memory]:
        return [self.memory]

    @torch.no_grad()
    def say(self, texts: Sequence[Tensor]) -> None:
        """Another prompt from here on; the memory stays."""
        self._hear([text.to(self.device, self.dtype) for text in texts])
        # graphs of before hold the old prompt
        self._graphs = Graphs(self.memories, self._imagine) if self.graphs else None

    def _hear(self, texts: Sequence[Tensor]) -> None:
        self._prompt = self.wan.read_prompt(texts)

    def step(self) -> Tensor:
        """The next chunk, clean latents [b, chunk, c, h, w]."""
        raise NotImplementedError

    def _imagine(self, *told: Any) -> Any:
        """All passes of a chunk, the one that remembers it included. No host has a say in it."""
        raise NotImplementedError

    def _make(self, *told: Any) -> Any:
        """`_imagine`, as fast as it can be here; one chunk more is finished."""
        found = (self._graphs or self._imagine)(*told)
        self.finished += self.chunk
        if self.fuse:  # only now: a rolling window has had shapes that never come again
            self.fuse = False
            self._fuse()
        return found

    def _fuse(self) -> None:
        self.wan.fuse()
        for memory in self.memories:
            memory.fuse()

    def _told(self) -> tuple[Tensor, Any]:
        """At which latent frame the next chunk begins [], and what steers it."""
        return torch.full((), self.finished, device=self.device), ()  # by a kernel: nobody waits for a copy

    def _remember(self, latents: Tensor, start: Tensor, steering: Any) -> None:
        """The next chunk of the video, finished [b, chunk, c, h, w]."""
        self._run(latents, torch.full((self.chunk,), self.clean, device=self.device), start, steering)
        for memory in self.memories:
            for layer in range(memory.layers):
                memory.commit(layer)

    def _run(self, x: Tensor, time: Tensor, start: Tensor, steering: Any) -> Tensor:
        """Velocity of what follows the finished frames [b, f, c, h, w], at timesteps [f]."""
        told = time.expand(len(x), -1), start, self._prompt, self._reads, self.cross
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
        return self._make([self._draw() for _ in self.steps], *self._told())

    def _imagine(self, noise: Sequence[Tensor], start: Tensor, steering: Any) -> Tensor:
        x = noise[0]
        for i, time in enumerate(self.steps):
            velocity = self._run(x, self._times[i].expand(self.chunk), start, steering)
            clean = x - time / NOISE * velocity
            if i + 1 < len(self.steps):
                x = renoised(clean, self.steps[i + 1], noise[i + 1])
        self._remember(clean, start, steering)
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
        while len(self._window) + 1 < len(self.steps):
            window = [*self._window, self._draw()]
            clean = self._advance(window, *self._told())
            self._window = self._renoised(clean, [self._draw() for _ in clean])
        window = [*self._window, self._draw()]
        done, self._window = self._make(window, [self._draw() for _ in self._window], *self._told())
        return done

    def _imagine(
        self, window: Sequence[Tensor], noise: Sequence[Tensor], start: Tensor, steering: Any
    ) -> tuple[Tensor, list[Tensor]]:
        done, *others = self._advance(window, start, steering)
        self._remember(done, start, steering)
        return done, self._renoised(others, noise)

    def _advance(self, window: Sequence[Tensor], start: Tensor, steering: Any) -> Sequence[Tensor]:
        """Where a pass thinks that the chunks of a window are going; the newest is at the first step."""
        x, time = torch.cat(list(window), 1), self._times[: len(window)].flip(0)
        time = time.repeat_interleave(self.chunk, output_size=x.shape[1])
        clean = x - time.view(1, -1, 1, 1, 1) / NOISE * self._run(x, time, start, steering)
        return clean.split(self.chunk, 1)

    def _renoised(self, clean: Sequence[Tensor], noise: Sequence[Tensor]) -> list[Tensor]:
        """Chunks at the step after theirs; the newest is at the second now."""
        times = self.steps[len(clean) : 0 : -1]
        return [renoised(*each) for each in zip(clean, times, noise, strict=True)]


def renoised(clean: Tensor, time: float, noise: Tensor) -> Tensor:
    return (1 - time / NOISE) * clean + time / NOISE * noise

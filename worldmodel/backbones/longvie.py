"""LongVie 2 with a past: two control branches beside Wan 2.1, made to go on chunk by chunk.

A dense signal (depth) and a sparse one (tracks of points), each a video of its own, run through branches of
half the width beside the first layers, whose sum joins the main stream after each of them (arXiv 2512.13604).
The published model makes clips of 81 frames from the last frames of the clip before; here what came before is
in a memory instead, of the branches too. That is our addition, and the published weights were not trained
for it.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fastar import Cross, Memory

from ..denoiser import WHOLE_PROMPT
from .forcing import MakeMemory, Recall, SelfForcing
from .wan import Block, Told, Wan, fuse, heard

STILL = 20  # channels that say what picture a frame begins with: 4 of a mask, 16 of its latent


class DualControl(nn.Module):
    """Both branches, with the names under which they are published.

    width, heads, ffn  of a branch: half of those of the transformer; `wide` is the transformer's width
    layers             of each, beside as many first ones of the transformer
    """

    def __init__(
        self,
        *,
        wide: int = 5120,
        width: int = 2560,
        heads: int = 20,
        ffn: int = 6912,
        layers: int = 12,
        image: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.control_blocks_dense, self.control_blocks_sparse = (
            nn.ModuleList(Block(width, heads, ffn, eps, image=image) for _ in range(layers)) for _ in range(2)
        )
        self.control_initial_combine_linear_dense = nn.Linear(wide, width)
        self.control_initial_combine_linear_sparse = nn.Linear(wide, width)
        self.control_text_linear, self.control_t_mod = nn.Linear(wide, width), nn.Linear(wide, width)
        self.control_combine_linears = nn.ModuleList(nn.Linear(width, wide) for _ in range(layers))

    def __len__(self) -> int:
        return len(self.control_combine_linears)

    def fuse(self) -> None:
        """As `Wan.fuse`."""
        fuse(self.control_blocks_dense)
        fuse(self.control_blocks_sparse)

    def read_prompt(
        self, states: Tensor, bias: Tensor, features: Tensor | None
    ) -> tuple[list[Told], list[Told]]:
        """What the layers of both branches read, from `Wan.context`."""
        half, seen = self.control_text_linear(states), None
        if features is not None:
            seen = self.control_text_linear(features)
        return (
            heard(self.control_blocks_dense, half, bias, seen),
            heard(self.control_blocks_sparse, half, bias, seen),
        )


class Steered:
    """The branches in one pass, a `Control` of the transformer. Signals are its tokens [b, f, n, wide]."""

    def __init__(
        self,
        branches: DualControl,
        dense: Tensor,
        sparse: Tensor,
        prompts: tuple[list[Told], list[Told]],
        reads: Sequence[Recall],
        cross: Cross = WHOLE_PROMPT,
    ) -> None:
        self.branches, self.prompts, self.reads, self.cross = branches, prompts, reads, cross
        self.dense = branches.control_initial_combine_linear_dense(dense)
        self.sparse = branches.control_initial_combine_linear_sparse(sparse)

    def __call__(self, i: int, tokens: Tensor, e: Tensor, where: Tensor) -> Tensor:
        if i >= len(self.branches):
            return tokens
        half = self.branches.control_t_mod(e)
        dense, sparse = (
            cast(Block, blocks[i])
            for blocks in (self.branches.control_blocks_dense, self.branches.control_blocks_sparse)
        )
        of_dense, of_sparse = self.reads[i], self.reads[len(self.branches) + i]
        self.dense = dense(self.dense, half, where, of_dense, self.cross, self.prompts[0][i])
        self.sparse = sparse(self.sparse, half, where, of_sparse, self.cross, self.prompts[1][i])
        return tokens + self.branches.control_combine_linears[i](self.dense + self.sparse)


class LongVie(SelfForcing):
    """A chunk at a time, steered by what its signals show.

    The branches remember in a memory of their own, of the same kind.
    """

    def __init__(
        self, wan: Wan, branches: DualControl, memory: MakeMemory, *, cross: Cross = WHOLE_PROMPT, **how
    ) -> None:
        super().__init__(wan, memory, cross=cross, **how)
        self.branches, self._how = branches, how
        self.control_memory: Memory = memory(2 * len(branches), wan.rope)

    @property
    def memories(self) -> list[Memory]:
        return [self.memory, self.control_memory]

    def beside(self, memory: MakeMemory, cross: Cross = WHOLE_PROMPT) -> "LongVie":
        """Another video by the same networks that remembers in this way; it has yet to begin."""
        return LongVie(self.wan, self.branches, memory, cross=cross, **{**self._how, "fuse": self.fuse})

    @torch.no_grad()
    def begin(
        self, texts: Sequence[Tensor], size: tuple[int, int], seed: int = 0, image: Tensor | None = None
    ) -> None:
        """`image` are CLIP's features [b, 257, 1280] of the picture to begin with, if it reads any."""
        self.image = image
        super().begin(texts, size, seed)
        tokens = self._reads[0].kept
        self._control_reads = [Recall(self.control_memory, i, tokens) for i in range(2 * len(self.branches))]

    def _hear(self, texts: Sequence[Tensor]) -> None:
        context = self.wan.context(texts, self.image)
        self._prompt = heard(self.wan.blocks, *context)
        self._control_prompts = self.branches.read_prompt(*context)

    @torch.no_grad()
    def steer(self, dense: Tensor, sparse: Tensor, still: Tensor | None = None) -> Tensor:
        """The next chunk under these signals, latents [b, chunk, 16, h, w] each.

        `still` [b, chunk, 20, h, w] says what picture a frame begins with. A signal may have it after its own
        channels. By default nothing is said.
        """
        self._watch(dense, sparse, still)
        return super().step()

    @torch.no_grad()
    def go_on_from(self, other: "LongVie", chunks: Sequence[Sequence[Tensor]]) -> None:
        """Make the next chunk that another video would, told only of its last ones.

        Of each its latents [b, chunk, 16, h, w], and what `steer` was told for them.
        """
        self._noise.set_state(other._noise.get_state())
        self.finished = other.finished - self.chunk * len(chunks)
        for latents, *told in chunks:
            self._watch(*told)
            self._remember(latents.to(self.device), *self._told())
            self.finished += self.chunk

    def state_dict(self) -> dict[str, Any]:
        """Everything the next chunk depends on besides the weights, the prompt and the image."""
        return {
            "memories": [memory.state_dict() for memory in self.memories],
            "noise": self._noise.get_state(),
            "finished": self.finished,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; to be called after `begin`, and followed by `say`."""
        for memory, known in zip(self.memories, state["memories"], strict=True):
            memory.load_state_dict(known)
        self._noise.set_state(state["noise"].cpu())
        self.finished = state["finished"]

    def _watch(self, dense: Tensor, sparse: Tensor, still: Tensor | None = None) -> None:
        nothing = dense.new_zeros(*dense.shape[:2], STILL, *dense.shape[3:])
        self._still = (nothing if still is None else still).to(self.device)
        whole = (x if x.shape[2] > self.wan.given else torch.cat([x, nothing], 2) for x in (dense, sparse))
        self._signals = [self.wan.tokens(x.to(self.device, self.dtype)) for x in whole]

    def step(self) -> Tensor:
        raise RuntimeError("LongVie makes a chunk under signals: call steer.")

    def _fuse(self) -> None:
        super()._fuse()
        self.branches.fuse()

    def _told(self) -> tuple[Tensor, Any]:
        return super()._told()[0], (*self._signals, self._still)

    def _run(self, x: Tensor, time: Tensor, start: Tensor, steering: Any) -> Tensor:
        dense, sparse, still = steering
        prompts, reads = self._control_prompts, self._control_reads
        control = Steered(self.branches, dense, sparse, prompts, reads, self.cross)
        told = time.expand(len(x), -1), start, self._prompt, self._reads, self.cross, control
        return self.wan(torch.cat([x, still.to(x.dtype)], 2).to(self.dtype), *told).float()

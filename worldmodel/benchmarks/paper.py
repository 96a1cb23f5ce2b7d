"""The paper's headline on the paper's shapes: 3,000 frames by Wan 2.1's transformers, weights random.

With random weights no two keys are alike, so TempCache merges and evicts by its budget alone; speed does not
know the difference. A memory that is bounded is really run. Dense attention is run where it fits, and
replayed everywhere: the attention of one layer is timed at some lengths of the cache, the rest of a chunk
once, and both are put together. Rows say which.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fastar import Cross, Dense
from fastar.kernels import flashinfer
from fastar.memory import Past

from ..backbones.forcing import Forcing, MakeMemory, RollingForcing, SelfForcing
from ..backbones.longvie import DualControl, LongVie
from ..backbones.packages import package
from ..backbones.vae import StreamingDecoder
from ..backbones.wan import IMAGE_WIDTH, Block, Wan
from ..denoiser import WHOLE_PROMPT
from ..evaluation.results import Row
from .kernels import fastest, seconds

TEXT, IMAGE = 120, 257  # tokens of the prompt, 512 with its padding; and of an image
Net = TypeVar("Net", bound=torch.nn.Module)
PICTURES, CHUNK = 4, 3  # pictures of a latent frame, latent frames of a chunk


class Steered(LongVie):
    """LongVie 2 under signals of noise."""

    def begin(self, texts: Sequence[Tensor], size: tuple[int, int], seed: int = 0, image=None) -> None:
        width = self.wan.patch_embedding.weight
        super().begin(texts, size, seed, torch.randn(len(texts), IMAGE, IMAGE_WIDTH).to(width))

    def step(self) -> Tensor:
        return self.steer(self._draw(), self._draw())


@dataclass(frozen=True)
class Case:
    """A transformer, how it makes a video, and its size in latents.

    branches  arguments of LongVie 2's control branches, which `pipeline` longvie has
    run       chunks that a bounded memory is really run for; after them a chunk costs the same
    dense     whether dense attention is really run, too, to the end
    memories  names of those that are run; None for all
    """

    wan: dict[str, Any]
    pipeline: str
    rows: int
    columns: int
    frames: int = 3000
    branches: dict[str, Any] | None = None
    run: int | None = None
    dense: bool = False
    memories: Sequence[str] | None = None

    @property
    def chunks(self) -> int:
        return self.frames // (PICTURES * CHUNK)

    @property
    def tokens(self) -> int:
        """Of a chunk."""
        return CHUNK * (self.rows // 2) * (self.columns // 2)

    @torch.no_grad()
    def open(
        self,
        memory: MakeMemory,
        device: torch.device,
        dtype: torch.dtype,
        cross: Cross = WHOLE_PROMPT,
        seed: int = 0,
        *,
        graphs: bool = True,
        fuse: bool = True,
    ) -> Forcing:
        torch.manual_seed(seed)
        how: dict[str, Any] = dict(chunk=CHUNK, cross=cross, graphs=graphs, fuse=fuse)
        with torch.device("meta"):
            wan = Wan(**self.wan)
            branches = DualControl(**self.branches) if self.branches is not None else None
        wan = random(wan, device, dtype)
        match self.pipeline, branches:
            case "self-forcing", None:
                forcing = SelfForcing(wan, memory, **how)
            case "rolling-forcing", None:
                forcing = RollingForcing(wan, memory, **how)
            case "longvie", DualControl():
                forcing = Steered(wan, random(branches, device, dtype), memory, **how)
            case _:
                raise ValueError(f"No pipeline {self.pipeline!r} with branches={self.branches}.")
        forcing.begin([torch.randn(TEXT, self.wan.get("text_width", 4096))], (self.rows, self.columns))
        return forcing


def random(network: Net, device: torch.device, dtype: torch.dtype) -> Net:
    """A network that was only sketched, its weights drawn."""
    network = network.to_empty(device=device).to(dtype).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(std=0.02)
    return network


def in_chunks(axes: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The axes of a method whose far memory is told in chunks, with that in tokens."""
    cache = dict(axes["cache"])
    if "far" in cache:
        cache["far"] *= tokens
    return {**axes, "cache": cache}


class Nothing(Dense):
    """Attention of a chunk to itself: what is committed is gone."""

    def commit(self, layer: int) -> None:
        self._present[layer] = 0

    def phase(self) -> int | None:
        return 0 if self.keys[-1] is not None else None

    def advance(self) -> None:
        pass


class Best(Dense):
    """Dense attention by FlashAttention-3 where FlashInfer brings it."""

    def _read(self, layer: int, q: Tensor, past: Past) -> Tensor:
        if flashinfer.INSTALLED and q.is_cuda and past.bias is None:
            return flashinfer.dense(q, past.keys, past.values)[0]
        return super()._read(layer, q, past)


def decoding(case: Case, device: torch.device, dtype: torch.dtype, **sizes: Any) -> float | None:
    """Seconds of the pictures of a chunk by Wan's decoder, weights random; None without diffusers.

    `sizes` are arguments of its `AutoencoderKLWan`.
    """
    try:
        diffusers = package("diffusers")
    except ModuleNotFoundError:
        return None
    vae = diffusers.AutoencoderKLWan(**sizes).to(device, dtype)
    latents = torch.randn(1, CHUNK, vae.config.z_dim, case.rows, case.columns)
    decoder = StreamingDecoder(vae)
    return seconds(lambda: decoder(latents), device, tries=2)


def run(forcing: Forcing, chunks: int, every: int = 10) -> Iterator[Row]:
    """Chunk by chunk; a row every so many, and for the last.

    It tells the seconds of the median chunk since the last row and those of all so far, how many tokens are
    kept, and the most memory held.
    """
    cuda = forcing.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    took: list[float] = []
    for chunk in range(1, chunks + 1):
        start = time.perf_counter()
        forcing.step()
        if cuda:
            torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
        if chunk % every == 0 or chunk == chunks:
            stats, seconds = forcing.memory.stats(), float(np.median(took[-every:]))
            row = at_chunk(chunk, seconds) | {"s so far": sum(took), "kept": stats.kept, "seen": stats.seen}
            row["cache GB"] = sum(memory.stats().bytes for memory in forcing.memories) / 1e9
            yield row | ({"peak GB": torch.cuda.max_memory_allocated() / 1e9} if cuda else {})


def at_chunk(chunk: int, seconds: float) -> Row:
    pictures = PICTURES * CHUNK
    return {"chunk": chunk, "frame": chunk * pictures, "s a chunk": seconds, "fps": pictures / seconds}


def replayed(case: Case, forcing: Forcing, lengths: Sequence[int], warm: int = 4) -> Iterator[Row]:
    """What dense attention takes with so many chunks remembered; the forcing itself remembers `Nothing`."""
    for _ in range(warm):
        forcing.step()
    rest = float(np.median([row["s a chunk"] for row in run(forcing, 5, every=1)]))
    for length in lengths:
        more, size = 0.0, 0
        for layers, heads, width in stacks(forcing):
            for queries in asked(case, forcing):
                alone, whole = (
                    attention(heads, width, queries * case.tokens, (queries + past) * case.tokens, forcing)
                    for past in (0, length)
                )
                more += layers * max(0.0, whole - alone)
            size += 2 * layers * length * case.tokens * heads * width * forcing.dtype.itemsize
        row = at_chunk(length, rest + more)
        yield row | {"s without attention to the past": rest, "cache GB": size / 1e9}


def stacks(forcing: Forcing) -> list[tuple[int, int, int]]:
    """Layers, heads and head width of the transformer, and of its control branches if it has any."""
    found = [(forcing.memory.layers, forcing.wan.heads, forcing.wan.head_width)]
    if isinstance(forcing, LongVie):
        block = cast(Block, forcing.branches.control_blocks_dense[0])
        heads, width = block.self_attn.heads, block.self_attn.q.out_features
        found.append((forcing.control_memory.layers, heads, width // heads))
    return found


def asked(case: Case, forcing: Forcing) -> list[int]:
    """For each pass of a chunk, how many chunks ask; the last is the pass that remembers."""
    if case.pipeline == "rolling-forcing":
        return [len(forcing.steps), 1]
    return [1] * (len(forcing.steps) + 1)


@torch.no_grad()
def attention(heads: int, width: int, queries: int, keys: int, forcing: Forcing) -> float:
    """Seconds of one layer's dense attention, by whichever kernel is fastest here."""
    q, k, v = (
        torch.randn(1, heads, n, width, device=forcing.device, dtype=forcing.dtype)
        for n in (queries, keys, keys)
    )
    return fastest(q, k, v)


def whole(rows: Sequence[Row], chunks: int) -> float:
    """Seconds of all chunks.

    Those after the last one of a run take as long as it did; between the lengths that were replayed, time
    goes up in a line.
    """
    if rows[0]["how"] == "run":
        last = rows[-1]
        return last["s so far"] + (chunks - last["chunk"]) * last["s a chunk"]
    ends, seconds = ([row[name] for row in rows] for name in ("chunk", "s a chunk"))
    return float(np.interp(np.arange(1, chunks + 1), ends, seconds).sum())


def summary(rows: Sequence[Row], chunks: int) -> Iterator[Row]:
    """For each memory of a case the seconds of a whole video, and its speed-up over dense attention.

    Dense attention as it was replayed: what has no copies to make and no launches to wait for.
    """
    by_memory: dict[str, list[Row]] = {}
    for row in rows:
        by_memory.setdefault(row["memory"], []).append(row)
    dense = whole(by_memory["dense"], chunks)
    ceiling = chunks * by_memory["dense"][0]["s without attention to the past"]
    for memory, found in by_memory.items():
        seconds = whole(found, chunks)
        row: Row = {"memory": memory, "s": seconds, "speed-up": dense / seconds, "ceiling": dense / ceiling}
        yield row | {"fps at the end": found[-1]["fps"]}

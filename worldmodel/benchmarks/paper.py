"""The paper's headline on the paper's shapes: 3,000 frames by Wan 2.1's transformers, weights random.

With random weights no two keys are alike, so TempCache merges and evicts by its budget alone; speed does not
know the difference. A memory that is bounded is really run; one that grows is run too where it fits, or else
replayed: the attention of one layer is timed at some lengths of the cache, the rest of a chunk once, and both
are put together. Rows say which.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastar import Cross, Dense
from fastar.attention import attend
from fastar.kernels import flashinfer

from ..backbones.forcing import Forcing, MakeMemory, RollingForcing, SelfForcing
from ..backbones.wan import Wan
from ..denoiser import WHOLE_PROMPT
from ..evaluation.results import Row

PIPELINES: Mapping[str, Callable[..., Forcing]] = {
    "self-forcing": SelfForcing,
    "rolling-forcing": RollingForcing,
}
TEXT = 120  # tokens of the prompt; 512 with its padding
PICTURES, CHUNK = 4, 3  # pictures of a latent frame, latent frames of a chunk


@dataclass(frozen=True)
class Case:
    """A transformer, how it makes a video, and its size in latents."""

    wan: dict[str, Any]
    pipeline: str
    rows: int
    columns: int
    frames: int = 3000

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
    ) -> Forcing:
        torch.manual_seed(seed)
        with torch.device("meta"):
            wan = Wan(**self.wan)
        wan = wan.to_empty(device=device).to(dtype).eval().requires_grad_(False)
        for parameter in wan.parameters():
            parameter.normal_(std=0.02)
        forcing = PIPELINES[self.pipeline](wan, memory, chunk=CHUNK, cross=cross)
        forcing.begin([torch.randn(TEXT, self.wan.get("text_width", 4096))], (self.rows, self.columns))
        return forcing


def in_chunks(axes: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The axes of a method whose far memory is told in chunks, with that in tokens."""
    cache = dict(axes["cache"])
    if "far" in cache:
        cache["far"] *= tokens
    return {**axes, "cache": cache}


class Nothing(Dense):
    """Attention of a chunk to itself: what is committed is gone."""

    def commit(self, layer: int) -> None:
        pass


def run(forcing: Forcing, chunks: int, every: int = 10) -> Iterator[Row]:
    """Chunk by chunk; a row every so many: seconds of the median chunk, tokens kept, the most memory held."""
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
            stats = forcing.memory.stats()
            row: Row = {"chunk": chunk, "s a chunk": float(np.median(took[-every:])), "s in all": sum(took)}
            row |= {"kept": stats.kept, "seen": stats.seen, "cache GB": stats.bytes / 1e9}
            yield row | ({"peak GB": torch.cuda.max_memory_allocated() / 1e9} if cuda else {})


def replayed(case: Case, forcing: Forcing, lengths: Sequence[int], warm: int = 2) -> Iterator[Row]:
    """What dense attention takes with so many chunks remembered; the forcing itself remembers `Nothing`."""
    for _ in range(warm):
        forcing.step()
    rest = float(np.median([row["s a chunk"] for row in run(forcing, 5, every=1)]))
    wan, passes, tokens = forcing.wan, asked(case, forcing), case.tokens
    for length in lengths:
        more = 0.0
        for queries in passes:
            alone, whole = (
                attention(wan, queries * tokens, (queries + past) * tokens, forcing.dtype)
                for past in (0, length)
            )
            more += len(wan.blocks) * (whole - alone)
        size = 2 * len(wan.blocks) * length * tokens * wan.heads * wan.head_width * 2 / 1e9
        yield {
            "chunk": length,
            "s a chunk": rest + more,
            "s without attention to the past": rest,
            "cache GB": size,
        }


def asked(case: Case, forcing: Forcing) -> list[int]:
    """For each pass of a chunk, how many chunks ask; the last is the pass that remembers."""
    if case.pipeline == "rolling-forcing":
        return [len(forcing.steps), 1]
    return [1] * (len(forcing.steps) + 1)


@torch.no_grad()
def attention(wan: Wan, queries: int, keys: int, dtype: torch.dtype, tries: int = 5) -> float:
    """Seconds of one layer's dense attention, by whichever kernel is faster here."""
    device = wan.patch_embedding.weight.device
    q = torch.randn(1, wan.heads, queries, wan.head_width, device=device, dtype=dtype)
    k, v = torch.randn(2, 1, wan.heads, keys, wan.head_width, device=device, dtype=dtype)
    kernels: list[Callable[[Tensor, Tensor, Tensor], Any]] = [attend]
    if flashinfer.INSTALLED and device.type == "cuda":
        kernels.append(flashinfer.dense)
    return min(median(lambda kernel=kernel: kernel(q, k, v), device, tries) for kernel in kernels)


def median(compute: Callable[[], Any], device: torch.device, tries: int) -> float:
    took = []
    for _ in range(tries + 1):
        start = time.perf_counter()
        compute()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return float(np.median(took[1:]))


def whole(rows: Sequence[Row], chunks: int) -> float:
    """Seconds of all chunks: between the lengths that were measured dense attention grows linearly."""
    at = np.arange(1, chunks + 1)
    return float(np.interp(at, [row["chunk"] for row in rows], [row["s a chunk"] for row in rows]).sum())


def summary(rows: Sequence[Row], chunks: int) -> Iterator[Row]:
    """For each memory of a case the seconds of a whole video, and its speed-up over dense attention."""
    by_memory: dict[str, list[Row]] = {}
    for row in rows:
        by_memory.setdefault(row["memory"], []).append(row)
    dense = whole(by_memory["dense"], chunks)
    ceiling = chunks * by_memory["dense"][0]["s without attention to the past"]
    for memory, found in by_memory.items():
        seconds = whole(found, chunks)
        row: Row = {"memory": memory, "s": seconds, "speed-up": dense / seconds, "ceiling": dense / ceiling}
        yield row | {"FPS at the end": PICTURES * CHUNK / found[-1]["s a chunk"]}

"""FAISS as a search: an index per row and call, on the CPU. For comparison, and for those who trust it.

FAISS keeps its codes inside the index, so here `encode` gives back unit vectors and the index is made from
them when a search begins. Every call copies to the host and waits.

Where faiss-gpu is installed, FaissFlat searches CUDA vectors on their GPU; FAISS has no GPU form of
the other three that searches every key. That path is unverified.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _Faiss:
    """What the kinds share: rows searched apart, empty slots left out, scores turned into cosines."""

    def __init__(self) -> None:
        self._faiss = _load()

    def encode(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=-1)

    def similarity(self, a: Tensor, b: Tensor) -> Tensor:
        every = torch.ones(b.shape[:-1], dtype=torch.bool, device=b.device)
        cosine, index = self._search(a, b, every, b.shape[-2])
        return torch.empty_like(cosine).scatter_(-1, index, cosine)

    def nearest(self, queries: Tensor, keys: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if valid is None:
            valid = torch.ones(keys.shape[:-1], dtype=torch.bool, device=keys.device)
        cosine, index = self._search(queries, keys, valid, 1)
        return cosine[..., 0], index[..., 0]

    def _search(self, queries: Tensor, keys: Tensor, valid: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The best `count` keys of every query, best first: cosines and indices [..., n, count]."""
        if queries.shape[-1] != keys.shape[-1]:
            raise ValueError(
                f"Queries and keys must be equally wide, got {tuple(queries.shape)} and {tuple(keys.shape)}. "
                "Encode both sides with the same search."
            )
        lead = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
        rows = zip(
            queries.expand(*lead, -1, -1).reshape(-1, *queries.shape[-2:]),
            keys.expand(*lead, -1, -1).reshape(-1, *keys.shape[-2:]),
            valid.expand(*lead, -1).reshape(-1, valid.shape[-1]),
            strict=True,
        )
        cosines, indices = zip(*(self._search_row(*row, count) for row in rows), strict=True)
        shape = *lead, queries.shape[-2], count
        return torch.stack(cosines).reshape(shape), torch.stack(indices).reshape(shape)

    def _search_row(self, queries: Tensor, keys: Tensor, valid: Tensor, count: int) -> tuple[Tensor, Tensor]:
        place = valid.nonzero()[:, 0]
        if not len(place):
            cosine = queries.new_full((len(queries), count), -torch.inf, dtype=torch.float32)
            return cosine, torch.zeros_like(cosine, dtype=torch.long)
        known = _host(keys[place])
        index = self._placed(self._index(known), keys.device)
        index.add(known)
        scores, found = (torch.from_numpy(x).to(keys.device) for x in index.search(_host(queries), count))
        return self._cosine(scores), place[found]

    def _index(self, keys: Any) -> Any:
        """An empty index, trained on the keys, float32 [m, d], if it wants training."""
        raise NotImplementedError

    def _placed(self, index: Any, device: torch.device) -> Any:
        return index

    def _cosine(self, scores: Tensor) -> Tensor:
        return scores


class FaissFlat(_Faiss):
    """IndexFlatIP: exact."""

    def _index(self, keys: Any) -> Any:
        return self._faiss.IndexFlatIP(keys.shape[1])

    def _placed(self, index: Any, device: torch.device) -> Any:
        if device.type != "cuda" or not hasattr(self._faiss, "StandardGpuResources"):
            return index
        self._resources = self._faiss.StandardGpuResources()  # the index does not keep them alive
        return self._faiss.index_cpu_to_gpu(self._resources, device.index or 0, index)


class FaissLSH(_Faiss):
    """IndexLSH: `bits` signs after a random rotation; a Hamming distance as a cosine, as in `search.LSH`."""

    def __init__(self, bits: int = 256) -> None:
        if bits < 1:
            raise ValueError(f"faiss-lsh needs at least one bit, got bits={bits}.")
        super().__init__()
        self.bits = bits

    def _index(self, keys: Any) -> Any:
        return self._faiss.IndexLSH(keys.shape[1], self.bits)

    def _cosine(self, scores: Tensor) -> Tensor:
        return torch.cos(scores * (math.pi / self.bits))


class FaissSQ8(_Faiss):
    """IndexScalarQuantizer: 8 bits per channel, over the range that the channel has among the keys.

    Queries are not rounded.
    """

    def _index(self, keys: Any) -> Any:
        faiss = self._faiss
        kind = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexScalarQuantizer(keys.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        index.train(keys)
        return index


class FaissPQ(_Faiss):
    """IndexPQ: `parts` equal pieces of a vector, each replaced by the nearest of 2^bits learnt from the keys.

    With fewer than 2^bits keys, bits fall to what they can teach. Queries are not rounded, and what replaces
    a key has another length, so its cosine may pass 1.
    """

    def __init__(self, parts: int = 16, bits: int = 8) -> None:
        if parts < 1 or not 1 <= bits <= 16:
            raise ValueError(f"faiss-pq needs parts >= 1 and bits from 1 to 16, got {parts} and {bits}.")
        super().__init__()
        self.parts, self.bits = parts, bits

    def _index(self, keys: Any) -> Any:
        count, width = keys.shape
        if width % self.parts:
            raise ValueError(
                f"faiss-pq cuts vectors into parts={self.parts} equal pieces, but they have width {width}. "
                "Take a number of parts that divides it."
            )
        bits = min(self.bits, max(1, (count - 1).bit_length()))
        index = self._faiss.IndexPQ(width, self.parts, bits, self._faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.min_points_per_centroid = 1  # few keys teach what they can, without a warning
        index.train(keys.repeat(-(-(2**bits) // count), 0))  # which wants 2^bits vectors at least
        return index


def _load() -> Any:
    try:
        import faiss
    except ImportError:
        raise RuntimeError("FAISS is not installed: `pip install -e '.[faiss]'` installs it.") from None
    return faiss


def _host(x: Tensor) -> Any:
    """A float32 array in host memory."""
    return x.detach().cpu().contiguous().numpy()

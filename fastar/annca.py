"""AnnCA: each frame reads only the prompt tokens that it needs.

A token is needed if enough of the frame's queries fall into its bucket (arXiv 2602.01801), or if it gets
enough of their attention. `collapse` first makes one token of all that are equal, such as the padding of
Wan's prompts, which is exact (Lemma 5.1): 512 tokens become those of the text and one.
"""

import math

import torch
from torch import Tensor

from .attention import attend, sampled
from .kernels import usable
from .kernels.needs import attention_share, fits, masked, ranked
from .search import Bucketed, share_bucket


class AnnCA:
    """Reads at most a share `density` of the prompt's tokens, those that the frame's queries need.

    floor   mean share of the queries' attention that makes a token needed; 0 needs every token
    search  by whose buckets they are found instead: those that share one with `hits` queries
    always  tokens at either end that are read in any case: they hold the attention that has no other place
    whole   prompts of up to so many tokens are read whole: where choosing among them takes longer than that

    density 1 with floor 0 is attention to the whole prompt.
    """

    def __init__(
        self,
        *,
        density: float = 0.3,
        floor: float = 0.0,
        search: Bucketed | None = None,
        hits: int = 1,
        always: int = 1,
        whole: int = 0,
    ) -> None:
        if not 0 < density <= 1 or not 0 <= floor < 1:
            raise ValueError(f"density is a share above 0, floor one below 1; got {density} and {floor}.")
        self.density, self.floor, self.search, self.hits, self.always = density, floor, search, hits, always
        self.whole = whole

    def read(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Attention of q [b, h, n, d] to prompt tokens k, v [b, h, l, d] with a bias [b, l]."""
        if k.shape[2] <= self.whole:
            return attend(q, k, v, bias)
        if self._by_kernel(q, k):
            return attend(q, k, v, masked(sampled(q), k, bias, self._wanted(k), self.floor, self.always))
        kept, needed = self.choose(q, k, bias)
        rows = kept[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        ignored = torch.where(needed, 0.0, -torch.inf).to(bias.dtype)
        return attend(q, k.gather(2, rows), v.gather(2, rows), bias.gather(1, kept) + ignored)

    def choose(self, q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens to read [b, j], and which of them are needed [b, j]."""
        q = sampled(q)
        if self.search is None:
            return ranked(attention_share(q, k, bias), bias, self._wanted(k), self.floor, self.always)
        return ranked(self._hits(q, k, bias), bias, self._wanted(k), self.hits, self.always)

    def _by_kernel(self, q: Tensor, k: Tensor) -> bool:
        return self.search is None and usable(q, k) and fits(q, k)

    def _wanted(self, k: Tensor) -> int:
        return max(math.ceil(self.density * k.shape[2]), min(2 * self.always, k.shape[2]))

    def _hits(self, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        """How many queries, of any head, share a bucket with each token [b, l].

        Queries and keys have no common centre, so the mean key is taken from the keys, which changes no
        attention, and the mean query from the queries.
        """
        assert self.search is not None
        there = (bias > -torch.inf)[:, None, :, None]
        centre = (k * there).sum(2, keepdim=True) / there.sum(2, keepdim=True).clamp_min(1)
        codes = (self.search.encode(x) for x in (q - q.mean(2, keepdim=True), k - centre))
        queries, keys = (self.search.buckets(code) for code in codes)
        return share_bucket(queries, keys).sum((1, 2)).float()


def collapse(k: Tensor, v: Tensor, bias: Tensor, same: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tokens [b, l] that are the `same`, leave the first, and let it count as often as they are.

    k, v [b, h, l, d], bias [b, l]. Exact where their keys are equal; their values may differ. Shapes stay.
    """
    weight = torch.where(same, bias.exp(), 0.0)
    count = weight.sum(-1, keepdim=True)
    first = same & (same.cumsum(-1) == 1)
    mean = (v * weight[:, None, :, None].to(v.dtype)).sum(2, keepdim=True)
    mean = mean / count[:, None, :, None].clamp_min(1e-9).to(v.dtype)
    merged = torch.where(first, count.log(), torch.where(same, -torch.inf, bias))
    return k, torch.where(first[:, None, :, None], mean, v), merged

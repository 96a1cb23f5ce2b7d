"""TeaCache: a pass of the denoiser is skipped while what it is told has changed little since one that ran.

arXiv 2411.19108: changes from pass to pass, relative to what there was, are summed; below a
threshold the sum says that the output will be nearly the same, and the last one is used again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Accumulated:
    """Skip a pass while the sum of changes of a `signal` since the last pass that ran is below a `threshold`.

    warmup  first passes of a frame that are always run, at least one
    last    the last pass of a frame is run in any case

    The sum begins anew with every frame. threshold 0 runs all passes.
    """

    fixed = False

    def __init__(self, *, threshold: float = 0.1, warmup: int = 1, last: bool = False) -> None:
        if threshold < 0 or warmup < 1:
            raise ValueError(f"threshold is at least 0 and warmup at least 1, got {threshold} and {warmup}.")
        self.threshold, self.warmup, self.last = threshold, warmup, last
        self.tally: list[
            list[int]
        ] = []  # of the second pass of a frame, the third, ...: games asked, skipped
        self._before = self._sum = torch.empty(0)  # of each game: the signal of the last pass, changes since

    def signal(self, level: Tensor, tokens: Tensor) -> Tensor:
        """What must change: [b, ...], of what a pass is told; see `Step`."""
        raise NotImplementedError

    def rescaled(self, change: Tensor) -> Tensor:
        """A relative change of the signal as one of the output."""
        return change

    def begin(self, level: Tensor, tokens: Tensor) -> None:
        self._before = self.signal(level, tokens)
        self._sum = torch.zeros(len(tokens), device=tokens.device)

    def skips(self, nth: int, of: int, level: Tensor, tokens: Tensor) -> Tensor:
        """Which games [b] keep what they have; see `Step`."""
        now = self.signal(level, tokens)
        moved, was = ((x.float().abs().flatten(1).mean(1)) for x in (now - self._before, self._before))
        self._sum = self._sum + self.rescaled(moved / was.clamp_min(1e-12)).clamp_min(0)
        self._before = now
        must = nth < self.warmup or (self.last and nth == of - 1)
        skipped = (self._sum < self.threshold) & (not must)
        self._sum = torch.where(skipped, self._sum, 0.0)
        self._count(nth, skipped)
        return skipped

    def state_dict(self) -> dict[str, Any]:
        return {"tally": [list(counts) for counts in self.tally]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tally = [list(counts) for counts in state["tally"]]

    def _count(self, nth: int, skipped: Tensor) -> None:
        self.tally += [[0, 0] for _ in range(nth - len(self.tally))]
        asked, before = self.tally[nth - 1]
        self.tally[nth - 1] = [asked + len(skipped), before + int(skipped.sum())]


class TeaCache(Accumulated):
    """The signal is the embedding of the noise level: what passes are told by schedule, whatever they show.

    rescale   coefficients of a polynomial, highest power first, from changes of the signal to those of the
              output; the published ones were fitted to schedules of 50 passes and fall below 0 on steps as
              wide as ours, so none by default, and what it gives is at least 0
    schedule  which passes after the first are skipped, known beforehand, since the signal depends on noise
              levels alone; then nothing is computed, and a CUDA graph may hold it
    """

    def __init__(
        self,
        *,
        threshold: float = 0.1,
        warmup: int = 1,
        last: bool = False,
        rescale: Sequence[float] | None = None,
        schedule: Sequence[bool] | None = None,
    ) -> None:
        super().__init__(threshold=threshold, warmup=warmup, last=last)
        self.rescale, self.schedule = rescale, schedule
        self.fixed = schedule is not None

    def signal(self, level: Tensor, tokens: Tensor) -> Tensor:
        return level.expand(len(tokens), *level.shape[1:])

    def rescaled(self, change: Tensor) -> Tensor:
        if self.rescale is None:
            return change
        result = torch.zeros_like(change)
        for coefficient in self.rescale:
            result = result * change + coefficient
        return result

    def begin(self, level: Tensor, tokens: Tensor) -> None:
        if self.schedule is None:
            super().begin(level, tokens)

    def skips(self, nth: int, of: int, level: Tensor, tokens: Tensor) -> Tensor:
        if self.schedule is None:
            return super().skips(nth, of, level, tokens)
        if len(self.schedule) != of - 1:
            raise ValueError(
                f"This schedule is for {len(self.schedule)} passes after the first, a frame has {of - 1}."
            )
        return torch.tensor(bool(self.schedule[nth - 1]))

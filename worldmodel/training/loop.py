"""What every training stage shares: progress, learning rate, weight average, checkpoints, processes."""

import copy
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


class Run:
    """One stage in one folder: its log, its checkpoint and its clock.

    A stage ends after `minutes` of training or `steps` steps, whichever is given; both survive a restart.
    """

    def __init__(
        self, folder: Path, stage: str, *, minutes: float | None = None, steps: int | None = None
    ) -> None:
        if (minutes is None) == (steps is None):
            raise ValueError(
                f"Stage {stage} needs either minutes or steps, got minutes={minutes} and steps={steps}."
            )
        self.folder, self.stage, self.minutes, self.steps = folder, stage, minutes, steps
        folder.mkdir(parents=True, exist_ok=True)
        self.step, self._spent, self._began = 0, 0.0, time.monotonic()
        self._progress, self._inside = 0.0, False

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.stage}.pt"

    @property
    def seconds(self) -> float:
        """Spent training, restarts included."""
        return self._spent + time.monotonic() - self._began

    def laps(self) -> Iterator[float]:
        """Yields the progress from 0 to 1 before each step. All processes stop at the same step."""
        self._began = time.monotonic()
        while True:
            if self.steps is not None:
                self._progress = self.step / self.steps
            elif self.minutes is not None and self.step % 10 == 0:
                self._progress = _from_first(self.seconds / (60 * self.minutes))
            if self._progress >= 1:
                return
            self._inside = True
            yield self._progress
            self._inside = False
            self.step += 1

    def log(self, **figures: Any) -> None:
        """A line in the log and on the terminal; only the first process writes."""
        if rank():
            return
        figures = {k: v.detach() if isinstance(v, Tensor) else v for k, v in figures.items()}
        numbers = {k: round(float(v), 5) for k, v in figures.items()}
        line = {"stage": self.stage, "step": self.step, "seconds": round(self.seconds, 1), **numbers}
        print(" ".join(f"{k}={v}" for k, v in line.items()), flush=True)
        with open(self.folder / "log.jsonl", "a") as stream:
            stream.write(json.dumps(line) + "\n")

    def save(self, **parts: Any) -> None:
        """Write the checkpoint whole or not at all."""
        if rank():
            return
        state = {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in parts.items()}
        fresh = self.checkpoint.with_suffix(".new")
        torch.save({"step": self.step + self._inside, "seconds": self.seconds, **state}, fresh)
        fresh.replace(self.checkpoint)

    def resume(self, **parts: Any) -> bool:
        """Load the checkpoint into the parts, if there is one."""
        if not self.checkpoint.exists():
            return False
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        self.step, self._spent = state["step"], state["seconds"]
        self._began = time.monotonic()
        return True


class Average(Generic[Network]):
    """Exponential moving average of a module's weights; short at first, then over 1 / (1 - decay) steps."""

    def __init__(self, module: Network, decay: float) -> None:
        self.module: Network = copy.deepcopy(module).requires_grad_(False).eval()
        self.decay, self.count = decay, 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.count += 1
        weight = 1 - min(self.decay, self.count / (self.count + 20))
        means: list[Tensor] = list(self.module.parameters())
        now: list[Tensor] = list(module.parameters())
        torch._foreach_lerp_(means, now, weight)  # pyright: ignore[reportPrivateImportUsage]

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.count = state["count"]


def rate(progress: float, step: int, *, warmup: int, hold: float) -> float:
    """Share of the peak learning rate: linear warm-up, constant to `hold`, then linear to 2 %."""
    falling = 1.0 if progress < hold else max(0.02, (1 - progress) / (1 - hold))
    return min(1.0, (step + 1) / warmup) * falling


def adamw(module: nn.Module, lr: float, *, betas: tuple[float, float], decay: float) -> torch.optim.AdamW:
    """AdamW for what requires a gradient, with weight decay on matrices only."""
    learnt = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in learnt if p.ndim > 1]
    others = [p for p in learnt if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=matrices[0].is_cuda)


class Together:
    """Several optimizers that step as one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for optimizer, known in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(known)


def muon(
    module: nn.Module, inner: nn.Module, lr: float, *, betas: tuple[float, float], decay: float
) -> Together:
    """Muon (orthogonalised momentum, arXiv 2502.16982) for the matrices of `inner`, AdamW for all else.

    Its steps are as large as AdamW's, so one rate suits both.
    """
    matrices = [p for p in inner.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in module.parameters() if id(p) not in known]
    return Together(
        torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=0.0, fused=others[0].is_cuda),
    )


def update(optimizer: torch.optim.Optimizer | Together, loss: Tensor, lr: float, clip: float = 1.0) -> Tensor:
    """One step of gradient descent over all processes. Returns the gradient's norm."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    average_gradients(parameters)
    norm = nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return norm


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Mean of the gradients over the processes, in place."""
    if processes() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= processes()
    parts = flat.split([g.numel() for g in gradients])
    means = [part.view_as(g) for g, part in zip(gradients, parts, strict=True)]
    torch._foreach_copy_(gradients, means)  # pyright: ignore[reportPrivateImportUsage]


def share(module: Network) -> Network:
    """Give every process the first one's weights."""
    if processes() > 1:
        for x in module.state_dict().values():
            dist.broadcast(x, 0)
    return module


def _from_first(value: float) -> float:
    """The first process's value, everywhere."""
    if processes() == 1:
        return value
    shared = torch.tensor([value], device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast(shared, 0)
    return float(shared)

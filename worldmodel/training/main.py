"""Train a world: autoencoder, base denoiser, adversarial post-training, one folder for all of it.

Stages that are done are loaded, a stage that was cut short goes on from its checkpoint. The result is
a weights folder that `run.py play weights=...` plays.
"""

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from ..autoencoder import Autoencoder
from ..checkpoint import load_weights, save_weights
from ..denoiser import Denoiser
from ..doom.captions import VOCABULARY
from ..episodes import episodes
from ..eyes import save_eyes
from ..vocabulary import Vocabulary
from .adversarial import train_adversarial
from .autoencoder import train_autoencoder
from .decoder import train_decoder
from .eyes import train_eyes
from .flow import train_flow
from .latents import Library
from .look import look
from .loop import processes, rank, share
from .odometer import train_odometer

ADDED = (
    ".focus",
    "refiner.",
    "odometer.",
)  # parts that add nothing at first, so a network without them may go on with them
STAGES = ("autoencoder", "odometer", "flow", "adversarial", "decoder", "eyes")
FEW_STEPS = {"1": [1.0], "2": [1.0, 0.8], "3": [1.0, 0.6, 0.3]}  # passes a frame: their noise levels


@dataclass(frozen=True)
class Plan:
    """The nodes of configs/train.yaml; each stage's node is the arguments of its function."""

    data: str
    held_out: str | None
    out: str
    start_from: str | None
    stages: list[str]
    seed: int
    workers: int
    processes: int | None
    denoiser: dict[str, Any]
    autoencoder: dict[str, Any]
    odometer: dict[str, Any]
    flow: dict[str, Any]
    adversarial: dict[str, Any]
    decoder: dict[str, Any]
    eyes: dict[str, Any]


def train(**config: Any) -> None:
    """Run the stages of a configuration, one process per GPU."""
    plan = Plan(**config)
    if unknown := set(plan.stages) - set(STAGES):
        raise ValueError(f"No such stage: {', '.join(sorted(unknown))}. There are {', '.join(STAGES)}.")
    count = plan.processes or max(1, torch.cuda.device_count())
    if count > 1:
        spawn(_process, (count, _free_port(), plan), nprocs=count)
    else:
        _process(0, 1, 0, plan)


def _process(index: int, count: int, port: int, plan: Plan) -> None:
    device = torch.device("cuda", index) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    if count > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"tcp://127.0.0.1:{port}", rank=index, world_size=count)
    try:
        _stages(plan, device)
    finally:
        if count > 1:
            dist.destroy_process_group()


def _stages(plan: Plan, device: torch.device) -> None:
    folder = Path(plan.out)
    found = list(episodes(Path(plan.data)))
    if not found:
        raise FileNotFoundError(
            f"No episodes in {plan.data}. `python run.py collect out={plan.data}` plays some."
        )
    mine = [episode for i, episode in enumerate(found) if i // 2 % processes() == rank()]  # twins together
    vocabulary = Vocabulary(VOCABULARY)
    torch.manual_seed(plan.seed)  # the same first weights in every process
    autoencoder = Autoencoder(**plan.autoencoder["model"]).to(device)
    model = {"words": len(vocabulary), "channels": len(autoencoder.mean), **plan.denoiser}
    network = Denoiser(**model).to(device)
    start = load_weights(Path(plan.start_from)) if plan.start_from else None
    if start:
        known = start.denoiser.state_dict()
        missing, unknown = network.load_state_dict(known, strict=False)
        if unknown or not all(any(part in name for part in ADDED) for name in missing):
            raise ValueError(
                f"{plan.start_from} holds another network: it lacks {missing}, and has {unknown}."
            )
        autoencoder.load_state_dict(start.autoencoder.state_dict())
    torch.manual_seed(plan.seed + 1 + rank())  # but clips and noise of its own

    if "autoencoder" in plan.stages and not _done(folder, "autoencoder", autoencoder):
        how = {"start": autoencoder if start else None, "workers": plan.workers, **plan.autoencoder}
        autoencoder = share(train_autoencoder(mine, folder, device, **how))
        _finish(folder, "autoencoder", autoencoder)
    autoencoder.requires_grad_(False).eval()
    if "eyes" in plan.stages and rank() == 0:
        save_eyes(folder / "weights", train_eyes(mine, folder, device, workers=plan.workers, **plan.eyes))
    if set(plan.stages) == {"eyes"}:
        return

    def export(
        name: str,
        network: Denoiser,
        levels: dict[str, list[float]],
        known: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """What is known of the network stays known only as long as it is the same."""
        if rank():
            return
        recipe = {k: v for k, v in asdict(plan).items() if k in ("seed", "stages", *STAGES)}
        about = dict(autoencoder=plan.autoencoder["model"], denoiser=model, levels=levels, recipe=recipe)
        about |= {"suits": known["suits"]} if "suits" in known else {}
        save_weights(folder / name, autoencoder, network, vocabulary, about)
        if plan.held_out:
            fewest = next(iter(levels.values()))
            picture = folder / f"{name}.png"
            found = look(Path(plan.held_out), picture, autoencoder, network, vocabulary, fewest)
            print(f"{picture}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()), flush=True)

    known = start.manifest if start else {}
    levels = known.get("levels", FEW_STEPS)
    if not {"odometer", "flow", "adversarial", "decoder"} & set(plan.stages):
        return export("weights", network, levels, known)
    library = Library.encode(mine, autoencoder, vocabulary, device, workers=plan.workers)
    returns = (library.earlier >= 0).mean()
    print(f"library: {len(library)} frames of {len(mine)} episodes, {returns:.1%} return", flush=True)

    if "odometer" in plan.stages and not _done(folder, "odometer", network):
        network = share(train_odometer(library, network, folder, **plan.odometer))
        _finish(folder, "odometer", network)
    if network.odometer is not None:
        library.reckon(network.odometer)
    if "flow" in plan.stages and not _done(folder, "flow", network):
        result = train_flow(library, autoencoder, network, folder, **plan.flow)
        export("base", result, {"4": [1.0, 0.857, 0.667, 0.4]})
        _finish(folder, "flow", result)
        network.load_state_dict(result.state_dict())
    if "adversarial" in plan.stages:
        network = train_adversarial(library, autoencoder, vocabulary, network, folder, **plan.adversarial)
        levels, known = FEW_STEPS, {}
        export("weights", network, levels)
    if "decoder" in plan.stages:
        known = {} if {"flow", "odometer"} & set(plan.stages) else known
        how = (mine, library, autoencoder, vocabulary, network, folder)
        autoencoder = share(train_decoder(*how, **plan.decoder))
        export("weights", network, levels, known)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _done(folder: Path, stage: str, module: nn.Module) -> bool:
    """Load what a finished stage left, if it is finished."""
    path = folder / f"{stage}.done"
    if path.exists():
        module.load_state_dict(torch.load(path, map_location="cpu"))
    return path.exists()


def _finish(folder: Path, stage: str, module: nn.Module) -> None:
    if rank() == 0:
        torch.save(module.state_dict(), folder / f"{stage}.done")

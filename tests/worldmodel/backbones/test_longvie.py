"""LongVie 2 chunk by chunk, against both branches written down plainly."""

import torch
from test_wan import HEADS, SIZE, TEXT, block, linear, normal, patched, plain
from torch import Tensor
from torch.testing import assert_close

from fastar import Dense, TempCache
from worldmodel.backbones.checkpoints import load_into
from worldmodel.backbones.forcing import NOISE
from worldmodel.backbones.longvie import STILL, DualControl, LongVie
from worldmodel.backbones.wan import Wan

CHUNK, SPACE, BESIDE, HALF = 2, (4, 6), 1, 24
MAIN = {**SIZE, "taken": 4 + STILL, "image": True}
BRANCHES = dict(wide=MAIN["width"], width=HALF, heads=1, ffn=32, layers=BESIDE)


def published(network: torch.nn.Module) -> dict[str, Tensor]:
    tensors = network.state_dict().items()
    return {name: 0.2 * normal(*x.shape, seed=i) for i, (name, x) in enumerate(tensors)}


def networks() -> tuple[Wan, DualControl, dict[str, Tensor], dict[str, Tensor]]:
    wan, branches = Wan(**MAIN).double(), DualControl(**BRANCHES).double()
    w, c = published(wan), published(branches)
    load_into(wan, w, HEADS)
    load_into(branches, c, 1)
    return wan, branches, w, c


def begun(memory=Dense) -> tuple[LongVie, dict[str, Tensor], dict[str, Tensor]]:
    wan, branches, w, c = networks()
    video = LongVie(wan, branches, memory, steps=(1000, 500), chunk=CHUNK)
    video.begin([normal(3, TEXT, seed=1)], SPACE, image=normal(1, 257, 1280, seed=3))
    return video, w, c


def signals(i: int) -> list[Tensor]:
    """Dense, sparse, and what picture a frame begins with."""
    return [normal(1, CHUNK, channels, *SPACE, seed=10 * i + j) for j, channels in enumerate((4, 4, STILL))]


def steered(w, c, dense: Tensor, sparse: Tensor):
    """`control` of the plain transformer: both branches over everything at once [f, c, h, w]."""
    nothing = torch.zeros(len(dense), STILL, *SPACE, dtype=torch.float64)
    parts = {
        kind: linear(c, f"control_initial_combine_linear_{kind}", patched(w, torch.cat([x, nothing], 1)))
        for kind, x in (("dense", dense), ("sparse", sparse))
    }

    def control(i, tokens, e, where, mask, context, seen):
        if i >= BESIDE:
            return tokens
        told = [linear(c, "control_text_linear", x) for x in (context, seen)]
        half = linear(c, "control_t_mod", e)
        for kind in parts:
            name = f"control_blocks_{kind}.{i}"
            parts[kind] = block(c, name, parts[kind], half, where, mask, *told)
        return tokens + linear(c, f"control_combine_linears.{i}", sum(parts.values()))

    return control


@torch.no_grad()
def test_chunks_are_the_plain_loop(monkeypatch):
    """With a past of the branches, too."""
    video, w, c = begun()
    noise = [normal(1, CHUNK, 4, *SPACE, seed=100 + i) for i in range(9)]
    monkeypatch.setattr(video, "_draw", iter(noise).__next__)
    drawn, past = iter(noise), []
    text, image = normal(3, TEXT, seed=1), normal(1, 257, 1280, seed=3)[0]
    for n in range(3):
        dense, sparse, still = (torch.cat([signals(i)[j][0] for i in range(n + 1)]) for j in range(3))
        x = next(drawn)
        for i, time in enumerate(video.steps):
            frames = torch.cat([torch.cat([*(p[0] for p in past), x[0]]), still], 1)
            times = torch.tensor([0.0] * (CHUNK * n) + [time] * CHUNK)
            whole = plain(w, frames, times, text, CHUNK, image, control=steered(w, c, dense, sparse))
            clean = x - time / NOISE * whole[None, CHUNK * n :]
            if i == 0:
                x = (1 - video.steps[1] / NOISE) * clean + video.steps[1] / NOISE * next(drawn)
        assert_close(video.steer(*signals(n)).double(), clean, rtol=0, atol=1e-5)
        past.append(clean)


def test_signals_steer():
    """Another signal of either kind, or another picture to begin with, makes another video."""
    found = []
    for changed in (None, 0, 1, 2):
        video, _, _ = begun()
        told = [normal(*x.shape, seed=77) if i == changed else x for i, x in enumerate(signals(0))]
        found.append(video.steer(*told))
    assert all(not torch.allclose(found[0], other) for other in found[1:])


def test_both_memories_stay_within_their_budget():
    tokens = CHUNK * 2 * 3
    video, _, _ = begun(lambda *told: TempCache(*told, sink=1, recent=1, far=2 * tokens, threshold=0.5))
    for i in range(6):
        assert video.steer(*signals(i)).isfinite().all()
        for memory in (video.memory, video.control_memory):
            assert memory.stats().seen == (i + 1) * tokens and memory.stats().kept <= 4 * tokens


def test_branches_have_the_published_names():
    names = set(DualControl(**BRANCHES).state_dict())
    for name in ("control_text_linear.weight", "control_t_mod.bias", "control_combine_linears.0.weight"):
        assert name in names
    for kind in ("dense", "sparse"):
        assert f"control_initial_combine_linear_{kind}.weight" in names
        assert f"control_blocks_{kind}.0.cross_attn.norm_k_img.weight" in names

"""Videos made by graphs and compiled layers are those made pass by pass."""

import pytest
import torch
from torch.testing import assert_close

from fastar import AnnCA, AnnSA, TempCache, WindowSink
from worldmodel.backbones.forcing import RollingForcing, SelfForcing
from worldmodel.backbones.longvie import DualControl, LongVie
from worldmodel.backbones.wan import IMAGE_WIDTH, Wan
from worldmodel.denoiser import WHOLE_PROMPT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore:TensorFloat32", "ignore:Synchronization debug mode"),
]

SPACE, TEXT = (8, 12), 32
TOKENS = 2 * 4 * 6  # of a chunk of two latent frames
SIZE = dict(width=256, heads=2, layers=2, ffn=128, text_width=TEXT, text_length=16)


def window(*told):
    return WindowSink(*told, recent=2)


def fast_ar(*told):
    pattern = AnnSA(density=0.5, block=16, every=1)
    return TempCache(*told, sink=1, recent=1, far=2 * TOKENS, search="lsh", pattern=pattern)


def begun(kind, memory, **how):
    torch.manual_seed(0)
    how |= dict(chunk=2, steps=(1000, 600), cross=AnnCA(density=0.5) if memory is fast_ar else WHOLE_PROMPT)
    if kind is LongVie:
        wan = Wan(**SIZE, taken=36, image=True).cuda().eval()
        branches = DualControl(wide=256, width=128, heads=1, ffn=64, layers=1).cuda().eval()
        video = LongVie(wan, branches, memory, **how)
        image = {"image": torch.randn(1, 5, IMAGE_WIDTH).cuda()}
    else:
        video, image = kind(Wan(**SIZE).cuda().eval(), memory, **how), {}
    video.begin([torch.randn(9, TEXT)], SPACE, seed=3, **image)
    return video


def chunks(video, count):
    if isinstance(video, LongVie):
        signals = torch.randn(count, 2, 1, 2, 16, *SPACE, generator=torch.Generator().manual_seed(1))
        return [video.steer(*each) for each in signals]
    return [video.step() for _ in range(count)]


@pytest.mark.parametrize("memory", [window, fast_ar])
@pytest.mark.parametrize("kind", [SelfForcing, RollingForcing, LongVie])
def test_graphs_and_compiled_layers_change_nothing(kind, memory):
    plain, fast = begun(kind, memory), begun(kind, memory, graphs=True, fuse=True)
    wanted, found = chunks(plain, 9), chunks(fast, 9)
    assert fast._graphs.known
    for a, b in zip(wanted, found, strict=True):
        assert_close(a, b, rtol=0, atol=3e-2)


def test_a_prompt_changes_between_graphs():
    one, other = (begun(SelfForcing, window, graphs=True) for _ in range(2))
    chunks(one, 7), chunks(other, 7)
    other.say([torch.randn(5, TEXT)])
    assert not torch.equal(chunks(one, 1)[0], chunks(other, 1)[0])
    assert chunks(other, 4)[-1].isfinite().all()


@pytest.mark.parametrize("kind", [SelfForcing, RollingForcing])
def test_the_host_never_waits_inside_a_chunk(kind):
    video = begun(kind, fast_ar)
    chunks(video, 6)
    torch.cuda.set_sync_debug_mode("error")
    try:
        chunks(video, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")

"""The laws that must also hold on a GPU: memories answer there as they do on the CPU."""

import pytest
import torch
from frames import MAKERS, Frame, film, normal, play
from torch.testing import assert_close

from fastar.attention import attend, attend_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def moved(frame: Frame) -> Frame:
    return Frame(*(x.cuda() for x in frame[:3]), frame.where.cuda())


@pytest.mark.parametrize("kind", MAKERS)
def test_a_memory_answers_as_on_the_cpu(kind):
    frames = film(40)
    for here, there in zip(
        play(MAKERS[kind](), frames), play(MAKERS[kind](), [moved(frame) for frame in frames]), strict=True
    ):
        assert_close(there.cpu(), here, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("keys", [1, 70, 2380, 5001])
def test_fused_attention_is_its_definition(width, keys):
    """Also at odd sizes, with merged keys and with empty slots."""
    q = normal(2, 3, 70, width).to("cuda", torch.bfloat16)
    k, v = normal(2, 2, 3, keys, width, seed=1).to("cuda", torch.bfloat16)
    bias = normal(2, keys, seed=2).to("cuda", torch.float32)
    bias[:, 1::7] = -torch.inf
    for given in (None, bias):
        exact = attend_reference(q.double(), k.double(), v.double(), given)
        assert_close(attend(q, k, v, given).double(), exact, rtol=0.02, atol=0.02)


def test_fused_attention_can_be_learnt_through():
    """What our kernel has no gradient for, another path answers."""
    q = normal(1, 2, 70, 64).to("cuda", torch.bfloat16).requires_grad_()
    k, v = (x.requires_grad_() for x in normal(2, 1, 2, 90, 64, seed=1).to("cuda", torch.bfloat16).unbind())
    bias = normal(1, 90, seed=2).to("cuda", torch.float32)
    attend(q, k, v, bias).square().sum().backward()
    found = [x.grad.double().cpu() for x in (q, k, v)]
    exact = [x.detach().double().cpu().requires_grad_() for x in (q, k, v)]
    attend_reference(*exact, bias.double().cpu()).square().sum().backward()
    for a, b in zip(found, exact, strict=True):
        assert_close(a, b.grad, rtol=0.05, atol=0.05)

"""The laws that must also hold on a GPU: memories answer there as they do on the CPU."""

import pytest
import torch
from frames import MAKERS, Frame, film, normal, play
from torch.testing import assert_close

from fastar import AnnCA, AnnSA, AxialRope, TempCache
from fastar.attention import attend, attend_reference
from fastar.kernels import flashinfer
from fastar.kernels.flash import BlockLists, attention_reference, flash

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


def wide(frame: int, width: int = 64) -> list[torch.Tensor]:
    """q, k, v [1, 2, 70, width] of a frame that looks much like the last one, and where its tokens are."""
    calm, new = (normal(3, 1, 2, 70, width, seed=seed) for seed in (0, 1 + frame))
    q, k, v = (0.9 * calm + 0.45 * new).unbind()
    return [q, k, v, torch.stack([torch.full((70,), float(frame)), *torch.zeros(2, 70)], 1)]


@pytest.mark.parametrize("pattern", [None, AnnSA(density=0.8, block=32, every=3)], ids=["all", "annsa"])
@torch.no_grad()
def test_a_memory_of_a_real_width_answers_as_on_the_cpu(pattern):
    """By kernels there, by their definitions here: 64 channels a head, in bf16."""
    rope = AxialRope((24, 20, 20))
    memories = [TempCache(1, rope, recent=3, far=280, threshold=0.5, pattern=pattern) for _ in range(2)]
    for i in range(30):
        q, k, v, where = wide(i)
        here, there = (
            memory.attend(0, *(x.to(device, torch.bfloat16) for x in (q, k, v)), where.to(device))
            for memory, device in zip(memories, ("cpu", "cuda"), strict=True)
        )
        assert_close(there.cpu().float(), here.float(), rtol=0.05, atol=0.05)
        for memory in memories:
            memory.commit(0)


@torch.no_grad()
def test_a_prompt_is_read_as_on_the_cpu():
    q, k, v = (x.bfloat16() for x in wide(0)[:3])
    k, v, bias = k[:, :, :33], v[:, :, :33], torch.zeros(1, 33)
    bias[:, 29:] = -torch.inf
    here = AnnCA(density=0.3).read(q, k, v, bias)
    there = AnnCA(density=0.3).read(*(x.cuda() for x in (q, k, v, bias)))
    assert_close(there.cpu().float(), here.float(), rtol=0.05, atol=0.05)


def striped(heads: int, tiles: int, block: int) -> BlockLists:
    """Every tile of queries reads two blocks of keys: the next one and the one but two further."""
    index = (torch.arange(tiles)[:, None] + torch.tensor([1, 3])).remainder(tiles).int().sort(1).values
    count = torch.full((1, heads, tiles), 2, dtype=torch.int32)
    return BlockLists(count.cuda(), index.expand(1, heads, -1, -1).contiguous().cuda(), block, block)


@pytest.mark.parametrize("block", [64, 128])
def test_flex_attention_agrees_with_ours(block):
    """A second implementation of a bias per key and of block lists."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = normal(3, 1, 2, 6 * block, 64).to("cuda", torch.bfloat16)
    bias = normal(1, 6 * block, seed=2).to("cuda", torch.float32)
    blocks = striped(2, 6, block)
    reads, size = blocks.mask(6 * block, 6 * block)[0, 0], (None, None, 6 * block, 6 * block)
    mask = create_block_mask(lambda b, h, i, j: reads[i, j], *size, device="cuda", BLOCK_SIZE=block)

    def biased(score, b, h, i, j):
        return score + bias[b, j]

    tiles = {"BLOCK_M": 64, "BLOCK_N": 64}  # by itself it takes tiles that are larger than the blocks
    flex = torch.compile(flex_attention)(q, k, v, score_mod=biased, block_mask=mask, kernel_options=tiles)
    assert_close(flash(q, k, v, bias, blocks)[0], flex, rtol=0.02, atol=0.02)


@pytest.mark.skipif(not flashinfer.INSTALLED, reason="needs FlashInfer: pip install flashinfer-python==0.6.6")
def test_flashinfer_agrees_with_the_definition():
    q = normal(2, 3, 300, 128).to("cuda", torch.bfloat16)
    k, v = normal(2, 2, 3, 1000, 128, seed=1).to("cuda", torch.bfloat16)
    o, lse = flashinfer.dense(q, k, v)
    exact = attention_reference(q.double(), k.double(), v.double())
    assert_close(o.double(), exact[0], rtol=0.02, atol=0.02)
    assert_close(lse.double(), exact[1], rtol=0.02, atol=0.02)


@pytest.mark.skipif(not flashinfer.INSTALLED, reason="needs FlashInfer: pip install flashinfer-python==0.6.6")
def test_flashinfer_agrees_with_ours_in_blocks():
    q, k, v = normal(3, 1, 3, 768, 128).to("cuda", torch.bfloat16)
    blocks = striped(3, 6, 128)
    o, lse = flashinfer.Blocks(blocks, 768, 768, 3, 128, q.dtype)(q, k, v)
    ours, ours_lse = flash(q, k, v, None, blocks)
    assert_close(o, ours, rtol=0.02, atol=0.02)
    assert_close(lse, ours_lse, rtol=0.02, atol=0.02)

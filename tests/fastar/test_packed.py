"""What is packed is nearly what it was, in half of the bytes of bf16."""

import pytest
import torch
from frames import ROPE, film, normal, play
from torch.testing import assert_close

from fastar import TempCache
from fastar.packed import pack

SETTINGS = dict(sink=1, recent=2, far=20, threshold=0.5, drift=0.0)


def test_a_number_is_wrong_by_half_a_step_at_most():
    x = normal(5, 7, 16)
    error = (pack(x).read(x.dtype) - x).abs()
    assert (error <= x.abs().amax(-1, keepdim=True) / 254 * (1 + 1e-6)).all()


def test_a_row_has_a_scale_of_its_own():
    """So a row of small numbers keeps its digits beside one of large ones, and a row of zeros is zeros."""
    x = torch.stack([1e-3 * torch.ones(4), 1e3 * torch.ones(4), torch.zeros(4)])
    assert_close(pack(x).read(x.dtype), x, rtol=1e-6, atol=0)


def test_packing_what_was_packed_changes_nothing():
    once = pack(normal(5, 16)).read(torch.float64)
    assert_close(pack(once).read(torch.float64), once, rtol=1e-9, atol=0)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("stay", [0.0, 0.9])
def test_a_packed_memory_answers_nearly_alike(stay, per_head):
    """And merges alike, since what it compares is not packed."""
    frames = film(24, stay=stay)
    whole, packed = (TempCache(1, ROPE, **SETTINGS, per_head=per_head, packed=x) for x in (False, True))
    for a, b in zip(play(whole, frames), play(packed, frames), strict=True):
        assert_close(a, b, rtol=0, atol=0.05)
    assert torch.equal(whole.count, packed.count)
    assert whole.stats().kept == packed.stats().kept


def test_only_the_far_memory_is_packed():
    """Until something leaves the window both are the same to the bit."""
    frames = film(3)
    whole, packed = (TempCache(1, ROPE, **SETTINGS, packed=x) for x in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(play(whole, frames), play(packed, frames), strict=True))


def test_it_takes_fewer_bytes():
    whole, packed = (TempCache(1, ROPE, **SETTINGS, packed=x) for x in (False, True))
    for memory in (whole, packed):
        play(memory, film(8))
    entries = whole.keys[..., whole._whole :, :]
    saved = 2 * entries.numel() * (entries.element_size() - 1) - 2 * entries[..., 0].numel() * 8
    assert whole.stats().bytes - packed.stats().bytes == saved


def test_a_saved_packed_memory_goes_on_to_the_bit():
    frames = film(20)
    first, second = (TempCache(1, ROPE, **SETTINGS, packed=True) for _ in range(2))
    play(first, frames[:12])
    second.load_state_dict(first.state_dict())
    later = [play(memory, frames[12:]) for memory in (first, second)]
    assert all(torch.equal(a, b) for a, b in zip(*later, strict=True))


def test_a_state_that_is_not_packed_is_refused():
    whole, packed = (TempCache(1, ROPE, **SETTINGS, packed=x) for x in (False, True))
    for memory in (whole, packed):
        play(memory, film(8))
    states = [memory.state_dict() for memory in (whole, packed)]
    for memory, state in zip((packed, whole), states, strict=True):
        with pytest.raises(ValueError, match="settings"):
            memory.load_state_dict(state)

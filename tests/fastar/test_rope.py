"""Positions turn keys; only differences of positions are seen by attention."""

import pytest
import torch
from frames import ROPE, WIDTH, normal, where
from torch.testing import assert_close

from fastar import AxialRope

EXACT = dict(rtol=0, atol=1e-12)


def test_turning_keeps_every_length():
    x = normal(2, 6, WIDTH)
    assert_close(ROPE(x, where(7)).norm(dim=-1), x.norm(dim=-1), **EXACT)


def test_turning_back_undoes_it():
    x = normal(2, 6, WIDTH)
    assert_close(ROPE(ROPE(x, where(7)), -where(7)), x, **EXACT)


@pytest.mark.parametrize("shift", [(5, 0, 0), (0, 2, 0), (0, 0, -3), (1000, 1, 1)])
def test_attention_sees_only_differences_of_positions(shift):
    """R(p) q . R(p') k depends on p - p' alone, so a game may count its frames from anywhere."""
    q, k = normal(2, 6, WIDTH)
    here = where(3)
    there = here + torch.tensor(shift)
    assert_close(ROPE(q, here) @ ROPE(k, here).mT, ROPE(q, there) @ ROPE(k, there).mT, **EXACT)


def test_attention_does_see_differences():
    q, k = normal(2, 6, WIDTH)
    near, far = ROPE(q, where(3)) @ ROPE(k, where(3)).mT, ROPE(q, where(3)) @ ROPE(k, where(4)).mT
    assert (near - far).abs().max() > 0.1


def test_in_space_is_the_turn_at_time_zero():
    x = normal(6, WIDTH)
    assert torch.equal(ROPE.in_space(x, where(9)), ROPE.in_space(x, where(2)))
    assert_close(ROPE.in_space(x, where(9)), ROPE(x, where(0)), **EXACT)
    assert not torch.allclose(ROPE.in_space(x, where(9)), ROPE(x, where(9)))


def test_every_pair_is_a_complex_number_that_turns():
    """Channels i and i + d/2 are x + iy; pair j of an axis of width w turns by p * base^(-2j/w)."""
    rope = AxialRope((4, 2, 2), bases=(100.0, 7.0, 7.0))
    x, at = normal(1, WIDTH), torch.tensor([[3.0, 5.0, 2.0]])
    turned = rope(x, at)
    angles = [3.0, 3.0 * 100 ** (-2 / 4), 5.0, 2.0]
    for i, angle in enumerate(angles):
        number = torch.complex(x[0, i], x[0, i + 4]) * torch.exp(
            torch.tensor(1j * angle, dtype=torch.complex128)
        )
        assert_close(torch.complex(turned[0, i], turned[0, i + 4]), number, **EXACT)


def test_late_times_stay_exact():
    """An hour at 17.5 frames a second: float32 angles would be off by .004 radians there, doubles are not."""
    q, k = normal(2, 6, WIDTH).float()
    late = where(63_000)
    assert_close(
        ROPE(q, late) @ ROPE(k, late).mT, ROPE(q, where(0)) @ ROPE(k, where(0)).mT, rtol=0, atol=1e-5
    )


def test_odd_widths_are_refused():
    with pytest.raises(ValueError, match=r"widths must be even, got \(3, 3, 2\)"):
        AxialRope((3, 3, 2))

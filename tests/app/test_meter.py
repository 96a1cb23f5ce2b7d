"""Frame rates of worlds that dream one frame at a time, and of those that dream several."""

import pytest

from app.meter import Evened


def test_a_frame_alone_takes_its_time():
    evened = Evened()
    assert [evened(took) for took in (None, 0.1, 0.3)] == [None, 0.1, 0.3]


def test_frames_that_come_at_once_share_the_time_of_all():
    evened = Evened(4)
    times = [evened(took) for took in [None, 0, 0, 0, *[2, 0, 0, 0] * 3]]
    assert times[:4] == [None] * 4 and times[4:] == pytest.approx([0.5] * 12)


def test_a_pause_is_counted_to_none():
    evened = Evened(2)
    assert [evened(took) for took in (2, 0, None, 4, 0)] == [None, 1, None, None, 2]

"""A GIF shows the seconds of a video that were asked for, or a line says why not."""

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

from app import excerpt
from app.errors import UsageError


@pytest.fixture
def video(tmp_path):
    """Two seconds, ten pictures each, every one a little brighter."""
    pictures = np.stack([np.full((32, 48, 3), 10 * i, np.uint8) for i in range(20)])
    iio.imwrite(tmp_path / "a.mkv", pictures, plugin="pyav", codec="ffv1", fps=10, out_pixel_format="bgr0")
    return tmp_path / "a.mkv"


def shades(path):
    with Image.open(path) as image:
        found = []
        for i in range(image.n_frames):
            image.seek(i)
            found.append((image.convert("RGB").getpixel((0, 0))[0], image.info["duration"]))
        return found


def test_the_seconds_that_were_asked_for(video, capsys):
    assert excerpt.main([str(video), "start=0.5", "seconds=1", "fps=5"]) == 0
    assert shades(video.with_suffix(".gif")) == [(shade, 200) for shade in (50, 70, 90, 110, 130)]
    assert "5 pictures" in capsys.readouterr().out


def test_no_more_than_there_is_and_where_it_was_asked_for(video, tmp_path):
    out = tmp_path / "new" / "b.gif"
    assert excerpt.main([str(video), "start=1.8", "fps=10", f"out={out}"]) == 0
    assert [shade for shade, _ in shades(out)] == [180, 190]


def test_of_a_recording_the_window_comes_first(video, tmp_path):
    recording = tmp_path / "recording"
    recording.mkdir()
    with pytest.raises(UsageError, match="has neither screen.mp4 nor video.mp4"):
        excerpt.main([str(recording)])
    (recording / "video.mp4").write_bytes(video.read_bytes())
    assert excerpt.the_video(recording).name == "video.mp4"
    (recording / "screen.mp4").write_bytes(video.read_bytes())
    assert excerpt.the_video(recording).name == "screen.mp4"


@pytest.mark.parametrize(
    "words, line",
    [
        (["start=9"], "has ended before second 9"),
        (["fps=0"], "fps is 0, but more than 0"),
        (["start=-1"], "start is -1, but 0 or more"),
        (["more.mp4"], "One video is needed, got 2"),
        (["seocnds=2"], "did you mean seconds"),
    ],
)
def test_what_cannot_be_is_told(video, words, line):
    with pytest.raises(UsageError, match=line):
        excerpt.main([str(video), *words])


def test_no_video_no_gif(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"nothing of the kind")
    for name in ("a.mp4", "none.mp4"):
        with pytest.raises(UsageError, match=r"cannot be read: .* A recorded video was expected"):
            excerpt.main([str(tmp_path / name)])
    assert not list(tmp_path.glob("*.gif"))

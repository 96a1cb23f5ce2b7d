"""The last seconds, and nothing of another dream."""

import pygame
import pytest
from PIL import Image
from test_play import Watched, main, press, until

from app import gif
from app.gif import ENLARGED, LastSeconds, write, write_beside


def test_only_the_last_seconds_of_one_dream_are_kept(frame):
    lately = LastSeconds(fps=10, seconds=0.5)
    frames = [frame(i) for i in range(8)]
    for each in frames:
        lately.see(each)
    assert [id(x) for x in lately.pictures()] == [id(x.picture) for x in frames[3:]]
    lately.see(frame(1, run=1))
    assert len(lately.pictures()) == 1


def test_a_gif_shows_the_pictures_at_the_pace_of_the_game(frame, tmp_path):
    pictures = [frame(i).picture for i in range(4)]
    write(tmp_path / "new" / "last.gif", pictures, fps=17.5)
    with Image.open(tmp_path / "new" / "last.gif") as image:
        height, width = pictures[0].shape[:2]
        assert image.size == (ENLARGED * width, ENLARGED * height)
        assert image.info["duration"] == 60 and image.info["loop"] == 0


def test_a_gif_that_cannot_be_written_is_told(frame, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    told = []
    write_beside(tmp_path / "file" / "last.gif", [frame(1).picture], 17.5, told.append).join(20)
    write_beside(tmp_path / "last.gif", [frame(1).picture], 17.5, told.append).join(20)
    assert isinstance(told[0], OSError) and told[1] is None

    def full(self, path, *args, **options):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gif.Image.Image, "save", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "other.gif", [frame(1).picture], 17.5)
    assert not (tmp_path / "other.gif").exists()


def test_f7_writes_beside_the_recordings(tmp_path):
    def watch(world):
        yield from until(lambda: len(world.steps) > 5)
        yield press(pygame.K_F7)
        yield from until(lambda: any(x.suffix == ".gif" and x.stat().st_size for x in tmp_path.iterdir()))
        yield pygame.Event(pygame.QUIT)

    assert main("--window", "fps=0", f"recordings={tmp_path}", world=Watched(watch)) == 0

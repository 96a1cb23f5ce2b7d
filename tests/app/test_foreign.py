"""A foreign video with its keys is a recording like any other, or a line says what is wrong with it."""

import json

import imageio.v3 as iio
import numpy as np
import pytest
from fake_world import paint

from app import foreign, own
from app.errors import UsageError
from worldmodel.actions import KEYS
from worldmodel.doom.captions import sentences
from worldmodel.episodes import HEIGHT, WIDTH, Episode, episodes

HELD = [["forward"], [], ["forward", "turn_left"]]
LINES = "".join(json.dumps({"keys": names}) + "\n" for names in HELD)
TABLE = "forward, turn_left\n1,0\n0,0\n1,1\n"
VECTORS = [[int(key in names) for key in KEYS] for names in HELD]


def film(path, frames=3, bars=40):
    """Corridors between white bars to the left and the right, without loss; returns the corridors."""
    corridors = [paint(i, 0.1 * i).repeat(2, 0).repeat(2, 1) for i in range(frames)]
    wide = [np.pad(picture, ((0, 0), (bars, bars), (0, 0)), constant_values=255) for picture in corridors]
    iio.imwrite(path, np.stack(wide), plugin="pyav", codec="ffv1", fps=25, out_pixel_format="bgr0")
    return corridors


@pytest.fixture
def footage(tmp_path):
    folder = tmp_path / "footage"
    folder.mkdir()
    film(folder / "walk.mkv")
    (folder / "actions.jsonl").write_text(LINES)
    return folder


def main(folder, *words):
    return foreign.main([str(folder), f"out={folder.parent / 'recordings'}", *words])


def test_the_middle_of_each_picture_and_the_keys_of_its_line(footage, capsys):
    assert main(footage, "prompt=a red room") == 0
    episode = Episode(footage.parent / "recordings" / "footage")
    assert f"Imported 3 frames: {episode.folder}" in capsys.readouterr().out
    assert np.array_equal(episode.keys, VECTORS)
    pictures = episode.frames()
    assert pictures.shape == (3, HEIGHT, WIDTH, 3)
    for i, picture in enumerate(pictures):
        assert abs(picture.astype(int) - paint(i, 0.1 * i)).mean() < 6  # of 255, after scaling and JPEG


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("actions.csv", TABLE),
        ("actions.csv", "\ufeff" + TABLE.replace("\n", "\r\n")),
        ("actions.jsonl", "".join(json.dumps({"keys": vector}) + "\n" for vector in VECTORS)),
    ],
)
def test_keys_may_be_named_ticked_or_as_recordings_have_them(footage, name, text):
    (footage / "actions.jsonl").unlink()
    (footage / name).write_text(text, encoding="utf-8", newline="")
    assert np.array_equal(foreign.the_keys(footage), VECTORS)


def test_it_is_trained_on_like_a_recording_with_its_caption(footage):
    for _ in range(2):
        main(footage, "prompt=a red room")
    found = own.recordings(footage.parent / "recordings")
    assert [folder.name for folder in found] == ["footage", "footage-2"]
    first, _ = episodes(own.written(found, footage.parent / "out"))
    assert len(first) == 3 and sentences(first.meta, first.steps, 0, 3) == [("world", "a red room")]


def replaced(name, content):
    def change(folder):
        (folder / name).write_bytes(content.encode())

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (without("walk.mkv"), "must have one video, such as video.mp4; it has none."),
        (replaced("again.mp4", ""), "must have one video, such as video.mp4; it has again.mp4, walk.mkv."),
        (
            without("actions.jsonl"),
            "must have actions.jsonl or actions.csv, a line per frame; it has neither.",
        ),
        (replaced("actions.csv", TABLE), "it has actions.jsonl and actions.csv."),
        (replaced("actions.jsonl", LINES[: LINES.index("\n")]), "has 3 frames, but there are keys for 1."),
        (replaced("actions.jsonl", LINES + '{"keys": []}'), "has 3 frames, but there are keys for 4."),
        (replaced("walk.mkv", "no video"), "walk.mkv cannot be read: "),
        (replaced("walk.mkv", ""), "walk.mkv cannot be read: "),
        (replaced("actions.jsonl", '{"keys": ["jump"]}'), "line 1: No such key: jump. Keys are forward, "),
        (
            replaced("actions.jsonl", '{"kyes": []}'),
            'line 1: no \'keys\'; {"keys": ["forward"]} was expected',
        ),
        (replaced("actions.jsonl", '{"keys": "use"}'), "line 1: keys is 'use', but a list was expected"),
        (replaced("actions.jsonl", "[]\n"), "line 1: "),
        (replaced("actions.jsonl", LINES + "{"), "line 4: "),
    ],
)
def test_what_cannot_be_imported_is_a_line_that_says_why_and_leaves_nothing(footage, change, line):
    change(footage)
    with pytest.raises(UsageError) as error:
        main(footage)
    assert line in str(error.value)
    assert list(footage.parent.glob("recordings/*")) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("forward,jump\n1,0\n", "line 1: No such key: jump. Keys are forward, "),
        ("forward,use\n1,0\n1,yes\n", "line 3: 1,yes is not a 0 or 1 for each of forward,use"),
        ("forward,use\n1\n", "line 2: 1 is not a 0 or 1 for each of forward,use"),
    ],
)
def test_a_table_that_cannot_be_read_is_a_line_too(footage, text, line):
    (footage / "actions.jsonl").unlink()
    (footage / "actions.csv").write_text(text)
    with pytest.raises(UsageError) as error:
        main(footage)
    assert line in str(error.value)


def test_one_folder_is_needed(tmp_path):
    with pytest.raises(UsageError, match="One folder is needed, got 0"):
        foreign.main([])
    with pytest.raises(UsageError, match="nowhere is no folder"):
        foreign.main([str(tmp_path / "nowhere")])

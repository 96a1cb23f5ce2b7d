"""Each figure is of the frames and the laps that it says it is of."""

import json

import pytest
from fake_world import FakeWorld, openings

from app import cost
from app.errors import DisplayError, UsageError
from app.record import Recorder


def main(*words, world=None):
    return cost.main(words, lambda cfg, facts, report: world or FakeWorld(), lambda cfg: openings())


def test_what_is_printed_is_what_is_written_and_no_recording_stays(tmp_path, capsys):
    assert main("frames=30", "pairs=2", "fps=0", "memory=dense", f"recordings={tmp_path}") == 0
    (out,) = tmp_path.iterdir()
    told = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == told
    assert told["world"] == "cellar" and told["memory"] == "dense"
    assert told["recording"]["frames"] == 6 and len(told["recording"]["pairs"]) == 2
    assert told["laps"]["driver"] == "dummy" and told["laps"]["playing"]["turns"] > 0


def test_without_a_display_nothing_is_dreamt_in_vain(tmp_path, monkeypatch):
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DisplayError, match="SDL_VIDEODRIVER=dummy measures without one"):
        main(f"recordings={tmp_path}")


def test_every_second_stretch_is_recorded_and_nothing_else(tmp_path, monkeypatch):
    seen, see = [], Recorder.see

    def watched(self, frame):
        seen.append((frame.index, self.rolling))
        see(self, frame)

    monkeypatch.setattr(Recorder, "see", watched)
    main("frames=35", "pairs=3", "fps=0", f"recordings={tmp_path}")
    headless, window = seen[:35], seen[35:]
    assert headless == [(i, (i - 1) // 5 % 2 == 1) for i in range(1, 36)]
    assert window == [(i, True) for i in range(1, 36)]


def test_a_stretch_counts_all_its_frames_but_the_first():
    stage = cost.OnAndOff(4, 12, keys=lambda index: index)
    stage._meter = type("Meter", (), {"seconds": list(range(1, 12))})  # none for frame 0, which has no time
    assert [list(part) for part in stage.seconds()] == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]


def test_laps_are_between_turns_and_their_percentiles_in_milliseconds():
    turns = [0.0]
    for lap in [*[0.010] * 98, 0.020, 0.300]:
        turns.append(turns[-1] + lap)
    told = cost.spread(turns)
    assert told["turns"] == 100 and told["p50_ms"] == 10 and told["max_ms"] == 300
    assert 20 <= told["p99_ms"] < told["p99.9_ms"] < 300
    assert cost.spread([1.0]) == {"turns": 0}


def test_a_dream_that_fails_ends_the_measuring(tmp_path):
    with pytest.raises(ZeroDivisionError):
        main("frames=12", f"recordings={tmp_path}", "pairs=1", world=FakeWorld(0, 20, ZeroDivisionError()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("pairs=0", "pairs is 0, but at least 1 is needed."),
        ("frames=21", "frames is 21, but 5 pairs need at least 22."),
        ("frames=null", "frames is None, but 5 pairs need at least 22."),
        ("frmes=21", "No setting frmes; did you mean frames?"),
    ],
)
def test_what_cannot_be_measured_is_told_before_anything_is_loaded(word, line):
    with pytest.raises(UsageError, match=line.replace("?", r"\?")):
        main(word)

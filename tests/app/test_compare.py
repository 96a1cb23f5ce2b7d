"""Panes dream the same game, each as if it were alone; what is written says what they were."""

import json
from types import SimpleNamespace

import numpy as np
import pygame
import pytest
from fake_world import FakeWorld, openings
from PIL import Image
from test_play import main as play
from test_play import run
from test_record import FACTS, pictures
from test_saves import AXES, opening, solo

from app import compare, reel
from app.autopilot import Autopilot
from app.chart import plot_area, points, round_above
from app.errors import UsageError
from app.pane import Costs, Pane, difference
from app.panes import Panes, standing
from app.pen import NIGHT, Pen
from app.record import Recorder
from app.script import Script
from worldmodel.actions import FPS, action

STATS = SimpleNamespace(kept=1, seen=2, bytes=3)


def main(*words):
    return compare.main(words, lambda cfg, facts, report: FakeWorld(), lambda cfg: openings())


def dreamt(pane, frames):
    pane.begin(opening(), seed=3)
    return np.stack([pane.dream(Autopilot(1)(i)) for i in range(frames)])


def test_panes_in_turns_dream_what_each_dreams_alone():
    """They share the networks and nothing else."""
    first = solo("tempcache")
    panes = [Pane(first), Pane(first.beside("fast-ar"))]
    assert panes[1].world._world.denoiser is first._world.denoiser
    alone = [dreamt(Pane(solo(name)), 40) for name in AXES]
    for pane in panes:
        pane.begin(opening(), seed=3)
    together = np.stack([[pane.dream(Autopilot(1)(i)) for pane in panes] for i in range(40)], 1)
    assert np.array_equal(together, np.stack(alone))


def test_a_comparison_repeats_itself_and_says_what_it_was(tmp_path, capsys):
    told = []
    for name in ("one", "two"):
        assert main("tempcache", "dense", "frames=12", "seed=4", f"out={tmp_path / name}") == 0
        told.append(json.loads((tmp_path / name / "compare.json").read_text()))
    assert f"Compared: {tmp_path / 'two'}" in capsys.readouterr().out
    one, two = told
    assert {name: pane["hash"] for name, pane in one["panes"].items()} == {
        name: pane["hash"] for name, pane in two["panes"].items()
    }
    assert list(one["panes"]) == ["tempcache", "dense"]
    assert one["seed"] == 4 and one["world"] == "cellar" and one["frames"] == 12
    assert all(
        len(pane[series]) == 12 for pane in one["panes"].values() for series in ("ms", "bytes", "apart")
    )
    assert one["panes"]["dense"]["apart"] == [0.0] * 12  # the fake world does not mind how it remembers
    assert len(pictures(tmp_path / "one" / "compare.mp4")) == 12
    for name in ("fps.png", "memory.png"):
        assert pygame.image.load(tmp_path / "one" / name).get_width() > 900
    rows = [line for line in (tmp_path / "one" / "compare.md").read_text().splitlines() if line[:1] == "|"]
    assert [row.split()[1] for row in rows[2:]] == ["tempcache", "dense"]


def test_the_keys_and_prompts_of_a_recording_without_what_was_undone(tmp_path, frame):
    recorder = Recorder(tmp_path, FACTS, FPS)
    recorder.start()
    for each in (
        frame(1),
        frame(2, keys=action(["fire"])),
        frame(3),
        frame(2, id=9, after=1, keys=action(["use"]), prompt="a red room", world="hangar"),
    ):
        recorder.see(each)
    recorder.close()
    (folder,) = recorder.folders
    game = compare.game_of(compare.settings(["dense", "tempcache", f"actions={folder}"])[0], openings())
    assert game.frames == 2 and game.seed == FACTS["seed"] and game.opening.name == "cellar"
    assert np.array_equal([game.keys(i) for i in range(2)], [action(["forward"]), action(["use"])])
    assert [game.prompts(i) for i in range(2)] == ["a cellar", "a red room"]


def test_what_was_played_is_what_the_pane_of_its_memory_dreams(tmp_path):
    """So a race that was watched is filmed again from the recording of it."""
    play("--headless", "--frames", "20", "--seed", "6", "--record", f"recordings={tmp_path / 'played'}")
    (folder,) = (tmp_path / "played").iterdir()
    main("tempcache", "dense", f"actions={folder}", f"out={tmp_path / 'compared'}")
    told = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert told["frames"] == 20 and told["seed"] == 6
    assert told["panes"]["tempcache"]["hash"] == Script(folder).steps[-1].link


def test_how_far_behind_is_told_at_equal_clocks():
    leader, other = Costs("tempcache"), Costs("dense")
    for costs, took in ((leader, 1.0), (other, 3.0)):
        for _ in range(12):
            costs.add(took, STATS)
    assert other.behind(leader) == 8 and leader.behind(other) == -8
    assert standing(other, [leader, other]) == "8 frames behind"
    assert standing(leader, [other, leader]) == "8 frames ahead"
    assert standing(leader, [leader, other]) == "leads"


def test_a_difference_is_of_each_pixel_and_stronger_than_it_is():
    a, b = np.full((2, 2, 3), 100, np.uint8), np.full((2, 2, 3), 90, np.uint8)
    b[0, 0, 1] = 0
    assert difference(a, b).tolist() == difference(b, a).tolist()
    assert difference(a, b)[1, 1].tolist() == [40, 40, 40] and difference(a, b)[0, 0, 1] == 255


@pytest.mark.parametrize("size", [(1340, 930), (960, 672), (330, 240), (40, 30), (1, 1)])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("frames", [0, 1, 30])
def test_panes_fit_any_surface(size, count, frames):
    panes = [Pane(FakeWorld().beside(str(i))) for i in range(count)]
    for pane in panes:
        pane.begin(openings()["cellar"], seed=0)
        for i in range(frames):
            pane.dream(action(), f"{i}")
    surface = pygame.Surface(size)
    Panes().draw(
        surface, [pane.costs for pane in panes], [pane.picture for pane in panes], frames, "The Wet Cellar"
    )
    if size[0] > 300:
        assert (pygame.surfarray.array3d(surface) != NIGHT).any()


def test_a_chart_begins_at_nought_and_ends_with_the_last_frame():
    class Small(Pen):
        unit = 12

    plot = plot_area(Small(), (400, 200), 10)
    places = points([0.0, 5.0, 10.0, 10.0], plot, top=10, frames=4)
    assert places[0] == (plot.x + plot.width / 4, plot.bottom) and places[-1] == (plot.right, plot.top)
    assert len(points([1.0] * 10_000, plot, top=10, frames=10_000)) <= plot.width
    for value in (0.0, 0.3, 1, 7.4, 17.5, 99, 881, 12_345):
        assert value <= round_above(value) <= max(1.5 * value, 1e-8)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "Two different memories or more are needed, got none; there is dense, window_sink"),
        (["dense"], "Two different memories"),
        (["dense", "dense"], "Two different memories"),
        (["dense", "tempcash"], "No memory 'tempcash'; did you mean tempcache?"),
        (["dense", "tempcache", "frmes=3"], "No setting frmes; did you mean frames?"),
        (["dense", "tempcache", "frames=0"], "frames is 0, but at least 1 is needed."),
        (["dense", "tempcache", "actions=nowhere"], "nowhere is no episode that can be read"),
        (["dense", "tempcache", "world=cave"], "No world 'cave'; there is"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_exit_code_2(words, line):
    done = run("compare", *words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert line in done.stderr


def test_a_script_of_an_empty_recording_is_an_error_that_says_so(tmp_path):
    for name in ("actions.jsonl", "frames.mjpeg"):
        (tmp_path / name).write_text("")
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(UsageError, match="has no frames"):
        Script(tmp_path)


def test_in_the_gif_every_pane_is_where_its_own_clock_had_brought_it(tmp_path, monkeypatch):
    """A pane that takes four times as long is seen at a quarter of the leader's frames."""
    panes = [Costs("tempcache"), Costs("dense")]
    film = reel.Reel()
    for index in range(10):  # 0 is what they begin with
        film.add([np.full((112, 160, 3), (10 * index, 100 * i, 0), np.uint8) for i in range(2)])
    for _ in range(9):
        for costs, took in zip(panes, (1.0, 4.0), strict=True):
            costs.add(took, STATS)
    drawn, draw = [], Panes.draw

    def watched(self, surface, costs, pictures, frames, title):
        assert [picture[0, 0, 0] // 10 for picture in pictures] == [each.index for each in costs]
        drawn.append([each.index for each in costs])
        draw(self, surface, costs, pictures, frames, title)

    monkeypatch.setattr(Panes, "draw", watched)
    film.write(tmp_path / "compare.gif", panes, "The Wet Cellar")
    assert drawn == [[i, i // 4] for i in range(1, 10)]
    with Image.open(tmp_path / "compare.gif") as image:
        assert image.n_frames == 9
        image.seek(8)
        assert image.info["duration"] > 1000  # the end stays


def test_a_comparison_makes_a_gif_when_asked_to(tmp_path):
    main("tempcache", "dense", "frames=5", f"out={tmp_path}")
    assert not (tmp_path / "compare.gif").exists()
    main("tempcache", "dense", "frames=5", "gif=true", f"out={tmp_path}")
    with Image.open(tmp_path / "compare.gif") as image:
        assert image.width < 700 and image.n_frames <= 5

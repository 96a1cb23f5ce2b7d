"""A recorded session dreamt again is the same to the bit; where it is not, that is told."""

import json
import platform

import numpy as np
import pytest
from fake_world import FakeWorld, openings
from test_dreamer import Session, eventually
from test_play import main as play
from test_play import run
from test_saves import AXES, opening, solo

from app import replay
from app.errors import ReplayError, UsageError, WeightsError
from app.past import Past
from app.record import Recorder
from worldmodel.actions import FPS
from worldmodel.episodes import Episode

HERE = {"platform": platform.platform()}
FACTS = {"seed": 3, "steps": 1, "memories": AXES, "weights": "abc", **HERE}


class Scripted(Session):
    """A paused session over a tiny world, recorded from its first frame; each call waits for its end."""

    def __init__(self, root, world):
        self.recorder = Recorder(root, FACTS, FPS)
        self.recorder.start()
        super().__init__(world, seed=3, past=Past(every=8, megabytes=100), saves=root / "saves")
        self.dreamer.openings, self.dreamer.scene, self.dreamer.paused = {"hall": opening()}, "hall", True

    def _remember(self, frame):
        self.recorder.see(frame)
        super()._remember(frame)

    def __exit__(self, *_):
        super().__exit__()
        self.recorder.close()
        self.recorder.check()

    def step(self, count):
        for _ in range(count):
            before = len(self.seen)
            self.dreamer.single_step()
            self.until(lambda before=before: len(self.seen) == before + 1)

    def do(self, wish, *words):
        wish(*words)
        eventually(lambda: self.dreamer.notices)
        self.dreamer.notices.clear()

    def back(self, end, frames):
        self.dreamer.rewind()
        at = self.seen[-1].index - frames
        eventually(lambda: self.dreamer.rewound and self.dreamer.rewound.at <= at)
        self.do(end)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Everything that can happen to a game, in the orders that are hard: folder of the recording."""
    root = tmp_path_factory.mktemp("session")
    with Scripted(root, solo()) as game:
        dreamer = game.dreamer
        game.step(12)
        game.do(dreamer.say, "dark xyzzy")
        game.step(9)
        game.back(dreamer.let_go, 3)
        game.step(5)
        game.do(dreamer.switch_memory)  # and the frame it was switched at is gone back to
        switched = len(game.seen)
        game.step(2)
        game.back(dreamer.let_go, game.seen[-1].index - game.seen[switched - 1].index)
        game.step(4)
        for _ in AXES:  # all the way round: the same memory, but it has read again
            game.do(dreamer.switch_memory)
        dreamer.say("red room")
        game.step(6)
        game.back(dreamer.branch, 2)
        game.step(7)
        game.do(dreamer.switch_memory)
        game.do(dreamer.branch)
        game.step(3)
        game.do(dreamer.save)
        game.step(4)
        game.do(dreamer.load)
        game.step(3)
        game.do(dreamer.branch)  # to a take whose memory was switched before it was left
        game.step(5)
    (folder,) = game.recorder.folders
    return folder


def again(folder, *words, world=None):
    def open_world(cfg, facts, report):
        facts.update(weights="abc")
        return world or solo(cfg.memory)

    return replay.main([str(folder), *words], open_world, lambda cfg: {"hall": opening(), **openings()})


def copied(folder, tmp_path, **facts):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, **facts}))
    return tmp_path


def test_a_session_with_prompts_switches_rewinds_and_branches_is_the_same_again(session, capsys):
    assert again(session) == 0
    episode = Episode(session)
    last = episode.steps[-1]["hash"]
    assert f"All {len(episode)} frames are the same to the bit; the last link of the chain is {last}." in (
        capsys.readouterr().out
    )
    events = [json.loads(line) for line in (session / "events.jsonl").read_text().splitlines()]
    assert {name for event in events for name in event} == {
        "frame", "prompt", "memory", "reread", "rewind", "branch", "take",
    }  # fmt: skip


@pytest.mark.parametrize("what", ["prompt", "reread", "rewind", "branch"])
def test_each_of_what_is_recorded_is_needed(session, tmp_path, what):
    folder = copied(session, tmp_path)
    events = [json.loads(line) for line in (session / "events.jsonl").read_text().splitlines()]
    kept = [{name: fact for name, fact in event.items() if name != what} for event in events]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
    with pytest.raises(ReplayError, match="is the first to differ"):
        again(folder)


def test_a_changed_key_is_found_at_its_frame(session, tmp_path):
    folder = copied(session, tmp_path)
    lines = [json.loads(line) for line in (folder / "actions.jsonl").read_text().splitlines()]
    lines[7]["keys"][0] ^= 1
    (folder / "actions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ReplayError, match=f"Frame 7 of {len(lines)} is the first to differ") as error:
        again(folder)
    assert error.value.code == 8


def test_elsewhere_a_difference_is_told_and_is_no_fault(session, tmp_path, capsys):
    folder = copied(session, tmp_path, seed=4, dtype="bfloat16", processor="abacus")
    assert again(folder) == 0
    out = capsys.readouterr().out
    assert "Frame 0 of " in out and "processor abacus -> None" in out and "no fault" in out


def test_another_memory_dreams_the_same_game_and_is_measured(session, capsys):
    assert again(session, "memory=fast-ar") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Under fast-ar in place of tempcache") and len(out) == 11
    assert float(out[-1].split()[-1]) > 0


def test_what_is_gone_back_to_is_kept_no_longer_than_needed(session):
    world, kept = solo(), []
    moment = world.moment
    world.moment = lambda: kept.append(1) or moment()
    steps = replay.Script(session).steps
    world.reset(opening(), seed=3)
    assert len(list(replay.again(world, steps, switch=True))) == len(steps)
    jumps = sum(step.after != number - 1 for number, step in enumerate(steps))
    assert 0 < len(kept) <= jumps + sum(step.reread is not None for step in steps)


@pytest.mark.parametrize(
    ("facts", "error", "line"),
    [
        ({"first_frame": 5}, UsageError, "begins at frame 5 of its game"),
        ({"weights": "xyz"}, WeightsError, "has weights xyz, the game abc"),
        ({"world": "attic"}, UsageError, "is of the world 'attic'; there is hall, cellar"),
        ({"memory": "sieve"}, UsageError, "No memory 'sieve'"),
    ],
)
def test_what_cannot_be_dreamt_again_says_why(session, tmp_path, facts, error, line):
    with pytest.raises(error, match=line):
        again(copied(session, tmp_path, **facts))


@pytest.mark.parametrize(
    ("words", "line"),
    [([], "One recording is needed, got 0"), (["nowhere"], "nowhere is no episode that can be read")],
)
def test_a_wrong_folder_is_one_line_and_exit_code_2(words, line):
    done = run("replay", *words)
    assert done.returncode == 2 and line in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_played_recording_can_be_replayed(tmp_path, capsys):
    """What `play` writes is what `replay` reads."""
    play("--headless", "--frames", "30", "--seed", "2", "--record", f"recordings={tmp_path}")
    (folder,) = tmp_path.iterdir()
    words = [str(folder)]
    assert replay.main(words, lambda cfg, facts, report: FakeWorld(), lambda cfg: openings()) == 0
    assert "All 30 frames are the same to the bit" in capsys.readouterr().out
    assert np.array_equal(
        Episode(folder).keys, np.stack([step.keys for step in replay.Script(folder).path()])
    )

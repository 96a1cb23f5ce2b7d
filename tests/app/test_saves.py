"""A save brings back the moment to the bit, and only where it belongs."""

from functools import partial
from itertools import pairwise

import numpy as np
import pygame
import pytest
import torch
from fake_world import FakeWorld
from test_dreamer import Session
from test_play import Watched, main, press, until

from app import saves
from app.errors import SaveError
from app.worlds import Solo
from fastar import method
from worldmodel.actions import action
from worldmodel.autoencoder import Autoencoder
from worldmodel.denoiser import Denoiser
from worldmodel.openings import Opening
from worldmodel.vocabulary import Vocabulary
from worldmodel.world import World

CPU = torch.device("cpu")
WORDS = Vocabulary(["red", "room", "dark"])
AXES = {
    "tempcache": {"cache": {"kind": "tempcache", "sink": 1, "recent": 2, "far": 24}},
    "fast-ar": {
        "cache": {"kind": "tempcache", "sink": 1, "recent": 2, "far": 24},
        "attn": {"kind": "annsa", "density": 0.3, "block": 4, "every": 3},
    },
}


def opening() -> Opening:
    frames = np.random.default_rng(0).integers(256, size=(4, 16, 32, 3), dtype=np.uint8)
    keys = np.stack([action()] * 4)
    return Opening("hall", "Hall", "red room", 0, 0, frames, keys, keys, {})


def solo(memory: str = "tempcache", weights: str = "abc") -> Solo:
    torch.manual_seed(0)
    network = Denoiser(
        channels=16, grid=(1, 2), words=len(WORDS), width=32, depth=2, heads=2, rope=(8, 4, 4),
        prompt_width=16, prompt_depth=1, control_width=16, control_depth=1,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in network.parameters():  # some begin at zero, and then keys would change nothing
            parameter += 0.1 * torch.randn(parameter.shape)
    coder = Autoencoder(channels=4, widths=(8, 8, 16))
    world = World(coder.eval(), network.eval(), WORDS, method(**AXES[memory]).cache)
    methods = {name: partial(method, **axes) for name, axes in AXES.items()}
    world = Solo(world, memory, {"weights": weights, "memory": memory}, methods)
    world.reset(opening(), seed=3)
    return world


def play(world: Solo, frames: int) -> list[np.ndarray]:
    return [world.decode(world.step(action(("forward",) if i % 2 else ()))) for i in range(frames)]


@pytest.mark.parametrize("memory", AXES)
def test_a_fresh_process_goes_on_to_the_bit(memory, tmp_path):
    first, path = solo(memory), tmp_path / "slots" / "quick.save"
    play(first, 30)
    first.say("dark room")
    picture = play(first, 1)[-1]
    assert first.save(path, {"scene": "hall", "index": 31}, picture) == path.stat().st_size > 1000
    after = play(first, 12)
    other = solo(memory)
    play(other, 5)
    about, shown = other.load(path)
    assert about == {"scene": "hall", "index": 31} and np.array_equal(shown, picture)
    assert other.prompt == "dark room"
    for a, b in zip(play(other, 12), after, strict=True):
        assert np.array_equal(a, b)


def refusal(world: Solo, path) -> str:
    before = world._world.state_dict()["latents"]
    with pytest.raises(SaveError) as error:
        world.load(path)
    assert torch.equal(world._world.state_dict()["latents"], before)  # nothing changed
    return str(error.value)


def test_a_save_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "quick.save"
    world = solo()
    world.save(path, {}, opening().frames[-1])
    assert "has memory tempcache, the game fast-ar" in refusal(solo("fast-ar"), path)
    assert "has weights abc, the game xyz" in refusal(solo(weights="xyz"), path)


def test_a_damaged_save_is_told_and_nothing_changes(tmp_path):
    path, world = tmp_path / "quick.save", solo()
    assert refusal(world, path) == "Nothing is saved yet; <save> saves."
    world.save(path, {}, opening().frames[-1])
    whole = path.read_bytes()
    for part in (b"", b"nonsense", whole[: len(whole) // 2]):
        path.write_bytes(part)
        assert "is damaged" in refusal(world, path)


def test_a_save_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path, world = tmp_path / "quick.save", solo()
    world.save(path, {"index": 1}, opening().frames[-1])

    def full(*args):
        (tmp_path / "quick.save.new").write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file: no space\nat somewhere")

    monkeypatch.setattr(saves.torch, "save", full)
    with pytest.raises(OSError, match="no space$"):
        world.save(path, {"index": 2}, opening().frames[-1])
    assert world.load(path)[0] == {"index": 1} and [x.name for x in tmp_path.iterdir()] == ["quick.save"]


def test_f9_goes_back_within_the_dream_that_was_saved_and_begins_one_from_any_other_save(tmp_path):
    with Session(saves=tmp_path) as session:
        session.until(lambda: len(session.seen) > 5)
        session.dreamer.save()
        session.until(lambda: session.dreamer.notices)
        saved = int(session.dreamer.notices.popleft().split()[2])
        session.dreamer.load()
        session.until(lambda: session.dreamer.notices)
        assert session.dreamer.notices.popleft() == f"Back at frame {saved}"
        count = len(session.seen)
        session.until(lambda: len(session.seen) > count)
        session.dreamer.reset()
        session.dreamer.load()
        session.until(lambda: session.seen[-1].run == 2)
    back = next(b for a, b in pairwise(session.seen) if b.after != a.id)
    assert back.index == saved + 1 and back.run == 0
    assert back.after == next(frame.id for frame in session.seen if frame.index == saved)
    assert next(frame for frame in session.seen if frame.run == 2).index == saved + 1


def test_what_cannot_be_saved_or_loaded_is_told_and_play_goes_on(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with Session(saves=tmp_path / "file") as session:
        session.dreamer.load()
        session.dreamer.save()
        session.until(lambda: len(session.dreamer.notices) == 2)
        count = len(session.seen)
        session.until(lambda: len(session.seen) > count + 3)
    assert "Nothing is saved yet" in session.dreamer.notices[0]
    assert session.dreamer.notices[1].startswith("Cannot save ")


def test_f5_and_f9_in_a_window(tmp_path):
    def watch(world: FakeWorld):
        yield from until(lambda: len(world.steps) > 3)
        yield press(pygame.K_F5)
        yield from until(lambda: (tmp_path / "quick.save").exists())
        yield press(pygame.K_F9)
        yield from until(lambda: world.loaded > 0)
        yield pygame.Event(pygame.QUIT)

    world = Watched(watch)
    assert main("--window", "fps=0", f"saves={tmp_path}", world=world) == 0

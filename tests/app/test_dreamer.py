import threading

import numpy as np
import pytest
from fake_world import FakeWorld, openings

from app.autopilot import Autopilot
from app.dreamer import PAUSED, Dreamer, Hands, Latest
from worldmodel.actions import KEYS, action, held

PATIENCE = 20.0  # seconds; a test that gets there has failed


def eventually(condition):
    """Wait for what another thread does."""
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("It never came.")


class Session:
    """A dreamer with its frames kept in a list, and a way to wait for the n-th."""

    def __init__(self, world=None, **options):
        self.world = world or FakeWorld()
        self.seen, self._came = [], threading.Condition()
        options = {"fps": 0, **options}
        self.dreamer = Dreamer(
            lambda report: self.world, openings(), "cellar", Autopilot(), remember=self._remember, **options
        )

    def _remember(self, frame):
        with self._came:
            self.seen.append(frame)
            self._came.notify_all()

    def until(self, condition):
        with self._came:
            assert self._came.wait_for(condition, PATIENCE)

    def __enter__(self):
        self.dreamer.start()
        return self

    def __exit__(self, *_):
        self.dreamer.stop()
        self.dreamer.join(PATIENCE)
        assert not self.dreamer.is_alive()


def finished(**options):
    session = Session(**options)
    with session:
        session.dreamer.join(PATIENCE)
    return session


def test_a_full_slot_drops_the_oldest(frame):
    slot = Latest()
    for index in (1, 2, 3):
        slot.put(frame(index))
    taken = slot.take()
    assert taken is not None and taken.index == 3
    assert slot.take() is None


def test_what_is_remembered_has_no_holes_though_nobody_looks():
    assert [frame.index for frame in finished(frames=50).seen] == list(range(1, 51))


def test_the_frame_shown_is_the_frame_just_made():
    session = finished(frames=3)
    shown = session.dreamer.frames.take()
    assert shown is session.seen[-1]
    assert np.array_equal(shown.picture, session.world.decode((session.world.x, session.world.angle)))


def test_a_frame_carries_the_keys_its_dreaming_began_with():
    session = finished(frames=20)
    carried = np.stack([frame.keys for frame in session.seen])
    assert np.array_equal(carried, np.stack(session.world.steps)) and carried.any()


def test_a_tap_between_two_frames_counts_for_the_next_one_only():
    hands = Hands()
    hands.hold(action(["forward"]), action(["fire"]))
    hands.hold(action(["forward"]), action())
    assert held(hands(0)) == ("forward", "fire")
    assert held(hands(1)) == ("forward",)


def test_nobody_can_draw_on_a_dream():
    (frame,) = finished(frames=1).seen
    with pytest.raises(ValueError, match="read-only"):
        frame.picture[0, 0] = 255


def test_a_paused_dreamer_dreams_one_frame_per_step():
    with Session() as session:
        session.until(lambda: len(session.seen) >= 3)
        session.dreamer.pause()
        eventually(lambda: session.dreamer.state == PAUSED)
        before = len(session.seen)
        session.dreamer.single_step()
        session.until(lambda: len(session.seen) == before + 1)
        assert session.dreamer.paused
        session.dreamer.pause(False)
        session.until(lambda: len(session.seen) >= before + 3)


def test_no_frame_time_is_counted_across_a_pause():
    with Session() as session:
        session.dreamer.single_step()
        session.dreamer.single_step()
        session.until(lambda: any(frame.took is None for frame in session.seen))


def test_a_reset_begins_again_at_one():
    with Session() as session:
        session.until(lambda: len(session.seen) >= 5)
        session.dreamer.reset()
        session.until(lambda: session.seen[-1].run == 1)
    again = next(frame for frame in session.seen if frame.run == 1)
    assert again.index == 1
    assert np.array_equal(again.picture, session.seen[0].picture)


def test_the_next_world_after_the_last_is_the_first():
    with Session() as session:
        for world in ("hangar", "cellar"):
            session.dreamer.next_world()
            session.until(lambda world=world: session.seen and session.seen[-1].world == world)
        assert list(session.dreamer.notices) == ["Hangar of Rust", "The Wet Cellar"]


def test_unknown_words_are_a_warning_and_play_goes_on():
    with Session(prompt="a xyzzy hall") as session:
        session.until(lambda: len(session.seen) >= 3)
        session.dreamer.reset()
        session.until(lambda: session.seen[-1].run == 1)
        assert list(session.dreamer.notices) == ["Words this world never heard: xyzzy"]
        assert session.seen[-1].prompt == "a xyzzy hall"


def test_an_error_in_the_thread_reaches_whoever_checks():
    session = finished(world=FakeWorld(fails_at=4, error=MemoryError("no more")))
    assert len(session.seen) == 3
    with pytest.raises(MemoryError, match="no more"):
        session.dreamer.check()


def test_an_error_while_loading_reaches_whoever_checks():
    def broken(report):
        raise OSError("weights are gone")

    dreamer = Dreamer(broken, openings(), "cellar", Autopilot())
    dreamer.start()
    dreamer.join(PATIENCE)
    with pytest.raises(OSError, match="gone"):
        dreamer.check()


def test_the_autopilot_depends_on_seed_and_frame_alone():
    def script(pilot, order):
        return {i: pilot(i).tolist() for i in order}

    forwards, backwards = range(200), range(199, -1, -1)
    assert script(Autopilot(3), forwards) == script(Autopilot(3), backwards)
    assert script(Autopilot(3), forwards) != script(Autopilot(4), forwards)


def test_the_autopilot_presses_every_key_and_sometimes_none():
    script = np.stack([Autopilot(0)(i) for i in range(1500)])
    assert dict(zip(KEYS, script.any(0), strict=True)) == dict.fromkeys(KEYS, True)
    assert (~script.any(1)).any()


def test_a_new_prompt_holds_from_the_next_frame_on():
    with Session() as session:
        session.until(lambda: len(session.seen) >= 2)
        session.dreamer.say("a red hall")
        session.until(lambda: session.seen[-1].prompt == "a red hall")
    prompts = [frame.prompt for frame in session.seen]
    assert prompts == sorted(prompts, key=lambda prompt: prompt == "a red hall")


def test_memories_take_turns_and_the_dream_goes_on():
    with Session() as session:
        session.until(lambda: len(session.seen) > 3)
        session.dreamer.switch_memory()
        session.until(lambda: session.seen[-1].memory == "dense")
        session.dreamer.switch_memory()
        session.until(lambda: session.seen[-1].memory == "tempcache")
    assert [frame.index for frame in session.seen] == list(range(1, len(session.seen) + 1))
    assert session.dreamer.notices[0].startswith("Memory: dense. It has read the last 20 frames again")

"""What every memory promises, and what dense and window + sink are by definition."""

import io

import pytest
import torch
from frames import MAKERS, ROPE, TOKENS, film, play, playing, softmax_over, where
from torch.testing import assert_close

from fastar import AnnSA, Beside, Dense, Stats, TempCache, WindowSink
from fastar.rivals import Radial
from fastar.window import REBASE

EXACT = dict(rtol=0, atol=1e-12)
BOUNDED = [name for name in MAKERS if name != "dense"]
each_memory = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_memory
def test_attend_leaves_the_past_alone(make):
    """However often and with whatever frame it is called, what comes next is the same to the bit."""
    frames, others = film(14), film(14, seed=1)
    once, often = make(), make()
    for frame, other in zip(frames, others, strict=True):
        expected = once.attend(0, *frame)
        for noise in (other, frame, other):
            often.attend(0, *noise)
        assert torch.equal(often.attend(0, *frame), expected)
        assert torch.equal(often.attend(0, *frame), expected)
        once.commit(0)
        often.commit(0)
    assert once.stats() == often.stats()


@each_memory
def test_commit_keeps_what_attend_saw_last(make):
    first, second, third = film(3)
    memory, other = make(), make()
    memory.attend(0, *second)
    memory.attend(0, *first)
    memory.commit(0)
    other.attend(0, *first)
    other.commit(0)
    assert torch.equal(memory.attend(0, *third), other.attend(0, *third))
    other.reset()
    other.attend(0, *second)
    other.commit(0)
    assert not torch.allclose(memory.attend(0, *third), other.attend(0, *third))


@each_memory
def test_what_is_beside_a_frame_is_read_and_not_kept(make):
    """As if the frames of a pass were one, which sees all of itself; then only the first of them stays."""
    frames = film(9)
    memory, other, one = make(), make(), Dense(1, ROPE)
    for x in (memory, other, one):
        play(x, frames[:3])
    first, second, third = frames[3:6]
    q = torch.cat([frame.q for frame in (first, second, third)], 2)
    more = Beside(*(torch.cat(x, -2) for x in zip(second[1:], third[1:], strict=True)))
    found = memory.attend(0, q, *first[1:], more)
    whole = [torch.cat(x, -2) for x in zip(first, second, third, strict=True)]
    assert_close(found, one.attend(0, *whole), **EXACT)
    assert torch.equal(memory.attend(0, q, *first[1:], more), found)
    other.attend(0, *first)
    for x in (memory, other):
        x.commit(0)
    for a, b in zip(play(memory, frames[4:]), play(other, frames[4:]), strict=True):
        assert torch.equal(a, b)


def test_a_pattern_that_cannot_know_what_is_beside_a_frame_says_so():
    first, second = film(2)
    memory = Dense(1, ROPE, pattern=Radial())
    q = torch.cat([first.q, second.q], 2)
    with pytest.raises(ValueError, match="Radial goes by words, or by when a key was seen"):
        memory.attend(0, q, *first[1:], Beside(*second[1:]))


@each_memory
def test_commit_without_attend_is_refused(make):
    memory = make()
    with pytest.raises(RuntimeError, match="Nothing to commit: call attend"):
        memory.commit(0)
    play(memory, film(2))
    with pytest.raises(RuntimeError, match="Nothing to commit"):
        memory.commit(0)


@each_memory
def test_what_a_loaded_memory_attended_to_before_is_not_committed(make):
    memory = make()
    play(memory, film(3))
    state = memory.state_dict()
    memory.attend(0, *film(1)[0])
    memory.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Nothing to commit"):
        memory.commit(0)


@each_memory
def test_reset_forgets_everything(make):
    used, fresh = make(), make()
    play(used, film(14, seed=1))
    used.reset()
    assert used.stats() == fresh.stats() == Stats(0, 0, 0)
    for a, b in zip(play(used, film(14)), play(fresh, film(14)), strict=True):
        assert torch.equal(a, b)


@each_memory
def test_a_reset_memory_takes_frames_of_another_shape(make):
    memory = make()
    play(memory, film(5, batch=2))
    memory.reset()
    play(memory, film(5, batch=1))


@each_memory
@pytest.mark.parametrize("saved_after", [0, 1, 3, 12])
def test_a_saved_memory_goes_on_to_the_bit(make, saved_after):
    """Also through a file, and whatever the original did after it was saved."""
    frames = film(20)
    memory, copy = make(), make()
    play(memory, frames[:saved_after])
    file = io.BytesIO()
    torch.save(memory.state_dict(), file)
    state = memory.state_dict()
    expected = play(memory, frames[saved_after:])
    file.seek(0)
    for saved in (state, torch.load(file), state):
        copy.load_state_dict(saved)
        for a, b in zip(play(copy, frames[saved_after:]), expected, strict=True):
            assert torch.equal(a, b)
        assert copy.stats() == memory.stats()


@pytest.mark.parametrize("source", MAKERS)
@pytest.mark.parametrize("target", MAKERS)
def test_the_state_of_another_kind_is_refused(source, target):
    if source == target:
        return
    memory, other = MAKERS[target](), MAKERS[source]()
    play(other, film(2))
    with pytest.raises(
        ValueError, match=f"This {type(memory).__name__} memory was given the state of another kind"
    ):
        memory.load_state_dict(other.state_dict())


@each_memory
def test_games_of_a_batch_are_independent(make):
    both = film(16, batch=2)
    together = play(make(), both)
    for game in range(2):
        alone = [frame._replace(**{x: getattr(frame, x)[game : game + 1] for x in "qkv"}) for frame in both]
        for a, b in zip(together, play(make(), alone), strict=True):
            assert_close(a[game : game + 1], b, **EXACT)


@each_memory
def test_layers_are_independent(make):
    """A memory of three layers is three memories of one."""
    films = [film(16, seed=layer) for layer in range(3)]
    together, alone = make(3), [make() for _ in films]
    for frames in zip(*films, strict=True):
        for layer, (frame, own) in enumerate(zip(frames, alone, strict=True)):
            assert_close(together.attend(layer, *frame), own.attend(0, *frame), **EXACT)
            own.commit(0)
        for layer in range(3):
            together.commit(layer)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "tempcache"])
def test_a_layer_may_run_ahead_of_the_next(name):
    """A pass over many frames takes them all through the first layer before the second sees any.

    TempCache folds for all layers at once and lets a layer be one frame ahead, no more.
    """
    make = MAKERS[name]
    films = [film(16, seed=layer) for layer in range(2)]
    together = make(2)
    for layer, frames in enumerate(films):
        for frame, expected in zip(frames, play(make(), frames), strict=True):
            assert_close(together.attend(layer, *frame), expected, **EXACT)
            together.commit(layer)


@each_memory
def test_stats_count_tokens(make):
    memory = make()
    for i, _ in enumerate(playing(memory, film(14)), 1):
        stats = memory.stats()
        assert stats.seen == i * TOKENS
        assert 0 < stats.kept <= stats.seen
        assert stats.bytes > 0
        if i <= 3:
            assert stats.kept == stats.seen


def test_dense_is_softmax_over_everything():
    """Also while its buffer grows, which happens twice here: no memory nobody wrote is ever read."""
    frames = film(40)
    for i, output in enumerate(play(Dense(1, ROPE), frames)):
        assert_close(output, softmax_over(frames[i], frames[:i], ROPE), **EXACT)


def test_dense_takes_passes_of_any_size():
    """Three frames in one pass read each other both ways; the next pass reads all of them."""
    frames = film(4)
    pair = [torch.cat([getattr(frame, x) for frame in frames[:3]], 2) for x in "qkv"]
    memory = Dense(1, ROPE)
    memory.attend(0, *pair, torch.cat([frame.where for frame in frames[:3]]))
    memory.commit(0)
    assert_close(memory.attend(0, *frames[3]), softmax_over(frames[3], frames[:3], ROPE), **EXACT)


@pytest.mark.parametrize("sink, recent", [(1, 2), (0, 3), (2, 1), (3, 5)])
def test_window_sink_is_dense_over_its_frames(sink, recent):
    frames = film(14)
    for i, output in enumerate(play(WindowSink(1, ROPE, sink=sink, recent=recent), frames)):
        kept = [frame for t, frame in enumerate(frames[:i]) if t < sink or t >= i - recent]
        assert_close(output, softmax_over(frames[i], kept, ROPE), **EXACT)


def test_window_sink_is_dense_until_it_is_full_and_not_after():
    frames = film(6)
    dense, window = play(Dense(1, ROPE), frames), play(WindowSink(1, ROPE, sink=1, recent=3), frames)
    for a, b in zip(dense[:5], window[:5], strict=True):
        assert_close(a, b, **EXACT)
    assert not torch.allclose(dense[5], window[5])


@pytest.mark.parametrize("later", [0, 1, 40])
def test_a_sink_is_never_farther_back_than_its_reach(later):
    """It is moved every REBASE frames, so between two moves it falls behind by no more than that."""
    reach, moved = 70, 3 * REBASE
    frames = film(moved + later + 1, batch=1)
    output = play(WindowSink(1, ROPE, sink=1, recent=2, reach=reach), frames)[-1]
    sink = frames[0]._replace(where=where(moved - reach))
    assert_close(output, softmax_over(frames[-1], [sink, *frames[-3:-1]], ROPE), rtol=0, atol=1e-9)


def test_a_reach_within_the_window_is_refused():
    with pytest.raises(ValueError, match="at least recent . 64 = 80, got 79"):
        WindowSink(1, ROPE, recent=16, reach=79)


def test_a_full_window_stays_as_large_as_it_is():
    memory = WindowSink(1, ROPE, sink=1, recent=2)
    held = [memory.stats() for _ in playing(memory, film(12))]
    assert len({(stats.kept, stats.bytes) for stats in held[3:]}) == 1
    assert held[-1].kept == 3 * TOKENS


@pytest.mark.parametrize("name", BOUNDED)
def test_frames_of_another_size_are_refused(name):
    memory = MAKERS[name]()
    play(memory, film(1))
    q, k, v, where = film(1)[0]
    with pytest.raises(ValueError, match="holds frames of 6 tokens but was given 5"):
        memory.attend(0, q[:, :, :5], k[:, :, :5], v[:, :, :5], where[:5])


@pytest.mark.parametrize("sizes", [{"sink": -1}, {"recent": 0}])
def test_a_window_without_frames_is_refused(sizes):
    with pytest.raises(ValueError, match="sink >= 0 and recent >= 1"):
        WindowSink(1, ROPE, **sizes)


# ---- steady states


@pytest.mark.parametrize("make", [MAKERS[name] for name in BOUNDED], ids=BOUNDED)
def test_frames_of_one_phase_do_the_same_to_the_same_tensors(make):
    """What a graph of one frame does is right for the next of its phase: shapes and addresses stay.

    And `advance` is all that the host adds.
    """
    memory, phases = make(), {}
    for frame in film(30):
        phase = memory.phase()
        memory.attend(0, *frame)
        memory.commit(0)
        if phase is not None:
            found = (
                memory._used(0),
                {name: getattr(memory, name).data_ptr() for name in ("keys", "values", "bias")},
            )
            assert phases.setdefault(phase, found) == found
    assert len(phases) == memory.recent + 1  # the slots of the ring
    told = make()
    told.load_state_dict(memory.state_dict())
    memory.attend(0, *film(1)[0])
    memory.commit(0)
    told.advance()
    assert told.phase() == memory.phase() and told.committed == memory.committed


@pytest.mark.parametrize("far", [16, 15])  # 15 entries are full in the middle of a frame
def test_a_phase_begins_once_a_plan_has_its_last_shape(far):
    """Then the plan, too, stays where it is."""
    pattern = AnnSA(density=0.5, block=4, every=3)
    memory, plans = TempCache(1, ROPE, sink=1, recent=2, far=far, pattern=pattern), set()
    for frame in film(30):
        phase = memory.phase()
        memory.attend(0, *frame)
        memory.commit(0)
        if phase is not None:
            plans.add((memory._used(0), *(x.data_ptr() for x in memory.plans[0][1:])))
    assert len(plans) == 1


FIXED = {
    "without a pattern": None,
    "with one": AnnSA(density=1.0, block=4, every=1),  # what is sorted is read in full
}


@pytest.mark.parametrize("far", [16, [16, 12]])
@pytest.mark.parametrize("pattern", FIXED.values(), ids=FIXED)
def test_a_fixed_memory_remembers_and_answers_the_same_and_has_a_phase_soon(pattern, far):
    """Empty places are read with a bias of -inf, which is to read nothing."""
    free, fixed = (TempCache(2, ROPE, sink=1, recent=2, far=far, pattern=pattern) for _ in range(2))
    fixed.fix()
    for t, frame in enumerate(film(12)):
        assert (fixed.phase() is not None) == (t > 2)  # once the window is full
        for layer in range(2):
            expected, found = (memory.attend(layer, *frame) for memory in (free, fixed))
            assert_close(found, expected, **EXACT)
        for layer in range(2):
            free.commit(layer)
            fixed.commit(layer)
    assert free.stats() == fixed.stats()
    for name in ("count", "look", "mean", "time", "evicted"):
        assert_close(getattr(fixed, name), getattr(free, name), **EXACT)


def test_a_plan_for_empty_places_is_of_no_use_to_a_memory_without():
    """What a fixed one has saved, another goes on from."""
    frames, pattern = film(8), AnnSA(density=0.5, block=4, every=2)
    free, fixed = (TempCache(1, ROPE, sink=1, recent=2, far=40, pattern=pattern) for _ in range(2))
    fixed.fix()
    play(fixed, frames[:6])
    play(free, frames[:6])
    free.load_state_dict(fixed.state_dict())
    whole = TempCache(1, ROPE, sink=1, recent=2, far=40)
    play(whole, frames[:6])
    assert_close(free.attend(0, *frames[6]), whole.attend(0, *frames[6]), **EXACT)


def test_a_memory_that_grows_has_no_phase():
    memory = MAKERS["dense"]()
    play(memory, film(5))
    assert memory.phase() is None
    with pytest.raises(RuntimeError, match="no phase"):
        memory.advance()

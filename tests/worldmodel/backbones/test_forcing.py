"""Videos chunk by chunk: what memories and windows do is what one long masked sequence would."""

import pytest
import torch
from test_wan import SIZE, TEXT, network, normal, plain, published
from torch import Tensor
from torch.testing import assert_close

from fastar import Dense, TempCache, WindowSink
from worldmodel.backbones.forcing import NOISE, Forcing, RollingForcing, SelfForcing, renoised, shifted
from worldmodel.backbones.wan import Wan

CHUNK, SPACE = 2, (4, 6)
STEPS = 1000, 600, 300


def begun(kind, memory=Dense, **how) -> Forcing:
    made = kind(network(), memory, steps=STEPS, chunk=CHUNK, **how)
    made.begin([normal(3, TEXT, seed=1)], SPACE, seed=7)
    return made


def draws() -> tuple[list[Tensor], object]:
    """The noise of a run in the order it is drawn, twice: to compare with, and to give."""
    noise = [normal(1, CHUNK, 4, *SPACE, seed=100 + i) for i in range(40)]
    return noise, iter(noise).__next__


def velocity(past: list[Tensor], x: Tensor, times: list[float]) -> Tensor:
    """By the plain transformer over everything at once: clean chunks, and one that is all of x."""
    known = [frame for chunk in past for frame in chunk[0]]
    frames = torch.stack([*known, *x[0]])
    time = torch.tensor([0.0] * len(known) + times)
    text = normal(3, TEXT, seed=1)
    return plain(published(), frames, time, text, CHUNK, last=x.shape[1])[None, len(known) :]


@pytest.mark.parametrize(
    "memory", [Dense, lambda *told: WindowSink(*told, sink=0, recent=9)], ids=["dense", "window"]
)
def test_self_forcing_is_the_plain_loop(memory, monkeypatch):
    video = begun(SelfForcing, memory)
    noise, give = draws()
    monkeypatch.setattr(video, "_draw", give)
    past: list[Tensor] = []
    drawn = iter(noise)
    for _ in range(3):
        x = next(drawn)
        for i, time in enumerate(video.steps):
            clean = x - time / NOISE * velocity(past, x, [time] * CHUNK)
            if i + 1 < len(video.steps):
                x = renoised(clean, video.steps[i + 1], next(drawn))
        assert_close(video.step().double(), clean, rtol=0, atol=1e-5)
        past.append(clean)


def test_rolling_forcing_is_the_plain_loop(monkeypatch):
    """From the first window, which holds one chunk, on."""
    video = begun(RollingForcing)
    noise, give = draws()
    monkeypatch.setattr(video, "_draw", give)
    found = [video.step() for _ in range(3)]
    drawn, past, window = iter(noise), [], []
    while len(past) < 3:
        window.append((0, next(drawn)))  # steps done so far
        x = torch.cat([chunk for _, chunk in window], 1)
        times = [video.steps[done] for done, _ in window for _ in range(CHUNK)]
        level = torch.tensor(times, dtype=torch.float64).view(1, -1, 1, 1, 1) / NOISE
        clean = (x - level * velocity(past, x, times)).split(CHUNK, 1)
        after = [(done + 1, chunk) for (done, _), chunk in zip(window, clean, strict=True)]
        window = [
            (done, renoised(chunk, video.steps[done], next(drawn)))
            for done, chunk in after
            if done < len(STEPS)
        ]
        past += [chunk for done, chunk in after if done == len(STEPS)]
    for a, b in zip(found, past, strict=True):
        assert_close(a.double(), b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [SelfForcing, RollingForcing])
def test_a_bounded_memory_stays_bounded_and_only_clean_chunks_enter_it(kind):
    tokens = CHUNK * 2 * 3
    video = begun(kind, lambda *told: TempCache(*told, sink=1, recent=1, far=2 * tokens, threshold=0.5))
    for i in range(1, 9):
        assert video.step().isfinite().all()
        stats = video.memory.stats()
        assert stats.seen == i * tokens and stats.kept <= 4 * tokens


def test_a_seed_is_a_video_and_a_prompt_can_change_on_the_way():
    one, same, other = (begun(SelfForcing) for _ in range(3))
    for _ in range(2):
        assert torch.equal(one.step(), same.step())
        other.step()
    other.say([normal(5, TEXT, seed=9)])
    assert torch.equal(one.step(), same.step()) and not torch.equal(one.step(), other.step())


def test_steps_are_shifted_towards_noise():
    assert_close(
        torch.tensor(shifted((1000, 750, 500, 250), 5.0)), torch.tensor([1000, 937.5, 833.333, 625.0])
    )
    with pytest.raises(ValueError, match="must fall from at most 1000"):
        SelfForcing(Wan(**SIZE), Dense, steps=(250, 500))

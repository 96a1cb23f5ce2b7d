"""What is drawn to train on, what a frame may see of it, and a whole training from episodes to play."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from test_captions import step
from tiny import CHANNELS, TOKENS, VOCABULARY, autoencoder, clip, denoiser
from torch.testing import assert_close

from fastar import CACHES
from worldmodel.actions import KEYS
from worldmodel.checkpoint import load_weights
from worldmodel.doom.captions import choose
from worldmodel.doom.engine import STOCK
from worldmodel.episodes import HEIGHT, WIDTH, EpisodeWriter, episodes
from worldmodel.training import flow
from worldmodel.training.adversarial import Judge, Scene, beyond, layouts
from worldmodel.training.latents import RETURN_AFTER, Library, earlier_views
from worldmodel.training.loop import Average, Run, muon, rate, update
from worldmodel.training.main import train
from worldmodel.training.rollout import rollouts, sharpness_by_age
from worldmodel.training.twostream import TwoStream
from worldmodel.world import World

CONFIG = Path(__file__).parents[2] / "configs/tiny.yaml"


# ---- clips


def library(*lengths: int, earlier=None) -> Library:
    """Frames that are their own number, counted over all episodes."""
    total = sum(lengths)
    numbers = torch.arange(total).view(-1, 1, 1).split(list(lengths))
    keys = torch.zeros(total, len(KEYS)).split(list(lengths))
    captions = [[[("world", [2, 3]), ("motion", [4])] for _ in range(0, length, 16)] for length in lengths]
    earlier = earlier or [np.full(length, -1) for length in lengths]
    return Library(numbers, keys, captions, earlier)


def returning(length: int, period: int) -> np.ndarray:
    """Every frame shows what was seen `period` frames before."""
    return np.where(np.arange(length) < period, -1, np.arange(length) - period)


PLANS = [
    dict(recent=4, far=6, reach=1000, returns=0.0),
    dict(recent=4, far=6, reach=30, returns=0.0),
    dict(recent=1, far=0, reach=30, returns=0.5),
    dict(recent=4, far=1, reach=1000, returns=1.0),
    dict(recent=4, far=3, reach=1000, returns=0.5),
    dict(recent=20, far=20, reach=1000, returns=1.0),
]


@pytest.mark.parametrize("plan", PLANS)
def test_a_clip_is_far_frames_then_recent_ones_of_one_episode(plan):
    books = library(60, 41, 230, earlier=[returning(n, 40) for n in (60, 41, 230)])
    far, recent = plan["far"], plan["recent"]
    clips, prompts, _ = books.plan(np.random.default_rng(0), 200, **plan)
    assert clips.shape == (200, far + recent) and len(prompts) == 200
    for indices in clips:
        assert (np.diff(indices) > 0).all()
        assert (np.diff(indices[far:]) == 1).all()
        assert len(set(books.episode[indices])) == 1
        assert indices[0] >= indices[far] - plan["reach"]
    assert len(set(clips[:, -1])) > 80  # and ends anywhere


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan["far"]])
def test_a_return_shows_the_earlier_view(plan):
    books = library(60, 41, 230, earlier=[returning(n, 40) for n in (60, 41, 230)])
    clips, *_ = books.plan(np.random.default_rng(0), 200, **(plan | {"returns": 1.0, "reach": 1000}))
    for indices in clips:
        view = books.earlier[indices[-1]]
        assert view == indices[-1] - 40
        assert view in indices


@pytest.mark.parametrize("far, reach", [(6, 38), (6, 50), (2, 38), (20, 60)])
def test_only_a_view_within_reach_is_a_return(far, reach):
    """History never goes back farther than asked for; an older view is not promised."""
    books = library(230, 100, earlier=[returning(230, 40), returning(100, 60)])
    clips, *_ = books.plan(np.random.default_rng(0), 100, recent=4, far=far, reach=reach, returns=1.0)
    for indices in clips:
        assert (np.diff(indices) > 0).all() and indices[0] >= indices[far] - reach
        assert books.earlier[indices[-1]] in indices
        assert books.episode[indices[0]] == 0 or reach >= 60
    short = dict(recent=4, far=6, reach=30, returns=1.0)
    assert (
        len(books.plan(np.random.default_rng(0), 10, **short)[0]) == 10
    )  # none in reach: other clips instead


def test_half_of_the_histories_are_what_came_just_before():
    clips, *_ = library(500).plan(np.random.default_rng(0), 400, recent=4, far=6, reach=1000, returns=0.4)
    assert (np.diff(clips).max(1) == 1).mean() == pytest.approx(0.5, abs=0.1)


def twins(length: int = 200, same: int = 150) -> Library:
    """Two episodes with equal keys for so many frames. Latents are numbers, of the second 1,000 higher."""
    first = torch.arange(length).view(-1, 1, 1)
    keys = torch.zeros(length, len(KEYS))
    other = keys.clone()
    other[same:] = 1
    captions = [
        [[("world", [2]), ("here", [3])]] * (length // 16 + 1),
        [[("world", [4]), ("here", [5])]] * (length // 16 + 1),
    ]
    none = [np.full(length, -1)] * 2
    return Library([first, first + 1000], [keys, other], captions, none, twins=[None, 0])


def test_twins_are_the_same_moment_until_they_part():
    books = twins()
    assert books.twin[:150].tolist() == list(range(200, 350)) and books.twin[200:350].tolist() == list(
        range(150)
    )
    assert (books.twin[150:200] == -1).all() and (books.twin[350:] == -1).all()


def test_a_swap_shows_what_came_before_in_other_materials():
    """From somewhere on until the end it is the clip's own episode, and the prompt tells all of that one."""
    books = twins()
    plan = books.plan(np.random.default_rng(0), 300, recent=4, far=6, reach=100, returns=0.0, swaps=1.0)
    changed = plan.shown != plan.frames
    paired = (books.twin[plan.frames] >= 0).all(1)
    assert changed[paired, 0].all() and not changed[~paired].any() and not changed[:, -1].any()
    assert (np.diff(changed.astype(int), axis=1) <= 0).all()  # once
    assert set(changed[paired].sum(1)) == set(range(1, 10))
    assert (plan.shown[changed] == books.twin[plan.frames[changed]]).all()
    whole = {0: [2, 3], 1: [4, 5]}
    assert all(plan.prompts[i] == whole[books.episode[plan.frames[i, -1]]] for i in np.nonzero(paired)[0])
    batch = books.fetch(plan)
    assert np.array_equal(batch.latents[:, :, 0, 0].numpy() % 1000, plan.frames % 200)
    assert np.array_equal(batch.times.numpy(), plan.frames - plan.frames[:, -1:])


def test_without_twins_nothing_is_swapped():
    plan = library(200).plan(np.random.default_rng(0), 50, recent=4, far=6, reach=100, returns=0.0, swaps=1.0)
    assert np.array_equal(plan.shown, plan.frames)


def test_fetched_clips_are_what_was_planned():
    books = library(30, 40)
    books.keys[:, 0] = torch.arange(70) % 2
    plan = books.plan(np.random.default_rng(0), 8, recent=3, far=2, reach=20, returns=0.0)
    batch = books.fetch(plan)
    assert batch.latents.dtype == batch.keys.dtype == torch.float32
    assert np.array_equal(batch.latents[:, :, 0, 0].numpy(), plan[0])
    assert np.array_equal(batch.keys[:, :, 0].numpy(), plan[0] % 2)
    assert (batch.times[:, -1] == 0).all()
    assert np.array_equal(batch.times.numpy(), plan[0] - plan[0][:, -1:])
    for words, prompt in zip(batch.words.tolist(), plan[1], strict=True):
        assert words == prompt + [0] * (159 - len(prompt))


def test_prompts_are_some_sentences_in_any_order_and_now_and_then_none():
    _, prompts, _ = library(400).plan(np.random.default_rng(0), 2000, recent=2, far=0, reach=1, returns=0.0)
    told = [tuple(prompt) for prompt in prompts]
    assert set(told) == {(), (2, 3), (4,), (2, 3, 4), (4, 2, 3)}
    assert told.count(()) / len(told) == pytest.approx(0.1 + 0.9 * 0.5 * 0.7, abs=0.04)


def test_motion_is_told_seldom():
    rng = np.random.default_rng(0)
    chunk = [("world", [2]), ("motion", [3]), ("view", [4])]
    told = [choose(chunk, rng) for _ in range(2000)]
    assert np.mean([[2] in words for words in told]) == pytest.approx(0.5, abs=0.05)
    assert np.mean([[3] in words for words in told]) == pytest.approx(0.3, abs=0.05)
    assert {tuple(map(tuple, words)) for words in told} > {((2,), (4,)), ((4,), (2,)), ()}


def test_episodes_too_short_for_a_clip_are_refused():
    with pytest.raises(ValueError, match="No episode is 31 frames long; collect longer ones or ask for"):
        library(20, 30).plan(np.random.default_rng(0), 1, recent=21, far=10, reach=100, returns=0.0)


# ---- earlier views


def walk(*stays: tuple[float, float, int]) -> np.ndarray:
    """Poses of a player who stays at each (x, angle) for so many frames."""
    return np.array([[x, 0, 0, angle] for x, angle, frames in stays for _ in range(frames)], np.float32)


def test_coming_back_is_a_return():
    pose = walk((0, 90, 50), (500, 90, 200), (20, 80, 50))
    earlier = earlier_views(pose, len(pose))
    assert (earlier[:250] == -1).all()
    assert (earlier[250:] == 49).all()  # the latest of the earlier ones


@pytest.mark.parametrize(
    "stays",
    [
        [(0, 90, 400)],  # never left
        [(0, 90, 50), (500, 90, 100), (0, 90, 20)],  # too soon
        [(0, 90, 50), (500, 90, 200), (60, 90, 50)],  # another place
        [(0, 90, 50), (500, 90, 200), (0, 130, 50)],  # looks elsewhere
    ],
)
def test_no_return(stays):
    pose = walk(*stays)
    assert (earlier_views(pose, len(pose)) == -1).all()


def test_angles_meet_at_a_full_turn():
    pose = walk((0, 355, 50), (500, 90, RETURN_AFTER), (0, 5, 10))
    assert (earlier_views(pose, len(pose))[-10:] == 49).all()


def test_without_poses_nothing_is_known():
    assert earlier_views(None, 5).tolist() == [-1] * 5


# ---- two streams


def two_stream(latents, dreamt, *, noisy=3):
    network = denoiser()
    b, f = latents.shape[:2]
    streams = TwoStream(TOKENS, f, noisy, torch.device("cpu"))
    keys = clip(f, batch=b, seed=2)[1]
    level, told = torch.full((b, noisy), 0.7), torch.zeros(b, f)
    times = torch.arange(1 - f, 1).expand(b, -1)
    prompt = network.read_prompt(torch.tensor([[2, 3]] * b))
    return streams(network, (latents, told), (dreamt, level), keys, times, prompt, network.control(keys))


@pytest.mark.parametrize("noisy", [1, 3, 5])
def test_a_noisy_frame_sees_the_history_before_it_and_itself(noisy):
    """By its gradient: exactly the clean frames before it, never its own, and no other noisy frame."""
    frames = 5
    latents = clip(frames, batch=1)[0].requires_grad_()
    dreamt = clip(noisy, batch=1, seed=1)[0].requires_grad_()
    velocity = two_stream(latents, dreamt, noisy=noisy)
    assert velocity.shape == dreamt.shape
    for i in range(noisy):
        seen, own = torch.autograd.grad(velocity[:, i].square().sum(), (latents, dreamt), retain_graph=True)
        touched = seen.abs().sum((0, 2, 3)) > 0
        assert touched.tolist() == [frame < frames - noisy + i for frame in range(frames)]
        assert (own.abs().sum((0, 2, 3)) > 0).tolist() == [frame == i for frame in range(noisy)]


@pytest.mark.parametrize("history", [5, 0])
def test_candidates_know_nothing_of_each_other(history):
    """Side by side or one by one; without a history each frame is alone."""
    network, cpu = denoiser(), torch.device("cpu")
    latents, keys = clip(5)
    candidates = torch.randn(2, 3, 3, TOKENS, CHANNELS)
    times, prompt = torch.arange(-4, 1).expand(2, -1), network.read_prompt(torch.tensor([[2, 3]] * 2))

    def run(dreamt, keys):
        f = dreamt.shape[1]
        streams = TwoStream(TOKENS, history, 3 if f > 1 else 1, cpu, max(1, f // 3))
        past = latents[:, :history], torch.zeros(2, history)
        now = dreamt, torch.full((2, f), 0.1)
        return streams(network, past, now, keys, times[:, : keys.shape[1]], prompt, network.control(keys))

    with torch.no_grad():
        beside = run(candidates.flatten(1, 2), keys).unflatten(1, (3, 3))
        for i in range(3):
            assert_close(beside[:, i], run(candidates[:, i], keys), rtol=0, atol=1e-5)
        if not history:
            assert_close(beside[:, 0, :1], run(candidates[:, 0, :1], keys[:, 2:3]), rtol=0, atol=1e-5)


def test_the_history_does_not_see_the_future_through_others():
    """Changing a later clean frame changes no earlier noisy frame, through however many layers."""
    latents, dreamt = clip(5)[0], clip(3, seed=4)[0]
    changed = latents.clone()
    changed[:, 3] += 1
    with torch.no_grad():
        a, b = two_stream(latents, dreamt), two_stream(changed, dreamt)
    assert_close(a[:, :2], b[:, :2], rtol=0, atol=1e-5)
    assert not torch.allclose(a[:, 2], b[:, 2])


# ---- the student on its own


LAID_OUT = layouts(denoiser(), 5, 3, torch.device("cpu"))


def own_games(batch: int = 40):
    """Clips of 5 frames from games of 3 real frames and 6 dreamt ones, and the library they come from."""
    latents = torch.randn(24, TOKENS, CHANNELS).split([12, 12])
    keys = torch.zeros(24, len(KEYS)).split([12, 12])
    books = Library(latents, keys, [[[("world", [2, 3])]]] * 2, [np.full(12, -1)] * 2)
    clips = rollouts(
        denoiser(), books, autoencoder(), VOCABULARY, batch=batch, length=5, games=3, alone=6, opening=3
    )
    return next(clips), books


def test_a_game_on_its_own_begins_with_real_frames():
    """And counts from the first dreamt one; what truly happened is beside it."""
    lived, books = own_games()
    b, f = lived.age.shape
    assert lived.dreamt.shape == lived.clip.latents.shape == (b, f, TOKENS, CHANNELS) and f == 5
    real = (lived.dreamt == lived.clip.latents).all((2, 3))
    assert torch.equal(real, lived.age == 0) and 0 < real.sum() < real.numel()
    later = lived.age[:, 1:] - lived.age[:, :-1]
    assert torch.equal(later, (lived.age[:, 1:] > 0).long())
    assert lived.age.max() == 6 and lived.clip.times[0].tolist() == [-4, -3, -2, -1, 0]
    known = {row.numpy().tobytes() for row in books.latents}
    assert all(frame.numpy().tobytes() in known for frame in lived.clip.latents.flatten(0, 1))


def test_games_too_short_for_a_clip_are_refused():
    with pytest.raises(ValueError, match="A clip of 5 frames needs games as long, got 2 . 2 frames"):
        next(rollouts(*[None] * 4, batch=1, length=5, games=1, alone=2, opening=2))


def test_the_longer_a_dream_the_less_the_truth_is_asked_of_it():
    lived, _ = own_games()
    lived.age[:] = torch.tensor([0, 0, 0, 16, 32])
    scene = Scene(lived, LAID_OUT, 0.15)
    wrong = torch.zeros_like(scene.truth)
    for i, share in enumerate((1.0, 0.5, 0.25)):
        off = wrong.clone()
        off[:, i] = 1.0
        assert scene.error(scene.truth + off).item() == pytest.approx(share / 3, rel=1e-5)


@pytest.mark.parametrize("alone", [False, True])
def test_the_critic_reads_history_only_where_it_is_the_same_for_both(alone):
    lived, _ = own_games(batch=2)
    lived.dreamt.requires_grad_()
    lived.clip.latents.requires_grad_()
    scene = Scene(lived if alone else lived.clip, LAID_OUT, 0.15)
    critic = Judge(denoiser(), frozen=True, hidden=8)
    verdict = sum(x.sum() for x in scene.judge(critic, *torch.randn(2, 2, 3, TOKENS, CHANNELS)))
    seen = torch.autograd.grad(verdict, scene.lived, allow_unused=True, materialize_grads=True)[0]
    assert (seen.abs().sum() == 0) if alone else (seen.abs().sum() > 0)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("deep, local, verdicts", [(0, 0, 1), (1, 0, 1), (0, 1, TOKENS), (1, 1, 2 * TOKENS)])
def test_what_a_critic_learns_with(frozen, deep, local, verdicts):
    """A frozen one with its heads alone; and none while the student learns to fool it."""
    network = denoiser()
    judge = Judge(network, frozen=frozen, deep=bool(deep), local=bool(local), hidden=8)
    critic = judge.critic
    lived, _ = own_games(batch=2)
    scene = Scene(lived.clip, LAID_OUT, 0.15)
    for learning in (True, False):
        critic.zero_grad()
        critic.learning(learning)
        dreamt = scene.dream(network, scene.constant(1.0))
        real, fake = scene.judge(judge, scene.truth, dreamt)
        assert real.shape == fake.shape == (2, 3, verdicts)
        fake.sum().backward()
        learns = [name for name, x in critic.named_parameters() if x.grad is not None]
        assert any(name.startswith("heads.") for name in learns) == learning
        assert any(name.startswith("network.") for name in learns) == (learning and not frozen)
        assert all(x.grad is not None for x in network.blocks.parameters())
    assert len(critic.heads) == (2 if deep else 1)


@pytest.mark.parametrize("times", [0.0, 1.0, 1.3])
def test_beyond_lies_on_the_line_through_both(times):
    start, end = denoiser(0), denoiser(1)
    there = beyond(start, end, times)
    for x, a, b in zip(*(net.parameters() for net in (there, start, end)), strict=True):
        assert_close(x, a + times * (b - a))
    assert beyond(start, end, 1.0) is not end


def test_the_head_may_go_farther():
    """And with it all that lies between the blocks and the velocity, no more."""
    start, end = denoiser(0), denoiser(1)
    for x in end.parameters():
        x.data.normal_(std=0.1)  # the head begins with zeros in both
    all_as_far, farther = beyond(start, end, 1.1), beyond(start, end, 1.1, 2.0)
    pairs = zip(all_as_far.named_parameters(), farther.named_parameters(), strict=True)
    moved = {name.partition(".")[0] for (name, a), (_, b) in pairs if not torch.equal(a, b)}
    assert moved <= {"adapt", "out", "refiner"} and "out" in moved
    assert_close(farther.out.weight, start.out.weight + 2 * (end.out.weight - start.out.weight))


def test_sharpness_is_told_beside_the_truth():
    told = []
    latents = torch.randn(24, TOKENS, CHANNELS).split([12, 12])
    books = Library(
        latents,
        torch.zeros(24, len(KEYS)).split([12, 12]),
        [[[("world", [2, 3])]]] * 2,
        [np.full(12, -1)] * 2,
    )
    clips = rollouts(
        denoiser(), books, autoencoder(), VOCABULARY, lambda **sharp: told.append(sharp),
        batch=2, length=5, games=3, alone=6, opening=3,
    )  # fmt: skip
    next(clips)
    assert list(told[0]) == ["sharp1", "sharp4"] and all(x > 0 for x in told[0].values())
    real = torch.randn(2, 9, TOKENS, CHANNELS)
    same = sharpness_by_age(autoencoder(), denoiser().grid, real, real, opening=3)
    assert all(x == 1 for x in same.values())


# ---- the loop


def test_the_rate_warms_up_holds_and_falls():
    rates = [rate(i / 100, i, warmup=10, hold=0.5) for i in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9:50] == [1.0] * 41
    assert all(a >= b for a, b in zip(rates[50:], rates[51:], strict=False))
    assert rates[75] == pytest.approx(0.5) and rates[-1] == pytest.approx(0.02)


def test_the_average_is_short_at_first_and_long_later():
    """The first weights, which know nothing, are forgotten at once; later ones stay for 100 steps."""
    module = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.zeros_(module.weight)
    average = Average(module, 0.99)
    torch.nn.init.ones_(module.weight)
    average.update(module)
    assert_close(average.module.weight, module.weight * 20 / 21)
    for _ in range(3000):
        average.update(module)
    assert_close(average.module.weight, module.weight)
    torch.nn.init.zeros_(module.weight)
    average.update(module)
    assert_close(average.module.weight, torch.full((2, 2), 0.99), check_dtype=False)
    again = Average(module, 0.99)
    again.load_state_dict(average.state_dict())
    assert torch.equal(again.module.weight, average.module.weight) and again.count == 3002


def test_muon_steps_are_orthogonal_and_as_large_as_those_of_adamw():
    """Matrices inside move by a matrix with equal singular values; everything else as AdamW has it."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    before = [x.detach().clone() for x in module.parameters()]
    learn = muon(module, module[0], 0.01, betas=(0.9, 0.95), decay=0.0)
    update(learn, module(torch.randn(64, 8)).square().sum(), 0.01)
    inner, bias, outer, _ = (x.detach() - y for x, y in zip(module.parameters(), before, strict=True))
    sizes = torch.linalg.svdvals(inner)
    assert sizes.max() < 3 * sizes.min()  # five rounds of Newton-Schulz come that near
    assert inner.square().mean().sqrt() == pytest.approx(0.2 * 0.01, rel=0.3)
    for adam in (bias, outer):
        assert_close(adam.abs(), torch.full_like(adam, 0.01), rtol=0.01, atol=0)


def test_a_run_needs_one_end(tmp_path):
    for ends in ({}, {"minutes": 1.0, "steps": 5}):
        with pytest.raises(ValueError, match="needs either minutes or steps, got minutes="):
            Run(tmp_path, "flow", **ends)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    run, part = Run(tmp_path, "flow", steps=6), torch.nn.Linear(2, 2)
    assert not run.resume(part=part)
    laps = run.laps()
    progress = [next(laps) for _ in range(4)]
    run._spent = 100.0
    run.save(part=part)
    assert progress == [0, 1 / 6, 2 / 6, 3 / 6]
    later, other = Run(tmp_path, "flow", steps=6), torch.nn.Linear(2, 2)
    assert later.resume(part=other) and later.step == 4 and 100 <= later.seconds < 110
    assert torch.equal(other.weight, part.weight)
    assert list(later.laps())[-1] == 5 / 6 and list(later.laps()) == []


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    run = Run(tmp_path, "flow", steps=6)
    run.save(a=1)
    before = run.checkpoint.read_bytes()

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError):
        run.save(a=2)
    assert run.checkpoint.read_bytes() == before


# ---- all of it


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three episodes of made-up pictures that drift, with facts as a collected episode has them."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for number, frames in enumerate((30, 24, 40)):
        world = sorted(STOCK)[number]
        writer = EpisodeWriter(root / str(number), {"world": world, "frames": frames})
        picture = random.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        for i in range(frames):
            held = random.choice(KEYS, 2, replace=False)
            facts = step(world, 10.0 * i, 5.0, 3.0 * i, held)
            writer.add(np.roll(picture, 4 * i, 1), np.array(facts.pop("keys")), **facts)
        writer.close()
    return root


def config(data, out, **changes):
    return {**OmegaConf.to_container(OmegaConf.load(CONFIG)), "data": str(data), "out": str(out)} | changes


def lines(out: Path, stage: str) -> list[dict]:
    """What a stage has logged."""
    every = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in every if line["stage"] == stage]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    train(**config(data, out))
    return out


@pytest.mark.parametrize("name, passes", [("base", ["4"]), ("weights", ["1", "2", "3"])])
@pytest.mark.parametrize("memory", CACHES)
def test_what_was_trained_can_be_played(trained, name, passes, memory):
    """With every memory, in as many passes a frame as the manifest offers."""
    weights = load_weights(trained / name)
    assert list(weights.manifest["levels"]) == passes and weights.manifest["recipe"]["seed"] == 0
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, HEIGHT, WIDTH, 3), np.uint8)
    networks = weights.autoencoder, weights.denoiser, weights.vocabulary
    for count, levels in weights.manifest["levels"].items():
        assert len(levels) == int(count)
        game = World(*networks, CACHES[memory], levels=levels)
        game.reset(pixels, np.zeros((1, 3, 9), np.uint8), "a room with a red floor")
        for _ in range(3):
            frame = game.step(np.ones(9))
            assert frame.isfinite().all()
        assert game.decode(frame).shape == (1, HEIGHT, WIDTH, 3)


def test_every_stage_tells_what_it_does(trained):
    for stage in ("autoencoder", "flow", "adversarial", "decoder"):
        told = lines(trained, stage)
        assert told and all(np.isfinite(list(line.values())[2:]).all() for line in told)
    assert not list(trained.glob("*.new"))


def test_latents_are_normalised_for_the_denoiser(trained, data):
    """The library that training drew from has tokens of mean 0 and variance 1, as flow matching expects."""
    weights = load_weights(trained / "weights")
    books = Library.encode(list(episodes(data)), weights.autoencoder, weights.vocabulary, torch.device("cpu"))
    assert len(books) == 94 and books.latents.shape == (94, 70, 16)
    assert books.latents.float().mean((0, 1)).abs().max() < 0.1
    assert (books.latents.float().std((0, 1)) - 1).abs().max() < 0.1


def test_training_that_is_done_is_not_done_again(trained, data):
    before, log = load_weights(trained / "weights").hash, (trained / "log.jsonl").read_text()
    train(**config(data, trained))
    assert (trained / "log.jsonl").read_text() == log
    assert load_weights(trained / "weights").hash == before


def test_training_goes_on_from_weights(trained, data, tmp_path):
    """From a weights folder, with its autoencoder as it is."""
    train(**config(data, tmp_path, start_from=str(trained / "weights"), stages=["flow"]))
    assert not lines(tmp_path, "autoencoder")
    old, new = load_weights(trained / "weights"), load_weights(tmp_path / "base")
    for name, x in old.autoencoder.state_dict().items():
        assert torch.equal(new.autoencoder.state_dict()[name], x)
    assert old.hash != new.hash


def test_another_decoder_leaves_what_is_known_of_the_network(trained, data, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(trained / "weights", old)
    load_weights(old).suit("tempcache", {"threshold": [0.7, 0.8]})
    train(**config(data, tmp_path, start_from=str(old), stages=["decoder"]))
    before, after = load_weights(old), load_weights(tmp_path / "weights")
    assert after.manifest["suits"] == {"tempcache": {"threshold": [0.7, 0.8]}}
    assert after.manifest["levels"] == before.manifest["levels"] and after.hash != before.hash


def test_a_network_may_go_on_with_parts_that_add_nothing_at_first(data, tmp_path):
    """But not as a network of another shape."""
    plain = config(data, tmp_path / "plain", stages=["autoencoder", "flow"])
    plain["denoiser"] = {k: x for k, x in plain["denoiser"].items() if k not in ("focus", "refine")}
    train(**plain)
    start = str(tmp_path / "plain" / "base")
    train(**config(data, tmp_path / "more", start_from=start, stages=["flow"]))
    old, new = (load_weights(tmp_path / name / "base").denoiser for name in ("plain", "more"))
    assert old.refiner is None and new.refiner is not None and new.blocks[0].focus is not None
    other = config(data, tmp_path / "other", start_from=start, stages=["flow"])
    other["denoiser"] |= {"depth": 3}
    with pytest.raises(ValueError, match="base holds another network: it lacks .*blocks.2.qkv.weight"):
        train(**other)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_a_run_that_was_stopped_goes_on(data, trained, tmp_path, monkeypatch, orthogonal):
    """Stopped in the fifth step after a checkpoint in the fourth: only what came after it is done again."""
    settings = config(data, tmp_path, start_from=str(trained / "weights"), stages=["flow"])
    settings["flow"] |= {"log_every": 1, "orthogonal": orthogonal}
    degrade, calls = flow.degrade, iter(range(100))

    def stop(*arguments):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return degrade(*arguments)

    monkeypatch.setattr(flow, "degrade", stop)
    with pytest.raises(KeyboardInterrupt):
        train(**settings)
    assert [line["step"] for line in lines(tmp_path, "flow")] == [0, 1, 2, 3]
    assert not (tmp_path / "base").exists()
    train(**settings)
    steps = [line["step"] for line in lines(tmp_path, "flow")]
    assert steps[4] >= 3 and steps[-1] == 5
    load_weights(tmp_path / "base")


def test_training_without_episodes_says_how_to_get_some(tmp_path):
    with pytest.raises(FileNotFoundError, match="No episodes in .*`python run.py collect out="):
        train(**config(tmp_path, tmp_path / "out"))


def test_stages_nobody_knows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="No such stage: polish. There are autoencoder, odometer, flow, "):
        train(**config(tmp_path, tmp_path / "out", stages=["polish"]))

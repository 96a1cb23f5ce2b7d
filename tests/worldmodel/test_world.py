"""Play is what training trains, a frame at a time; and a game depends on its past alone."""

import io

import numpy as np
import pytest
import tiny
import torch
from tiny import MEMORIES, clip, denoiser, noise, world
from torch.testing import assert_close

from worldmodel.actions import action
from worldmodel.autoencoder import to_frames
from worldmodel.diffusion import noised
from worldmodel.training.twostream import TwoStream
from worldmodel.vocabulary import pad
from worldmodel.world import REREAD, Frame, World

CLOSE = dict(rtol=0, atol=1e-4)
each_memory = pytest.mark.parametrize("memory", MEMORIES)
PROMPT = "a red room"


@torch.no_grad()
def in_training(network, latents, keys, dreamt, levels, *, start=0, told=None):
    """Velocities [b, noisy, n, c] of noisy frames, in one pass over the whole clip."""
    b, f = keys.shape[:2]
    streams = TwoStream(tiny.TOKENS, f, dreamt.shape[1], torch.device("cpu"))
    words = pad([tiny.VOCABULARY.indices(PROMPT)] * b)
    times = torch.arange(start, start + f).expand(b, -1)
    clean = torch.zeros(b, f)
    return streams(
        network,
        (latents, clean if told is None else told),
        (dreamt, levels),
        keys,
        times,
        network.read_prompt(words),
        network.control(keys),
    )


# ---- training is play


@pytest.mark.parametrize("start", [0, -7, 5000])
def test_one_step_play_is_what_training_trains(start):
    """Every noisy frame of a clip sees in one pass what it sees in play after its own history.

    Training counts time from the end of a clip, play from the start of the game: only differences matter.
    """
    network = denoiser()
    latents, keys = clip(8)
    (x,) = noise(1, seed=3)
    dreamt = x[:, None].expand(-1, 5, -1, -1)
    velocity = in_training(network, latents, keys, dreamt, torch.ones(2, 5), start=start)
    game = world("dense", network)
    for i, frame in enumerate(range(3, 8)):
        game.reset_latents(latents[:, :frame], keys[:, :frame], PROMPT, seed=3)
        assert_close(game.step(keys[:, frame]), x - velocity[:, i], **CLOSE)
    assert velocity.std() > 0.1


def test_two_step_play_is_what_training_trains():
    """The second pass dreams from a level between, with fresh noise, after the same history."""
    network = denoiser()
    latents, keys = clip(6)
    first, second = noise(2, seed=3)
    velocity = in_training(network, latents, keys, first[:, None], torch.ones(2, 1))
    level = torch.full((2, 1), 0.6)
    x = noised(first[:, None] - velocity, level, second[:, None])
    expected = x - 0.6 * in_training(network, latents, keys, x, level)
    game = world("dense", network, levels=(1.0, 0.6))
    game.reset_latents(latents[:, :5], keys[:, :5], PROMPT, seed=3)
    assert_close(game.step(keys[:, 5]), expected[:, 0], **CLOSE)


def test_a_rollout_is_what_training_trains():
    """What has been dreamt is history like any other."""
    network = denoiser()
    latents, keys = clip(3)
    game = world("dense", network)
    game.reset_latents(latents, keys, PROMPT, seed=3)
    held = clip(5, seed=9)[1]
    seen = latents
    for i, x in enumerate(noise(5, seed=3)):
        told = torch.cat([keys, held[:, : i + 1]], 1)
        clean = torch.cat([seen, torch.zeros_like(x)[:, None]], 1)  # a frame never sees its own clean version
        expected = x - in_training(network, clean, told, x[:, None], torch.ones(2, 1))[:, 0]
        dreamt = game.step(held[:, i])
        assert_close(dreamt, expected, **CLOSE)
        seen = torch.cat([seen, dreamt[:, None]], 1)


@pytest.mark.parametrize("memory", ["dense", "window_sink"])
def test_riding_along_is_a_pass_of_its_own(memory):
    """Committing the last frame in the first pass of the next one costs nothing and changes nothing."""
    latents, keys = clip(9)
    riding, walking = world(memory), world(memory)
    for game in (riding, walking):
        game.reset_latents(latents[:, :6], keys[:, :6], PROMPT, seed=3)
    for i, x in enumerate(noise(3, seed=3), start=6):
        expected = riding.step(keys[:, i])
        last, now = walking._frames[-1], keys[:, i : i + 1].numpy()
        held = torch.from_numpy(last.keys)
        walking._run(last.latent, held, last.place, walking._tell([0.0], last.keys, i - 1))
        for layer in range(2):
            walking.memory.commit(layer)
        told = walking._tell([1.0], now, i)
        found = x[:, None] - walking._run(x[:, None], keys[:, i : i + 1], last.place, told)
        assert_close(found[:, 0], expected, **CLOSE)
        walking._frames[-1] = last._replace(latent=found, keys=now)


@pytest.mark.parametrize("memory", [name for name in MEMORIES if name != "flowcache"])
def test_a_long_opening_is_remembered_frame_by_frame(memory):
    """Frames that begin a game are remembered as if the game had come upon them one at a time.

    FlowCache goes by queries, and the last layer asks for a frame of an opening but not for one that rides
    along.
    """
    latents, keys = clip(12)
    at_once, one_by_one = world(memory), world(memory)
    at_once.reset_latents(latents, keys, PROMPT, seed=3)
    one_by_one.reset_latents(latents[:, :2], keys[:, :2], PROMPT, seed=3)
    for i in range(1, 11):
        two, places = slice(i, i + 2), torch.zeros(2, 2, 6)
        told = one_by_one._tell([0.0, 0.0], keys[:, two].numpy(), i)
        one_by_one._run(latents[:, two], keys[:, two], places, told)
    one_by_one._frames.append(Frame(latents[:, -1:], keys[:, -1:].numpy(), places[:, -1:]))
    one_by_one.frame_index = 12
    for held in clip(3, seed=9)[1].unbind(1):
        assert_close(at_once.step(held), one_by_one.step(held), **CLOSE)


# ---- a game from words


def test_a_game_begins_from_its_words_alone():
    """What training calls a clip without a history: noise at level 1."""
    network = denoiser()
    game = world("dense", network)
    game.begin([PROMPT, PROMPT], seed=3)
    held = torch.ones(2, 9)
    dreamt = game.step(held)
    before = torch.randn(2, 2, tiny.TOKENS, tiny.CHANNELS, generator=torch.Generator().manual_seed(3))
    (x,) = noise(1, seed=3)
    keys = torch.cat([torch.zeros(2, 2, 9), held[:, None]], 1)
    clip = torch.cat([before, torch.zeros_like(x)[:, None]], 1)
    velocity = in_training(network, clip, keys, x[:, None], torch.ones(2, 1), told=torch.ones(2, 3))
    assert_close(dreamt, x - velocity[:, 0], **CLOSE)
    second = game.step(held)
    clip = torch.cat([before, dreamt[:, None], torch.zeros_like(x)[:, None]], 1)
    told = torch.tensor([[1.0, 1.0, 0.0, 0.0]] * 2)
    x = noise(2, seed=3)[1]
    keys = torch.cat([keys, held[:, None]], 1)
    velocity = in_training(network, clip, keys, x[:, None], torch.ones(2, 1), told=told)
    assert_close(second, x - velocity[:, 0], **CLOSE)


def test_a_game_saved_before_its_first_frame_goes_on():
    first, second = world(), world()
    first.begin([PROMPT], seed=3)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        assert torch.equal(first.step(np.ones(9)), second.step(np.ones(9)))


# ---- a game depends on its past


@each_memory
@pytest.mark.parametrize("options", [{}, {"levels": (1.0, 0.6)}, {"context_level": 0.1}])
def test_a_seed_is_a_game(memory, options):
    def dream(seed):
        game = world(memory, **options)
        latents, keys = clip(4)
        game.reset_latents(latents, keys, PROMPT, seed=seed)
        return torch.stack([game.step(held) for held in clip(8, seed=9)[1].unbind(1)])

    assert torch.equal(dream(1), dream(1))
    assert not torch.allclose(dream(1)[0], dream(2)[0])


@each_memory
def test_starting_over_is_a_fresh_start(memory):
    latents, keys = clip(4)
    used, fresh = world(memory), world(memory)
    used.reset_latents(*clip(6, seed=5), "dark", seed=8)
    for held in clip(8, seed=9)[1].unbind(1):
        used.step(held)
    for game in (used, fresh):
        game.reset_latents(latents, keys, PROMPT, seed=1)
    for held in clip(3, seed=9)[1].unbind(1):
        assert torch.equal(used.step(held), fresh.step(held))


@each_memory
def test_keys_of_the_future_do_not_matter(memory):
    latents, keys = clip(4)
    one, other = world(memory), world(memory)
    for game in (one, other):
        game.reset_latents(latents, keys, PROMPT, seed=1)
    held = clip(6, seed=9)[1]
    changed = held.clone()
    changed[:, 4:] = 1 - changed[:, 4:]
    for i in range(6):
        same = torch.equal(one.step(held[:, i]), other.step(changed[:, i]))
        assert same == (i < 4)


@each_memory
@pytest.mark.parametrize("options", [{}, {"levels": (1.0, 0.6)}, {"context_level": 0.1}])
def test_a_saved_game_goes_on_to_the_bit(memory, options):
    latents, keys = clip(4)
    held = clip(10, seed=9)[1]
    game, copy = world(memory, **options), world(memory, **options)
    game.reset_latents(latents, keys, ["red room", "dark"], seed=1)
    for i in range(5):
        game.step(held[:, i])
    file = io.BytesIO()
    torch.save(game.state_dict(), file)
    expected = [game.step(held[:, i]) for i in range(5, 10)]
    file.seek(0)
    copy.reset_latents(*clip(2, batch=2, seed=4), "stone", seed=7)
    copy.load_state_dict(torch.load(file))
    for i, frame in enumerate(expected, start=5):
        assert torch.equal(copy.step(held[:, i]), frame)
    assert copy.frame_index == game.frame_index == 14
    assert copy.prompts == ["red room", "dark"]


@each_memory
def test_two_games_of_a_batch_are_two_games(memory, monkeypatch):
    latents, keys = clip(4)
    held, draws = clip(10, seed=9)[1], noise(10, seed=3)
    frames = []
    for games in (slice(0, 2), slice(0, 1), slice(1, 2)):
        game = world(memory)
        game.reset_latents(latents[games], keys[games], ["red room", "dark"][games])
        given = iter(draws)
        monkeypatch.setattr(game, "_draw", lambda given=given, games=games: next(given)[games, None])
        frames.append(torch.stack([game.step(held[games, i]) for i in range(10)], 1))
    assert_close(frames[0], torch.cat(frames[1:]), rtol=0, atol=1e-3)


@each_memory
def test_a_step_remembers_one_frame(memory):
    game = world(memory)
    latents, keys = clip(4)
    game.reset_latents(latents, keys)
    assert game.frame_index == 4 and game.stats().seen == 3 * tiny.TOKENS  # the last one rides along later
    for i in range(1, 7):
        game.step(np.zeros(9))
        assert game.frame_index == 4 + i and game.stats().seen == (3 + i) * tiny.TOKENS
    assert game.stats().kept <= game.stats().seen and game.stats().bytes > 0


def test_another_memory_begins_empty():
    game = world("dense")
    latents, keys = clip(4)
    game.reset_latents(latents, keys)
    game.use(MEMORIES["window_sink"])
    assert game.stats().seen == 0
    game.reset_latents(latents, keys)
    game.step(np.zeros(9))


# ---- prompts


def test_saying_keeps_the_memory_and_changes_the_dream():
    latents, keys = clip(4)
    quiet, same, other = (world() for _ in range(3))
    for game in (quiet, same, other):
        game.reset_latents(latents, keys, "red room", seed=1)
        game.step(np.zeros(9))
    before = other.memory.state_dict()
    assert same.say("red room") == other.say("dark stone") == []
    after = other.memory.state_dict()
    assert other.stats() == quiet.stats()
    for a, b in zip(before["keys"], after["keys"], strict=True):
        assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    expected = quiet.step(np.zeros(9))
    assert torch.equal(same.step(np.zeros(9)), expected)
    assert not torch.allclose(other.step(np.zeros(9)), expected)


def test_unknown_words_are_told():
    game = world()
    game.reset_latents(*clip(2))
    assert game.say("a pink Room of jelly, jelly and stone") == ["pink", "jelly", "and"]
    assert game.say(["pink", "a dog"]) == ["pink", "dog"]
    assert game.prompts == ["pink", "a dog"]


def test_a_prompt_for_all_is_a_prompt_for_each():
    games = [world(), world()]
    for game, prompt in zip(games, ("red", ["red", "red"]), strict=True):
        game.reset_latents(*clip(2), prompt, seed=1)
    assert torch.equal(*(game.step(np.zeros(9)) for game in games))


# ---- pictures, keys and levels


def test_a_game_begins_with_pictures():
    """`reset` from pictures is `reset_latents` from what the autoencoder makes of them."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 48, 3), np.uint8)
    keys = np.zeros((2, 3, 9), np.uint8)
    keys[:, :, 0] = 1
    seen, told = world(), world()
    seen.reset(pixels, keys, PROMPT, seed=1)
    with torch.no_grad():
        latents = told.autoencoder.encode(to_frames(torch.from_numpy(pixels).flatten(0, 1)))
    told.reset_latents(latents.unflatten(0, (2, 3)), torch.from_numpy(keys), PROMPT, seed=1)
    frame = seen.step(action(["forward"]))
    assert_close(frame, told.step(action(["forward"])), rtol=0, atol=1e-5)
    picture = seen.decode(frame)
    assert picture.shape == (2, 32, 48, 3) and picture.dtype == np.uint8
    assert set(seen.timings) == {"dream", "decode"} and min(seen.timings.values()) > 0


def test_keys_for_all_are_keys_for_each():
    games = [world(), world()]
    for game in games:
        game.reset_latents(*clip(2), seed=1)
    held = action(["forward", "run"])
    assert torch.equal(games[0].step(held), games[1].step(np.stack([held, held])))


@each_memory
def test_half_precision_dreams_nearly_the_same(memory):
    frames = []
    for dtype in (torch.float32, torch.bfloat16):
        game = World(tiny.autoencoder().to(dtype), denoiser().to(dtype), tiny.VOCABULARY, MEMORIES[memory])
        game.reset_latents(*clip(4), PROMPT, seed=1)
        frames.append(torch.stack([game.step(action(["forward"])) for _ in range(6)]))
        assert game.decode(frames[-1][-1]).dtype == np.uint8
    assert frames[1].dtype == torch.float32
    assert 0 < (frames[0] - frames[1]).abs().mean() < 0.05


@pytest.mark.parametrize("levels", [(), (0.5, 1.0), (1.0, 0.0), (1.2,), (1.0, -0.1)])
def test_levels_that_do_not_fall_are_refused(levels):
    with pytest.raises(ValueError, match="must fall from at most 1 and stay above 0"):
        world(levels=levels)


@pytest.mark.parametrize("frames", [6, REREAD + 9])
def test_another_memory_reads_the_last_frames_again(frames):
    """From then on the game is one that began with them, with the noise it would have had."""
    latents, keys = clip(4)
    game = world("tempcache")
    game.reset_latents(latents, keys.numpy(), "a red room", seed=2)
    held = np.random.default_rng(0).integers(2, size=(frames + 5, 2, 9), dtype=np.uint8)
    dreamt = [game.step(x) for x in held[:frames]]
    noise = game.state_dict()["noise"]
    count = game.switch(MEMORIES["window_sink"])
    assert count == min(REREAD, 4 + frames)

    other = world("window_sink")
    played = torch.cat([latents, torch.stack(dreamt, 1)], 1)[:, -count:]
    pressed = np.concatenate([keys.numpy().astype(np.uint8), held[:frames].swapaxes(0, 1)], 1)[:, -count:]
    other.reset_latents(played, pressed, "a red room")
    other._noise.set_state(noise)
    for x in held[frames:]:
        assert torch.equal(game.step(x), other.step(x))

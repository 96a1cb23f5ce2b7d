"""The odometer knows the heading from the keys alone, and what is seen from where is told to attention."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import CHANNELS, DENOISER, GRID, MEMORIES, TOKENS, VOCABULARY, autoencoder, clip, shaken
from torch.testing import assert_close

from worldmodel.actions import KEYS, action
from worldmodel.denoiser import Denoiser
from worldmodel.episodes import Episode
from worldmodel.odometer import (
    COARSEST,
    FRICTION,
    KNOWN,
    Moment,
    Odometer,
    compass,
    odometry_loss,
    onward,
    phases,
    reckoned,
    seen_from,
    thrust,
    turned,
    turned_by,
)
from worldmodel.openings import load_opening
from worldmodel.training.flow import wander
from worldmodel.training.latents import Batch, Library, stood
from worldmodel.training.twostream import TwoStream
from worldmodel.vocabulary import pad
from worldmodel.world import World

CLOSE = dict(rtol=1e-4, atol=1e-4)
OPENINGS = sorted(path for path in (Path(__file__).parents[2] / "assets/openings").glob("*") if path.is_dir())
each_memory = pytest.mark.parametrize("memory", MEMORIES)


def placed(seed: int = 0) -> Denoiser:
    torch.manual_seed(seed)
    return shaken(Denoiser(**DENOISER | dict(rope=(4, 2, 2, 4, 2, 2))))  # pyright: ignore[reportArgumentType]


def game(memory: str = "dense", **options) -> World:
    return World(autoencoder(), placed(), VOCABULARY, MEMORIES[memory], **options)


def odometer() -> Odometer:
    torch.manual_seed(0)
    return shaken(Odometer(CHANNELS, GRID, len(KEYS), hidden=8))


# ---- where the player stands


@pytest.mark.parametrize("folder", OPENINGS, ids=lambda path: path.name)
def test_the_heading_is_the_engines(folder):
    """To the last of the frames of a real game, from all keys since it began."""
    angles = np.deg2rad([step["pose"][3] for step in Episode(folder).steps])
    keys = torch.from_numpy(load_opening(folder).prefix)
    place, headings = torch.zeros(1, KNOWN, dtype=torch.float64), []
    for held in keys:
        place = turned(place, held[None])
        headings.append(float(place[0, 2]))
    reckoned, true = (np.unwrap(x) for x in (headings[-len(angles) :], angles))
    assert np.abs((reckoned - reckoned[-1]) - (true - true[-1])).max() < 2e-4  # a hundredth of a degree


def test_a_turn_begins_slowly():
    place, headings = torch.zeros(1, KNOWN), [0.0]
    for _ in range(5):
        place = turned(place, torch.from_numpy(action(["turn_left", "run"]))[None])
        headings.append(float(place[0, 2].rad2deg()))
    expected = [3.5156, 3.5156, 8.7891, 14.0625, 14.0625]
    assert_close(torch.tensor(headings).diff(), torch.tensor(expected), **CLOSE)


def test_ahead_is_where_the_heading_points():
    ahead, right = compass(torch.tensor(torch.pi / 2))
    assert_close(ahead, torch.tensor([0.0, 1.0]), **CLOSE)
    assert_close(right, torch.tensor([1.0, 0.0]), **CLOSE)
    assert_close(
        seen_from(torch.tensor(torch.pi / 2), torch.tensor([3.0, 5.0])), torch.tensor([5.0, 3.0]), **CLOSE
    )


def test_a_step_is_told_by_another_heading():
    """Ahead, after a turn to the left, is to the left of what was ahead."""
    step, before = torch.tensor([2.0, 1.0]), torch.tensor(0.3)
    turn = torch.tensor(torch.pi / 2)
    assert_close(turned_by(step, turn), torch.tensor([1.0, -2.0]), **CLOSE)
    in_the_world = sum(x * way for x, way in zip(step, compass(before + turn), strict=True))
    assert_close(seen_from(before, in_the_world), turned_by(step, turn), **CLOSE)


def untaught() -> Odometer:
    return Odometer(CHANNELS, GRID, len(KEYS), hidden=8)


HELD = (["forward"], ["back", "run"], ["forward", "turn_left"], ["strafe_left", "turn_right"])


@torch.no_grad()
@pytest.mark.parametrize("held", HELD)
def test_untaught_it_knows_thrust_and_friction(held):
    """In the open the game's physics say where the player goes: from rest, a step is a geometric series."""
    keys = torch.from_numpy(action(held))[None, None].expand(1, 12, -1)
    places = reckoned(untaught(), torch.zeros(1, 12, TOKENS, CHANNELS), keys)
    velocity, at, heading = torch.zeros(2), torch.zeros(2), 0.0
    for i in range(1, 12):
        heading = float(places[0, i, 2])
        ahead, right = compass(torch.tensor(heading))
        push = thrust(keys[0, i])
        velocity = FRICTION * velocity + push[0] * ahead + push[1] * right
        at = at + velocity
        assert_close(places[0, i, :2], at.remainder(COARSEST), rtol=0, atol=1e-2)
        assert_close(places[0, i, 4:], velocity, **CLOSE)


@torch.no_grad()
def walked(frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and keys of someone in the open, as an untaught odometer has it."""
    _, keys = clip(frames)
    return reckoned(untaught(), torch.zeros(2, frames, TOKENS, CHANNELS), keys), keys


def test_who_walks_in_the_open_teaches_it_nothing():
    places, keys = walked(8)
    places[..., :2] = places[..., 4:].cumsum(1)  # not wrapped
    latents = torch.zeros(2, 8, TOKENS, CHANNELS)
    assert odometry_loss(untaught(), latents, keys, places[..., :3], doubt=0.0) < 1e-4
    places[:, 5:, 0] += 3
    assert odometry_loss(untaught(), latents, keys, places[..., :3], doubt=0.0) > 0.05


def test_the_loss_does_not_know_north():
    latents, keys = clip(6)
    places = torch.rand(2, 6, 3) * 20
    times = torch.arange(-5, 1).expand(2, 6)
    batch = Batch(latents, keys, times, torch.zeros(2, 1), places)
    around = wander(batch)
    assert_close(around[..., 2].diff(dim=1), places[..., 2].diff(dim=1), **CLOSE)
    assert_close(around[:, -1, :2].norm(dim=-1), places[:, -1, :2].norm(dim=-1), **CLOSE)
    turn = torch.tensor(0.7)
    cos, sin = turn.cos(), turn.sin()
    x, y, heading = places.unbind(-1)
    other = torch.stack([x * cos - y * sin, x * sin + y * cos, heading + turn], -1)
    losses = [odometry_loss(odometer(), latents, keys, p, doubt=0.0) for p in (places, other)]
    assert_close(*losses, **CLOSE)


def test_what_it_is_taught_to_say_is_where_the_player_went():
    """A teacher who knows both steps: walking as it says leads where the player stands and will stand."""
    latents, keys = clip(7)
    _, keys = walked(7)
    headings = reckoned(untaught(), latents, keys)[..., 2]
    true = torch.cat([30 * torch.rand(2, 7, 2), headings[..., None]], -1)

    class Knows(torch.nn.Module):
        at = 1

        def forward(self, frames, held, before, turn):
            here = true[:, self.at, 2]
            first = seen_from(here, true[:, self.at, :2] - true[:, self.at - 1, :2])
            second = seen_from(here, true[:, min(6, self.at + 1), :2] - true[:, self.at, :2])
            return torch.stack([first, second], 1)

    teller = Knows()
    places = [torch.cat([true[:, 0], torch.zeros(2, 3)], 1), torch.zeros(2, KNOWN)]
    places[1] = turned(places[0], keys[:, 1])
    for i in range(1, 6):
        teller.at = i
        moment = Moment(latents[:, i - 1 : i + 1], keys[:, i - 1 : i + 1], torch.stack(places[-2:], 1))
        seen, coming = onward(teller, moment, keys[:, i + 1])
        assert_close(seen[:, :2], true[:, i, :2].remainder(COARSEST), rtol=0, atol=1e-3)
        assert_close(coming[:, :2], true[:, i + 1, :2].remainder(COARSEST), rtol=0, atol=1e-3)
        places = [*places[:-1], seen, coming]


def test_places_come_round_together():
    """A rope cannot tell two places that are `COARSEST` apart, nor two headings a full turn apart."""
    rope, where = placed().rope, placed().positions
    q = torch.randn(TOKENS, 16, dtype=torch.float64)
    here = torch.tensor([[3.0, 4.0, 0.5]], dtype=torch.float64)
    there = here + torch.tensor([[COARSEST, 0.0, 2 * torch.pi]], dtype=torch.float64)
    a, b = (phases(x) for x in (here, there))
    turns = (b - a) / (2 * torch.pi)
    assert_close(turns, torch.tensor([[8.0, 9.0, 0.0]], dtype=torch.float64), **CLOSE)
    times = torch.zeros(1)
    assert_close(rope(q, where(times, here)), rope(q, where(times, here)), **CLOSE)
    assert not torch.allclose(rope(q, where(times, here)), rope(q, where(times, here + 20.0)))


def test_without_poses_nobody_knows():
    assert stood(None, 5).isnan().all() and stood(None, 5).shape == (5, 3)
    pose = np.array([[1.0, 2.0, 0.0, 180.0]], np.float32)
    assert_close(stood(pose, 1), torch.tensor([[1.0, 2.0, torch.pi]]), **CLOSE)


@torch.no_grad()
def test_play_without_poses_gets_its_places_by_dead_reckoning():
    """Those of the other episodes stay what the engine said."""
    latents, keys = clip(9)
    known = torch.rand(9, 3)
    captions = [[[("world", [2])]]] * 2
    books = Library(list(latents), list(keys), captions, [np.full(9, -1)] * 2, [known, stood(None, 9)])
    books.reckon(odometer())
    assert torch.equal(books.places[:9], known)
    places = reckoned(odometer(), latents[1:], keys[1:])[0]
    assert_close(books.places[9:, 2], places[:, 2], **CLOSE)
    assert_close(books.places[9:, :2].remainder(COARSEST), places[:, :2], rtol=0, atol=1e-2)


# ---- a world that knows where it is


def test_play_is_what_training_trains():
    """A dreamt frame sees its history from the same places as in a clip."""
    latents, keys = clip(7)
    world = game()
    network = world.denoiser
    world.reset_latents(latents[:, :6], keys[:, :6], "a red room", seed=3)
    dreamt = world.step(keys[:, 6])
    x = torch.randn(2, TOKENS, CHANNELS, generator=torch.Generator().manual_seed(3))
    words = pad([VOCABULARY.indices("a red room")] * 2)
    velocity = TwoStream(TOKENS, 7, 1, torch.device("cpu"))(
        network,
        (latents, torch.zeros(2, 7)),
        (x[:, None], torch.ones(2, 1)),
        keys,
        torch.arange(7).expand(2, -1),
        network.read_prompt(words),
        network.control(keys),
        places=world.places,
    )
    assert_close(dreamt, x - velocity[:, 0], **CLOSE)


def test_where_it_is_matters():
    """The same frames, dreamt on from other places, go another way."""
    latents, keys = clip(7)
    here, there = game(), game()
    for world in (here, there):
        world.reset_latents(latents[:, :6], keys[:, :6], "a red room", seed=3)
    moved = there._frames[-1].place + torch.tensor([40.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    there._frames[-1] = there._frames[-1]._replace(place=moved)
    assert not torch.allclose(here.step(keys[:, 6]), there.step(keys[:, 6]), atol=1e-3)


@each_memory
def test_games_of_a_batch_have_places_of_their_own(memory):
    latents, keys = clip(12)
    both = game(memory)
    both.reset_latents(latents[:, :6], keys[:, :6], "", seed=3)
    together = torch.stack([both.step(keys[:, i]) for i in range(6, 12)])
    assert not torch.allclose(both.places[0], both.places[1])
    alone = game(memory)
    alone.reset_latents(latents[:1, :6], keys[:1, :6], "", seed=3)
    alone._draw = lambda draw=both._draw: draw()[:1]  # the same noise as in the batch
    both._noise.manual_seed(3)
    assert_close(torch.stack([alone.step(keys[:1, i]) for i in range(6, 12)]), together[:, :1], **CLOSE)


@each_memory
def test_a_saved_game_knows_where_it_was(memory):
    latents, keys = clip(16)
    world, other = game(memory), game(memory)
    world.reset_latents(latents[:, :6], keys[:, :6], "", seed=3)
    for i in range(6, 10):
        world.step(keys[:, i])
    other.load_state_dict(world.state_dict())
    for i in range(10, 16):
        assert torch.equal(world.step(keys[:, i]), other.step(keys[:, i]))
    assert torch.equal(world.places, other.places)


def test_places_are_wanted_exactly_where_they_are_read():
    times = torch.arange(2)
    with pytest.raises(ValueError, match="Places"):
        placed().positions(times)
    with pytest.raises(ValueError, match="Places"):
        Denoiser(**DENOISER).positions(times, torch.zeros(2, 3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="3 or 6 widths"):
        Denoiser(**DENOISER | dict(rope=(8, 8)))  # pyright: ignore[reportArgumentType]

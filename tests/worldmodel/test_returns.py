"""Coming back: which returns are tried, and what a dream of them is held against."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rooms import AWAY, HOME, WORLD, path, play
from tiny import MEMORIES, denoiser, world
from torch.testing import assert_close

from worldmodel.doom.rays import sight
from worldmodel.evaluation.returns import LAST, clip_of, dreams, events, measure, moments

PAST, DREAMT, LONG = 230, 5, 60
BESIDE = (430.0, 150.0, 0.0, 180.0)  # far from home, but the west wall is in sight
NEEDS = dict(past=PAST, dreamt=DREAMT, away=LONG, hidden=0.5)


def found(pose: np.ndarray, **needs) -> list[int]:
    return moments(pose, sight(WORLD, pose, 3).wall, **(NEEDS | needs))


def test_a_return_after_a_long_absence_is_found_once():
    pose = path((HOME, 30), (AWAY, 210), (HOME, 40), (AWAY, 210), (HOME, 40))
    assert found(pose) == [240, 490]


@pytest.mark.parametrize(
    "pose",
    [
        path((HOME, 30), (AWAY, 140), (HOME, 5)),  # too soon
        path((AWAY, 240), (HOME, 5)),  # never seen
        path((HOME, 240)),  # never left
        path((HOME, 30), (AWAY, 180), (HOME, 1), (AWAY, 30), (HOME, 5)),  # a glimpse on the way
        path((HOME, 30), (AWAY, 180), (BESIDE, 30), (HOME, 5)),  # its walls are in sight on the way
        path((HOME, 2), (AWAY, 300), (HOME, 5)),  # longer ago than the past
    ],
)
def test_what_needs_no_memory_is_not_a_return(pose):
    assert found(pose) == []


def test_a_view_that_is_partly_in_sight_counts_as_far_as_asked():
    pose = path((HOME, 30), (AWAY, 180), (BESIDE, 30), (HOME, 5))
    assert found(pose, hidden=0.0) == [240]


def coming_home(folder):
    return play(folder, path((HOME, 30), (AWAY, 212), (HOME, 5)))


def test_events_take_one_of_every_episode_before_a_second(tmp_path):
    twice = path((HOME, 30), (AWAY, 210), (HOME, 40), (AWAY, 210), (HOME, 40))
    episodes = [play(tmp_path / "a", twice), coming_home(tmp_path / "b"), play(tmp_path / "c", twice)]
    chosen = events(episodes, 4, 3, **NEEDS)
    assert [(event.game, event.at) for event in chosen] == [(0, 240), (1, 242), (2, 240), (0, 490)]
    assert len(events(episodes, 99, 3, **NEEDS)) == 5


def clips(game, *folders):
    episodes = [coming_home(folder) for folder in folders]
    chosen = events(episodes, 9, 3, **NEEDS)
    return [clip_of(game, episodes[e.game], e, past=PAST, dreamt=DREAMT) for e in chosen]


def test_a_clip_is_the_past_and_the_dreamt_frames(tmp_path):
    (clip,) = clips(world(), tmp_path)
    assert len(clip.latents) == len(clip.keys) == PAST + DREAMT
    assert clip.real.shape == (LAST, 32, 48, 3)
    assert {pictures.shape for pictures, _ in clip.references.values()} == {clip.real.shape}


def test_recalling_the_pixels_is_perfect_where_the_frame_repeats(tmp_path):
    game = world()
    found = measure(game, {}, clips(game, tmp_path))
    rows = {row["memory"]: row for row in found if row["frames"] != "return"}
    assert rows["earlier view"]["ssim"] == 1
    assert rows["earlier view"]["psnr"] == pytest.approx(100)  # as high as it goes
    assert rows["earlier view"]["latent"] == pytest.approx(0, abs=1e-6)
    assert rows["autoencoder"]["latent"] == 0 and rows["autoencoder"]["psnr"] < 100
    assert rows["random view"]["latent"] > 0.01


class Averaging(torch.nn.Module):
    """Eyes that see the mean colour of every column."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(self, pictures):
        return SimpleNamespace(features=pictures.mean(2).mT)


def test_with_eyes_places_are_told_apart_too(tmp_path):
    game = world()
    found = measure(game, MEMORIES, clips(game, tmp_path), eyes=Averaging())
    rows = {row["memory"]: row for row in found if row["frames"] != "return"}
    assert rows["earlier view"]["features"] == 0 < rows["random view"]["features"]
    assert all("features" in row for row in rows.values())


def test_every_memory_dreams_from_the_same_noise(tmp_path):
    network = denoiser()
    for block in network.blocks:
        torch.nn.init.zeros_(block.out.weight)  # so that history is lost on it
    game = world(network=network)
    all_clips = clips(game, tmp_path / "a", tmp_path / "b", tmp_path / "c")
    differences = [row for row in measure(game, MEMORIES, all_clips, dreamt=DREAMT) if " - " in row["memory"]]
    assert len(differences) == 2 * (len(MEMORIES) - 1)
    assert all(
        row[x] == pytest.approx(0, abs=1e-3) for row in differences for x in ("psnr", "ssim", "latent")
    )


def test_a_dream_begins_after_the_real_past(tmp_path):
    game = world()
    (clip,) = clips(game, tmp_path)
    pictures, latents = dreams(game, [clip], dreamt=DREAMT)
    game.reset_latents(clip.latents[None, :PAST], clip.keys[None, :PAST])
    steps = [game.step(clip.keys[PAST + i]) for i in range(DREAMT)]
    assert_close(latents[0], torch.cat(steps[-LAST:]))
    assert (pictures[0, -1] == game.decode(steps[-1])[0]).all()


def test_too_few_dreamt_frames_cannot_be_scored(tmp_path):
    episode = coming_home(tmp_path)
    (event,) = events([episode], 1, 3, **NEEDS)
    with pytest.raises(ValueError, match=f"last {LAST} dreamt frames"):
        clip_of(world(), episode, event, past=PAST, dreamt=LAST - 1)


def test_no_returns_no_rows():
    assert list(measure(world(), MEMORIES, [])) == []

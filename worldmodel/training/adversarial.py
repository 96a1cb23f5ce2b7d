"""Stage 3: few steps without blur or drift, by adversarial post-training in the two-stream layout.

Flow matching at few steps gives the mean of what may come: it blurs, then flattens. Here the
student dreams a frame in one pass from level 1, .6 or .3, and a critic that starts from the same network
judges it beside the true frame, after the same history (relativistic loss; its gradient penalised by
finite differences). What stops drift is the history: in a third of the steps it is real, in a third many
of its frames are the student's dreams of them, and in a third it comes from a game that the student has
been dreaming on its own.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autoencoder import Autoencoder
from ..denoiser import Denoiser
from ..diffusion import clean_of, noised
from ..vocabulary import Vocabulary
from .critic import Critic
from .flow import draw, wander
from .latents import Batch, Library
from .loop import Average, Run, adamw, update
from .rollout import Alone, rollouts
from .twostream import TwoStream, compile_network

HISTORIES = ("real", "relived", "alone")
LEVELS = (1.0, 1.0, 0.6, 0.3)  # where the student dreams from; level 1 twice as often
SHOWN = 0.02  # the least level at which the critic is shown a frame
HEAD = ("adapt.", "out.", "refiner.")  # of a denoiser: what makes a velocity of what its blocks have found
NUDGE = 0.1  # the step of its gradient penalty
FORGIVEN = 16.0  # frames after which a dream on its own is held to the truth half as much


def train_adversarial(
    library: Library,
    autoencoder: Autoencoder,
    vocabulary: Vocabulary,
    network: Denoiser,
    folder: Path,
    *,
    batch: int = 16,
    recent: int = 24,
    far: int = 8,
    reach: int = 2000,
    returns: float = 0.4,
    histories: Sequence[str] = HISTORIES,
    games: int = 64,
    alone: int = 128,
    minutes: float | None = None,
    steps: int | None = None,
    lr: float = 6e-5,
    critic: Mapping[str, Any] = MappingProxyType({}),
    critic_alone: Mapping[str, Any] | None = None,
    warmup: int = 120,
    rise: int = 200,
    truth: float = 0.25,
    history_level: float = 0.15,
    overshoot: float = 1.0,
    overshoot_head: float | None = None,
    log_every: int = 50,
    save_every: int = 400,
) -> Denoiser:
    """Post-train the network; returns its averaged weights, `overshoot` times as far from where they began.

    Those of its head, which draws the detail, `overshoot_head` times, if that is another number.

    The critic alone learns for `warmup` steps, then the student's rate rises for `rise` steps: a critic that
    is fooled at once forgets what it knew. `critic` are the arguments of `Judge`; `critic_alone` those of one
    for games on their own, by default the same. Steps take turns at the `histories`. The student plays
    `games` games of `alone` frames at a time on its own.
    """
    device = library.latents.device
    run = Run(folder, "adversarial", minutes=minutes, steps=steps)
    start = copy.deepcopy(network)
    trusting = Judge(network, **critic)
    judges = {True: trusting, False: Judge(network, **critic_alone) if critic_alone else trusting}
    average = Average(network, 0.995)
    learn = adamw(network, lr, betas=(0.3, 0.95), decay=0.0)
    parts = dict(network=network, average=average, learn=learn)
    parts |= {f"judge {i}": judge for i, judge in enumerate(dict.fromkeys(judges.values()))}
    run.resume(**parts)
    if device.type == "cuda":
        compile_network(network, *{judge.critic.network for judge in judges.values()})
    streams = layouts(network, far + recent, recent, device)
    clips = draw(library, batch, recent=recent, far=far, reach=reach, returns=returns, seed=1 + run.step)
    own = rollouts(
        average.module, library, autoencoder, vocabulary, run.log,
        batch=batch, length=far + recent, games=games, alone=alone, seed=run.step,
    )  # fmt: skip

    for _ in run.laps():
        turn, kind = divmod(run.step, len(histories))
        history = histories[kind]
        scene = Scene(next(own if history == "alone" else clips), streams, history_level)
        if history == "relived":
            scene.relive(network, twice=turn % 2 == 1)
        level = scene.constant(torch.tensor(LEVELS)[torch.randint(4, (batch, 1))])
        judge = judges[scene.trusted]

        judge.critic.learning(True)
        with torch.no_grad():
            dreamt = scene.dream(network, level)
        shifted = (x + NUDGE * torch.randn_like(x) for x in (scene.truth, dreamt))
        real, fake, *nudged = scene.judge(judge, scene.truth, dreamt, *shifted)
        steep = sum((x - y).square().mean() for x, y in zip((real, fake), nudged, strict=True))
        gap = real - fake
        update(judge.learn, F.softplus(-gap).mean() + judge.penalty * steep, judge.lr)
        figures = dict(gap=gap.mean(), right=(gap > 0).float().mean(), steep=steep)

        if run.step >= warmup:
            judge.critic.learning(False)
            dreamt = scene.dream(network, level)
            real, fake = scene.judge(judge, scene.truth, dreamt)
            fooling, error = F.softplus(real - fake).mean(), scene.error(dreamt)
            norm = update(learn, fooling + truth * error, lr * min(1.0, (run.step - warmup + 1) / rise))
            average.update(network)
            figures |= dict(fooling=fooling, error=error, gradient=norm)
        if run.step % log_every < len(histories):  # one line for each kind of history
            run.log(history=HISTORIES.index(history), **figures)
        if run.step % save_every == save_every - 1:
            run.save(**parts)
    run.save(**parts)
    return beyond(start, average.module, overshoot, overshoot_head)


class Judge:
    """A critic that learns.

    lr       its rate
    penalty  weight of its gradient penalty
    shown    most noise in what it is shown; at least a little
    critic   the arguments of `Critic`
    """

    def __init__(
        self,
        network: Denoiser,
        *,
        lr: float = 1e-4,
        penalty: float = 10.0,
        shown: float = SHOWN,
        **critic: Any,
    ) -> None:
        self.critic = Critic(network, **critic).to(network.out.weight.device)
        self.lr, self.penalty, self.shown = lr, penalty, shown
        self.learn = adamw(self.critic, lr, betas=(0.3, 0.95), decay=0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"critic": self.critic.state_dict(), "learn": self.learn.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self.learn.load_state_dict(state["learn"])


def beyond(start: Denoiser, end: Denoiser, times: float, head: float | None = None) -> Denoiser:
    """The network `times` as far along the way from one to the other; what an average blurs comes back.

    Its head `head` times as far: sharper pictures of the same things.
    """
    there, begun, ended = copy.deepcopy(end), *(dict(x.named_parameters()) for x in (start, end))
    with torch.no_grad():
        for name, x in there.named_parameters():
            far = head if head is not None and name.startswith(HEAD) else times
            x.copy_(torch.lerp(begun[name], ended[name], far))
    return there


Layouts = Callable[[bool, int], TwoStream]


def layouts(network: Denoiser, length: int, noisy: int, device: torch.device) -> Layouts:
    """How clips of `length` frames lie, with their history or without, with so many candidates."""

    @cache
    def layout(history: bool, candidates: int) -> TwoStream:
        tokens = network.grid[0] * network.grid[1]
        return TwoStream(tokens, length if history else 0, noisy, device, candidates)

    return layout


class Scene:
    """One batch of clips, and what the student and the critic make of it.

    Both read the same history, what the student has lived, so that it tells the critic nothing about which
    frame is real. In a game on its own the dream has left the truth, where the true frame would not
    follow: there the critic judges each frame by itself.
    """

    def __init__(self, clip: Batch | Alone, streams: Layouts, history_level: float) -> None:
        self.clip, self.streams = clip.clip if isinstance(clip, Alone) else clip, streams
        latents, self.noisy = self.clip.latents, streams(True, 1).noisy
        self.places = self.clip.places if isinstance(clip, Alone) else wander(clip)
        (b, f), device = latents.shape[:2], latents.device
        self.truth = latents[:, -self.noisy :]
        self.told = (history_level * torch.rand(b, 1, device=device)).expand(b, f)
        self.shown = torch.rand(b, 1, device=device)  # share of the most noise that a critic is shown
        self.noise = torch.randn_like(self.truth)  # of the frames to judge, the same for real and dreamt
        self.lived, self.trusted, self.trust = latents, True, torch.ones((), device=device)
        if isinstance(clip, Alone):
            self.lived, self.trusted = clip.dreamt, False
            self.trust = 0.5 ** (clip.age[:, -self.noisy :] / FORGIVEN)

    def constant(self, level: Tensor | float) -> Tensor:
        """One level a clip, [b, 1] or a number, for all dreamt frames."""
        b, f = self.truth.shape[:2]
        return torch.as_tensor(level, device=self.truth.device, dtype=torch.float32).expand(b, f).contiguous()

    @torch.no_grad()
    def relive(self, network: Denoiser, *, twice: bool) -> None:
        """From here on, dreams replace a share of the recent history, another in each clip."""
        share = torch.rand(len(self.truth), 1, 1, 1, device=self.truth.device)
        for _ in range(1 + twice):
            dreamt = self.dream(network, self.constant(1.0))
            swap = torch.rand(*dreamt.shape[:2], 1, 1, device=dreamt.device) < share
            recent = torch.where(swap, dreamt, self.truth)
            self.lived = torch.cat([self.clip.latents[:, : -self.noisy], recent], 1)

    def dream(self, network: Denoiser, level: Tensor) -> Tensor:
        """The student's clean frames in one pass, from what was lived at a level."""
        x = noised(self.lived[:, -self.noisy :], level, torch.randn_like(self.truth))
        return clean_of(x, level, self._run(network, self.streams(True, 1), x, level))

    def judge(self, judge: Judge, *candidates: Tensor) -> tuple[Tensor, ...]:
        """Verdicts [b, f, verdicts] on each of some candidates for the frames after what was lived."""
        count, critic = len(candidates), judge.critic
        level = self.constant(SHOWN + (judge.shown - SHOWN) * self.shown)
        frames = torch.cat([noised(x, level, self.noise) for x in candidates], 1)
        seen: list[Tensor] = []
        streams = self.streams(self.trusted, count)
        self._run(critic.network, streams, frames, level.repeat(1, count), seen)
        with self._mixed():
            return critic(seen, frames.shape[1]).chunk(count, 1)

    def error(self, dreamt: Tensor) -> Tensor:
        """Mean square error to what truly happened, as far as it can be known."""
        return (self.trust * (dreamt - self.truth).square().mean((2, 3))).mean()

    def _run(
        self,
        network: Denoiser,
        streams: TwoStream,
        frames: Tensor,
        level: Tensor,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """What the network says of frames at a level, after what was lived, as far as it is laid out."""
        clip, lived, told = self.clip, self.lived[:, : streams.history], self.told[:, : streams.history]
        history = noised(lived, told, torch.randn_like(lived)), told
        with self._mixed():
            prompt, controls = network.read_prompt(clip.words), network.control(clip.keys)
            when = clip.keys, clip.times
            return streams(network, history, (frames, level), *when, prompt, controls, seen, self.places)

    def _mixed(self) -> torch.autocast:
        return torch.autocast(self.truth.device.type, torch.bfloat16, enabled=self.truth.is_cuda)

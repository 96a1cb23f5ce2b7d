"""LongVie 2 as a game: `reset` to a picture, then `step` with keys for as long as you like.

It dreams three latent frames at a time, a chunk: the keys held when one begins hold for all of it, what they
would show becomes its signals (`drive.py`), and its twelve pictures are handed out one by one. The first
latent frame is the opening picture itself, so the first chunk has eight. From outside it is one game of a
`World` (`../world.py`).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastar import Cross, Stats, Step

from ..denoiser import WHOLE_PROMPT
from .drive import Drive
from .forcing import MakeMemory
from .longvie import STILL, LongVie
from .vae import SPACE, TIME, StreamingDecoder, StreamingEncoder, to_video

CLIP = 21  # latent frames of a clip of the published model: as far as it says what one begins with
MASK = 4  # channels that say of which frames the picture is known
REREAD = 4  # chunks that another memory is begun with


class Chunk(NamedTuple):
    """What another memory is told of a chunk: its latents, its signals, what a clip begins with."""

    latents: Tensor
    dense: Tensor
    sparse: Tensor
    still: Tensor


class AnyWords:
    """The vocabulary of a world to which anything may be said."""

    words: Sequence[str] = ()


class LongVieGame:
    """One game. Where a `World` has an axis of games, it is of length 1 here.

    vae         `AutoencoderKLWan` of diffusers
    read_text   prompts to T5's features [l, width] each
    read_image  a picture [h, w, 3] to CLIP's features [1, 257, 1280]
    begin_drive the drive of a game that begins
    size        pixels of a picture, height and width
    """

    vocabulary = AnyWords()
    passes: Step | None = None  # that are skipped: none are

    def __init__(
        self,
        longvie: LongVie,
        vae: Any,
        read_text: Callable[[Sequence[str]], list[Tensor]],
        read_image: Callable[[np.ndarray], Tensor],
        begin_drive: Callable[[], Drive],
        size: tuple[int, int],
    ) -> None:
        self.longvie, self.vae, self.size = longvie, vae, size
        self.read_text, self.read_image, self.begin_drive = read_text, read_image, begin_drive
        self.device = longvie.device
        self.timings: dict[str, float] = {}
        self.frame_index, self._seed = 0, 0
        self._image: Tensor | None = None  # features of the opening picture, once there is one
        self._texts: dict[str, Tensor] = {}
        self._drive = begin_drive()
        self._encoders = StreamingEncoder(vae), StreamingEncoder(vae)  # of depth, of tracks
        self._decoder = StreamingDecoder(vae)
        self._coming: deque[Tensor] = deque()  # pictures dreamt and not yet handed out, uint8 [h, w, 3]
        self._lately: deque[Chunk] = deque(maxlen=REREAD)

    @torch.no_grad()
    def reset(
        self, frames: np.ndarray, keys: np.ndarray, prompt: str | Sequence[str] = "", seed: int = 0
    ) -> None:
        """Begin with the last of frames uint8 [1, f, h, w, 3]; what keys [1, f, 9] led to it means nothing.

        Raises ValueError for pictures of another size.
        """
        picture = frames[0, -1]
        if picture.shape[:2] != self.size:
            raise ValueError(f"Expected pictures of {self.size} pixels, got {picture.shape[:2]}.")
        self.prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        self._image, self._seed = self.read_image(picture), seed
        self._begin()
        self._drive = self.begin_drive()
        for side in (*self._encoders, self._decoder):
            side.reset()
        first = self._drive.look()
        self._stills = self._told(np.stack([picture, *first]))
        self._first: tuple[np.ndarray, np.ndarray] | None = first
        self._coming.clear()
        self._lately.clear()
        self.frame_index = 0

    @torch.no_grad()
    def step(self, keys: np.ndarray) -> Tensor:
        """The next picture, uint8 [1, h, w, 3]. Keys [9] count where a chunk begins."""
        if not self._coming:
            self._dream(np.asarray(keys, np.uint8))
        self.frame_index += 1
        return self._coming.popleft()[None]

    def decode(self, pictures: Tensor) -> np.ndarray:
        """They are decoded already: what is seen of one chunk is needed for the next."""
        return pictures.numpy()

    @torch.no_grad()
    def say(self, prompt: str | Sequence[str]) -> list[str]:
        """Another prompt from the next chunk on. Returns the words that it does not know: none."""
        self.prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        self.longvie.say(self._features())
        return []

    def stats(self) -> Stats:
        """Tokens kept and seen by a layer of the transformer; bytes of its layers and of the branches'."""
        main, *others = (memory.stats() for memory in self.longvie.memories)
        return Stats(main.kept, main.seen, main.bytes + sum(other.bytes for other in others))

    # How it remembers.

    @property
    def cross(self) -> Cross:
        return self.longvie.cross

    @cross.setter
    def cross(self, cross: Cross) -> None:
        self.longvie.cross = cross

    def use(self, memory: MakeMemory, cross: Cross = WHOLE_PROMPT) -> None:
        """Forget everything and remember with another kind of memory from here on."""
        self.longvie = self.longvie.beside(memory, cross)
        if self._image is not None:
            self._begin()

    def forget(self) -> None:
        """Let go of all that is remembered."""
        for memory in self.longvie.memories:
            memory.reset()

    @torch.no_grad()
    def switch(self, memory: MakeMemory, cross: Cross = WHOLE_PROMPT, passes: Step | None = None) -> int:
        """Remember in another way from here on: the last chunks are read again. Returns pictures of them."""
        before = self.longvie
        self.longvie = before.beside(memory, cross)
        self._begin()
        self.longvie.go_on_from(before, self._lately)
        read = self.longvie.chunk * len(self._lately)
        from_the_opening = read == self.longvie.finished
        return TIME * read - (TIME - 1 if from_the_opening else 0)

    def beside(
        self, memory: MakeMemory, cross: Cross = WHOLE_PROMPT, passes: Step | None = None
    ) -> "LongVieGame":
        """Another game over the same networks that remembers in this way; it has yet to begin."""
        told = self.vae, self.read_text, self.read_image, self.begin_drive, self.size
        return LongVieGame(self.longvie.beside(memory, cross), *told)

    # Back and forth in time.

    def state_dict(self) -> dict[str, Any]:
        """Everything the next picture depends on besides the networks; the chunk under way is part of it."""
        return {
            "longvie": self.longvie.state_dict(),
            "drive": self._drive.state_dict(),
            "encoders": [encoder.state_dict() for encoder in self._encoders],
            "decoder": self._decoder.state_dict(),
            "first": None if self._first is None else [torch.from_numpy(x) for x in self._first],
            "coming": list(self._coming),
            "lately": [list(chunk) for chunk in self._lately],
            "stills": self._stills,
            "image": self._image,
            "prompts": list(self.prompts),
            "frame_index": self.frame_index,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved moment, to the bit on the same machine."""
        self.prompts, self._image, self._stills = list(state["prompts"]), state["image"], state["stills"]
        self._begin()
        self.longvie.load_state_dict(state["longvie"])
        self.longvie.say(self._features())
        self._drive.load_state_dict(state["drive"])
        for encoder, known in zip(self._encoders, state["encoders"], strict=True):
            encoder.load_state_dict(known)
        self._decoder.load_state_dict(state["decoder"])
        first = state["first"]
        self._first = None if first is None else (first[0].cpu().numpy(), first[1].cpu().numpy())
        self._coming = deque(picture.cpu() for picture in state["coming"])
        self._lately = deque((Chunk(*chunk) for chunk in state["lately"]), maxlen=REREAD)
        self.frame_index = state["frame_index"]

    # How a chunk is dreamt.

    def _dream(self, keys: np.ndarray) -> None:
        """The next chunk. Where that fails, for want of room say, it is as if it had not been tried."""
        sides = self._drive, *self._encoders, self._decoder
        before, finished = [side.state_dict() for side in sides], self.longvie.finished
        try:
            pictures, chunk, timings = self._dreamt(keys)
        except BaseException:
            for side, known in zip(sides, before, strict=True):
                side.load_state_dict(known)
            self.longvie.finished = finished
            raise
        if self._first is not None:
            pictures = pictures[1:]  # of which the first is the opening, that is on screen already
        self._first = None
        self._coming.extend(pictures)
        self._lately.append(chunk)
        self.timings = {stage: took / len(pictures) for stage, took in timings.items()}

    def _dreamt(self, keys: np.ndarray) -> tuple[Tensor, Chunk, dict[str, float]]:
        """Pictures of the next chunk uint8 [n, h, w, 3], what it was, and the seconds of each stage."""
        timings: dict[str, float] = {}
        with self._clock(timings, "signals"):
            seen = self._drawn(keys)
        with self._clock(timings, "encode"):
            start = self.longvie.finished
            frames = [min(start + i, CLIP - 1) for i in range(self.longvie.chunk)]
            still, *begun = self._stills[:, frames].split(1)
            dense, sparse = (
                torch.cat([encoder(to_video(np.stack(pictures)[None])), told], 2)
                for encoder, pictures, told in zip(
                    self._encoders, zip(*seen, strict=True), begun, strict=True
                )
            )
        with self._clock(timings, "dream"):
            latents = self.longvie.steer(dense, sparse, still)
        with self._clock(timings, "decode"):
            pictures = torch.from_numpy(self._decoder(latents)[0])
        return pictures, Chunk(latents, dense, sparse, still), timings

    def _drawn(self, keys: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Depth and tracks of each picture of the next chunk; of the first one, the opening's too."""
        seen, opening = ([], TIME) if self._first is None else ([self._first], 1)
        for _ in range(opening + TIME * (self.longvie.chunk - 1) - len(seen)):
            self._drive.go(keys)
            seen.append(self._drive.look())
        return seen

    def _begin(self) -> None:
        """A video of this game, of which nothing is remembered yet."""
        assert self._image is not None, "reset comes first"
        size = self.size[0] // SPACE, self.size[1] // SPACE
        image = self._image.to(self.longvie.device, self.longvie.dtype)
        self.longvie.begin(self._features(), size, self._seed, image)

    def _features(self) -> list[Tensor]:
        (prompt,) = self.prompts
        if prompt not in self._texts:
            self._texts = {prompt: self.read_text([prompt])[0]}
        return [self._texts[prompt]]

    def _told(self, pictures: np.ndarray) -> Tensor:
        """What is said of videos that begin with these pictures [n, h, w, 3]: [n, frames, 20, h / 8, w / 8].

        A mask that is 1 where the picture is known, and the latents of it and of nothing after it.
        """
        encoder = StreamingEncoder(self.vae)
        known = to_video(pictures[:, None])
        nothing = known.new_zeros(len(known), TIME, *known.shape[2:])
        latents = torch.cat([encoder(known), *(encoder(nothing) for _ in range(1, CLIP))], 1)
        mask = latents.new_zeros(*latents.shape[:2], MASK, *latents.shape[3:])
        mask[:, 0] = 1
        assert latents.shape[2] == STILL - MASK
        return torch.cat([mask, latents], 2)

    @contextmanager
    def _clock(self, clock: dict[str, float], stage: str):
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # an unsynchronised GPU time is a launch time
        clock[stage] = time.perf_counter() - start

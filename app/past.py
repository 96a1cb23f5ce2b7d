"""What has been played, kept so that any frame of it can be gone back to.

Every frame keeps its picture and its keys. The whole state of the world, some 100 MB, is kept only at some
moments; a frame between two of them is reached by dreaming it again from the moment before, with the keys
and prompts it had. A world does the same again to the bit, so what is reached is what it was.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .frame import Frame, World


class Moment(NamedTuple):
    """The state of a world at a frame, and about how many bytes it is."""

    index: int
    state: Any
    bytes: int


class Past:
    """The frames of one dream, back to the oldest moment that is still kept.

    every      frames between two moments: at most one fewer are dreamt again to reach a frame
    megabytes  that all moments may take together, wherever the world keeps its memory
    """

    def __init__(self, every: int = 32, megabytes: float = 0) -> None:
        self.every, self.megabytes = every, megabytes
        self.frames: list[Frame] = []  # of consecutive indices, from the oldest moment on
        self.moments: list[Moment] = []

    @property
    def bytes(self) -> int:
        return sum(moment.bytes for moment in self.moments)

    def begin(self, world: "World", frame: "Frame") -> None:
        """A dream begins, or goes on from elsewhere: there is no way back beyond this frame."""
        self.frames, self.moments = [frame], []
        self.keep(world)

    def forget(self) -> None:
        self.frames, self.moments = [], []

    def see(self, world: "World", frame: "Frame") -> None:
        """To be called after each frame."""
        self.frames.append(frame)
        if not self.moments or frame.index - self.moments[-1].index >= self.every:
            self.keep(world)

    def keep(self, world: "World") -> None:
        """Keep the world as it is now, at the newest frame; the oldest moments make room."""
        index, size = self.frames[-1].index, world.stats().bytes
        if self.moments and self.moments[-1].index == index:
            self.moments.pop()
        while self.moments and self.bytes + size > 1e6 * self.megabytes:
            self.moments.pop(0)
        if size <= 1e6 * self.megabytes:
            self.moments.append(Moment(index, world.moment(), size))
        first = self.moments[0].index if self.moments else index
        self.frames = [frame for frame in self.frames if frame.index >= first]

    def go_back(self, world: "World", frame: "Frame") -> None:
        """Make the world what it was at one of the frames; what came after is forgotten."""
        while self.moments[-1].index > frame.index:
            self.moments.pop()
        self.frames = self.frames[: frame.index - self.frames[0].index + 1]
        start, state, _ = self.moments[-1]
        world.restore(state)
        for again in self.frames[start - self.frames[0].index + 1 :]:
            if again.prompt != world.prompt:
                world.say(again.prompt)
            world.step(again.keys)

"""A live comparison: one memory is played, others dream its keys again, each at its own pace.

The keys and the prompt of every frame go into a log, by frame. After each frame of the leader every other
pane dreams on through the log until its clock has caught up with the leader's: so all compute for the same
time, and a slower memory falls behind in frames. The real game does not race: it goes along, frame by frame.
"""

from collections.abc import Callable, Sequence

import numpy as np

from worldmodel.openings import Opening

from .frame import World
from .pane import Contender, Costs, Pane, difference


class Race:
    """The panes of one game; the first leads. One thread dreams, others may look."""

    def __init__(self, world: Contender, others: Sequence[Contender], together: bool = False) -> None:
        """With `together` the others have every frame when the leader has it, whatever it takes."""
        self.panes = [Pane(world), *(Pane(other) for other in others)]
        self._together = together

    def begin(self, opening: Opening, seed: int) -> np.ndarray:
        """The same opening for all; returns its last picture."""
        for pane in self.panes:
            pane.begin(opening, seed)
        self._log: list[tuple[np.ndarray, str]] = []
        self._ahead: dict[int, np.ndarray] = {}  # the leader's pictures that others have yet to reach
        self.differences = [np.zeros_like(pane.picture) for pane in self.panes[1:]]
        return self.panes[0].picture

    def lead(self, keys: np.ndarray) -> np.ndarray:
        """The leader's next frame."""
        leader = self.panes[0]
        picture = leader.dream(keys)
        self._log.append((keys, leader.world.prompt))
        self._ahead[leader.costs.index] = picture
        if self._together:
            self._catch_up(lambda other: True)
        return picture

    def follow(self, enough: Callable[[], bool] = lambda: False) -> None:
        """The others' turn, unless it is enough already."""
        leader = self.panes[0].costs
        self._catch_up(lambda other: other.clock < leader.clock and not enough())

    def _catch_up(self, may: Callable[[Costs], bool]) -> None:
        """The others dream the leader's frames, each for as long as it may."""
        leader = self.panes[0]
        for i, pane in enumerate(self.panes[1:]):
            while pane.costs.index < leader.costs.index and may(pane.costs):
                picture = pane.dream(*self._log[pane.costs.index])
                self.differences[i] = difference(picture, self._ahead[pane.costs.index])
        reached = min(pane.costs.index for pane in self.panes)
        for index in [index for index in self._ahead if index <= reached]:
            del self._ahead[index]

    def pictures(self, differences: bool) -> list[np.ndarray]:
        """What each pane shows: its newest picture, or how far that is from the leader's same frame."""
        others = self.differences if differences else [pane.picture for pane in self.panes[1:]]
        return [self.panes[0].picture, *others]


def rivals_of(world: World) -> list[str]:
    """Whom to race: dense, which all are measured against, or if that is what is played the next there is."""
    others = [name for name in world.memories if name != world.memory]
    return ["dense"] if "dense" in others else others[:1]

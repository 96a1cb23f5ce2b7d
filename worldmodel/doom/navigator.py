"""A player that explores and comes back, pressing keys as a person would.

It reads the map once, picks a goal (four times in ten a place it has been to), walks there by turning
and going forward, and on the way looks around, sidesteps, shoots and gets stuck. What a memory is
good for is seen only in such play: pressing keys at random hardly ever returns to a place.

Counts are in frames, 17.5 a second.
"""

import numpy as np

from ..actions import action
from ..episodes import WIDTH
from .engine import Observation
from .floorplan import Floorplan, Point
from .players import bearing, distance

MONSTERS = set(
    "Zombieman ShotgunGuy ChaingunGuy DoomImp Demon Spectre Cacodemon HellKnight BaronOfHell LostSoul "
    "PainElemental Arachnotron Fatso Revenant MarineChainsawVzd MarinePistol MarineShotgun".split()
)
RETURN, EXPLORE = 0.40, 0.45  # of goals; the rest is random
YOUNGEST, OLDEST = 175, 1600  # frames: how long ago a place to return to was left (10 to 90 s)
RUNNING = 0.35  # of paths
NOISE = 0.03  # chance per frame of doing something for no reason
FIGHT = 0.04  # chance per frame of minding a monster in view
NOISES = (  # chance, keys of which one group is drawn, shortest and longest hold
    (0.38, ("turn_left", "turn_right"), 4, 20),
    (0.16, ("strafe_left", "strafe_right"), 3, 12),
    (0.13, ("forward+strafe_left", "forward+strafe_right"), 3, 10),
    (0.10, ("",), 3, 17),
    (0.10, ("fire",), 2, 8),
    (0.08, ("back",), 4, 15),
    (0.05, ("use",), 2, 2),
)
LOOKAHEAD = (24, 16, 11, 7, 4, 2)  # waypoints
BLOCK = 64  # map units: the patches whose visits are counted
TURN = 7.0  # degrees a frame of a held turn key


class Navigator:
    """`Navigator(plan, rng).act(seen)`, once per frame."""

    def __init__(self, plan: Floorplan, rng: np.random.Generator) -> None:
        self.plan, self.rng = plan, rng
        self.history: list[Point] = []
        self.visits: dict[tuple[int, int], int] = {}
        self.path: list[Point] = []
        self.macro: list[np.ndarray] = []  # keys to hold, last first
        self.run = self.turning = self.pushing = False
        self.stuck = self.times_stuck = 0

    def act(self, seen: Observation) -> np.ndarray:
        self._notice(seen)
        if not self.macro:
            self._fidget(seen)
        if not self.macro and self.stuck > 5:
            self._free()
        if not self.macro and not self.path:
            self._plan(seen)
        keys = self.macro.pop() if self.macro else self._drive(seen)
        self.pushing = bool(keys[0])
        return keys

    # ---- what happened

    def _notice(self, seen: Observation) -> None:
        here = seen.pose[:2]
        moved = distance(here, self.history[-1]) if self.history else 0.0
        if moved > 120:  # a teleport
            self.path = []
        self.stuck = self.stuck + 1 if self.pushing and moved < 3 else max(0, self.stuck - 1)
        self.history.append(here)
        block = (int(here[0] // BLOCK), int(here[1] // BLOCK))
        self.visits[block] = self.visits.get(block, 0) + 1

    # ---- things done on the way

    def _fidget(self, seen: Observation) -> None:
        if self.rng.random() < NOISE:
            chances = [noise[0] for noise in NOISES]
            _, groups, low, high = NOISES[self.rng.choice(len(NOISES), p=chances)]
            self._hold(str(self.rng.choice(groups)), int(self.rng.integers(low, high + 1)))
        elif self.rng.random() < FIGHT:
            self._fight(seen)

    def _fight(self, seen: Observation) -> None:
        """Turn to the largest monster in view, then shoot."""
        monster = next((o for o in seen.objects if o[0] in MONSTERS and o[3] > 3), None)
        if monster is None:
            return
        off = monster[1] + monster[3] / 2 - WIDTH / 2  # pixels right of the centre
        self._hold("fire", int(self.rng.integers(2, 9)))
        degrees = np.degrees(np.arctan(abs(off) / (WIDTH / 2)))  # 90 degrees wide
        self._hold("turn_right" if off > 0 else "turn_left", int(degrees / TURN + 0.5))

    def _free(self) -> None:
        """Stuck: first try a door, then give this way up and step aside."""
        self.stuck, self.times_stuck = 0, self.times_stuck + 1
        if self.times_stuck % 2:
            self._hold("use+forward" if self.rng.random() < 0.5 else "use", 2)
            return
        if self.path:
            self.plan.block(self.path[0])
        self.path = []
        ways = ("back", "strafe_left+turn_left", "strafe_right+turn_right")
        self._hold(str(self.rng.choice(ways)), int(self.rng.integers(4, 10)))

    def _hold(self, names: str, count: int) -> None:
        self.macro += [action(name for name in names.split("+") if name)] * count

    # ---- where to

    def _plan(self, seen: Observation) -> None:
        for _ in range(4):
            self.path = self.plan.path(seen.pose[:2], self._goal(seen))[1:]
            if len(self.path) > 2:
                self.run = self.rng.random() < RUNNING
                return
        self.path = []
        self._hold("forward+" + ("turn_left" if self.rng.random() < 0.5 else "turn_right"), 5)

    def _goal(self, seen: Observation) -> Point:
        draw = self.rng.random()
        if draw < RETURN and len(self.history) > YOUNGEST + 25:
            ago = int(self.rng.integers(YOUNGEST, min(len(self.history), OLDEST)))
            return self.history[-ago]
        if draw < RETURN + EXPLORE:
            spots = self._spots(24)
            return min(spots, key=lambda spot: self._staleness(seen, spot))
        return min(self._spots(3), key=lambda spot: abs(bearing(seen.pose, spot)))

    def _spots(self, count: int) -> list[Point]:
        chosen = self.plan.centres[self.rng.integers(len(self.plan.centres), size=count)]
        return [(float(x), float(y)) for x, y in chosen]

    def _staleness(self, seen: Observation, spot: Point) -> float:
        """Low for places seldom visited, near, and in front."""
        visits = self.visits.get((int(spot[0] // BLOCK), int(spot[1] // BLOCK)), 0)
        away = 0.002 * distance(seen.pose, spot) * self.rng.random()
        return visits + away + 40 * abs(bearing(seen.pose, spot)) / 180

    # ---- the keys that lead there

    def _drive(self, seen: Observation) -> np.ndarray:
        self._trim(seen)
        if not self.path:
            return action()
        error = bearing(seen.pose, self._aim(seen))
        self.turning = abs(error) > (4 if self.turning else 11)
        names = {"turn_left" if error > 0 else "turn_right"} if self.turning else set()
        if abs(error) < 55:
            names |= {"forward", "run"} if self.run else {"forward"}
        return action(names)

    def _trim(self, seen: Observation) -> None:
        """Forget the waypoints that are behind."""
        away = [distance(seen.pose, point) for point in self.path[:30]]
        del self.path[: int(np.argmin(away)) if away else 0]
        while self.path and distance(seen.pose, self.path[0]) < 30:
            self.path.pop(0)

    def _aim(self, seen: Observation) -> Point:
        """The furthest of the next waypoints that can be walked to in a straight line."""
        here = seen.pose[:2]
        for ahead in LOOKAHEAD:
            if ahead < len(self.path) and self.plan.sees(here, self.path[ahead]):
                return self.path[ahead]
        return self.path[min(3, len(self.path) - 1)]

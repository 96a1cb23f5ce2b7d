"""Where a player can walk: a map's lines on a grid of 16 units, and paths over it that keep off walls."""

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np

STEP = 16.0  # map units per grid cell
REACH = 18.0  # a cell is blocked when a wall is nearer than this; a player's radius is 16
CLIMB, HEADROOM = 24, 56  # what a player can step up, and needs above the floor
NEAR_COST = 2.5  # of a step beside something blocked

Point = tuple[float, float]


class Floorplan:
    """The cells that can be reached from a starting point. A cell is an index into the flat grid."""

    def __init__(self, lines: np.ndarray, start: Point, obstacles: np.ndarray | None = None) -> None:
        """`lines` float [n, 4] are walls, `obstacles` float [n, 2] things to walk around."""
        points = _samples(lines)
        if obstacles is not None:
            points = np.concatenate([points, obstacles])
        self.origin = points.min(0) - 2 * STEP
        self.columns, self.rows = (int(n) for n in np.ceil((points.max(0) - self.origin) / STEP) + 2)
        blocked = _rasterise(points - self.origin, self.rows, self.columns)
        self.blocked = bytearray(blocked.tobytes())
        self.near = bytearray(_grown(blocked).tobytes())
        self.reach = self._flood(self.cell(start))
        self.centres = self._centres(self.reach)

    def cell(self, point: Point) -> int:
        """The free cell at a point, or the nearest in growing squares; -1 if there is none around."""
        column, row = (int(v) for v in (np.asarray(point[:2]) - self.origin) // STEP)
        for ring in range(9):
            for r in range(max(1, row - ring), min(self.rows - 1, row + ring + 1)):
                for c in range(max(1, column - ring), min(self.columns - 1, column + ring + 1)):
                    if max(abs(r - row), abs(c - column)) == ring and not self.blocked[r * self.columns + c]:
                        return r * self.columns + c
        return -1

    def block(self, point: Point) -> None:
        """Close the cell at a point: something stands there that no line tells of."""
        column, row = (int(v) for v in (np.asarray(point) - self.origin) // STEP)
        self.blocked[row * self.columns + column] = 1

    def sees(self, a: Point, b: Point) -> bool:
        """Whether the straight way from a to b is free, but for the first 26 units."""
        distance = float(np.hypot(b[0] - a[0], b[1] - a[1]))
        x0, y0 = self.origin
        at = 26.0
        while at < distance:
            x, y = a[0] + (b[0] - a[0]) * at / distance, a[1] + (b[1] - a[1]) * at / distance
            if self.blocked[int((y - y0) // STEP) * self.columns + int((x - x0) // STEP)]:
                return False
            at += 10
        return True

    def path(self, start: Point, goal: Point) -> list[Point]:
        """Cell centres from start to goal by A*, empty if there is no way."""
        first, last = self.cell(start), self.cell(goal)
        if first < 0 or last < 0:
            return []
        came = self._search(first, last)
        if last not in came:
            return []
        cells = [last]
        while cells[-1] != first:
            cells.append(came[cells[-1]])
        return [(float(x), float(y)) for x, y in self._centres(np.array(cells[::-1]))]

    def _search(self, first: int, last: int) -> dict[int, int]:
        """A* with the octile distance; a diagonal step needs both its sides free. Cell -> the one before."""
        width, blocked, near = self.columns, self.blocked, self.near
        last_row, last_column = divmod(last, width)
        came, cost, done = {first: first}, {first: 0.0}, set()
        queue = [(0.0, first)]
        while queue:
            _, here = heapq.heappop(queue)
            if here == last:
                break
            if here in done:
                continue
            done.add(here)
            so_far = cost[here]
            for step, length, side_a, side_b in self._moves():
                there = here + step
                if blocked[there] or blocked[here + side_a] or blocked[here + side_b]:
                    continue
                total = so_far + (length * NEAR_COST if near[there] else length)
                if total < cost.get(there, 1e30):
                    cost[there], came[there] = total, here
                    rows, columns = abs(there // width - last_row), abs(there % width - last_column)
                    ahead = rows + columns - 0.58 * min(rows, columns)
                    heapq.heappush(queue, (total + ahead, there))
        return came

    def _moves(self) -> tuple[tuple[int, float, int, int], ...]:
        """Offset, length and the two cells a step passes between (itself for a straight one)."""
        w = self.columns
        straight = tuple((step, 1.0, step, step) for step in (1, -1, w, -w))
        return straight + tuple((a + b, 1.42, a, b) for a in (1, -1) for b in (w, -w))

    def _flood(self, start: int) -> np.ndarray:
        seen, queue = {start}, [start]
        while queue and start >= 0:
            here = queue.pop()
            for there in (here + 1, here - 1, here + self.columns, here - self.columns):
                if not self.blocked[there] and there not in seen:
                    seen.add(there)
                    queue.append(there)
        return np.array(sorted(seen))

    def _centres(self, cells: np.ndarray) -> np.ndarray:
        return np.stack([cells % self.columns, cells // self.columns], 1) * STEP + STEP / 2 + self.origin


def hard_lines(sectors: Iterable[Any]) -> np.ndarray:
    """float [n, 4]: the lines of an engine's sectors that cannot be crossed. A closed door can be opened."""
    sides: dict[tuple, list[Any]] = {}
    flagged = set()
    for sector in sectors:
        for line in sector.lines:
            ends = tuple(sorted(((line.x1, line.y1), (line.x2, line.y2))))
            sides.setdefault(ends, []).append(sector)
            if line.is_blocking:
                flagged.add(ends)
    hard = [ends for ends, around in sides.items() if ends in flagged or not _passable(around)]
    return np.array([(*a, *b) for a, b in hard], float).reshape(-1, 4)


def _passable(around: list[Any]) -> bool:
    if len(around) < 2:
        return False
    floors, ceilings = [s.floor_height for s in around], [s.ceiling_height for s in around]
    door = any(c - f < 1 for f, c in zip(floors, ceilings, strict=True))
    return max(floors) - min(floors) <= CLIMB and (door or min(ceilings) - max(floors) >= HEADROOM)


def _samples(lines: np.ndarray) -> np.ndarray:
    """Points at most 8 units apart on every line, float [n, 2]."""
    points = []
    for x1, y1, x2, y2 in lines:
        count = max(2, int(np.hypot(x2 - x1, y2 - y1) / 8) + 2)
        points.append(np.stack([np.linspace(x1, x2, count), np.linspace(y1, y2, count)], 1))
    return np.concatenate(points)


def _rasterise(points: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """bool [rows, columns]: cells whose centre is within REACH of a point on both axes, and the border."""
    low = np.ceil((points - REACH) / STEP - 0.5).astype(int)
    high = np.floor((points + REACH) / STEP - 0.5).astype(int)
    blocked = np.zeros((rows, columns), bool)
    blocked[[0, -1]] = blocked[:, [0, -1]] = True
    for dx in range(3):
        for dy in range(3):
            at = low + (dx, dy)
            at = at[(at <= high).all(1)]
            blocked[at[:, 1].clip(0, rows - 1), at[:, 0].clip(0, columns - 1)] = True
    return blocked


def _grown(blocked: np.ndarray) -> np.ndarray:
    """The cells with something blocked in the 3x3 around them."""
    padded = np.pad(blocked, 1)
    rows, columns = blocked.shape
    shifts = [padded[r : r + rows, c : c + columns] for r in range(3) for c in range(3)]
    return np.logical_or.reduce(shifts)

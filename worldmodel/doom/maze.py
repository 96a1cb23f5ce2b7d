"""Random worlds: rooms of different materials joined by corridors with loops.

A seed decides everything, and the description that comes out is plain JSON: it is stored with every
episode, because captions and room numbers are read from it. `pwad` turns it into a map file that the
engine loads. Some seeds and some pairs of wall and floor are never trained on, so that a model can be
asked for a layout, or a combination, that it has not seen.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypedDict

import numpy as np

# Engine names and what the eye sees. Freedoom draws other things than Doom's names promise.
WALLS = {
    "BRICK7": "tan brick",
    "BIGBRIK1": "dark brown brick",
    "REDWALL": "dark red stone",
    "ROCKRED1": "glowing red rock",
    "CEMENT1": "rust stained white concrete",
    "COMPSTA1": "white panels topped with computer screens",
    "GRAY1": "plain light grey concrete",
    "MARBLE1": "mossy green marble",
    "GSTONE1": "green stone block",
    "METAL1": "dark grey round stone",
    "SILVER1": "brushed silver metal",
    "SKIN2": "pink flesh",
    "STARTAN2": "tan tech panel",
    "STONE2": "dark grey stone block",
    "STUCCO1": "plain brown stucco",
    "WOOD1": "brown wooden plank",
    "ZIMMER1": "mossy green rock",
    "LITEBLU4": "glossy bright blue tile",
    "COMPBLUE": "deep blue panel",
    "PIPE2": "brown pipe",
    "TANROCK2": "light brown rock",
    "ASHWALL2": "black ash rock",
}
FLOORS = {
    "NUKAGE1": "green slime",
    "LAVA1": "orange lava",
    "FWATER1": "dark blue water",
    "BLOOD1": "red blood",
    "GRASS1": "green grass",
    "FLOOR4_8": "grey cobblestones",
    "CEIL1_1": "brown tiles",
    "FLAT14": "plain bright blue",
    "FLOOR5_2": "sandy pebbles",
    "FLAT5_5": "tan dirt",
    "MFLR8_1": "grey slabs",
    "FLOOR0_1": "smooth pale tan stone",
    "FLAT8": "orange tiles",
    "DEM1_5": "mossy green tiles",
    "RROCK01": "glowing red rock",
    "FLAT1": "plain grey concrete",
    "RROCK09": "brown gravel",
    "CRATOP1": "grey metal",
    "FLAT22": "blue discs on white",
}
CEILINGS = {
    "CEIL5_1": "dark grey ceiling",
    "CEIL3_1": "brown ceiling",
    "TLITE6_1": "ceiling of orange lamps",
    "F_SKY1": "open sky",
    "GRNLITE1": "ceiling of small white lamps",
    "CEIL1_1": "ceiling of brown tiles",
    "FLAT1": "ceiling of grey concrete",
    "RROCK09": "ceiling of rough rock",
}
LOOKALIKES = (  # hard to tell apart at this size: never two of them in one world
    {"MARBLE1", "GSTONE1", "ZIMMER1"},
    {"REDWALL", "SKIN2"},
    {"FLAT1", "CRATOP1"},
    {"FLAT5_5", "RROCK09"},
)

# Things by their number in the map format. Decorations are solid: a player walks round them.
PLAYER_START = 1
DECORATIONS = (2028, 85, 86, 2035, 46, 45, 44, 48, 30, 32, 47, 43, 54, 35, 36, 70)
ITEMS = (2012, 2011, 2007, 2048, 2014, 2015, 2018, 2019, 2001, 2008, 2013)
MONSTERS = (3004, 9, 3001, 3002, 3005)

TRAINING_SEEDS = range(1_000_000)
HELD_OUT_SEEDS = range(1_000_000, 1_000_040)
HELD_OUT_PAIRS = (  # wall and floor: each material is trained on, these pairs never
    ("BRICK7", "NUKAGE1"),
    ("COMPBLUE", "LAVA1"),
    ("WOOD1", "FWATER1"),
    ("SILVER1", "GRASS1"),
    ("ROCKRED1", "FLAT14"),
    ("GRAY1", "BLOOD1"),
)

SIZE, CELL, SOLID = 18, 96, -1  # cells per side, map units per cell, the grid's mark for rock
ROOMS, ATTEMPTS, LOOPS = 9, 60, 3


class Sector(TypedDict):
    wall: str
    floor: str
    ceiling: str
    floor_height: int
    ceiling_height: int
    light: int


class World(TypedDict):
    """A map in plain JSON. `grid[row][column]` is a sector index or SOLID; rows grow with y."""

    seed: int
    palette: dict[str, list[str]]
    sectors: list[Sector]
    grid: list[list[int]]
    cell: int
    things: list[list[int]]  # x, y, type, angle
    monsters: bool


class Edge(NamedTuple):
    """A side of a cell, in cell corners; the front sector lies on the right of start -> end."""

    start: tuple[int, int]
    end: tuple[int, int]
    front: int
    back: int


class Room(NamedTuple):
    row: int
    column: int
    height: int
    width: int

    def cells(self) -> list[tuple[int, int]]:
        rows = range(self.row, self.row + self.height)
        return [(r, c) for r in rows for c in range(self.column, self.column + self.width)]

    def steps_to(self, other: "Room") -> int:
        return abs(self.row - other.row) + abs(self.column - other.column)


def maze(seed: int, monsters: bool = True) -> World:
    """The world of a seed. Without monsters it is the same world with them taken out."""
    rng = np.random.default_rng(seed)
    palette = _palette(rng, seed)
    grid = np.full((SIZE, SIZE), SOLID)
    rooms, sectors = _rooms(rng, grid, palette, seed)
    _corridors(rng, grid, rooms)
    things = _things(rng, grid, rooms)
    return {
        "seed": seed,
        "palette": palette,
        "sectors": sectors,
        "grid": grid.tolist(),
        "cell": CELL,
        "things": [thing for thing in things if monsters or thing[2] not in MONSTERS],
        "monsters": monsters,
    }


def recoloured(world: World, rng: np.random.Generator) -> World:
    """The same world in other materials: to play there is the same, to look at is not."""
    old, seed = world["palette"], world["seed"]
    while True:
        new = _palette(rng, seed)
        other: dict[str, dict[str, str]] = {
            kind: dict(zip(old[kind], new[kind], strict=True)) for kind in ("walls", "floors", "ceilings")
        }
        sectors: list[Sector] = [
            {
                **sector,
                "wall": other["walls"][sector["wall"]],
                "floor": other["floors"][sector["floor"]],
                "ceiling": other["ceilings"][sector["ceiling"]],
            }
            for sector in world["sectors"]
        ]
        if all(allowed(seed, sector["wall"], sector["floor"]) for sector in sectors):
            return {**world, "palette": new, "sectors": sectors}


def allowed(seed: int, wall: str, floor: str) -> bool:
    """Whether the world of this seed may put this wall and floor together."""
    return seed in HELD_OUT_SEEDS or (wall, floor) not in HELD_OUT_PAIRS


def room_at(world: World, x: float, y: float) -> int:
    """Sector index at a point in map units, SOLID outside."""
    row, column = int(y // world["cell"]), int(x // world["cell"])
    grid = world["grid"]
    return grid[row][column] if 0 <= row < len(grid) and 0 <= column < len(grid[0]) else SOLID


def solid_lines(world: World) -> np.ndarray:
    """float [n, 4]: x1, y1, x2, y2 of every wall, in map units."""
    lines = [(*edge.start, *edge.end) for edge in edges(world["grid"]) if edge.back == SOLID]
    return np.array(lines, float) * world["cell"]


def obstacles(world: World) -> np.ndarray:
    """float [n, 2]: where solid decorations stand."""
    return np.array([t[:2] for t in world["things"] if t[2] in DECORATIONS], float).reshape(-1, 2)


def edges(grid: list[list[int]]) -> Iterator[Edge]:
    """Every side of a cell that parts two different sectors. The grid's border is solid."""
    for r in range(1, len(grid)):
        for c in range(1, len(grid[0])):
            here, below, left = grid[r][c], grid[r - 1][c], grid[r][c - 1]
            if here != below:
                a, b = (c, r), (c + 1, r)
                yield Edge(a, b, below, here) if below != SOLID else Edge(b, a, here, below)
            if here != left:
                a, b = (c, r + 1), (c, r)
                yield Edge(a, b, left, here) if left != SOLID else Edge(b, a, here, left)


# ---- drawing a world


def _palette(rng: np.random.Generator, seed: int) -> dict[str, list[str]]:
    """Three walls, three floors and two ceilings that can be told apart at 160x112.

    The first of each is the corridor's. Every odd held-out seed is built around a held-out pair.
    """
    pair = HELD_OUT_PAIRS[seed // 2 % len(HELD_OUT_PAIRS)] if seed in HELD_OUT_SEEDS and seed % 2 else None
    while True:
        walls = _put_first(_distinct(rng, WALLS, 3), pair and pair[0])
        floors = _put_first(_distinct(rng, FLOORS, 3), pair and pair[1])
        if allowed(seed, walls[0], floors[0]) and _tellable(walls) and _tellable(floors):
            return {"walls": walls, "floors": floors, "ceilings": _distinct(rng, CEILINGS, 2)}


def _put_first(names: list[str], name: str | None) -> list[str]:
    """The list with `name` put in front, at the same length and without repeats."""
    return names if name is None else [name, *(n for n in names if n != name)][: len(names)]


def _distinct(rng: np.random.Generator, table: dict[str, str], count: int) -> list[str]:
    return [str(name) for name in rng.choice(list(table), count, replace=False)]


def _tellable(names: list[str]) -> bool:
    return all(len(group.intersection(names)) < 2 for group in LOOKALIKES)


def _rooms(
    rng: np.random.Generator, grid: np.ndarray, palette: dict[str, list[str]], seed: int
) -> tuple[list[Room], list[Sector]]:
    """Carve rooms that never touch. Sector 0 is the corridor's, sector i + 1 that of room i."""
    corridor: Sector = {
        "wall": palette["walls"][0],
        "floor": palette["floors"][0],
        "ceiling": palette["ceilings"][0],
        "floor_height": 0,
        "ceiling_height": 112,
        "light": int(rng.integers(144, 256)),
    }
    rooms, sectors = [], [corridor]
    for _ in range(ATTEMPTS):
        height, width = (int(n) for n in rng.integers(2, 6, 2))
        row, column = int(rng.integers(1, SIZE - height)), int(rng.integers(1, SIZE - width))
        if (grid[row - 1 : row + height + 1, column - 1 : column + width + 1] != SOLID).any():
            continue
        rooms.append(Room(row, column, height, width))
        sectors.append(_sector(rng, palette, seed))
        grid[row : row + height, column : column + width] = len(rooms)
        if min(height, width) >= 4 and rng.random() < 0.6:
            grid[row + height // 2, column + width // 2] = SOLID  # a pillar
        if len(rooms) == ROOMS:
            break
    return rooms, sectors


def _sector(rng: np.random.Generator, palette: dict[str, list[str]], seed: int) -> Sector:
    while True:
        wall, floor = str(rng.choice(palette["walls"])), str(rng.choice(palette["floors"]))
        if allowed(seed, wall, floor):
            break
    return {
        "wall": wall,
        "floor": floor,
        "ceiling": str(rng.choice(palette["ceilings"])),
        "floor_height": int(rng.choice([0, 0, 0, 16, -16])),  # a player climbs 24
        "ceiling_height": int(rng.choice([128, 128, 160, 192])),
        "light": int(rng.integers(144, 256)),
    }


def _corridors(rng: np.random.Generator, grid: np.ndarray, rooms: list[Room]) -> None:
    """A tree over all rooms, nearest first, then a few more links: loops to come back by."""
    linked, rest = rooms[:1], rooms[1:]
    while rest:
        near, new = min(((a, b) for a in linked for b in rest), key=lambda pair: pair[0].steps_to(pair[1]))
        _link(rng, grid, near, new)
        linked.append(new)
        rest.remove(new)
    for _ in range(LOOPS if len(rooms) > 1 else 0):
        first, second = rng.choice(len(rooms), 2, replace=False)
        _link(rng, grid, rooms[first], rooms[second])


def _link(rng: np.random.Generator, grid: np.ndarray, first: Room, second: Room) -> None:
    """Carve an L between a random cell of each room; only rock becomes corridor."""
    (r1, c1), (r2, c2) = (room.cells()[rng.integers(room.height * room.width)] for room in (first, second))
    turn_row, turn_column = (r1, c2) if rng.random() < 0.5 else (r2, c1)
    rows, columns = slice(min(r1, r2), max(r1, r2) + 1), slice(min(c1, c2), max(c1, c2) + 1)
    for line in (grid[turn_row, columns], grid[rows, turn_column]):
        line[line == SOLID] = 0


def _things(rng: np.random.Generator, grid: np.ndarray, rooms: list[Room]) -> list[list[int]]:
    """The player's start, then one to three things in each room from a few kinds per world."""
    row, column = (int(v) for v in rng.permutation(np.argwhere(grid != SOLID))[0])
    used = {(row, column)}
    things = [_thing(rng, (row, column), PLAYER_START, jitter=0)]
    decorations, items = rng.choice(DECORATIONS, 3, replace=False), rng.choice(ITEMS, 4, replace=False)
    monsters = rng.choice(MONSTERS, 2, replace=False)
    for room in rooms:
        for _ in range(rng.integers(1, 4)):
            row, column = room.cells()[rng.integers(room.height * room.width)]
            draw = rng.random()
            kinds = monsters if draw < 0.33 else decorations if draw < 0.7 else items
            if grid[row, column] == SOLID or (row, column) in used:
                continue
            used.add((row, column))
            things.append(_thing(rng, (row, column), int(rng.choice(kinds))))
    return things


def _thing(rng: np.random.Generator, cell: tuple[int, int], kind: int, jitter: int = 24) -> list[int]:
    dx, dy = (int(n) for n in rng.integers(-jitter, jitter + 1, 2))
    x, y = cell[1] * CELL + CELL // 2 + dx, cell[0] * CELL + CELL // 2 + dy
    return [x, y, kind, int(rng.integers(8)) * 45]


# ---- the map file


def pwad(world: World) -> bytes:
    """The world as a map file with one map, MAP01. The engine builds its nodes at load."""
    lumps = ((b"MAP01", b""), (b"TEXTMAP", udmf(world).encode()), (b"ENDMAP", b""))
    body, directory = b"", b""
    for name, data in lumps:
        directory += struct.pack("<ii8s", 12 + len(body), len(data), name)
        body += data
    return struct.pack("<4sii", b"PWAD", len(lumps), 12 + len(body)) + body + directory


def udmf(world: World) -> str:
    """The world in UDMF, the text format of maps; indices are positions in file order."""
    vertices: dict[tuple[int, int], int] = {}
    lines, sides = [], []
    for edge in edges(world["grid"]):
        v1, v2 = (vertices.setdefault(corner, len(vertices)) for corner in (edge.start, edge.end))
        one_sided = edge.back == SOLID
        line = {"v1": v1, "v2": v2, "sidefront": len(sides)}
        line |= {"blocking": True} if one_sided else {"sideback": len(sides) + 1, "twosided": True}
        lines.append(line)
        sides += [_side(world, s, one_sided) for s in (edge.front, edge.back) if s != SOLID]
    blocks = [("vertex", {"x": float(x * world["cell"]), "y": float(y * world["cell"])}) for x, y in vertices]
    blocks += [("linedef", line) for line in lines] + [("sidedef", side) for side in sides]
    blocks += [("sector", _sector_fields(sector)) for sector in world["sectors"]]
    blocks += [("thing", _thing_fields(thing)) for thing in world["things"]]
    return 'namespace="zdoom";\n' + "\n".join(_block(kind, fields) for kind, fields in blocks)


def _side(world: World, sector: int, one_sided: bool) -> dict:
    wall = world["sectors"][sector]["wall"]
    middle = wall if one_sided else "-"
    return {"sector": sector, "texturetop": wall, "texturebottom": wall, "texturemiddle": middle}


def _sector_fields(sector: Sector) -> dict:
    return {
        "heightfloor": sector["floor_height"],
        "heightceiling": sector["ceiling_height"],
        "texturefloor": sector["floor"],
        "textureceiling": sector["ceiling"],
        "lightlevel": sector["light"],
    }


def _thing_fields(thing: list[int]) -> dict:
    x, y, kind, angle = thing
    modes = [f"skill{n}" for n in range(1, 6)] + ["single", "dm", "coop"]
    return {"x": float(x), "y": float(y), "type": kind, "angle": angle} | dict.fromkeys(modes, True)


def _block(kind: str, fields: dict) -> str:
    def value(v: object) -> str:
        return f'"{v}"' if isinstance(v, str) else str(v).lower()

    return f"{kind}{{" + "".join(f"{name}={value(v)};" for name, v in fields.items()) + "}"

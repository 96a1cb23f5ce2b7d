"""Words for what is seen: captions made from an episode's facts when it is read, not when it is played.

A caption speaks about a chunk of frames, and is told apart into parts so that a model can be trained
on few of them in any order and then be steered by whatever a person types. Facts come from the middle
of the chunk, keys from all of it. Every word comes from the tables below; `VOCABULARY` is built from
the same tables, so neither can grow without the other.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import cos, radians, sin
from typing import Any, TypeVar

import numpy as np

from ..actions import KEYS
from ..episodes import WIDTH
from .engine import STOCK
from .maze import CEILINGS, FLOORS, SOLID, WALLS, World, room_at

Sentence = tuple[str, str]  # the part it is, its text
Told = TypeVar("Told")  # a text, or its words as a model reads them

THINGS = {  # the engine's name for what is drawn, and what it looks like in Freedoom
    "DoomImp": "brown imp",
    "Zombieman": "zombie soldier",
    "ShotgunGuy": "shotgun soldier in black armour",
    "Demon": "pink worm demon",
    "Cacodemon": "floating one eyed orb monster",
    "TechLamp": "tall lamp",
    "TechLamp2": "short lamp",
    "Column": "short column lamp",
    "RedTorch": "red torch",
    "GreenTorch": "green torch",
    "BlueTorch": "blue torch",
    "ExplosiveBarrel": "explosive barrel",
    "BurningBarrel": "burning barrel",
    "TechPillar": "machine pillar",
    "TallGreenColumn": "green column",
    "TallRedColumn": "red column",
    "Stalagtite": "small green tree",
    "TorchTree": "bare tree",
    "BigTree": "big bare tree",
    "Candelabra": "candelabra",
    "HeartColumn": "heart column",
    "Medikit": "medical kit",
    "Stimpack": "small stimpack",
    "Clip": "ammo clip",
    "ClipBox": "box of bullets",
    "Shell": "shotgun shells",
    "Shotgun": "shotgun on the floor",
    "HealthBonus": "health potion",
    "ArmorBonus": "armour helmet",
    "GreenArmor": "green armour vest",
    "BlueArmor": "blue armour vest",
    "Soulsphere": "blue soul sphere",
    "DoomImpBall": "fireball",
    "CacodemonBall": "plasma ball",
    "DeadZombieman": "dead soldier",
    "DeadZombieMan": "dead soldier",
    "DeadShotgunGuy": "dead soldier in black armour",
    "DeadDoomImp": "dead brown imp",
    "DeadDemon": "dead pink worm demon",
    "DeadCacodemon": "dead one eyed orb monster",
}
# Met in the maps that ship with the engine; their names are split into words.
PLAIN = """
    ChaingunGuy Spectre LostSoul Revenant BaronOfHell HellKnight Arachnotron Fatso PainElemental
    MarineChainsawVzd BaronBall RevenantTracer ArachnotronPlasma Rocket PlasmaBall ShellBox RocketAmmo
    RocketBox Cell CellPack SuperShotgun Chaingun Chainsaw RocketLauncher PlasmaRifle Berserk RadSuit
    Backpack Megasphere InvulnerabilitySphere BlurSphere Infrared Allmap RedCard BlueCard YellowCard
    RedSkull BlueSkull YellowSkull Candlestick ShortRedColumn ShortGreenColumn ShortRedTorch
    ShortGreenTorch ShortBlueTorch FloatingSkull HeadOnAStick HeadsOnAStick HeadCandles LiveStick
    DeadStick Meat2 NonsolidMeat4 Gibs ColonGibs DeadRealGibs SmallBloodPool GibbedMarine DeadMarine
    DeadChaingunGuy DeadRevenant DeadExplosiveBarrel TeleportFog EvilEye
""".split()
THINGS |= {name: " ".join(re.findall(r"[A-Z][a-z]*", name)).lower() for name in PLAIN}

SIDES = ("left", "right")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DISTANCES = ((112, "very close"), (288, "near"), (640, "some way off"), (np.inf, "far away"))
LIGHTS = ((110, "very dark"), (160, "dim"), (215, "evenly lit"), (np.inf, "brightly lit"))
BRIGHTNESS = ((25, "very dark"), (45, "dim"), (75, "evenly lit"), (np.inf, "brightly lit"))  # mean pixel
AGES = ((10, "a few seconds ago"), (30, "some time ago"), (np.inf, "long ago"))  # seconds
HEALTHS = ((25, "critical"), (60, "low"), (94, "good"), (np.inf, "full"))
AMMUNITION = ((0, "no"), (25, "little"), (np.inf, "plenty of"))
WEAPONS = {1: "bare fists", 2: "pistol", 3: "shotgun"}
OTHER_WEAPON = "big weapon"
FAMILIES = {
    "home": "a maze of small rooms where every room looks different",
    "arena": "a large arena with halls and side rooms",
    "base": "a space base of tech halls and passages",
    "city": "a big fortress of halls, stairs and yards",
}
LARGE, SMALL = 12, 7  # cells in a room
RAYS = ((32, "on the left {wall} {away}"), (-32, "on the right {wall} {away}"))
RAY_STEP, RAY_END, OPEN_FROM = 16, 1600, 700  # map units
FORGET = 5  # seconds away from a room after which it counts as visited before
MOVED = 40  # map units in a chunk that count as moving
AT_MOST = 3  # phrases about objects
FRAME_RATE = 17.5

TEMPLATES = {
    "world": "first person view inside a maze of {rooms} rooms joined by {wall} corridors "
    "with {floor} underfoot.",
    "world stock": "first person view inside {family}.",
    "inventory": "among the other rooms, {first}, and {second}.",
    "inventory one": "among the other rooms, {first}.",
    "inventory room": "one has {wall} walls over {floor}",
    "here": "the player is in a {place} that is {light}, with {wall} walls, a floor of {floor} and {above}.",
    "corridor": "corridor",
    "room": "room",
    "large": "large room",
    "small": "small room",
    "sky": "the open sky above",
    "ceiling": "a {ceiling}",
    "here stock": "the place is {light}.",
    "view": "{left}, {ahead}, {right}.",
    "ahead": "straight ahead {wall} {away}",
    "ahead open": "straight ahead a long opening leads past {wall} walls far away",
    "surface": "{wall} wall",
    "objects": "in view: {things}.",
    "object": "{thing} {side}, {away}",
    "middle": "in the middle",
    "side": "on the {side}",
    "group": "a group of {number}",
    "many": "many",
    "nothing": "no creature or item is in view.",
    "motion": "the player {moves}.",
    "status": "health is {health} and the {weapon} has {ammunition} ammunition.",
    "status fists": "health is {health} and the player has {weapon}.",
    "hurt": "the player was just hurt.",
    "healed": "the player was just healed.",
    "fired": "a shot was just fired.",
    "memory again": "this room was visited before, {age}, and looks the same.",
    "memory stay": "the player stays around this room.",
    "memory new": "this room is new.",
}
MOVES = {
    "run": "runs forward",
    "walk": "walks forward",
    "back": "steps backward",
    "slide": "slides along",
    "stay": "stays in place",
    "turn": "turns {side}",
    "turn hard": "turns {side} sharply",
    "sidestep": "sidesteps {side}",
    "fire": "fires",
    "use": "presses the use key",
    "and": "and",
}
ARTICLES = ("a", "an")


def words(text: str) -> list[str]:
    """The tokens of a text: lower case, letters and digits only."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _every_text() -> list[str]:
    tables = (THINGS, FAMILIES, WEAPONS, TEMPLATES, MOVES, WALLS, FLOORS, CEILINGS)
    ladders = (DISTANCES, LIGHTS, AGES, HEALTHS, AMMUNITION, BRIGHTNESS)
    texts = [str(text) for table in tables for text in table.values()]
    texts += [text for ladder in ladders for _, text in ladder]
    texts += [text for _, text in RAYS]
    return [*texts, *SIDES, *NUMBERS, OTHER_WEAPON, *ARTICLES]


VOCABULARY: list[str] = sorted({w for text in _every_text() for w in words(re.sub(r"\{\w+\}", " ", text))})


def caption(
    meta: dict[str, Any],
    steps: list[dict[str, Any]],
    start: int,
    stop: int,
    rng: np.random.Generator | None = None,
    drop: float = 0.5,
) -> str:
    """The chunk start..stop in words.

    Without `rng`, everything but the motion. With it, each sentence is dropped with chance `drop`, the
    motion with 0.7 lest keys be read from the text, and the rest is shuffled; never empty.
    """
    parts = sentences(meta, steps, start, stop)
    if rng is None:
        return " ".join(text for part, text in parts if part != "motion")
    return " ".join(choose(parts, rng, drop) or [text for part, text in parts if part == "here"])


def choose(parts: Sequence[tuple[str, Told]], rng: np.random.Generator, drop: float = 0.5) -> list[Told]:
    """Some of the parts in any order, each dropped with chance `drop`, the motion with 0.7; maybe none."""
    kept = [told for part, told in parts if rng.random() >= (0.7 if part == "motion" else drop)]
    return [kept[i] for i in rng.permutation(len(kept))]


def sentences(meta: dict[str, Any], steps: list[dict[str, Any]], start: int, stop: int) -> list[Sentence]:
    """Every part that can be told of the chunk start..stop, in reading order.

    Parts: world, inventory, here, view, objects, motion, status, event, memory. `start` must be a frame
    of the episode; a chunk that runs past the end is cut there. Of a dream only its prompt can be told.
    """
    chunk = steps[start:stop]
    now = chunk[len(chunk) // 2]
    if "prompt" in now:
        return [("world", now["prompt"])]
    world = meta["world"]
    told = _stock(world, now) if isinstance(world, str) else _place(world, now)
    told += [("objects", _objects(now["objects"])), ("motion", _motion(chunk)), ("status", _status(now))]
    told += _events(chunk)
    if not isinstance(world, str):
        told += _memory(steps[: start + len(chunk) // 2 + 1])
    return told


# ---- where


def _stock(name: str, now: dict[str, Any]) -> list[Sentence]:
    family = FAMILIES[STOCK[name].family]
    light = _rung(BRIGHTNESS, now.get("light", 60))
    return [
        ("world", TEMPLATES["world stock"].format(family=family)),
        ("here", TEMPLATES["here stock"].format(light=light)),
    ]


def _place(world: World, now: dict[str, Any]) -> list[Sentence]:
    corridor = world["sectors"][0]
    text = TEMPLATES["world"].format(
        rooms=NUMBERS[len(world["sectors"]) - 1],
        wall=WALLS[corridor["wall"]],
        floor=FLOORS[corridor["floor"]],
    )
    told, here = [("world", text)], now["room"]
    if text := _inventory(world, here):
        told.append(("inventory", text))
    if here != SOLID:
        told += [("here", _here(world, here)), ("view", _view(world, now["pose"]))]
    else:  # in a doorway the centre can lie outside by a hair
        told.append(("here", text))
    return told


def _inventory(world: World, here: int) -> str:
    """Two other rooms; which ones changes with the place, so that over time all are told of."""
    looks = [(sector["wall"], sector["floor"]) for sector in world["sectors"]]
    others = sorted(set(looks[1:]) - {looks[here]})
    chosen = np.random.default_rng([world["seed"], max(0, here)]).permutation(len(others))[:2]
    texts = [
        TEMPLATES["inventory room"].format(wall=WALLS[wall], floor=FLOORS[floor])
        for wall, floor in (others[i] for i in chosen)
    ]
    if len(texts) < 2:
        return TEMPLATES["inventory one"].format(first=texts[0]) if texts else ""
    return TEMPLATES["inventory"].format(first=texts[0], second=texts[1])


def _here(world: World, room: int) -> str:
    sector = world["sectors"][room]
    sky = sector["ceiling"] == "F_SKY1"
    return TEMPLATES["here"].format(
        place=TEMPLATES[_kind(world, room)],
        light=_rung(LIGHTS, sector["light"]),
        wall=WALLS[sector["wall"]],
        floor=FLOORS[sector["floor"]],
        above=TEMPLATES["sky"] if sky else TEMPLATES["ceiling"].format(ceiling=CEILINGS[sector["ceiling"]]),
    )


def _kind(world: World, room: int) -> str:
    if room == 0:
        return "corridor"
    cells = sum(row.count(room) for row in world["grid"])
    return "large" if cells > LARGE else "small" if cells < SMALL else "room"


def _view(world: World, pose: list[float]) -> str:
    left, right = (_surface(world, text, *_ray(world, pose, turn)) for turn, text in RAYS)
    room, away = _ray(world, pose, 0)
    if away > OPEN_FROM:
        ahead = TEMPLATES["ahead open"].format(wall=WALLS[world["sectors"][room]["wall"]])
    else:
        ahead = _surface(world, TEMPLATES["ahead"], room, away)
    return TEMPLATES["view"].format(left=left, ahead=ahead, right=right)


def _surface(world: World, text: str, room: int, away: float) -> str:
    wall = TEMPLATES["surface"].format(wall=WALLS[world["sectors"][room]["wall"]])
    return text.format(wall=_one(wall), away=_rung(DISTANCES, away))


def _ray(world: World, pose: list[float], turn: float) -> tuple[int, float]:
    """The last open sector in a direction and how far its wall is."""
    x, y, _, angle = pose
    dx, dy = cos(radians(angle + turn)), sin(radians(angle + turn))
    room, away = room_at(world, x, y), 0
    while away < RAY_END:
        ahead = room_at(world, x + dx * (away + RAY_STEP), y + dy * (away + RAY_STEP))
        if ahead == SOLID:
            break
        room, away = ahead, away + RAY_STEP
    return room, away


# ---- what


def _objects(objects: list[list]) -> str:
    """The largest things in view, equal ones together."""
    seen = Counter((THINGS[o[0]], _side(o), _rung(DISTANCES, o[5])) for o in objects if o[0] in THINGS)
    if not seen:
        return TEMPLATES["nothing"]
    phrases = [
        TEMPLATES["object"].format(thing=_count(thing, number), side=side, away=away)
        for (thing, side, away), number in list(seen.items())[:AT_MOST]
    ]
    return TEMPLATES["objects"].format(things="; ".join(phrases))


def _side(thing: list) -> str:
    centre = thing[1] + thing[3] / 2
    if centre < 0.35 * WIDTH:
        return TEMPLATES["side"].format(side=SIDES[0])
    return TEMPLATES["side"].format(side=SIDES[1]) if centre > 0.65 * WIDTH else TEMPLATES["middle"]


def _count(thing: str, number: int) -> str:
    if number == 1:
        return _one(thing)
    group = TEMPLATES["group"].format(number=NUMBERS[number] if number <= 4 else TEMPLATES["many"])
    return f"{group} {thing}"


def _one(thing: str) -> str:
    return f"{ARTICLES[1] if thing[0] in 'aeiou' else ARTICLES[0]} {thing}"


# ---- how


def _motion(chunk: list[dict[str, Any]]) -> str:
    shares = np.mean([step["keys"] for step in chunk], 0)
    mean: dict[str, float] = {key: float(share) for key, share in zip(KEYS, shares, strict=True)}
    moves = [_gait(mean, chunk)]
    side = SIDES[1] if mean["turn_right"] > mean["turn_left"] else SIDES[0]
    if (turn := mean[f"turn_{side}"]) > 0.3:
        moves.append(MOVES["turn hard" if turn > 0.8 else "turn"].format(side=side))
    moves += [MOVES["sidestep"].format(side=side) for side in SIDES if mean[f"strafe_{side}"] > 0.3]
    moves += [MOVES[key] for key in ("fire", "use") if mean[key] > 0.2]
    return TEMPLATES["motion"].format(moves=f" {MOVES['and']} ".join(moves))


def _gait(mean: dict[str, float], chunk: list[dict[str, Any]]) -> str:
    (x0, y0), (x1, y1) = chunk[0]["pose"][:2], chunk[-1]["pose"][:2]
    if mean["forward"] > 0.5:
        return MOVES["run" if mean["run"] > 0.5 else "walk"]
    if mean["back"] > 0.5:
        return MOVES["back"]
    return MOVES["slide" if np.hypot(x1 - x0, y1 - y0) > MOVED else "stay"]


def _status(now: dict[str, Any]) -> str:
    health, weapon = _rung(HEALTHS, now["health"]), WEAPONS.get(now["weapon"], OTHER_WEAPON)
    if now["weapon"] <= 1:
        return TEMPLATES["status fists"].format(health=health, weapon=WEAPONS[1])
    ammunition = _rung(AMMUNITION, now["ammo"])
    return TEMPLATES["status"].format(health=health, weapon=weapon, ammunition=ammunition)


def _events(chunk: list[dict[str, Any]]) -> list[Sentence]:
    first, last = chunk[0], chunk[-1]
    told = []
    if last["health"] != first["health"]:
        told.append(TEMPLATES["hurt" if last["health"] < first["health"] else "healed"])
    if last["weapon"] == first["weapon"] and last["ammo"] < first["ammo"]:
        told.append(TEMPLATES["fired"])
    return [("event", " ".join(told))] if told else []


def _memory(past: list[dict[str, Any]]) -> list[Sentence]:
    """Whether the room of the last frame has been left for a while and entered again."""
    room = past[-1]["room"]
    if room <= 0:
        return []
    inside = np.array([step["room"] for step in past]) == room
    visits = np.flatnonzero(np.diff(inside.astype(int), prepend=0) == 1)  # frames of entry
    if len(visits) == 1:
        return [("memory", TEMPLATES["memory new"])]
    left = np.flatnonzero(inside[: visits[-1]])[-1]
    seconds = (visits[-1] - left) / FRAME_RATE
    if seconds <= FORGET:
        return [("memory", TEMPLATES["memory stay"])]
    return [("memory", TEMPLATES["memory again"].format(age=_rung(AGES, seconds)))]


def _rung(ladder: tuple[tuple[float, str], ...], value: float) -> str:
    """The word of the first rung that reaches a value."""
    return next(word for top, word in ladder if value <= top)

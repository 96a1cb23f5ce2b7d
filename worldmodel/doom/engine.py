"""The real game behind ViZDoom: keys in, pictures and facts out, two tics a frame.

A frame is drawn at 320x240, averaged 2x2 and cropped, which leaves far walls cleaner than drawing it
small. An episode is decided by its world, the engine's seed and the keys, so it can be played again
to the pixel: `replay` puts the real engine beside a dream.
"""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..actions import action
from ..episodes import HEIGHT, WIDTH
from .maze import World, pwad

TICS = 2  # per frame; 35 a second
TOP = 4  # rows cut off above: 120 -> 112
SMALLEST = 10  # an object with fewer pixels than this is not reported
UNSEEN = {"DoomPlayer", "Blood", "BulletPuff"}  # the first is the player's own weapon

BUTTONS = (  # the engine's names, in the order of actions.KEYS
    "MOVE_FORWARD",
    "MOVE_BACKWARD",
    "TURN_LEFT",
    "TURN_RIGHT",
    "MOVE_LEFT",
    "MOVE_RIGHT",
    "ATTACK",
    "USE",
    "SPEED",
)
VARIABLES = (
    "POSITION_X",
    "POSITION_Y",
    "POSITION_Z",
    "ANGLE",
    "HEALTH",
    "SELECTED_WEAPON_AMMO",
    "SELECTED_WEAPON",
)
CHEATS = ("god",)  # a toggle: given once after each start
STOCK_CHEATS = ("god", "notarget", "give keys")  # doors there ask for keys, and write it on the screen


class Stock(NamedTuple):
    """A map that ships with the engine."""

    wad: str
    map: str
    family: str
    arguments: str = ""


ALONE = "-host 1 -deathmatch +sv_noautoaim 1"  # without it the process dies on these maps
STOCK = {
    "my_way_home": Stock("my_way_home.wad", "map01", "home"),
    "deathmatch": Stock("deathmatch.wad", "map01", "arena"),
    "cig_map01": Stock("cig.wad", "map01", "arena", ALONE),
    "cig_map02": Stock("cig.wad", "map02", "arena", ALONE),
}
STOCK |= {
    f"freedoom1_{m}": Stock("freedoom1.wad", m.upper(), "base")
    for m in ("e1m1", "e1m3", "e1m5", "e2m1", "e2m4", "e4m1", "e4m3")
}
STOCK |= {
    f"freedoom2_{m}": Stock("freedoom2.wad", m, "city")
    for m in ("map02", "map03", "map08", "map10", "map11", "map13", "map25")
}


@dataclass(frozen=True)
class Observation:
    """One moment of the game; picture and facts belong together."""

    frame: np.ndarray  # RGB uint8 [112, 160, 3]
    pose: tuple[float, float, float, float]  # x, y, z in map units; degrees, counter-clockwise from +x
    health: int
    ammo: int  # of the weapon in hand, -1 where it needs none
    weapon: int  # its slot: 1 fists, 2 pistol, 3 shotgun ...
    objects: list[list]  # name, x0, y0, width, height in pixels, distance in map units; largest first


class Doom:
    """A running game. `first` is its first frame; `step` plays one more, or returns None at the end."""

    def __init__(self, world: World | str, seed: int, monsters: bool = True, lines: bool = False) -> None:
        """A generated world, or a key of `STOCK`. `lines` keeps sector lines, which slows big maps down."""
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="doom-"))
            self._game = _game(world, seed, monsters, Path(folder), lines)
            opened.callback(self._game.close)
            with contextlib.chdir(folder):  # the engine makes a folder wherever it is started
                self._game.init()
            for cheat in CHEATS if isinstance(world, dict) else STOCK_CHEATS:
                self._game.send_game_command(cheat)
            first = self.step(action())
            if first is None:
                raise RuntimeError("The game ended before its first frame.")
            self.first = first
            self._opened = opened.pop_all()

    def step(self, keys: np.ndarray) -> Observation | None:
        """Hold the keys for two tics. None once the player is dead or the map is left."""
        self._game.make_action([bool(key) for key in keys], TICS)
        state = self._game.get_state()
        if state is None or self._game.is_player_dead():
            return None
        x, y, z, angle, health, ammo, weapon = (float(v) for v in state.game_variables)
        return Observation(
            frame=shrink(state.screen_buffer),
            pose=(x, y, z, angle),
            health=int(health),
            ammo=int(ammo),
            weapon=int(weapon),
            objects=_objects(state.labels, x, y),
        )

    def sectors(self) -> list[Any]:
        """The engine's sectors with their heights and lines; needs `lines`."""
        return list(self._game.get_state().sectors)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> "Doom":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def replay(
    world: World | str, engine_seed: int, keys: Iterable[np.ndarray], monsters: bool = True
) -> Iterator[np.ndarray]:
    """The frames of an episode, played again from its keys; row 0 belongs to the first frame."""
    with Doom(world, engine_seed, monsters) as doom:
        for index, row in enumerate(keys):
            seen = doom.step(row) if index else doom.first
            if seen is None:
                return
            yield seen.frame


def shrink(screen: np.ndarray) -> np.ndarray:
    """uint8 [240, 320, 3] to [112, 160, 3]: averages of 2x2, the top and bottom cut off."""
    rows = screen[2 * TOP : 2 * (TOP + HEIGHT)]
    pairs = np.add(rows[0::2], rows[1::2], dtype=np.uint16).reshape(HEIGHT, WIDTH, 6)
    small = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    for colour in range(3):  # three strided sums are three times as fast as one over the last axis
        small[..., colour] = (pairs[..., colour] + pairs[..., colour + 3] + 2) >> 2
    return small


def _objects(labels: Iterable[Any], x: float, y: float) -> list[list]:
    found = []
    for label in labels:
        if label.object_name in UNSEEN:
            continue
        left, right = label.x // 2, (label.x + label.width + 1) // 2
        top, bottom = max(0, label.y // 2 - TOP), min(HEIGHT, (label.y + label.height + 1) // 2 - TOP)
        if (right - left) * (bottom - top) < SMALLEST or bottom <= top:
            continue
        away = np.hypot(label.object_position_x - x, label.object_position_y - y)
        found.append([label.object_name, left, top, right - left, bottom - top, round(float(away))])
    return sorted(found, key=lambda o: -o[3] * o[4])


def _game(world: World | str, seed: int, monsters: bool, folder: Path, lines: bool) -> Any:
    """A configured, not yet started engine; its files live in `folder`."""
    vizdoom = load_vizdoom()
    game = vizdoom.DoomGame()
    game.set_doom_config_path(str(folder / "engine.ini"))  # or workers share one in the current folder
    arguments = "+sv_cheats 1 +r_visibility 24" + ("" if monsters else " -nomonsters")
    if isinstance(world, str):
        arguments += " " + _load_stock(game, world)
    else:
        (folder / "world.wad").write_bytes(pwad(world))
        game.set_doom_scenario_path(str(folder / "world.wad"))
        game.set_doom_map("MAP01")
    game.add_game_args(arguments)
    game.set_available_buttons([getattr(vizdoom.Button, name) for name in BUTTONS])
    game.set_available_game_variables([getattr(vizdoom.GameVariable, name) for name in VARIABLES])
    game.set_seed(seed)
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_doom_skill(3)
    game.set_episode_start_time(10)
    game.set_episode_timeout(1_000_000)
    game.set_sectors_info_enabled(lines)
    _rendering(game, vizdoom)
    return game


def _rendering(game: Any, vizdoom: Any) -> None:
    game.set_window_visible(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_320X240)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_labels_buffer_enabled(True)
    game.set_render_hud(False)
    game.set_render_crosshair(False)
    game.set_render_weapon(True)
    game.set_render_decals(True)
    game.set_render_particles(True)
    game.set_render_corpses(True)
    game.set_render_messages(False)
    game.set_render_screen_flashes(False)


def _load_stock(game: Any, name: str) -> str:
    """Point the engine at a map that ships with it; returns the arguments it needs."""
    if name not in STOCK:
        raise ValueError(f"No stock map {name!r}. There are {', '.join(STOCK)}.")
    vizdoom, stock = load_vizdoom(), STOCK[name]
    if stock.wad.startswith("freedoom"):
        game.set_doom_game_path(str(Path(vizdoom.__file__).parent / stock.wad))
    else:
        game.set_doom_scenario_path(str(Path(vizdoom.scenarios_path) / stock.wad))
    game.set_doom_map(stock.map)
    return stock.arguments


def load_vizdoom() -> Any:
    """The engine's module; nothing else in the project imports it."""
    try:
        import vizdoom
    except ImportError as error:
        raise ImportError("The real game needs ViZDoom: pip install -e '.[data]'") from error
    return vizdoom

"""The picture of the game and what is written over it.

The dream is enlarged by whole numbers so that its pixels stay crisp, and everything else is drawn on
the window afterwards, in the window's own resolution. Nothing here can reach the frame itself.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pygame

from worldmodel.actions import FPS, held

from .credits import CREDITS
from .dreamer import DREAMING, PAUSED, REMEMBERING, Rewound
from .frame import Frame
from .keys import Keys, printed, shipped
from .menu import NAMES, Menu
from .panes import Panes, headline
from .pen import DIM, EMBER, GLASS, GLOW, NIGHT, PAPER, RED, Pen
from .prompt import PromptLine
from .race import Race


@dataclass
class View:
    """All that is on screen at one moment."""

    title: str
    state: str = DREAMING
    frame: Frame | None = None
    backdrop: np.ndarray | None = None  # shown, darkened, until there is a frame
    fps: float | None = None
    pace: Sequence[float] = ()  # seconds of the last frames, oldest first
    rss: int = 0
    gpu: int | None = None
    overlay: int = 1
    help: bool = False
    menu: Menu | None = None
    line: PromptLine | None = None
    toast: str = ""
    recording: float | None = None  # seconds
    rewound: Rewound | None = None
    race: Race | None = None  # shown in place of the frame
    failure: str = ""  # why there will be no more frames
    difference: bool = False  # shown in place of the other panes' pictures
    reach: tuple[float, int] = (0.0, 0)  # seconds that may be rewound, and the bytes they cost


class Screen(Pen):
    """A resizable window. Raises pygame.error where there is none to be had."""

    def __init__(self, scale: int, height: int, width: int, keys: Keys | None = None) -> None:
        self._keys = keys or shipped()
        # All is drawn by the CPU, so nothing is lost without OpenGL; and where Mesa brings that, its LLVM and
        # Triton's end the process in which they meet.
        os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
        pygame.display.init()
        pygame.display.set_caption("FAST-AR Play")
        across, down = pygame.display.get_desktop_sizes()[0]
        scale = max(1, min(scale, across * 9 // 10 // width, down * 9 // 10 // height))
        self.surface = pygame.display.set_mode((scale * width, scale * height), pygame.RESIZABLE)
        pygame.key.stop_text_input()  # until a line is to be typed: keys are not letters here
        self._panes = Panes()
        self._items: list[pygame.Rect] = []

    def close(self) -> None:
        pygame.quit()

    def item_at(self, position: tuple[int, int]) -> int | None:
        """Which item of the menu, as last drawn, is at this place."""
        return next((i for i, rect in enumerate(self._items) if rect.collidepoint(position)), None)

    def draw(self, view: View) -> None:
        self.surface = pygame.display.get_surface() or self.surface  # a resize makes a new one
        self.surface.fill(NIGHT)
        self._items = []
        if view.race is not None:
            self._race(view.race, view)
        elif view.frame is not None:
            self._picture(view.frame.picture)
        elif view.backdrop is not None:
            self._picture(view.backdrop)
            self._veil(150)
        if view.frame is None:
            self._title(view)
        elif view.overlay and view.race is None:
            self._numbers(view)
        if view.recording is not None and view.race is None:
            self._recording(view.recording)
        if view.menu is not None and view.menu.open:
            self._veil(120)
            self._credits() if view.menu.credits else self._menu(view.menu, view.recording is not None)
        elif view.failure:
            self._veil(120)
            self._failure(view.failure)
        elif view.line is not None and view.line.open:
            self._line(view.line)
        elif view.help:
            self._help(view)
        elif view.rewound is not None:
            self._rewound(view.rewound, view.state)
        elif view.state == PAUSED:
            self._paused()
        if view.toast and view.rewound is None and not view.failure:
            self._toast(view.toast)
        pygame.display.flip()

    # The picture.

    def _picture(self, picture: np.ndarray) -> None:
        height, width = picture.shape[:2]
        across, down = self.surface.get_size()
        scale = min(across / width, down / height)
        scale = int(scale) if scale >= 1 else scale  # a window may be smaller than the dream
        small = pygame.image.frombuffer(picture.tobytes(), (width, height), "RGB")
        big = pygame.transform.scale(small, (round(scale * width), round(scale * height)))
        self.surface.blit(big, big.get_rect(center=self.surface.get_rect().center))

    def _race(self, race: Race, view: View) -> None:
        costs = [pane.costs for pane in race.panes]
        pictures = race.pictures(view.difference)
        frames = 30 * (1 + max(89, costs[0].index) // 30)  # thirds of it are round
        title = view.title if view.recording is None else f"{view.title}, REC {minutes(view.recording)}"
        heading = headline(title, costs[0], view.difference)
        self._panes.draw(self.surface, costs, pictures, frames, heading)

    def _veil(self, darkness: int) -> None:
        veil = pygame.Surface(self.surface.get_size(), pygame.SRCALPHA)
        veil.fill((*NIGHT, darkness))
        self.surface.blit(veil, (0, 0))

    # Writing.

    @property
    def unit(self) -> int:
        """Height of ordinary text: a share of the window, within what eyes can read."""
        width, height = self.surface.get_size()
        return max(12, min(32, height // 37, width // 52))

    def _glass(self, rect: pygame.Rect, radius: float = 0.5) -> None:
        pane = pygame.Surface(rect.size, pygame.SRCALPHA)
        pygame.draw.rect(pane, GLASS, pane.get_rect(), border_radius=round(radius * self.unit))
        self.surface.blit(pane, rect)

    def _card(self, rows: list[pygame.Surface | None], anchor: str, at: tuple[int, int]) -> list[pygame.Rect]:
        """Rows on glass, None a gap; returns where the rows are."""
        pad, gap, between = self.unit * 3 // 4, self.unit // 2, self.unit // 5
        width = max(row.get_width() for row in rows if row)
        height = sum(row.get_height() + between if row else gap for row in rows) - between
        rect = pygame.Rect(0, 0, width + 2 * pad, height + 2 * pad)
        setattr(rect, anchor, at)
        rect.clamp_ip(self.surface.get_rect())
        self._glass(rect)
        places, y = [], rect.y + pad
        for row in rows:
            if row is None:
                y += gap
                continue
            places.append(self.surface.blit(row, (rect.x + pad, y)))
            y += row.get_height() + between
        return places

    def _pace(self, seconds: Sequence[float], width: int) -> pygame.Surface:
        """A bar per frame, as high as it took long; the middle of the height is the median."""
        chart = pygame.Surface((width, 2 * self.unit), pygame.SRCALPHA)
        step = width / len(seconds)
        tall = chart.get_height() / (2 * sorted(seconds)[len(seconds) // 2])
        for i, took in enumerate(seconds):
            height = max(1, min(chart.get_height(), round(took * tall)))
            left, right = round(i * step), max(round(i * step) + 1, round((i + 1) * step) - 1)
            pygame.draw.rect(chart, GLOW, (left, chart.get_height() - height, right - left, height))
        return chart

    def _spread(self, seconds: Sequence[float], width: int) -> pygame.Surface:
        """How long frames take: the fastest, the middle, the slowest in a hundred."""
        fast, middle, slow = 1000 * np.percentile(seconds, [1, 50, 99])
        return self.row("ms, p1 p50 p99", f"{fast:.0f}  {middle:.0f}  {slow:.0f}", width)

    # What is written.

    def _numbers(self, view: View) -> None:
        frame, margin = view.frame, self.unit * 3 // 4
        crowded = view.help or (view.menu is not None and view.menu.open)
        assert frame is not None
        fps = f"{view.fps:.1f}" if view.fps else "\u2013"
        share = frame.kept / max(1, frame.seen)
        if view.overlay == 1 or crowded:
            tokens = f"{frame.kept:,} of {frame.seen:,} tokens kept, {megabytes(frame.bytes)}"
            rate = [self.text(fps, EMBER, bold=True), self.text("FPS", DIM)]
            row = self.beside([*rate, self.text(f"  {frame.memory}", DIM), self.text(tokens)])
            if row.get_width() + 4 * margin < self.surface.get_width():
                self._card([row], "topleft", (margin, margin))
            return
        width = 20 * self.unit
        stages = "  ".join(f"{name} {1000 * took:.0f}" for name, took in frame.timings.items())
        rows = [
            self.beside([self.text(fps, EMBER, 1.9, bold=True), self.text("frames per second", DIM)]),
            *([self._pace(view.pace, width), self._spread(view.pace, width)] if len(view.pace) > 1 else []),
            self.row("ms", stages, width),
            None,
            self.row("memory", frame.memory, width),
            self.row("tokens kept", f"{frame.kept:,} of {frame.seen:,}", width),
            self.bar(share, width),
            self.row("cache", megabytes(frame.bytes), width),
            self.row("rewind", f"{view.reach[0]:.0f} s in {megabytes(view.reach[1])}", width),
            self.row("process", megabytes(view.rss), width),
            *([self.row("GPU", megabytes(view.gpu), width)] if view.gpu is not None else []),
            None,
            self.row("world", view.title, width),
            self.row("frame", f"{frame.index:,}", width),
            self.row("keys", ", ".join(held(frame.keys)).replace("_", " ") or "none", width),
            *self.wrap(frame.prompt, width, colour=DIM)[:3],
        ]
        height = sum(row.get_height() if row else self.unit for row in rows)
        if height + 2 * margin < self.surface.get_height() and width + 3 * margin < self.surface.get_width():
            self._card(rows, "topleft", (margin, margin))

    def _recording(self, seconds: float) -> None:
        margin = self.unit * 3 // 4
        dot = pygame.Surface((self.unit, self.unit), pygame.SRCALPHA)
        pygame.draw.aacircle(dot, RED, (self.unit / 2, self.unit / 2), self.unit * 0.38)
        row = self.beside([dot, self.text(f"REC {minutes(seconds)}", bold=True)], 0.3)
        self._card([row], "topright", (self.surface.get_width() - margin, margin))

    def _title(self, view: View) -> None:
        """The first thing seen: what this is, where it will be, what it is doing."""
        centre = self.surface.get_rect()
        name = self.text("FAST-AR Play", PAPER, 2.4, bold=True)
        where = self.text(view.title, EMBER, 1.2)
        middle = centre.height // (8 if view.help else 2)
        self.surface.blit(name, name.get_rect(midbottom=(centre.centerx, middle)))
        if not view.help:
            self.surface.blit(where, where.get_rect(midtop=(centre.centerx, middle + self.unit // 2)))
        dots = "." * (1 + pygame.time.get_ticks() // 400 % 3)
        state = self.text(view.state[:1].upper() + view.state[1:], PAPER)
        place = state.get_rect(midbottom=(centre.centerx, centre.bottom - 2 * self.unit))
        self._glass(place.inflate(3 * self.unit, self.unit))
        self.surface.blit(state, place)
        self.surface.blit(self.text(dots, EMBER, bold=True), place.topright)

    def _help(self, view: View) -> None:
        """Two columns of keys."""
        rows = self._keys.help()
        rows += [("", "")] * (len(rows) % 2)
        middle = len(rows) // 2
        columns = [self._column(rows[:middle]), self._column(rows[middle:])]
        table = self.beside(columns, 2.0)
        heading = self.text(view.title, EMBER, 1.2, bold=True)
        footing = self.text(self._keys.spell("<help> shows this again; a gamepad plays too"), DIM)
        if table.get_width() > self.surface.get_width() - 2 * self.unit:
            return
        self._card([heading, None, table, None, footing], "center", self.surface.get_rect().center)

    def _column(self, lines: Sequence[tuple[str, str]]) -> pygame.Surface:
        keys = [self.text(key, PAPER, bold=True) for key, _ in lines]
        words = [self.text(word, DIM) for _, word in lines]
        left, line = max(key.get_width() for key in keys) + self.unit, round(1.45 * self.unit)
        size = left + max(word.get_width() for word in words), line * len(lines)
        column = pygame.Surface(size, pygame.SRCALPHA)
        for i, (key, word) in enumerate(zip(keys, words, strict=True)):
            column.blit(key, (0, i * line))
            column.blit(word, (left, i * line))
        return column

    def _menu(self, menu: Menu, recording: bool) -> None:
        """Two columns of items, each with its key."""
        names = NAMES | ({"record": "Stop recording"} if recording else {})
        items = [self._item(names[item], item, i == menu.chosen) for i, item in enumerate(menu.ITEMS)]
        width, height = items[0].get_size()
        table = pygame.Surface((2 * width + self.unit, menu.ROWS * height), pygame.SRCALPHA)
        places = [
            table.blit(item, (i // menu.ROWS * (width + self.unit), i % menu.ROWS * height))
            for i, item in enumerate(items)
        ]
        heading = self.text("FAST-AR Play", EMBER, 1.4, bold=True)
        rows = [heading, None, table, None, self.text("Esc again quits", DIM)]
        _, drawn, _ = self._card(rows, "center", self.surface.get_rect().center)
        self._items = [place.move(drawn.topleft) for place in places]

    def _item(self, name: str, wish: str, chosen: bool) -> pygame.Surface:
        row = pygame.Surface((18 * self.unit, round(1.9 * self.unit)), pygame.SRCALPHA)
        if chosen:
            pygame.draw.rect(row, EMBER, row.get_rect(), border_radius=self.unit // 3)
        text = self.text(name, NIGHT if chosen else PAPER, 1.1, bold=chosen)
        key = self.text(printed((self._keys.bound.get(wish) or ("",))[0]), NIGHT if chosen else DIM)
        inside = row.get_rect().inflate(-self.unit * 4 // 3, 0)
        row.blit(text, text.get_rect(midleft=inside.midleft))
        row.blit(key, key.get_rect(midright=inside.midright))
        return row

    def _credits(self) -> None:
        room = max(1, min(46 * self.unit, self.surface.get_width() - 4 * self.unit))
        rows: list[pygame.Surface | None] = []
        for heading, told in CREDITS.items():
            rows.append(self.text(heading, EMBER, bold=True))
            for line in [told] if isinstance(told, str) else told:
                rows += self.wrap(line, room)
            rows.append(None)
        rows.append(self.text("Any key goes back", DIM))
        self._card(rows, "center", self.surface.get_rect().center)

    def _line(self, line: PromptLine) -> None:
        """What is being typed; words that mean nothing here are struck out."""
        width, height = self.surface.get_size()
        room = min(46 * self.unit, width - 4 * self.unit)
        typed = [self._piece(piece, known) for piece, known in line.parts()]
        caret = self.text("|", EMBER, 1.2)
        row = self.beside([*typed, caret], 0)
        shown = pygame.Surface((room, row.get_height()), pygame.SRCALPHA)
        shown.blit(row, (min(0, room - row.get_width()), 0))  # of a long line the end
        found = "   ".join(line.suggestions()) or "What should the world look like?" * (not line.text)
        advice = "Enter says it, Esc leaves it, Tab completes, \u2191 brings back"
        rows = [self.fit(found or " ", room, colour=EMBER), shown, self.fit(advice, room, colour=DIM)]
        self._card([*rows], "midbottom", (width // 2, height - self.unit))

    def _piece(self, piece: str, known: bool) -> pygame.Surface:
        image = self.text(piece, PAPER if known else DIM, 1.2)
        if not known:
            middle = image.get_height() * 11 // 20
            pygame.draw.line(image, RED, (0, middle), (image.get_width(), middle), max(1, self.unit // 8))
        return image

    def _failure(self, reason: str) -> None:
        """Why the dream has ended; it stays until somebody has read it."""
        width, height = self.surface.get_size()
        room = min(40 * self.unit, width - 4 * self.unit)
        lines = self.wrap(reason, room)
        heading = self.text("The dream has ended", RED, 1.2, bold=True)
        advice = self._keys.spell("<menu> has diagnostics to copy, and the way out")
        rows = [heading, None, *lines, None, self.fit(advice, room, colour=DIM)]
        self._card(rows, "center", (width // 2, height // 2))

    def _paused(self) -> None:
        width, height = self.surface.get_size()
        advice = self.text(self._keys.spell("<pause> to go on, <step> for one frame"), DIM)
        row = self.beside([self.text("Paused", EMBER, 1.2, bold=True), advice])
        self._card([row], "center", (width // 2, height * 3 // 4))

    def _rewound(self, rewound: Rewound, state: str) -> None:
        """How far back this is of how far one may go."""
        width, height = self.surface.get_size()
        room = max(1, min(30 * self.unit, width - 4 * self.unit))
        back = (rewound.newest - rewound.at) / FPS
        heading = [
            self._backwards(),
            self.text(f"{back:.1f} s back", PAPER, 1.2, bold=True),
            self.text(f"frame {rewound.at:,}", DIM),
        ]
        share = (rewound.at - rewound.oldest) / max(1, rewound.newest - rewound.oldest)
        reach = (rewound.newest - rewound.oldest) / FPS
        going = state == REMEMBERING
        cost = f"{reach:.0f} s may be rewound; {megabytes(rewound.bytes)} keep them"
        advice = (
            "Remembering how it was\u2026"
            if going
            else self._keys.spell("Let go to play on; <branch> keeps both takes")
        )
        rows = [
            self.beside(heading),
            self.bar(share, room),
            self.fit(advice, room, colour=EMBER if going else PAPER),
            self.fit(cost, room, colour=DIM),
        ]
        self._card([*rows], "midbottom", (width // 2, height - self.unit))

    def _backwards(self) -> pygame.Surface:
        """Two arrows to the left, as on a tape recorder; the font has none."""
        side = round(1.2 * self.unit)
        sign = pygame.Surface((2 * side, side), pygame.SRCALPHA)
        for x in (0, side * 4 // 5):
            back = x + side * 4 // 5
            pygame.draw.polygon(sign, EMBER, [(x, side // 2), (back, side // 8), (back, side * 7 // 8)])
        return sign

    def _toast(self, line: str) -> None:
        width, height = self.surface.get_size()
        lines = self.wrap(line, min(46 * self.unit, width - 4 * self.unit))
        self._card([*lines], "midbottom", (width // 2, height - self.unit))


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"

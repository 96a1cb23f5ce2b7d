"""The stage with a window: feeds the controls, keeps what is on screen up to date."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import pygame

from worldmodel.actions import FPS
from worldmodel.episodes import HEIGHT, WIDTH

from .clipboard import copy
from .controls import Controls
from .dreamer import Dreamer, Hands
from .errors import reason
from .frame import Frame
from .gamepad import Gamepad
from .gif import LastSeconds, enlarged, write_beside
from .keys import Keys, shipped
from .meter import Meter, ProcessMemory
from .panes import pixels
from .players import Player, Players
from .record import Recorder, disk_error
from .screen import Screen, View

HELP_SECONDS = 5.0
TOAST_SECONDS = 5.0
PACE_FRAMES = 100  # shown as bars
SCREENSHOT = 4  # screen pixels per dreamt pixel
IDLE_SECONDS = 0.25  # without news the window is still redrawn this often


class Window:
    player = "human"
    patience = 1 / 60
    forgiving = True
    rewinds = True
    lingers = True

    def __init__(
        self,
        scale: int,
        overlay: int,
        others: Mapping[str, Player],
        diagnose: Callable[[str], str] = lambda speed: speed,
        keys: Keys | None = None,
        mouse: bool = False,
        filmed: bool = False,
        shape: tuple[int, int] = (HEIGHT, WIDTH),
    ) -> None:
        """`others` may play in place of a person; `diagnose` makes of a speed what doctor would say.

        While something is recorded a window that is `filmed` is, too, with all that is written on it.
        `shape` is that of a dream, in pixels of its own.
        """
        self._keys = keys or shipped()
        self._screen = Screen(scale, *shape, self._keys)
        self._hands = Hands()
        self.controller = Players(human=self._hands, **others)
        self._gamepad = Gamepad()
        self._controls = Controls(self._screen.item_at, self._keys, mouse)
        self._view = View(
            title="", overlay=overlay, menu=self._controls.menu, line=self._controls.line, help=True
        )
        self._help_ends: float | None = None  # set when the first frame comes; loading does not count
        self._toast_ends = 0.0
        self._drawn = 0.0
        self._news = True
        self._held_by_menu = False
        self._filmed = filmed
        self._rss = ProcessMemory()
        self._diagnose, self._diagnosed = diagnose, queue.SimpleQueue[str]()

    def hand_to(self, player: str) -> None:
        """Who plays from here on, by name."""
        self.controller.to(player)
        self.player = player

    def attach(self, dreamer: Dreamer, meter: Meter, recorder: Recorder, lately: LastSeconds) -> None:
        """The window opens before there is anything to show; this is what it will show."""
        self._dreamer, self._meter, self._recorder, self._lately = dreamer, meter, recorder, lately

    def close(self) -> None:
        self._screen.close()

    def listen(self) -> list[str]:
        """Take in what happened since the last lap; returns the wishes that are not about this window."""
        for event in pygame.event.get():
            for each in self._gamepad.translate(event):
                self._controls.feed(each)
            self._news = True
        while not self._diagnosed.empty():
            self._copy(self._diagnosed.get())
        if self._controls.looking != pygame.mouse.get_relative_mode():
            pygame.mouse.set_relative_mode(self._controls.looking)
        self._hands.hold(*self._controls.keys(), self._controls.moved())
        return [further for wish in self._controls.wishes() for further in self._grant(wish)]

    def _grant(self, wish: str) -> list[str]:
        match wish:
            case "help":
                self._view.help, self._help_ends = not self._view.help, float("inf")
            case "overlay":
                self._view.overlay = (self._view.overlay + 1) % 3
            case "difference":
                self._difference()
            case "screenshot":
                self._screenshot()
            case "gif":
                self._gif()
            case "diagnostics":
                self._examine()
            case "player":
                now = self.controller.next()
                self.tell("You play again" if now == "human" else f"The {now} plays; <player> takes the next")
            case "menu" | "prompt":
                self._held_by_menu |= not self._dreamer.paused
                if wish == "prompt":
                    now = self._view.frame.prompt if self._view.frame else ""
                    self._controls.line.know(self._dreamer.words, now)
                return ["hold still"]
            case _:
                if wish == "record":
                    self._announce()
                if wish == "compare":
                    self._view.help = False  # it would hide the panes
                return [*self._going_on(), wish]
        return self._going_on()

    def _going_on(self) -> list[str]:
        """What was held for the menu alone goes on when it closes."""
        held, self._held_by_menu = self._held_by_menu, False
        return ["go on"] if held else []

    def show(self, frame: Frame | None) -> None:
        """Draw if there is news, or if it has been a while."""
        now = time.monotonic()
        view = self._view
        if frame is not None:
            view.frame = frame
            if frame.index and self._help_ends is None:
                self._help_ends = now + HELP_SECONDS
        if self._help_ends is not None and now > self._help_ends:
            view.help = False
        if now > self._toast_ends:
            view.toast = ""
        if frame is None and not self._news and now - self._drawn < IDLE_SECONDS:
            return
        opening = self._dreamer.openings[self._dreamer.scene]
        view.title, view.backdrop, view.state = opening.title, opening.frames[-1], self._dreamer.state
        view.fps, view.pace = self._meter.fps, self._meter.seconds[-PACE_FRAMES:]
        view.rss, view.gpu = self._rss(), self._gpu()
        view.race, past = self._dreamer.race, self._dreamer.past
        view.failure = reason(self._dreamer.error) if self._dreamer.error else ""
        view.rewound, view.reach = self._dreamer.rewound, (len(past.frames) / FPS, past.bytes)
        view.recording = self._recorder.seconds if self._recorder.rolling else None
        self._screen.draw(view)
        if self._filmed and frame is not None and self._recorder.rolling:
            self._recorder.see_screen(pixels(self._screen.surface))
        self._news, self._drawn = False, now

    def tell(self, line: str) -> None:
        self._view.toast, self._toast_ends, self._news = (
            self._keys.spell(line),
            time.monotonic() + TOAST_SECONDS,
            True,
        )

    def _difference(self) -> None:
        if self._dreamer.race is None:
            self.tell("<compare> compares memories; <difference> then shows how they differ")
            return
        self._view.difference = not self._view.difference

    def _gpu(self) -> int | None:
        if self._view.frame is None or "torch" not in sys.modules:
            return None  # not loaded yet, and a window does not wait for it
        from .device import gpu_bytes

        return gpu_bytes()

    def _announce(self) -> None:
        """Say where a recording goes, before it begins or ends."""
        if not self._recorder.rolling:
            self.tell(f"Recording into {self._recorder.root}")
        elif self._recorder.folders:
            self.tell(f"Recorded {self._recorder.folders[-1]}")

    def _gif(self) -> None:
        """The last seconds, beside the screenshots. Takes seconds too, so play goes on meanwhile."""
        frame, pictures = self._view.frame, self._lately.pictures()
        if frame is None or not pictures:
            return
        path = self._picture_path(frame, "gif")

        def told(error: OSError | None) -> None:
            self.tell(f"Saved {path}" if error is None else str(disk_error(error, path.parent)))

        self.tell(f"Writing the last {len(pictures) / self._lately.fps:.0f} seconds into {path}")
        write_beside(path, pictures, self._lately.fps, told)

    def _picture_path(self, frame: Frame, kind: str) -> Path:
        return self._stamped(f"{frame.world}_{frame.index}.{kind}")

    def _stamped(self, name: str) -> Path:
        return self._recorder.root / f"{datetime.now():%Y%m%d-%H%M%S}_{name}"

    def _examine(self) -> None:
        """Ask what doctor would say. It takes a second, so play goes on meanwhile; the clipboard is here."""
        fps, frame = self._meter.fps, self._view.frame
        speed = f"{fps:.1f} frames a second at frame {frame.index}" if fps and frame else "not known yet"
        self.tell("Looking around for a second")
        work = threading.Thread(target=lambda: self._diagnosed.put(self._diagnose(speed)), daemon=True)
        work.start()

    def _copy(self, text: str) -> None:
        try:
            written = copy(text, self._stamped("diagnostics.txt"))
        except OSError as error:
            self.tell(str(disk_error(error, self._recorder.root)))
        else:
            self.tell(f"Diagnostics are in {written}" if written else "Diagnostics are on the clipboard")

    def _screenshot(self) -> None:
        """The dream alone, enlarged; in the folder of recordings."""
        frame = self._view.frame
        if frame is None:
            return
        path = self._picture_path(frame, "png")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            enlarged(frame.picture, SCREENSHOT).save(path)
            self.tell(f"Saved {path}")
        except OSError as error:
            self.tell(str(disk_error(error, path.parent)))

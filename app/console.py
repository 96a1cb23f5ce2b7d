"""The stage without a window: a line now and then, and a summary at the end."""

import sys
import time

from .dreamer import DREAMING, Dreamer
from .frame import Frame
from .gif import LastSeconds
from .meter import Meter, ProcessMemory, percentiles
from .players import Player
from .record import Recorder

EVERY = 5.0  # seconds between lines


class Console:
    patience = 0.25
    forgiving = False
    rewinds = False
    lingers = False

    def __init__(self, player: str, controller: Player, frames: int, farewell: str = "") -> None:
        self.player, self.controller = player, controller
        self._of, self._farewell = frames, farewell
        self._rss = ProcessMemory()
        self._last: Frame | None = None
        self._state = ""
        self._due = 0.0

    def attach(self, dreamer: Dreamer, meter: Meter, recorder: Recorder, lately: LastSeconds) -> None:
        self._dreamer, self._meter = dreamer, meter

    def listen(self) -> list[str]:
        return []

    def show(self, frame: Frame | None) -> None:
        if frame is not None and frame.index:
            self._last = frame
        state = self._dreamer.state
        if state != self._state and not self._dreamer.done:
            self._state = state
            if state != DREAMING:
                print(f"{state} ...", flush=True)
        if self._last is not None and time.monotonic() > self._due and self._meter.fps:
            self._due = time.monotonic() + EVERY
            speed = f"{self._meter.fps:.1f} FPS"
            print(f"frame {self._last.index} of {self._of}: {speed}, {self.cache(self._last)}", flush=True)

    def tell(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def cache(self, frame: Frame) -> str:
        return f"{frame.memory} keeps {frame.kept:,} of {frame.seen:,} tokens in {frame.bytes / 1e6:.1f} MB"

    def close(self) -> None:
        """Say what was dreamt, how fast and with how much."""
        if self._last is None:
            return
        if rate := percentiles(self._meter.seconds):
            print(f"FPS: {rate['p50']:.1f} median, {rate['p1']:.1f} p1, over {self._last.index} frames.")
        print(f"Cache: {self.cache(self._last)}. Process: {self._rss() / 1e6:.0f} MB.")
        if self._farewell:
            print(self._farewell)

"""The stage with browsers: one of them plays, the others may watch.

The server has a thread of its own. What browsers ask for waits in a queue until the frame loop listens,
frames go the other way, and nothing here ever waits for a dream. While nobody plays the dream holds still.

A browser says, as JSON: {"held": [names]} whenever the keys it holds change, {"wish": name},
{"say": prompt}, {"shown": 1} for each frame it has drawn, {"play": 1} to play where nobody does. It is told
{"role": ...}, {"state": ...}, {"line": ...}, {"over": why}, and sent frames: four bytes that count those of
a JSON text, that text with what is known of the frame, and a JPEG.
"""

import asyncio
import errno
import json
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from aiohttp import WSMsgType, web

from worldmodel.actions import KEYS, action
from worldmodel.episodes import encode_jpeg

from .credits import CREDITS
from .dreamer import Dreamer, Hands
from .errors import UsageError, reason
from .frame import Frame
from .gif import LastSeconds
from .keys import Keys, for_browsers
from .meter import Meter
from .players import Player, Players
from .record import Recorder
from .visitor import Visitor

PAGE = Path(__file__).parent / "web" / "index.html"
WISHES = (
    *("pause", "step", "reset", "next world", "memory", "player", "record"),
    *("save", "load", "rewind", "let go", "branch"),
)
HERE = ("127.0.0.1", "localhost", "::1")
PULSE = 5.0  # seconds between questions whether a browser is still there
LONGEST_MESSAGE = 4096  # bytes
LONGEST = 400  # letters of a prompt


class Site:
    player = "human"
    patience = 0.25
    forgiving = True
    rewinds = True
    lingers = False

    def __init__(
        self, host: str, port: int, token: str | None, quality: int, keys: Keys, others: Mapping[str, Player]
    ) -> None:
        """`others` may play in place of a person. Where other machines may come there is always a token."""
        self._host, self.port, self._quality = host, port, quality
        self._token = token or ("" if host in HERE else secrets.token_urlsafe(16))
        self._hands = Hands()
        self.controller = Players(human=self._hands, **others)
        self._keys = for_browsers(keys)
        self._held, self._rewinding = action(), False
        self._wishes: deque[str] = deque()
        self._visitors: list[Visitor] = []
        self._playing: Visitor | None = None
        self._since = ""
        self._state = ""
        self._last: Frame | None = None

    # What the frame loop asks.

    def attach(self, dreamer: Dreamer, meter: Meter, recorder: Recorder, lately: LastSeconds) -> None:
        """Open the doors. Raises UsageError where that cannot be."""
        self._dreamer, self._meter, self._recorder = dreamer, meter, recorder
        dreamer.pause()  # until somebody comes to play
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="site", daemon=True)
        self._thread.start()
        try:
            self._wait(self._open())
        except OSError as error:
            self._end()
            raise UsageError(self._no_way_to_open(error)) from None
        print(f"Open {self.address} in a browser. Ctrl-C ends it.", flush=True)

    def listen(self) -> list[str]:
        wishes = [self._wishes.popleft() for _ in range(len(self._wishes))]
        if "player" in wishes:
            now = self.controller.next()
            self.tell("You play again" if now == "human" else f"The {now} plays; <player> takes the next")
        return [wish for wish in wishes if wish != "player"]

    def show(self, frame: Frame | None) -> None:
        if frame is not None:
            self._last = frame
            if self._visitors:
                self._later(self._spread, self._packed(frame))
        if (state := self._dreamer.state) != self._state:
            self._state = state
            self._later(self._tell, {"state": state})

    def tell(self, line: str) -> None:
        self._later(self._tell, {"line": self._keys.spell(line)})

    def close(self) -> None:
        error = self._dreamer.error
        self._wait(self._close(reason(error) if error else "The game has ended."))
        self._end()

    @property
    def address(self) -> str:
        """Where to go, the token included."""
        everywhere = self._host in ("0.0.0.0", "::", "")
        host = socket.gethostname() if everywhere else f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/" + (f"?token={self._token}" if self._token else "")

    # Between the threads.

    def _later(self, what: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(what, *arguments)

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._later(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What the server does, in its thread.

    async def _open(self) -> None:
        app = web.Application(middlewares=[self._guarded])
        app.add_routes([web.get("/", self._page), web.get("/dream", self._visit)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def _close(self, reason: str) -> None:
        await asyncio.gather(*(visitor.dismiss(reason) for visitor in self._visitors))
        await self._runner.cleanup()

    def _no_way_to_open(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return f"Port {self.port} is taken, perhaps by another game. --port 0 takes a free one."
        return f"Cannot listen at {self._host}:{self.port}: {error.strerror or error}. Set --host and --port."

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if reason := self._refusal(request):
            raise web.HTTPForbidden(text=reason)
        return await handler(request)

    def _refusal(self, request: web.Request) -> str:
        """Why somebody may not come in; empty if he may.

        Any page in the person's own browser could ask this server too. So a page must be one of this
        server's, and without a token the server goes by the names of this machine, which no foreign page has.
        """
        given = request.query.get("token", "")
        if self._token and not compare_digest(given.encode(), self._token.encode()):
            return "A token is needed here. The address that the terminal shows has it."
        if not self._token and (urlsplit(f"//{request.host}").hostname or "") not in HERE:
            return f"This server is for this machine alone, and not for {request.host}."
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc != request.host:
            return f"Pages of {origin} may not play here."
        return ""

    async def _page(self, request: web.Request) -> web.StreamResponse:
        quiet = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}  # the address has the token
        return web.Response(text=PAGE.read_text(encoding="utf-8"), content_type="text/html", headers=quiet)

    async def _visit(self, request: web.Request) -> web.StreamResponse:
        line = web.WebSocketResponse(heartbeat=PULSE, max_msg_size=LONGEST_MESSAGE, compress=False)
        await line.prepare(request)
        visitor = Visitor(line, str(request.remote))
        sending = asyncio.create_task(visitor.send())
        self._visitors.append(visitor)
        try:
            told = {"keys": self._keys.in_browsers(), "help": self._keys.help(), "credits": CREDITS}
            visitor.tell(**told, state=self._state)
            self._sit(visitor)
            if self._last is not None:
                visitor.show(self._packed(self._last))
            async for message in line:
                if message.type == WSMsgType.TEXT:
                    self._hear(visitor, message.data)
        finally:
            sending.cancel()
            self._visitors.remove(visitor)
            self._leave(visitor)
        return line

    def _hear(self, visitor: Visitor, text: str) -> None:
        """Do what a browser says, as far as it may say it. Anything else is no concern of ours."""
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return
        match said:
            case {"shown": _}:
                visitor.has_shown()
            case {"play": _}:
                self._sit(visitor)
            case _ if visitor is not self._playing:
                return
            case {"held": [*names]}:
                self._hold(action(name for name in KEYS if name in names))
            case {"say": str(prompt)} if prompt.strip():
                self._wishes.append(f"say {prompt.strip()[:LONGEST]}")
            case {"wish": "let go"}:
                self._let_go()
            case {"wish": str(wish)} if wish in WISHES:
                self._rewinding |= wish == "rewind"
                self._wishes.append(wish)

    def _hold(self, keys: np.ndarray) -> None:
        self._hands.hold(keys, keys & ~self._held & 1)
        self._held = keys

    def _let_go(self) -> None:
        if self._rewinding:
            self._rewinding = False
            self._wishes.append("let go")

    def _sit(self, visitor: Visitor) -> None:
        """Let somebody play if nobody does, and tell all who does."""
        if self._playing is None:
            self._playing, self._since = visitor, time.strftime("%H:%M")
            self._wishes.append("go on")
        self._tell_roles()

    def _leave(self, visitor: Visitor) -> None:
        """Who is gone holds no keys."""
        if visitor is self._playing:
            self._playing = None
            self._hold(action())
            self._let_go()
            self._wishes.append("hold still")
        self._tell_roles()

    def _tell_roles(self) -> None:
        who = f"somebody at {self._playing.name}, since {self._since}" if self._playing else None
        for visitor in self._visitors:
            role = "plays" if visitor is self._playing else "watches"
            visitor.tell(role=role, who=who, watching=len(self._visitors) - (self._playing is not None))

    def _tell(self, facts: dict[str, Any]) -> None:
        for visitor in self._visitors:
            visitor.tell(**facts)

    def _spread(self, frame: bytes) -> None:
        for visitor in self._visitors:
            visitor.show(frame)

    def _packed(self, frame: Frame) -> bytes:
        recorder = self._recorder
        facts = {
            "frame": frame.index,
            "world": self._dreamer.openings[frame.world].title,
            "prompt": frame.prompt,
            "fps": self._meter.fps,
            "memory": frame.memory,
            "kept": frame.kept,
            "seen": frame.seen,
            "bytes": frame.bytes,
            "recording": recorder.seconds if recorder.rolling else None,
        }
        text = json.dumps(facts).encode()
        return struct.pack(">I", len(text)) + text + encode_jpeg(frame.picture, self._quality)

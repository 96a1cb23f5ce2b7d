"""A browser that looks on: what it is sent, and no faster than it can show it.

The browser says when it has shown a frame, and no more than two are ever on their way. What is dreamt
meanwhile takes the place of what waits, so a slow line gets fewer frames and never old ones.
"""

import asyncio
import json
from collections import deque
from typing import Any

from aiohttp import web

AHEAD = 2  # frames sent and not yet shown
PATIENCE = 1.0  # seconds that a last word may take


class Visitor:
    def __init__(self, socket: web.WebSocketResponse, name: str) -> None:
        self.name = name
        self._socket = socket
        self._news = asyncio.Event()
        self._frame: bytes | None = None
        self._lines: deque[str] = deque(maxlen=64)
        self._on_the_way = 0

    def show(self, frame: bytes) -> None:
        """Send this frame as soon as the browser can take one, unless a newer one comes first."""
        self._frame = frame
        self._news.set()

    def tell(self, **facts: Any) -> None:
        self._lines.append(json.dumps(facts))
        self._news.set()

    def has_shown(self) -> None:
        """The browser says that a frame has arrived on its screen."""
        self._on_the_way = max(0, self._on_the_way - 1)
        self._news.set()

    async def send(self) -> None:
        """Send whatever there is, for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._lines:
                await self._socket.send_str(self._lines.popleft())
            if self._frame is not None and self._on_the_way < AHEAD:
                frame, self._frame = self._frame, None
                self._on_the_way += 1
                await self._socket.send_bytes(frame)

    async def dismiss(self, reason: str) -> None:
        """Say why this is the end, to those who still listen."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._socket.send_str(json.dumps({"over": reason}))
                await self._socket.close()
        except (TimeoutError, ConnectionError):
            pass

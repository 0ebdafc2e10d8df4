"""Rows that change by themselves: server-sent events, one render for many readers.

a change in the store, or a second gone by   → each distinct list is made once
nothing new                                  → a comment every 15 s
a reader that does not read                  → dropped
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from bridge.foundation.clock import Clock
from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.hub.pages.listing import ListQuery

_EVERY = 1.0
_COMMENT_EVERY = 15.0  # proxies cut what is silent for longer
_MOST_READERS = 500
_MOST_LISTS = 200
_ANEW_EVERY = 15.0  # some of it changes by time alone
_COUNTDOWN = re.compile(r"(data-left>)[^<]*")


@dataclass(slots=True)
class Live:
    """Sends lists to whoever looks at them.

    Attributes:
        version: returns the number of the last change in the store.
        render: makes a list.
        patience: seconds that a reader may take for what it is sent.
    """

    clock: Clock
    version: Callable[[], Awaitable[int]]
    render: Callable[[ListQuery], Awaitable[str]]
    patience: float = 5.0
    readers: int = 0
    _version: tuple[float, int | None] = (-1.0, None)
    _made: dict[ListQuery, tuple[tuple[int, float], str]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send a list whenever it changes, until the reader goes."""
        query = ListQuery.of(request.query)
        if self.readers >= _MOST_READERS:
            raise web.HTTPServiceUnavailable(reason="too many look on")
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        self.readers += 1
        try:
            await self._send(response, query)
        except (TimeoutError, ConnectionResetError):
            pass  # gone, or it does not read
        finally:
            self.readers -= 1
        return response

    async def _send(self, response: web.StreamResponse, query: ListQuery) -> None:
        seen, told, stop = "", self.clock.monotonic(), asyncio.Event()
        await self._write(response, b"retry: 3000\n\n")
        while True:
            try:
                number, text = await self._list(query)
            except HubStoreError:  # it comes back; until then the page stays
                number, text = 0, seen
            if _timeless(text) != _timeless(seen):
                data = orjson.dumps(text).decode()
                frame = f"id: {number}\nevent: rows\ndata: {data}\n\n"
                await self._write(response, frame.encode())
                seen, told = text, self.clock.monotonic()
            elif self.clock.monotonic() - told >= _COMMENT_EVERY:
                await self._write(response, b": still here\n\n")
                told = self.clock.monotonic()
            await self.clock.wait(stop, _EVERY)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self.patience):
            await response.write(data)

    async def _list(self, query: ListQuery) -> tuple[int, str]:
        """Return a list, made at most once for each change."""
        async with self._lock:
            number = (await self._number(), self.clock.monotonic() // _ANEW_EVERY)
            if query not in self._made or self._made[query][0] != number:
                if len(self._made) >= _MOST_LISTS:
                    self._made.clear()
                self._made[query] = (number, await self.render(query))
            return number[0], self._made[query][1]

    async def _number(self) -> int:
        """Return the number of the last change, asked for once a second.

        So often also where no answer comes: whoever waits here for another reader
        waits for one answer, and not for one each.

        Raises:
            HubStoreError: it is not known.
        """
        asked, number = self._version
        if asked < 0 or self.clock.monotonic() - asked >= _EVERY:
            number = None
            try:
                number = await self.version()
            finally:
                self._version = (self.clock.monotonic(), number)
        if number is None:
            raise HubStoreAwayError("it did not answer a moment ago")
        return number


def _timeless(text: str) -> str:
    """Return a list without its countdowns: browsers count by themselves."""
    return _COUNTDOWN.sub(r"\1", text)

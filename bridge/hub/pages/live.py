"""Sends lists to browsers when they change, as server-sent events.

Once a second each stream checks for a change in the store. A list is rendered once for
all browsers with the same query: after a change, and every 15 s, since parts of it
depend on the time. If nothing changed, a comment is sent every 15 s. A browser that
does not read is disconnected.
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
_COMMENT_EVERY = 15.0  # proxies close a connection that is idle for longer
_MOST_READERS = 500
_MOST_LISTS = 200
_RENDER_EVERY = 15.0  # parts of a list depend on the time, not only on the store
_COUNTDOWN = re.compile(r"(data-left>)[^<]*")


@dataclass(slots=True)
class Live:
    """Sends lists to browsers.

    Attributes:
        version: returns the number of the last change in the store.
        render: renders a list.
        patience: seconds that a browser may take to read a message.
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
        """Send a list whenever it changes, until the browser disconnects."""
        query = ListQuery.of(request.query)
        if self.readers >= _MOST_READERS:
            raise web.HTTPServiceUnavailable(reason="too many live pages are open")
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
            pass  # the browser is gone, or does not read
        finally:
            self.readers -= 1
        return response

    async def _send(self, response: web.StreamResponse, query: ListQuery) -> None:
        seen, last_sent, stop = "", self.clock.monotonic(), asyncio.Event()
        await self._write(response, b"retry: 3000\n\n")
        while True:
            try:
                number, text = await self._list(query)
            except HubStoreError:  # until the store is back, the browser keeps its list
                number, text = 0, seen
            if _without_countdowns(text) != _without_countdowns(seen):
                data = orjson.dumps(text).decode()
                frame = f"id: {number}\nevent: rows\ndata: {data}\n\n"
                await self._write(response, frame.encode())
                seen, last_sent = text, self.clock.monotonic()
            elif self.clock.monotonic() - last_sent >= _COMMENT_EVERY:
                await self._write(response, b": still here\n\n")
                last_sent = self.clock.monotonic()
            await self.clock.wait(stop, _EVERY)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self.patience):
            await response.write(data)

    async def _list(self, query: ListQuery) -> tuple[int, str]:
        """Return a list; rendered at most once for each change."""
        async with self._lock:
            number = (await self._number(), self.clock.monotonic() // _RENDER_EVERY)
            if query not in self._made or self._made[query][0] != number:
                if len(self._made) >= _MOST_LISTS:
                    self._made.clear()
                self._made[query] = (number, await self.render(query))
            return number[0], self._made[query][1]

    async def _number(self) -> int:
        """Return the number of the last change, read from the store once a second.

        A failed read also counts for a second. Otherwise each of the streams that wait
        for the lock would wait for a timeout of its own.

        Raises:
            HubStoreError: the store cannot be read.
        """
        asked_at, number = self._version
        if asked_at < 0 or self.clock.monotonic() - asked_at >= _EVERY:
            number = None
            try:
                number = await self.version()
            finally:
                self._version = (self.clock.monotonic(), number)
        if number is None:
            raise HubStoreAwayError("it did not answer a moment ago")
        return number


def _without_countdowns(text: str) -> str:
    """Return a list without its countdowns, which browsers update by themselves."""
    return _COUNTDOWN.sub(r"\1", text)

"""Tells browsers when the page that they show has changed, as server-sent events.

    mark    the fingerprint of what the page shows now: first, and after each change
    ping    every 15 s: the hub has looked, and nothing has changed

A page is read once for all browsers that show it: after a change in the store, and
every 5 s, since parts of it depend on the time. While the store cannot be read, nothing
is sent, so that the browser shows that it is not live. A browser that does not read is
disconnected. Whoever is refused a stream reloads the page every 10 s.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.hub.access import LOCAL
from bridge.hub.pages.rendering import Content, Look

_EVERY = 1.0
_PING_EVERY = 15.0  # proxies close a connection that is idle for longer
_READ_EVERY = 5.0  # parts of a page depend on the time, not only on the store
_LONGEST_PAUSE = 4.0
_MOST_READERS = 500
_MOST_OF_A_PERSON = 5
_MOST_PAGES = 50
_AT_ONCE = 2  # the store has more threads for reading: for whoever opens a page


class _Watched(Struct):
    """A page that browsers show.

    Attributes:
        readers: how many browsers show it.
        content: what it shows; None = it was not read yet.
        read_at: the version of the store, and the 5 s, that it was read in.
        cost: how many seconds the last reading took.
        due: when it may be read next.
    """

    look: Look
    readers: int = 0
    content: Content | None = None
    read_at: object = None
    cost: float = 0.0
    due: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Live(Struct):
    """Tells browsers of changes.

    Attributes:
        version: returns a value that each change in the store changes.
        read: reads what a page shows.
        patience: seconds that a browser may take to read a message.
    """

    clock: Clock
    version: Callable[[], Awaitable[object]]
    read: Callable[[Look], Awaitable[Content]]
    patience: float = 5.0
    _people: Counter[str] = field(default_factory=Counter)
    _pages: dict[str, _Watched] = field(default_factory=dict)
    _version: tuple[float, object] = (-1.0, None)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_AT_ONCE)
    )

    @property
    def readers(self) -> int:
        """How many streams are open."""
        return self._people.total()

    def known(self, look: Look, mark: str) -> Content | None:
        """Return what a page shows, if it is watched and has this mark."""
        watched = self._pages.get(look.key)
        content = None if watched is None else watched.content
        return content if content is not None and content.mark == mark else None

    async def stream(
        self, request: web.Request, person: str, look: Look
    ) -> web.StreamResponse:
        """Tell a browser of changes, until it disconnects.

        Raises:
            HTTPException: too many streams are open.
        """
        self._refuse_too_many(person, look)
        watched = self._pages.setdefault(look.key, _Watched(look))
        watched.readers += 1
        self._people[person] += 1
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        try:
            await response.prepare(request)
            await self._send(response, watched, lambda: _is_gone(request))
        except (TimeoutError, ConnectionResetError):
            pass  # the browser is gone, or does not read
        finally:
            self._leave(person, watched)
        return response

    def _refuse_too_many(self, person: str, look: Look) -> None:
        if person != LOCAL and self._people[person] >= _MOST_OF_A_PERSON:
            words = f"one person may have {_MOST_OF_A_PERSON} live pages"
            raise web.HTTPTooManyRequests(reason=words)
        is_new = look.key not in self._pages and len(self._pages) >= _MOST_PAGES
        if is_new or self.readers >= _MOST_READERS:
            raise web.HTTPServiceUnavailable(reason="too many live pages are open")

    def _leave(self, person: str, watched: _Watched) -> None:
        watched.readers -= 1
        if not watched.readers:
            del self._pages[watched.look.key]
        self._people[person] -= 1
        if not self._people[person]:
            del self._people[person]

    async def _send(
        self,
        response: web.StreamResponse,
        watched: _Watched,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        mark, sent, stop = "", self.clock.monotonic(), asyncio.Event()
        await self._write(response, b"retry: 3000\n\n")
        while not is_gone():
            try:
                content = await self._content(watched)
            except HubStoreError:  # nothing is sent: the page is not live
                content = None
            now = self.clock.monotonic()
            if content is not None and content.mark != mark:
                mark, sent = content.mark, now
                await self._write(response, f"event: mark\ndata: {mark}\n\n".encode())
            elif content is not None and now - sent >= _PING_EVERY:
                await self._write(response, b"event: ping\ndata:\n\n")
                sent = now
            await self.clock.wait(stop, _EVERY)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self.patience):
            await response.write(data)

    async def _content(self, watched: _Watched) -> Content:
        """Return what a page shows now; read at most once for each change."""
        async with watched.lock:
            version, now = await self._number(), self.clock.monotonic()
            read_at = (version, now // _READ_EVERY)
            if watched.content is None or (
                read_at != watched.read_at and now >= watched.due
            ):
                watched.content = await self._read(watched)
                watched.read_at = read_at
                watched.cost = self.clock.monotonic() - now
                watched.due = now + self._pause()
            return watched.content

    async def _read(self, watched: _Watched) -> Content:
        """Read a page: first for whoever has just come, the others two at a time."""
        if watched.content is None:
            return await self.read(watched.look)
        async with self._turns:
            return await self.read(watched.look)

    def _pause(self) -> float:
        """Return the seconds between two readings of a page: all take half a core."""
        cost = 2 * sum(one.cost for one in self._pages.values())
        return min(cost, _LONGEST_PAUSE)

    async def _number(self) -> object:
        """Return the version of the store, read once a second.

        A failed read also counts for a second. Otherwise each of the streams that wait
        for the lock would wait for a timeout of its own.

        Raises:
            HubStoreError: the store cannot be read.
        """
        async with self._lock:
            asked_at, version = self._version
            if asked_at < 0 or self.clock.monotonic() - asked_at >= _EVERY:
                version = None
                try:
                    version = await self.version()
                finally:
                    self._version = (self.clock.monotonic(), version)
        if version is None:
            raise HubStoreAwayError("it did not answer a moment ago")
        return version


def _is_gone(request: web.Request) -> bool:
    """Whether the browser has left: its next page must not be one too many."""
    return request.transport is None or request.transport.is_closing()

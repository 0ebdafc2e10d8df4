"""A TCP proxy in front of a server: cables that a test can cut, or make silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.ports import free_port


class Proxy:
    """Passes bytes on between clients and one port of this machine.

    Attributes:
        port: where clients connect; the same after a cut.
        opened: connections so far.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._talks = asyncio.Event()
        self._talks.set()
        self._lost: list[asyncio.Event] = []
        self.port = free_port()  # to come back to after a cut
        self.opened = 0

    @property
    def open(self) -> int:
        """Connections now."""
        return len(self._writers) // 2

    async def mend(self) -> None:
        """Take connections, as at the beginning."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self.port
            )

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in [*self._writers]:
            writer.transport.abort()

    def silence(self) -> None:
        """Become a black hole: take connections, and pass nothing on."""
        self._talks.clear()

    def speak(self) -> None:
        """Go on, with all that came meanwhile."""
        for talks in (*self._lost, self._talks):
            talks.set()

    def forget(self) -> None:
        """Go on with new connections; those that are open never hear anything more."""
        self._lost.append(self._talks)
        self._talks = asyncio.Event()
        self._talks.set()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.opened += 1
        try:
            far, to_far = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_far}
        talks = self._talks
        try:
            await asyncio.gather(
                self._pump(reader, to_far, talks), self._pump(far, writer, talks)
            )
        finally:
            for end in (writer, to_far):
                end.transport.abort()
            self._writers -= {writer, to_far}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        talks: asyncio.Event,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await talks.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    """Run a proxy in front of a port; yields it once it takes connections."""
    proxy = Proxy(port)
    await proxy.mend()
    try:
        yield proxy
    finally:
        proxy.speak()
        proxy.cut()
        await asyncio.sleep(0)

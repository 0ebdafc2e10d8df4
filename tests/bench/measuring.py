"""What benchmarks share: quantiles, memory and CPU of a process, servers."""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from bridge.app import forwarder as app
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock


def quantile(values: list[float], share: float) -> float:
    """Return a quantile."""
    return statistics.quantiles(values, n=1000, method="inclusive")[int(share * 999)]


def resident(pid: int | None = None) -> float:
    """Return resident memory of a process, or of this one, in MiB."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu(pid: int) -> float:
    """Return the CPU seconds that the threads of a process have used so far.

    From schedstat, which counts nanoseconds: an idle poll takes less than the hundredth
    of a second that ``/proc/PID/stat`` counts in.
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


class Counter:
    """A webhook that counts what it takes, and tells when it has enough."""

    def __init__(self) -> None:
        self.count, self.wanted = 0, 0
        self.last = 0.0
        self.is_enough = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        """Take an event."""
        await request.read()
        self.count += 1
        self.last = time.perf_counter()
        if self.count >= self.wanted:
            self.is_enough.set()
        return web.Response()

    async def expect(self, count: int) -> None:
        """Return as soon as so many more have come."""
        self.is_enough.clear()
        self.wanted = self.count + count
        await self.is_enough.wait()


@contextlib.asynccontextmanager
async def served(routes: list[web.RouteDef]) -> AsyncIterator[str]:
    """Serve routes on a free port; yields the URL."""
    server = web.Application()
    server.add_routes(routes)
    runner = web.AppRunner(server, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def imds(document: Callable[[], object]) -> list[web.RouteDef]:
    """Return the routes of an IMDS that shows what ``document`` returns."""

    async def events(_: web.Request) -> web.Response:
        return web.json_response(document())

    async def compute(_: web.Request) -> web.Response:
        return web.json_response({"name": "vm", "vmId": "id"})

    return [
        web.get("/metadata/scheduledevents", events),
        web.get("/metadata/instance/compute", compute),
    ]


@contextlib.asynccontextmanager
async def running(tables: dict[str, object]) -> AsyncIterator[None]:
    """Run the forwarder in this process."""
    config = configuration.parse(tables, file="bench", environ={})
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(app.run(config, stop, SystemClock()))
        try:
            yield
        finally:
            stop.set()

"""What benchmarks share: rows of the table, servers to measure against, processes."""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bridge.app import forwarder as app
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: ours against bare, in the same run.

    Attributes:
        wanted: what the ratio is to be: ``<= 3`` or ``>= 0.5``; "" = only told.
    """

    what: str
    ours: float
    bare: float
    unit: str
    wanted: str = ""

    @property
    def ratio(self) -> float:
        """Ours by bare."""
        return self.ours / self.bare if self.bare else float("inf")

    @property
    def verdict(self) -> str:
        """``ok``, ``missed``, or nothing where nothing is wanted."""
        if not self.wanted:
            return ""
        sign, limit = self.wanted.split()
        is_good = self.ratio <= float(limit) if sign == "<=" else None
        if is_good is None:
            is_good = self.ratio >= float(limit)
        return "ok" if is_good else "missed"

    def __str__(self) -> str:
        figures = f"{self.ours:10.2f} {self.bare:10.2f} {self.unit:8}"
        return (
            f"{self.what:52} {figures} {self.ratio:6.2f} {self.wanted:7} {self.verdict}"
        )


HEAD = f"{'':52} {'ours':>10} {'bare':>10} {'':8} {'ratio':>6} wanted"


def quantile(values: list[float], share: float) -> float:
    """Return a quantile."""
    return statistics.quantiles(values, n=1000, method="inclusive")[int(share * 999)]


def resident(pid: int | None = None) -> float:
    """Return resident memory of a process, or of this one, in MiB."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu(pid: int) -> float:
    """Return the CPU seconds a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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

"""What grows: rows in the outbox, events in the document; and the first poll."""

import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from aiohttp import web

from bridge.events.start_result import StartAnswer
from bridge.imds.client import Answer
from bridge.imds.config import ImdsConfig
from bridge.telemetry.metrics import Metrics
from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import served
from tests.support.builders import (
    SINK,
    event_context_of,
    imds_event,
    observed,
    outgoing,
    patient_outbox,
    router,
)
from tests.support.fakes import FakeClock

_MOST_WAITING = 90_000  # more would be given up: see ``Limits.waiting``
_FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO items (kind, key, event_id, cloud_event_id, type, body, created, checksum)
    SELECT 'event', 'K' || i, 'K' || i, 'id' || i, 't', zeroblob(300), i, 0 FROM n;
INSERT INTO deliveries
    (item, sink, key, state, attempts, due, settled, born, waits_for_sink)
    SELECT id, '{sink}', key, '{state}', 0, 1e10 + id, NULL, 0.0, 0 FROM items;
"""


async def outbox_rows(most: int, turns: int) -> list[Figure]:
    """Append and due with so many rows, against a thousand."""
    table = []
    for state, rows in (("delivered", most), ("pending", min(most, _MOST_WAITING))):

        async def ours(state: str = state, rows: int = rows) -> list[float]:
            return [await append_and_due(rows, state)]

        async def bare(state: str = state) -> list[float]:
            return [await append_and_due(1000, state)]

        ((many, few),) = await in_turns(ours, bare, turns)
        table.append(
            Figure(
                what=f"append and due, {rows:,} rows {state}",
                ours=many,
                bare=few,
                unit="ms",
                wanted="<= 1.5",
            )
        )
    return table


def _execute(statement: str, db: sqlite3.Connection) -> None:
    db.execute(statement)


async def append_and_due(count: int, state: str) -> float:
    """Return the milliseconds of one append and one due, as a median."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        async with patient_outbox(path, router()) as outbox:
            script = _FILL.format(rows=count, sink=SINK, state=state)
            for statement in script.split(";")[:2]:
                await outbox.database.run(partial(_execute, statement))
        async with patient_outbox(path, router()) as outbox:
            times = []
            for number in range(300):
                began = time.perf_counter()
                await outbox.commit([outgoing(f"n{number}", key=f"N{number}")], now=2.0)
                (one,), _ = await outbox.deliveries.due(SINK, now=3.0, limit=10)
                times.append((time.perf_counter() - began) * 1000)
                await outbox.deliveries.delivered(one, now=3.0)
    return statistics.median(times)


class Played:
    """An IMDS whose document differs at each look."""

    def __init__(self, events: int) -> None:
        self.config = ImdsConfig()
        self._events = [imds_event(f"E{n}") for n in range(events)]
        self._number = 0

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - the client's own word
        """Return a document with another number and the same events."""
        self._number += 1
        body = {"DocumentIncarnation": self._number, "Events": self._events}
        return Answer(body=json.dumps(body).encode(), etag=None, date=None)

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """Nobody approves."""
        raise NotImplementedError


async def poll_cost(rounds: int, turns: int) -> list[Figure]:
    """Cost of a poll of a changed document with 10, 100, 1,000 events, by one of 0."""
    table = []
    for count in (10, 100, 1000):
        ((full, empty),) = await in_turns(
            partial(look_cost, count, max(rounds * 10 // count, 10)),
            partial(look_cost, 0, rounds),
            turns,
        )
        table.append(
            Figure(
                what=f"look at a document with {count:,} events, by one with none",
                ours=full,
                bare=empty,
                unit="ms",
            )
        )
    return table


async def look_cost(count: int, rounds: int) -> list[float]:
    """Return the milliseconds of a look at a changed document with so many events."""
    with tempfile.TemporaryDirectory() as folder:
        async with patient_outbox(Path(folder) / "state.db", router()) as outbox:
            poller, _ = observed(
                Played(count),
                outbox,
                event_context_of(),
                FakeClock(),
                Metrics([SINK], "1"),
            )
            await poller.step()
            began = time.perf_counter()
            for _ in range(rounds):
                await poller.step()
            return [(time.perf_counter() - began) * 1000 / rounds]


async def first_poll(turns: int) -> list[Figure]:
    """From the start of the process to its first GET of the document."""
    first = asyncio.Event()

    async def events(_: web.Request) -> web.Response:
        first.set()
        return web.json_response({"DocumentIncarnation": 1, "Events": []})

    async def compute(_: web.Request) -> web.Response:
        return web.json_response({"name": "vm", "vmId": "id"})

    routes = [
        web.get("/metadata/scheduledevents", events),
        web.get("/metadata/instance/compute", compute),
        web.get("/bare", events),
    ]
    with tempfile.TemporaryDirectory() as folder:
        async with served(routes) as url:
            config = Path(folder) / "bridge.toml"
            state = (Path(folder) / "state.db").as_posix()
            config.write_text(
                f'[imds]\nendpoint = "{url}"\n[state]\npath = "{state}"\n'
                '[http]\nlisten = ""\n[log]\nlevel = "error"\n'
                f'[[sinks]]\nname = "siem"\ntype = "webhook"\nurl = "{url}/hook"\n'
            )
            script = Path(folder) / "bare.py"
            script.write_text(
                "import aiohttp, asyncio\n"
                "async def main():\n"
                "    async with aiohttp.ClientSession() as s:\n"
                f"        await s.get('{url}/bare')\n"
                "asyncio.run(main())\n"
            )
            command = ["-m", "bridge", "run", "-c", str(config)]

            async def ours() -> list[float]:
                return [await started(command, first)]

            async def bare() -> list[float]:
                return [await started([str(script)], first)]

            ((mine, least),) = await in_turns(ours, bare, turns)
    return [
        Figure(
            what="start to first poll",
            ours=mine,
            bare=least,
            unit="ms",
            wanted="<= 1.5",
        )
    ]


async def started(arguments: list[str], first: asyncio.Event) -> float:
    """Return the milliseconds until a process has asked."""
    first.clear()
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    async with asyncio.timeout(30):
        await first.wait()
    taken = (time.perf_counter() - began) * 1000
    if process.returncode is None:
        process.terminate()
    await process.wait()
    return taken

"""What 1, 4 and 12 forwarders on one document cost, as ratios to one of them.

Each is a process with a Service Bus sink, a session of its own and one that all of
them accept. Sends and connections grow with their number; what reaches a consumer
behind duplicate detection does not.
"""

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.measuring import cpu, resident
from tests.support.configurations import approvals, config_text, servicebus
from tests.system.processes import Addresses, forwarder, settled, simulator

SIZES = (1, 4, 12)
_ESTABLISHED = "01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a fleet took.

    Attributes:
        sends: messages that the broker accepted.
        reached: messages that stand in the subscription.
        connections: to the broker, when all is quiet.
        cpu: milliseconds per second of all forwarders, when all is quiet.
        memory: MiB of all forwarders.
    """

    sends: int
    reached: int
    connections: int
    cpu: float
    memory: float


def _configuration(number: int, at: Addresses, state: Path) -> str:
    """Return that of one forwarder: a topic, its own session, and its group's."""
    bus = at.connection_string
    return config_text(
        servicebus(bus, when={"lifecycle": False}),
        imds={"endpoint": at.imds},
        state=state,
        identity={"vm_id": f"vm-{number}", "vm_name": f"web-{number}"},
        approvals=approvals(
            bus, "vm-approvals-sessions", sessions=["{vm_id}", "group-7"]
        ),
    )


@contextlib.asynccontextmanager
async def forwarders(
    count: int, at: Addresses, folder: Path
) -> AsyncIterator[tuple[list[Path], list[int]]]:
    """Run so many forwarders; yields their configurations and process ids."""
    configs, running = [], []
    try:
        for number in range(count):
            config = folder / f"{number}.toml"
            config.write_text(_configuration(number, at, config.with_suffix(".db")))
            running.append(await forwarder(config))
            configs.append(config)
        for config in configs:
            await settled(config, 0)
        yield configs, [process.pid for process in running]
    finally:
        for process in running:
            process.terminate()
        await asyncio.gather(*(process.wait() for process in running))


async def history(at: Addresses, events: int) -> None:
    """Let so many events appear, start, and be over."""
    ids = [f"00000000-0000-0000-0000-{number:012}" for number in range(events)]
    for event_id in ids:
        event = {"type": "Freeze", "resources": ["web-0"], "notBefore": 900}
        await at.control("POST", "events", {**event, "eventId": event_id})
    await asyncio.sleep(3)
    for event_id in ids:
        await at.control("POST", f"events/{event_id}/start")
    await asyncio.sleep(3)
    for event_id in ids:
        await at.control("DELETE", f"events/{event_id}")
    await asyncio.sleep(3)


async def cost(count: int, seconds: float, events: int) -> Cost:
    """Run a fleet through some history, and look at it when all is quiet."""
    with tempfile.TemporaryDirectory() as name:
        async with (
            simulator() as at,
            forwarders(count, at, Path(name)) as (configs, pids),
        ):
            await asyncio.sleep(5)
            await history(at, events)
            before = sum(map(cpu, pids))
            await asyncio.sleep(seconds)
            used = 1000 * (sum(map(cpu, pids)) - before) / seconds
            return Cost(
                sends=sum(delivered(config.with_suffix(".db")) for config in configs),
                reached=await in_subscription(at),
                connections=connections(at),
                cpu=used,
                memory=sum(map(resident, pids)),
            )


def delivered(state: Path) -> int:
    """Return how many deliveries a state file has seen done."""
    with contextlib.closing(sqlite3.connect(state)) as db:
        query = "SELECT count(*) FROM deliveries WHERE state = 'delivered'"
        return int(db.execute(query).fetchone()[0])


async def in_subscription(at: Addresses) -> int:
    """Return how many messages wait for the consumer."""
    found = await at.control("GET", "servicebus")
    assert isinstance(found, dict)
    count = found["entities"]["scheduled-events/Subscriptions/consumer"]["active"]
    assert isinstance(count, int)
    return count


def connections(at: Addresses) -> int:
    """Return how many connections to the broker there are."""
    port = int(at.connection_string.partition(";")[0].rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED for row in rows
    )


_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("sends", "sends", "", ""),
    ("messages at the consumer", "reached", "", "<= 1"),
    ("connections", "connections", "", ""),
    ("CPU, idle", "cpu", "ms/s", ""),
    ("memory", "memory", "MiB", ""),
)


async def figures(seconds: float, events: int, turns: int) -> list[Figure]:
    """Measure each size in turns; the bare figure is that of one forwarder."""
    found: dict[int, list[Cost]] = {count: [] for count in SIZES}
    for _ in range(turns):
        for count, costs in found.items():
            costs.append(await cost(count, seconds, events))
    return [
        Figure(
            what=f"fleet of {count}, {what}",
            ours=tuple(getattr(it, name) for it in costs),
            bare=tuple(getattr(one, name) for one in found[SIZES[0]]),
            unit=unit,
            wanted=wanted,
        )
        for count, costs in found.items()
        for what, name, unit, wanted in _ROWS
    ]

"""A state file that has lived, and disks that do to it what disks do."""

import asyncio
import json
import random
import sqlite3
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from bridge.app.identify import settle
from bridge.events.cloudevent import hash32
from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    TransientDeliveryError,
)
from bridge.foundation.pace import RetryPolicy
from bridge.foundation.workers import Worker, run_workers
from bridge.imds.poller import Poller
from bridge.outbox.records import Decision, Delivery
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.statefile import open_database
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.housekeeping import Housekeeping
from bridge.pipeline.observer import Observer
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics
from tests.support.builders import (
    ME,
    SINK,
    body_of,
    event_context_of,
    imds_event,
    observed,
    router,
    started,
)
from tests.support.fakes import START, FakeClock, FakeMetadata, RecordingSink

PAGE = 4096
NEW = "0BADF00D-NEW"
PARTS = ("", "-wal", "-shm")
LATER = START + timedelta(minutes=10)
_ROUNDS = 12  # of a second each, that a life lasts
Files = dict[str, bytes]


def event_id(number: int) -> str:
    return f"{number:08X}-AFDC-4513-B24B-AA5F13A16123"


def history() -> list[bytes]:
    """Return documents in which forty events come, change, begin and go."""

    def event(number: int, **fields: object) -> dict[str, object]:
        long = {"Description": f"{number} " + "maintenance " * (100 * (number % 8))}
        return imds_event(event_id(number), **{**long, **fields})

    first = [event(n) for n in range(30)]
    second = [event(n, DurationInSeconds=9 if n % 3 else 5) for n in range(40)]
    third = [
        started(event_id(n)) if n % 7 == 0 else event(n, DurationInSeconds=9)
        for n in range(5, 40)
    ]
    return [body_of(*d, incarnation=i) for i, d in enumerate((first, second, third), 2)]


def last_document() -> bytes:
    """Return the document of the day after: the same events, and a new one."""
    document = json.loads(history()[-1])
    return body_of(*document["Events"], imds_event(NEW), incarnation=5)


@dataclass(frozen=True)
class Lived:
    """A state file as a kill has left it.

    Attributes:
        files: its parts.
        bodies: of what was to be published, by id.
        pending: ids of those that wait, and the EventId of each.
    """

    files: Files
    bodies: dict[str, bytes]
    pending: dict[str, str]

    @property
    def pending_in_document(self) -> set[str]:
        """EventIds of which something waits, and that are still there."""
        events = json.loads(last_document())["Events"]
        return {event["EventId"] for event in events} & set(self.pending.values())


async def lived(folder: Path) -> Lived:
    """Let a forwarder live: some is delivered, some dead, much waits."""
    path, clock = folder / "lived.db", FakeClock()
    async with open_database(path, ME.vm_id) as database:
        parts = ForwarderParts(await Outbox.of(database, router()), clock)
        await settle(database, ME, "")
        parts.metadata.says(*history())
        for _ in history()[1:]:
            await parts.poller.step()
            await remember(parts, clock)
        await database.read(written_back)
        await parts.poller.step()
        await attempt(parts, clock, 25)
        found = await database.read(
            lambda db: db.execute(
                """SELECT i.cloud_event_id, i.event_id, i.body, d.state
                   FROM deliveries d JOIN items i ON i.id = d.item"""
            ).fetchall()
        )
        files = {part: Path(f"{path}{part}").read_bytes() for part in PARTS}
    return Lived(
        files,
        {number: body for number, _, body, _ in found},
        {number: key for number, key, _, state in found if state == "pending"},
    )


def written_back(db: sqlite3.Connection) -> None:
    """Move what stands in the log into the file itself."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def remember(parts: "ForwarderParts", clock: FakeClock) -> None:
    """Keep approvals and what a sink has to know, as much as there may be."""
    memory = SinkMemory(parts.outbox, SINK, clock)
    for number in range(20):
        await memory.keep(event_id(number).upper(), json.dumps({"n": number}).encode())
        decision = Decision(
            message=f"message {number}",
            key=event_id(number).upper(),
            event_id=event_id(number),
            sequence=number,
            state="relayed" if number % 2 else "intent",
            data=b'{"outcome": "relayed"}' if number % 2 else None,
        )
        await parts.outbox.approvals.save(decision, now=clock.now().timestamp())


async def attempt(parts: "ForwarderParts", clock: FakeClock, count: int) -> None:
    """Deliver some, dead_letter some, postpone some."""
    parts.sink.faults.extend(
        (
            None,
            TransientDeliveryError("it is down", Reason.SERVER),
            PermanentDeliveryError("not that one", Reason.REJECTED),
        )[n % 3]
        for n in range(count)
    )
    parts.sink.always = TransientDeliveryError("it is down", Reason.SERVER)
    async with asyncio.TaskGroup() as attempts:
        for _ in range(count // 4):
            await parts.relay.step(attempts)
            await parts.turn(clock, 0.0)


@dataclass
class ForwarderParts:
    """The parts of a forwarder that read the state file."""

    outbox: Outbox
    clock: FakeClock
    metadata: FakeMetadata = field(default_factory=FakeMetadata)
    sink: RecordingSink = field(default_factory=RecordingSink)
    metrics: Metrics = field(default_factory=lambda: Metrics([SINK], "1.2.3"))
    poller: Poller = field(init=False)
    observer: Observer = field(init=False)
    relay: Relay = field(init=False)

    def __post_init__(self) -> None:
        self.poller, self.observer = observed(
            self.metadata, self.outbox, event_context_of(), self.clock, self.metrics
        )
        self.relay = Relay(
            sink=SINK,
            deliver=self.sink,
            outbox=self.outbox,
            clock=self.clock,
            metrics=self.metrics,
            policy=RelayPolicy(
                backoff=RetryPolicy(max_backoff=60.0), max_age=86400.0, slots=4
            ),
            chance=lambda: 0.5,
        )

    def workers(self) -> list[Worker]:
        housekeeping = Housekeeping(
            outbox=self.outbox,
            observer=self.observer,
            clock=self.clock,
            retention=7 * 86400.0,
            max_size=10**9,
        )
        return [self.poller, self.relay, housekeeping]

    async def turn(self, clock: FakeClock, seconds: float) -> None:
        """Let time pass, and the state's thread do what waits for it."""
        for _ in range(6):
            await self.outbox.database.read(lambda _: None)
            await clock.advance(seconds / 6)


async def life(path: Path, taken: list[Delivery]) -> None:
    """Start on the file as it is, publish what there is, and stop.

    Args:
        path: the state file.
        taken: what the sink has taken.

    Raises:
        BaseExceptionGroup: a worker has ended, as the process would.
    """
    clock, stop = FakeClock(LATER), asyncio.Event()
    async with open_database(path, ME.vm_id) as database:
        parts = ForwarderParts(await Outbox.of(database, router()), clock)
        parts.sink.taken = taken
        parts.metadata.says(last_document())
        await settle(database, ME, "")
        await parts.observer.restore()
        life = run_workers(parts.workers(), stop, grace=lambda: 5.0)
        running = asyncio.create_task(life)
        for _ in range(_ROUNDS):
            if not running.done():
                await parts.turn(clock, 1.0)
        stop.set()
        await asyncio.wait([running])
        running.result()


# -- what disks do ---------------------------------------------------------------------


def damaged(files: Files, seed: int) -> Files:
    """Return the file after a bad day of its disk: always the same for a seed."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    part = chance.choice(["", "", "", "", "-wal", "-shm"])
    kind = chance.choice([_bits, _bits, _swapped, _truncated, _text_bits, _text_bits])
    return {**files, part: kind(files[part], chance)}


def _bits(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.choice([1, 1, 4, 40])):
        changed[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _text_bits(body: bytes, chance: random.Random) -> bytes:
    """Make texts that are no UTF-8: the highest bit of letters."""
    changed = bytearray(body)
    letters = [place for place, byte in enumerate(body) if 0x41 <= byte < 0x7B]
    for place in chance.sample(letters, min(len(letters), chance.choice([1, 4, 40]))):
        changed[place] ^= 0x80
    return bytes(changed)


def _swapped(body: bytes, chance: random.Random) -> bytes:
    pages = [body[at : at + PAGE] for at in range(0, len(body), PAGE)]
    one, other = chance.sample(range(len(pages)), 2) if len(pages) > 1 else (0, 0)
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def _truncated(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randrange(len(body))]


# -- what may be published -------------------------------------------------------------


def is_of_its_id(delivery: Delivery, known: Lived) -> bool:
    """Whether what was sent is what its id stands for.

    It is, byte for byte, what once had that id; or it was published in this life, and
    its id is the hash of what it says.
    """
    try:
        event = json.loads(delivery.body)
    except ValueError:
        return False
    if delivery.body == known.bodies.get(event["id"]):
        return True
    return event["time"] >= f"{LATER:%Y-%m-%dT%H:%M:%S}" and event["id"] in ids(event)


def ids(event: dict[str, Any]) -> set[str]:
    """Return the ids that an event may have, by how often it was published before."""
    data = event["data"]
    transition = data["transition"]
    before = _canonical(data["previous"]) if transition == "updated" else None
    is_gone = transition in ("completed", "cancelled", "ended")
    after = None if is_gone else _canonical(data["event"])
    cause = [event["subject"].upper(), transition, before, after]
    return {hash32(cause), *(hash32([*cause, n]) for n in range(1, 9))}


def _canonical(event: dict[str, Any]) -> dict[str, Any]:
    key, resources = event["EventId"].upper(), sorted(event["Resources"])
    return {**event, "EventId": key, "Resources": resources}

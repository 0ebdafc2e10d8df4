"""Bad days of a whole forwarder that runs in this process, against real servers.

What they have in common: nothing is lost, every sink gets the same ids, and each
EventId in the order of its history.
"""

import asyncio
import gc
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bridge.app import forwarder as app
from bridge.app.composition import TIMINGS, Timings
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock
from bridge.servicebus.namespace import Timings as BusTimings
from bridge.simulator.faults import parse_fault
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.inbox import Inbox
from bridge.simulator.servicebus.broker import Broker
from tests.sinks.receivers import Receiver
from tests.support.servers import brisk_sdk, broker
from tests.support.sink_fixtures import drained
from tests.support.stopwatch import Stopwatch

__all__ = ["brisk_sdk", "broker"]  # fixtures

pytestmark = [
    pytest.mark.integration,
    # The SDK leaves a connection that it is interrupted in opening to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATIENCE = 60.0
GRACE = 0.5
DOCUMENT = "/metadata/scheduledevents"
Event = Mapping[str, object]


class JumpingClock(SystemClock):
    """The clock of this machine, wrong by as much as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


@dataclass
class Town:
    """IMDS, a broker and an inbox, and a forwarder among them."""

    imds: ImdsSimulator
    broker: Broker
    inbox: Inbox
    state: Path
    clock: JumpingClock = field(default_factory=JumpingClock)
    options: dict[str, object] = field(default_factory=dict)
    timings: Timings = TIMINGS

    def tables(self) -> dict[str, object]:
        bus = self.broker.connection_string
        url = f"{self.inbox.url}/siem"
        return {
            "shutdown_grace": f"{GRACE}s",
            "imds": {"endpoint": self.imds.url, "poll_interval": "250ms"},
            "state": {"path": str(self.state)},
            "http": {"listen": ""},
            "sinks": [
                {
                    "name": "bus",
                    "type": "servicebus",
                    "connection_string": bus,
                    "topic": "scheduled-events",
                    "when": {"lifecycle": False},
                },
                {
                    "name": "siem",
                    "type": "webhook",
                    "url": url,
                    "when": {"lifecycle": False},
                    **self.options,
                },
            ],
        }

    @asynccontextmanager
    async def life(self) -> AsyncIterator[asyncio.Event]:
        """Run the forwarder; it stops at the end, or when a test says so."""
        config = configuration.parse(self.tables(), file="town", environ={})
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(app.run(config, stop, self.clock, timings=self.timings))
            try:
                yield stop
            finally:
                stop.set()

    def schedule(self, number: int) -> str:
        """Let a Freeze appear; returns its EventId."""
        event_id = f"00000000-0000-0000-0000-{number:012}"
        self.imds.schedule(
            EventLife(
                event_type="Freeze",
                resources=(self.imds.vm_name,),
                event_id=event_id,
                notice_seconds=900,
            )
        )
        return event_id

    def strike(self, server: "ImdsSimulator | Inbox", **fault: object) -> None:
        """Let each request meet a fault until all faults are cleared."""
        given = json.dumps({"untilCleared": True, **fault})
        server.faults.add(parse_fault(given.encode()))

    def received(self) -> list[Event]:
        """What the webhook received, each id once, in order."""
        found = [m.body for m in self.inbox.messages if isinstance(m.body, dict)]
        return list({str(body["id"]): body for body in found}.values())

    async def until_received(self, *steps: str) -> None:
        """Wait until the webhook received these ``number transition``."""
        async with asyncio.timeout(PATIENCE):
            while not {*steps} <= set(map(brief, self.received())):
                await asyncio.sleep(0.02)

    async def on_the_bus(self, count: int) -> list[Event]:
        """Receive what was sent to the topic, in order."""
        messages = await drained(self.broker, count=count)
        return [json.loads(str(message)) for message in messages]


def brief(event: Event) -> str:
    """Say ``1 scheduled``."""
    number = int(str(event["subject"])[-12:])
    return f"{number} {str(event['type']).split('.')[-2]}"


@pytest.fixture
async def town(broker: Broker, tmp_path: Path) -> AsyncIterator[Town]:
    async with ImdsSimulator() as imds, Inbox() as inbox:
        yield Town(imds, broker, inbox, tmp_path / "state.db")
    gc.collect()  # here, and not in the middle of another file's test


# -- IMDS ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 410},
        {"status": 429, "retryAfter": 1},
        {"garbage": True},
        {"truncated": True},
        {"hang": 0.6},
        {"reset": True},
    ],
    ids=lambda fault: next(iter(fault)) + str(next(iter(fault.values()))),
)
async def test_imds_in_trouble_loses_nothing_that_it_shows_later(
    fault: dict[str, object], town: Town
) -> None:
    """What appears and starts meanwhile is published as soon as it can be seen."""
    async with town.life():
        first = town.schedule(1)
        await town.until_received("1 scheduled")
        town.strike(town.imds, path=DOCUMENT, **fault)
        town.schedule(2)
        town.imds.start(first)
        await asyncio.sleep(0.7)
        town.imds.faults.clear()
        await town.until_received("1 scheduled", "1 started", "2 scheduled")

    on_bus = await town.on_the_bus(3)
    assert sorted(map(brief, on_bus)) == ["1 scheduled", "1 started", "2 scheduled"]
    assert {str(e["id"]) for e in on_bus} == {str(e["id"]) for e in town.received()}


# -- a stop in the middle ----------------------------------------------------------


@dataclass
class Trouble:
    """Something that goes wrong, and how it ends."""

    begin: Callable[[Town], object]
    end: Callable[[Town], object]


def strike_imds(**fault: object) -> Trouble:
    return Trouble(
        lambda town: town.strike(town.imds, path=DOCUMENT, **fault),
        lambda town: town.imds.faults.clear(),
    )


def strike_webhook(**fault: object) -> Trouble:
    return Trouble(
        lambda town: town.strike(town.inbox, path="/siem", **fault),
        lambda town: town.inbox.faults.clear(),
    )


def refuse(town: Town) -> None:
    town.broker.faults.refuse_attach("scheduled-events")
    town.broker.faults.drop_connections()


TROUBLES = {
    "imds gone": strike_imds(status=410),
    "imds throttles": strike_imds(status=429, retryAfter=60),
    "imds garbage": strike_imds(garbage=True),
    "imds hangs": strike_imds(hang=60),
    "webhook throttles": strike_webhook(status=429, retryAfter=2),
    "webhook hangs": strike_webhook(hang=60),
    "webhook takes and resets": strike_webhook(reset=True, takesEffect=True),
    "broker silent": Trouble(
        lambda town: town.broker.faults.freeze(), lambda town: town.broker.faults.thaw()
    ),
    "broker refuses": Trouble(
        refuse, lambda town: town.broker.faults.allow_attach("scheduled-events")
    ),
    "loop blocked": Trouble(lambda town: time.sleep(2), lambda town: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TROUBLES)
async def test_stop_in_the_middle_of_trouble_is_prompt_and_loses_nothing(
    name: str, town: Town
) -> None:
    trouble = TROUBLES[name]
    async with town.life() as stop:
        first = town.schedule(1)
        await town.until_received("1 scheduled")
        trouble.begin(town)
        town.schedule(2)
        town.imds.start(first)
        await asyncio.sleep(0.6)
        watch = Stopwatch()
        stop.set()
    took = watch.seconds
    trouble.end(town)

    steps = ["1 scheduled", "1 started", "2 scheduled"]
    async with town.life():
        await town.until_received(*steps)
        on_bus = await town.on_the_bus(3)
    received = town.received()

    assert took < GRACE + 2.5
    assert sorted(map(brief, received)) == sorted(map(brief, on_bus)) == steps
    assert {str(e["id"]) for e in on_bus} == {str(e["id"]) for e in received}
    for found in (received, on_bus):
        assert [brief(e) for e in found if brief(e)[0] == "1"] == steps[:2]


# -- other bad days ----------------------------------------------------------------


async def test_first_event_after_an_hour_of_silence_is_delivered_within_3_seconds(
    town: Town,
) -> None:
    """The network has forgotten each connection without a word meanwhile."""
    town.timings = Timings(bus=BusTimings(idle=0.3))
    async with town.life():
        town.schedule(1)
        await town.until_received("1 scheduled")
        town.broker.faults.drop_connections()
        await asyncio.sleep(0.5)
        town.schedule(2)
        watch = Stopwatch()
        await town.until_received("2 scheduled")
        on_bus = await town.on_the_bus(2)
        took = watch.seconds

    assert [brief(e) for e in on_bus] == ["1 scheduled", "2 scheduled"]
    assert took < 3


@pytest.mark.parametrize("hours", [-6, 6])
async def test_clock_that_jumps_by_hours_delays_and_loses_nothing(
    hours: int, town: Town
) -> None:
    """A delivery waits to be tried again when the clock is set; others come after."""
    async with town.life():
        first = town.schedule(1)
        await town.until_received("1 scheduled")
        town.strike(town.inbox, path="/siem", status=503)
        town.imds.start(first)
        await asyncio.sleep(0.5)
        town.clock.ahead = timedelta(hours=hours)
        town.schedule(2)
        await asyncio.sleep(0.3)
        town.inbox.faults.clear()
        await town.until_received("1 started", "2 scheduled")
        town.imds.remove(first)
        await town.until_received("1 completed")

    received = [brief(e) for e in town.received()]
    assert [t for t in received if t[0] == "1"] == [
        "1 scheduled",
        "1 started",
        "1 completed",
    ]


async def test_vm_that_was_off_over_the_weekend_loses_nothing_for_its_age(
    town: Town,
) -> None:
    town.strike(town.inbox, path="/siem", hang=60)
    town.clock.ahead = timedelta(hours=-72)
    async with town.life():
        town.schedule(1)
        await town.on_the_bus(1)
    town.clock.ahead = timedelta()
    town.inbox.faults.clear()
    town.strike(town.inbox, path="/siem", status=503, untilCleared=False)
    async with town.life():
        await town.until_received("1 scheduled")
    assert town.inbox.faults.waiting() == ()

    assert [brief(e) for e in town.received()] == ["1 scheduled"]


async def test_sink_that_never_answers_delays_no_other(town: Town) -> None:
    town.strike(town.inbox, path="/siem", hang=60)
    async with town.life():
        for number in range(1, 13):
            town.schedule(number)
        watch = Stopwatch()
        on_bus = await town.on_the_bus(12)
        took = watch.seconds

    assert len({str(e["id"]) for e in on_bus}) == 12
    assert took < 15


async def test_sink_whose_name_cannot_be_resolved_keeps_its_deliveries(
    town: Town,
) -> None:
    """And no other sink, and no stop, waits for the resolver."""
    town.options = {"url": "http://siem.invalid/"}
    async with town.life():
        town.schedule(1)
        await town.on_the_bus(1)
        await asyncio.sleep(0.2)
    assert town.received() == []
    town.options = {}
    async with town.life():
        await town.until_received("1 scheduled")


async def test_state_file_locked_by_another_process_keeps_no_event_from_its_sinks(
    town: Town,
) -> None:
    """Also over a stop while it is still locked: what follows has the same ids."""
    async with town.life():
        first = town.schedule(1)
        await town.until_received("1 scheduled")
        other = sqlite3.connect(town.state, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        town.imds.start(first)
        await town.until_received("1 started")
    before = town.received()
    other.execute("ROLLBACK")
    other.close()
    async with town.life():
        async with asyncio.timeout(PATIENCE):
            while len(town.inbox.messages) < 3:
                await asyncio.sleep(0.02)  # what the disk never knew is published again
        town.imds.remove(first)
        await town.until_received("1 completed")

    assert [e["id"] for e in town.received()[:2]] == [e["id"] for e in before]
    assert [brief(e) for e in town.received()] == [
        "1 scheduled",
        "1 started",
        "1 completed",
    ]


async def test_loop_that_was_blocked_goes_on_as_if_nothing_had_been(
    town: Town,
) -> None:
    async with town.life():
        first = town.schedule(1)
        await town.until_received("1 scheduled")
        town.imds.start(first)
        town.schedule(2)
        time.sleep(2)  # noqa: ASYNC251 - the fault
        town.imds.remove(first)
        await town.until_received("2 scheduled")
        await asyncio.sleep(0.3)
        on_bus = await town.on_the_bus(3)

    assert brief(on_bus[0]) == "1 scheduled"
    assert {brief(e) for e in town.received()} == set(map(brief, on_bus))


async def test_backlog_goes_out_at_the_rate_of_the_sink(town: Town) -> None:
    town.options = {"max_rate": 2}
    for number in range(1, 6):
        town.schedule(number)
    async with town.life():
        await town.until_received(*(f"{number} scheduled" for number in range(1, 6)))

    times = [datetime.fromisoformat(m.received_at) for m in town.inbox.messages]
    assert max(times) - min(times) > timedelta(seconds=0.5)  # 2.0, less what jitters


async def test_backlog_goes_out_at_the_rate_that_the_receiver_allows(
    town: Town,
) -> None:
    async with Receiver(rate="120").serving() as receiver:
        town.options = {"url": receiver.url, "handshake": "required"}
        for number in range(1, 6):
            town.schedule(number)
        async with town.life(), asyncio.timeout(PATIENCE):
            while len(receiver.taken) < 5:
                await asyncio.sleep(0.02)

    assert receiver.times[-1] - receiver.times[0] > 0.5
    assert len(receiver.asked) == 1

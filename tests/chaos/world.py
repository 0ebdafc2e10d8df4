"""One round: a world that lives on while the forwarder is killed again and again."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec
import orjson
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.errors import NoSuchEventError
from bridge.simulator.faults import Answer, Fault, Hang, Reset
from bridge.simulator.imds.document import ScheduledEvent, Status
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.state import ImdsOptions, ImdsSettings
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.message import Delivery
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.chaos.approver import QUEUE, Approver
from tests.chaos.history import REPLIES, Event, History, Request
from tests.chaos.imds import RecordedImds
from tests.chaos.process import Lives, undone
from tests.chaos.sinks import MOODS, Hook, read_bus, read_file, read_replies
from tests.support.configurations import approvals, config_text, servicebus, webhook

SUBSCRIPTION = "scheduled-events/Subscriptions/consumer"
EVENTS = "/metadata/scheduledevents"
_HOWS = (
    "start",
    "any",
    "any",
    "read",
    "read",
    "published",
    "posted",
    "posted",
    "stopping",
)
_ENTITIES = Entities(
    queues=(
        # A kill keeps its locks, and counts as a delivery: neither is to be what
        # ends a message here.
        QueueSettings(
            name=QUEUE, lock_duration=timedelta(seconds=5), max_delivery_count=10_000
        ),
        QueueSettings(name=REPLIES),
    ),
    topics=(
        TopicSettings(
            name="scheduled-events",
            subscriptions=(
                SubscriptionSettings(
                    name="consumer",
                    lock_duration=timedelta(seconds=5),
                    max_delivery_count=10_000,
                ),
            ),
        ),
    ),
)


@dataclass(slots=True)
class World:
    """All that is beside the forwarder.

    Attributes:
        is_over: set when no new event is to appear.
        is_risen: whether the incarnation rose in the last life.
    """

    imds: RecordedImds
    broker: Broker
    hook: Hook
    approver: Approver
    history: History
    chance: random.Random
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    is_risen: bool = False
    _count: int = 0

    async def live(self) -> None:
        """Let events appear and go, one after the other and in bursts."""
        async with asyncio.TaskGroup() as events:
            while not self.is_over.is_set():
                size = self.chance.choice((1, 1, 1, 2, 12))
                born = [self._born() for _ in range(size)]
                if size > 2 or self.chance.random() < 0.5:
                    await self.approver.burst(self._shown(born))
                for event in born:
                    events.create_task(self._play(event))
                await self._pause(0.3, 3.0)

    async def vex(self) -> None:
        """Let sinks, broker and IMDS fail now and then."""
        while not self.is_over.is_set():
            await self._pause(0.3, 5.0)
            match self.chance.randrange(6):
                case 0 | 1:
                    self.hook.mood = self.chance.choice(MOODS)
                    await self._pause(0.2, 3.0)
                    self.hook.mood = ""
                case 2 | 3:
                    await self._vex_broker()
                case 4:
                    self._vex_imds()
                case _:
                    self.imds.set_incarnation(self.chance.randrange(3))
        self.hook.mood = ""
        self.broker.faults.clear()
        self.imds.faults.clear()

    async def _vex_broker(self) -> None:
        faults = self.broker.faults
        async with self.approver.calm:
            match self.chance.randrange(4):
                case 0:
                    faults.detach_links()
                case 1:
                    faults.busy_for_sends(self.chance.randrange(1, 6))
                case 2:
                    faults.expire_locks(QUEUE)
                case _:
                    faults.freeze()
                    await self._pause(0.2, 2.0)
                    faults.thaw()

    def _vex_imds(self) -> None:
        self.history.had_imds_faults = True
        takes_effect = self.chance.random() < 0.5
        lost = (Answer(status=500), Reset(), Hang(0.5))
        strike = self.chance.choice(lost)
        self.imds.faults.add(
            Fault(
                strike=strike,
                method="POST",
                path=EVENTS,
                takes_effect=takes_effect,
            )
        )
        refused = self.chance.choice((Answer(status=503), Reset(), Hang(0.5)))
        self.imds.faults.add(Fault(strike=refused, method="GET", path=EVENTS))

    def _born(self) -> ScheduledEvent:
        self._count += 1
        is_short = self.chance.random() < 0.15
        is_started = self.chance.random() < 0.1
        return self.imds.schedule(
            EventLife(
                event_type=self.chance.choice(("Freeze", "Reboot", "Redeploy")),
                resources=("WestNO_0", "WestNO_1"),
                event_id=f"{self._count:08X}-0000-4000-8000-00000000ABCD",
                status=Status.STARTED if is_started else Status.SCHEDULED,
                notice_seconds=self.chance.uniform(2, 8) if is_short else 900,
                waits_for_others=self.chance.random() < 0.3,
            )
        )

    def _shown(self, born: list[ScheduledEvent]) -> list[Event]:
        """Return events as the document would show them to an approver."""
        view = self.imds.peek()
        wanted = {event.event_id for event in born}
        events = orjson.loads(view.body)["Events"]
        return [event for event in events if event["EventId"] in wanted]

    async def _play(self, event: ScheduledEvent) -> None:
        """Lead one event to its end: step by step as it is seen, or in haste."""
        is_patient = self.chance.random() < 0.5
        with suppress(NoSuchEventError):
            for step in self._steps():
                await self._rest(is_patient)
                self._take(step, event.event_id)
            if self.chance.random() < 0.15:
                await self._rest(is_patient)
                again = EventLife(
                    event_type=event.event_type,
                    resources=event.resources,
                    event_id=event.event_id,
                    notice_seconds=event.not_before - time.time(),
                )
                self.imds.schedule(again)
                await self._rest(is_patient)
                self.imds.remove(event.event_id)

    def _steps(self) -> list[str]:
        changes = ["change"] * self.chance.choice((0, 0, 1, 2))
        start = ["start"] if self.chance.random() < 0.5 else []
        return [*changes, *start, "remove"]

    def _take(self, step: str, event_id: str) -> None:
        event = self.imds.find(event_id)
        if step == "change":
            text = f"{self.chance.getrandbits(32)}"
            self.imds.change(msgspec.structs.replace(event, description=text))
        elif step == "start":
            self.imds.start(event_id)
        else:
            self.imds.remove(event_id)

    async def _rest(self, is_patient: bool) -> None:  # noqa: FBT001 - a value
        """Wait: for as long as it takes to be seen for sure, or only a while."""
        if not is_patient:
            await self._pause(0.02, 3.0)
            return
        seen, requests = len(self.history.requests), self.history.requests
        while not self.is_over.is_set():
            if seen_for_sure(requests[seen:]):
                return
            await asyncio.sleep(0.05)

    async def _pause(self, least: float, most: float) -> None:
        seconds = least * (most / least) ** self.chance.random()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.is_over.wait(), seconds)


def seen_for_sure(requests: Sequence[Request]) -> bool:
    """Whether a document was read, and kept: the same life has asked again."""
    read = set[int]()
    for request in requests:
        if request.life in read:
            return True
        if request.is_read:
            read.add(request.life)
    return False


def _configuration(folder: Path, world: World) -> str:
    bus, when = world.broker.connection_string, {"scope": "all"}
    lines = {"path": folder / "events.jsonl", "max_size": 1_000_000_000}
    return config_text(
        webhook(world.hook.url, "hook", timeout="2s", when=when),
        servicebus(bus),
        {"name": "file", "type": "file", **lines, "when": when},
        state=folder / "state.db",
        shutdown_grace="2s",
        identity={
            "vm_name": "WestNO_0",
            "vm_id": "11111111-1111-1111-1111-111111111111",
            "resource_id": (
                "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/vms/v"
            ),
        },
        approvals=approvals(bus, unknown_grace="1s", reply_to=["replies"]),
    )


async def play(folder: Path, seed: int, kills: int) -> History:
    """Play one round: so many kills, then peace until all is done."""
    chance, history = random.Random(seed), History()  # noqa: S311 - no secret
    async with _world(history, chance) as world:
        (folder / "bridge.toml").write_text(_configuration(folder, world))
        lives = Lives(folder, world.imds, world.hook, history, chance)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.live())
            tasks.create_task(world.vex())
            for _ in range(kills):
                await lives.one(chance.choice(_HOWS))
            world.is_over.set()
        await lives.last(lambda: _left(world, folder))
        await asyncio.sleep(1.5)  # the consumer has a second to look again
        await read_replies(world.broker.connection_string, history)
        _close_books(world, folder)
    return history


@asynccontextmanager
async def _world(history: History, chance: random.Random) -> AsyncIterator[World]:
    options = ImdsOptions()
    hook, broker = Hook(history), Broker(_ENTITIES)
    async with (
        RecordedImds(history, ImdsSettings(options=options)) as imds,
        broker,
        hook.open(),
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        stop = asyncio.Event()
        reading = asyncio.create_task(read_bus(broker.connection_string, history, stop))
        approver = Approver(broker, sender, history, chance, asyncio.Lock())
        try:
            yield World(imds, broker, hook, approver, history, chance)
        finally:
            stop.set()
            await reading


async def _left(world: World, folder: Path) -> int:
    """Return how much is left: messages, deliveries, and looks at the last document."""
    counts = world.broker.snapshot()
    life = len(world.history.lives) + 1
    reads = [r for r in world.history.requests if r.life == life]
    if not world.is_risen and len(reads) > 1:
        # After a fall of the number absence counts only once it has risen again.
        world.imds.set_incarnation(reads[-1].number + 1)
        world.is_risen = True
    looks = max(8 - len(reads), 0) + (not world.is_risen)
    # The consumer may have lost its locks.
    messages = counts[QUEUE].active + counts[SUBSCRIPTION].active
    return looks + messages + await asyncio.to_thread(undone, folder)


def _close_books(world: World, folder: Path) -> None:
    history = world.history
    read_file(folder / "events.jsonl", history)
    history.left = world.broker.snapshot()[QUEUE].active
    letters = dead_letters(world.broker)
    history.dead = [
        (
            letter.message.message_id,
            (letter.dead_letter and letter.dead_letter.reason) or "",
        )
        for letter in letters
    ]
    log = (folder / "bridge.log").read_text()
    history.degraded = log.count("state file cannot be written: going on in memory")


def dead_letters(broker: Broker) -> list[Delivery]:
    """Return what is in the dead-letter queue: no SDK could decode all of it."""
    queue = broker._namespace.find(f"{QUEUE}/$DeadLetterQueue")
    assert isinstance(queue, Queue)
    return queue.peek(0, 100_000)

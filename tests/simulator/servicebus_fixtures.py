"""What the tests of the broker share: a clock, a short way to entities, open links."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.message import Delivery, Message
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.rules.row import Arrival, Row
from bridge.simulator.servicebus.rules.rule import CorrelationFilter, Filter, Rule
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)

START = 1_700_000_000.0
WAIT = 30.0


def rules_for(*filters: Filter) -> tuple[Rule, ...]:
    """Return rules without actions, each with one filter."""
    return tuple(
        Rule(name=f"rule-{number}", filter=each) for number, each in enumerate(filters)
    )


SDK_ENTITIES = Entities(
    queues=(
        QueueSettings(name="plain"),
        QueueSettings(name="strict", max_delivery_count=2, dead_letter_expired=True),
        QueueSettings(name="quick", lock_duration=timedelta(seconds=2)),
        QueueSettings(name="unique", duplicate_window=timedelta(minutes=1)),
        QueueSettings(name="sessions", requires_session=True),
        QueueSettings(
            name="quick-sessions",
            requires_session=True,
            lock_duration=timedelta(seconds=1),
        ),
        QueueSettings(name="small", max_bytes=200),
    ),
    topics=(
        TopicSettings(
            name="news",
            subscriptions=(
                SubscriptionSettings(name="all"),
                SubscriptionSettings(
                    name="red",
                    rules=rules_for(
                        CorrelationFilter(
                            properties={"Label": "alarm"},
                            application_properties={"colour": "red"},
                        )
                    ),
                ),
            ),
        ),
    ),
)


class FakeClock:
    """A wall clock that moves when it is told to, and runs what is due then."""

    def __init__(self, now: float = START) -> None:
        self.now = now
        self.namespace: Namespace | None = None

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline as a timer would."""
        end = self.now + seconds
        while (due := self._next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self._run_due()
        self.now = end

    def _next_deadline(self) -> float | None:
        return None if self.namespace is None else self.namespace.next_deadline()

    def _run_due(self) -> None:
        if self.namespace is not None:
            self.namespace.run_due()


class WallClock:
    """The clock of a running broker: that of this machine, and ahead as a test says.

    The broker looks at it with whatever comes from a client next.
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Rig:
    """A namespace under a fake clock."""

    def __init__(self, entities: Entities) -> None:
        self.clock = FakeClock()
        self.namespace = Namespace(entities, self.clock)
        self.clock.namespace = self.namespace

    def queue(self, path: str = "q") -> Queue:
        """Return a queue, subscription or dead-letter queue, forwarding or not."""
        found = self.namespace.find(path)
        assert isinstance(found, Queue)
        return found

    def dead_letters(self, path: str = "q") -> Queue:
        """Return the dead-letter queue of an entity."""
        return self.queue(f"{path}/$DeadLetterQueue")


def one_queue(settings: QueueSettings | None = None) -> Rig:
    """Return a rig with a queue called q."""
    return Rig(Entities(queues=(settings or QueueSettings(name="q"),)))


def message(message_id: str = "m1", **fields: object) -> Message:
    """Return a message with some content."""
    given: dict[str, object] = {"content": b"x" * 10, **fields}
    return Message(message_id=message_id, **given)  # type: ignore[arg-type]  # a test names its fields


def row(sent: Message | None = None, **fields: object) -> Row:
    """Return a message as filters see it; without one, it is made of the fields."""
    arrival = Arrival(number=7, at=START)
    return Row(sent or message(**fields), arrival)  # type: ignore[arg-type]  # a test names its fields


def locked(queue: Queue, session_id: str | None = None) -> tuple[Delivery, UUID]:
    """Receive a message that must be there, with its lock token."""
    delivery = queue.receive(session_id)
    assert delivery is not None
    assert delivery.lock_token is not None
    return delivery, delivery.lock_token


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Return the message ids of deliveries."""
    return [delivery.message.message_id for delivery in deliveries]


async def receive(
    receiver: ServiceBusReceiver, count: int
) -> list[ServiceBusReceivedMessage]:
    """Receive so many messages.

    The client returns what came within 0.2 s of the first: fewer on a busy machine.
    """
    found = list[ServiceBusReceivedMessage]()
    while len(found) < count:
        more = await receiver.receive_messages(count - len(found), max_wait_time=WAIT)
        assert more, f"{len(found)} of {count} came"
        found += more
    return found


@asynccontextmanager
async def opened(*links: ServiceBusSender | ServiceBusReceiver) -> AsyncIterator[None]:
    """Open links at the same time: each takes half a second, and so does its close."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, links)
        await asyncio.gather(*(link.__aenter__() for link in links))
        yield


async def _close(links: Sequence[ServiceBusSender | ServiceBusReceiver]) -> None:
    await asyncio.gather(*(link.close() for link in links))

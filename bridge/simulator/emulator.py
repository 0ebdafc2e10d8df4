"""The local Service Bus in a thread of its own, for synchronous and async tests.

    with background_loop() as loop, emulator(loop) as bus:
        client = ServiceBusClient.from_connection_string(bus.connection_string)
        …
        bus.expire_locks("orders")

The caller may be a plain function or a coroutine in any event loop: each method returns
when the broker has finished the action. A broker starts in milliseconds, so each test
can have its own.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import default_entities, load_entities
from bridge.simulator.servicebus.overview import MessageRow
from bridge.simulator.servicebus.settings import Entities
from bridge.simulator.servicebus.values import Condition

T = TypeVar("T")

_TIMEOUT_SECONDS = 30.0


class Emulator:
    """A running broker, controlled from any thread.

    Args:
        broker: the broker.
        clock: the broker's clock.
        loop: the event loop that runs the broker.

    Attributes:
        connection_string: the connection string for any client of Service Bus.
    """

    def __init__(
        self, broker: Broker, clock: "_Clock", loop: asyncio.AbstractEventLoop
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self.connection_string = broker.connection_string

    # -- messages ----------------------------------------------------------------------

    def put(
        self,
        entity: str,
        body: bytes,
        *,
        subject: str | None = None,
        session_id: str | None = None,
        application_properties: Mapping[str, object] | None = None,
    ) -> None:
        """Send a message to a queue or topic.

        Args:
            entity: the path of the queue or topic.
            body: the content, sent as one AMQP data section.
            subject: the subject; None: the message has none.
            session_id: the id of the session; required if the entity has sessions.
            application_properties: by name; each value is a text, number, boolean,
                bytes, UUID, time with a zone, duration or None.

        Raises:
            RefusedError: the entity does not exist or does not accept the message, or
                AMQP has no type for a property.
            TypeError: the body is a text: the caller has to encode it.
        """
        self._do(
            lambda: self._broker.actions.put(
                entity,
                body,
                subject=subject,
                session_id=session_id,
                application_properties=application_properties or {},
            )
        )

    def counts(self, entity: str) -> Counts:
        """Return how many messages an entity holds, by state.

        Raises:
            KeyError: the entity does not exist.
        """
        found = self._do(self._broker.snapshot).items()
        return {path.lower(): counts for path, counts in found}[entity.lower()]

    def messages(self, entity: str) -> tuple[MessageRow, ...]:
        """Return the first messages of a queue or subscription; they stay there.

        Each row has the sender's ``application_properties`` and the broker's data.

        Raises:
            KeyError: the entity does not exist, or is a topic.
        """
        return self._do(lambda: self._detail(entity)[0])

    def dead_letters(self, entity: str) -> tuple[MessageRow, ...]:
        """Return the first dead letters of a queue or subscription.

        Raises:
            KeyError: the entity does not exist, or is a topic.
        """
        return self._do(lambda: self._detail(entity)[1])

    def resubmit(self, entity: str) -> int:
        """Move all dead letters back into the entity; return the number of messages.

        Raises:
            RefusedError: the entity does not exist.
        """
        return self._do(lambda: self._broker.actions.resubmit(entity))

    def purge(self, entity: str) -> int:
        """Delete the messages that are not locked; return the number of messages.

        Raises:
            RefusedError: the entity does not exist.
        """
        return self._do(lambda: self._broker.actions.purge(entity))

    # -- time --------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the broker's clock on: locks end, messages expire or are enqueued."""

        def advance() -> None:
            self._clock.ahead += seconds
            self._broker.actions.turn()

        self._do(advance)

    # -- faults ------------------------------------------------------------------------

    def drop_connections(self) -> None:
        """Reset all connections, as when the network fails."""
        self._do(self._broker.faults.drop_connections)

    def detach_links(self, entity: str | None = None) -> None:
        """Detach the links of one entity or of all, as Azure does with idle links."""
        self._do(lambda: self._broker.faults.detach_links(entity))

    def refuse_attach(
        self, entity: str, condition: Condition = Condition.ENTITY_DISABLED
    ) -> None:
        """Refuse every new sender and receiver of an entity."""
        self._do(lambda: self._broker.faults.refuse_attach(entity, condition))

    def expire_locks(self, entity: str) -> None:
        """Expire all message and session locks of an entity now."""
        self._do(lambda: self._broker.faults.expire_locks(entity))

    def busy_for_sends(self, count: int = 1) -> None:
        """Answer the next sends with "server busy"."""
        self._do(lambda: self._broker.faults.busy_for_sends(count))

    def fill(self, entity: str) -> None:
        """Answer every send to an entity with "quota exceeded"."""
        self._do(lambda: self._broker.faults.fill(entity))

    def delay_replies(self, seconds: float) -> None:
        """Delay everything that the broker sends."""
        delay = timedelta(seconds=seconds)
        self._do(lambda: self._broker.faults.delay_replies(delay))

    def freeze(self) -> None:
        """Accept connections, and answer nothing until clear_faults()."""
        self._do(self._broker.faults.freeze)

    def hold_session_locks(self) -> None:
        """Let a broken connection keep its sessions until their locks end."""

        def hold() -> None:
            self._broker.faults.hold_session_locks = True

        self._do(hold)

    def clear_faults(self) -> None:
        """End all lasting faults."""
        self._do(self._broker.faults.clear)

    # -- calls in the broker's thread --------------------------------------------------

    def _detail(
        self, entity: str
    ) -> tuple[tuple[MessageRow, ...], tuple[MessageRow, ...]]:
        detail = self._broker.actions.overview(entity).detail
        if detail is None or not detail.is_queue:
            raise KeyError(entity)
        return detail.messages, detail.dead

    def _do(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return _wait(self._loop, act())


class _Clock:
    """The system clock plus the seconds that a test has added."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@contextmanager
def background_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servicebus", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_TIMEOUT_SECONDS)
        loop.close()


@contextmanager
def emulator(
    loop: asyncio.AbstractEventLoop, entities: Entities | Path | None = None
) -> Iterator[Emulator]:
    """Run a broker with empty entities.

    Args:
        loop: the event loop to run it in, from ``background_loop``.
        entities: its queues and topics, or a file in the format of Microsoft's
            emulator; None: the default entities of `sebridge simulate`.

    Raises:
        ConfigError: the file is invalid; the text names each fault.
        OSError: the file cannot be read.
    """
    chosen = load_entities(entities) if isinstance(entities, Path) else entities
    clock = _Clock()
    broker = Broker(chosen or default_entities(), clock=clock)
    _wait(loop, broker.__aenter__())
    try:
        yield Emulator(broker, clock, loop)
    finally:
        _wait(loop, broker.__aexit__(None, None, None))


def _wait(loop: asyncio.AbstractEventLoop, doing: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(doing, loop).result(_TIMEOUT_SECONDS)

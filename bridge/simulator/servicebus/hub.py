"""Connect messages and links, for all connections of a broker.

After every input, and whenever a deadline has come, the hub runs one turn. It runs the
due actions, serves the links of queues with new messages, writes to the clients, and
sets its only timer for the next deadline.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from bridge.simulator.servicebus.access import Access, Claims
from bridge.simulator.servicebus.consumer import Consumer
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.values import RefusedError


class Connection(Protocol):
    """What the hub needs from a connection."""

    @property
    def claims(self) -> Claims:
        """The valid tokens of the connection."""

    def flush(self) -> None:
        """Write everything that is ready to be sent."""

    def drop(self) -> None:
        """Break the connection."""

    def close(self) -> None:
        """Close the connection as AMQP requires."""

    def detach_links(self, path: str | None, why: RefusedError | None = None) -> None:
        """Detach the links of one entity, or of all, with a reason."""

    def freeze(self, *, frozen: bool) -> None:
        """Stop reading, or continue."""


class Hub:
    """The connections, their receiving links, and the namespace behind them.

    Args:
        namespace: all entities.
        clock: the clock of the namespace.
        access: the rules of shared access.

    Attributes:
        access: the rules of shared access.
        connections: all open connections.
        faults: the faults on demand.
        left: set while there is no connection.
    """

    def __init__(
        self, namespace: Namespace, clock: Callable[[], float], access: Access
    ) -> None:
        self.namespace = namespace
        self.access = access
        self.faults = Faults(_FaultControl(self))
        self.left = asyncio.Event()
        self.left.set()
        self._clock = clock
        self.connections: set[Connection] = set()
        self._touched: set[Connection] = set()
        self._consumers: dict[Queue, deque[Consumer]] = {}
        self._waiting: dict[Consumer, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_running = False

    def join(self, connection: Connection) -> None:
        """Add a connection; break it if the broker is closing."""
        self.connections.add(connection)
        self.left.clear()
        if not self._is_running:
            connection.drop()

    def leave(self, connection: Connection) -> None:
        """Remove a connection."""
        self.connections.discard(connection)
        self._touched.discard(connection)
        if not self.connections:
            self.left.set()

    def touch(self, connection: Connection) -> None:
        """Mark a connection for writing at the end of the turn."""
        self._touched.add(connection)

    def add_consumer(self, consumer: Consumer) -> None:
        """Serve an accepted link from now on."""
        self._consumers.setdefault(consumer.queue, deque()).append(consumer)

    def add_waiting(self, consumer: Consumer, timeout: timedelta) -> None:
        """Accept a link when a session becomes free, or refuse it after a timeout."""
        loop = asyncio.get_running_loop()
        self._waiting[consumer] = loop.call_later(
            timeout.total_seconds(), self._give_up, consumer
        )

    def remove_consumer(self, consumer: Consumer) -> None:
        """Stop serving a link."""
        line = self._consumers.get(consumer.queue)
        if line is not None and consumer in line:
            line.remove(consumer)
        timer = self._waiting.pop(consumer, None)
        if timer is not None:
            timer.cancel()

    def detach_lost(self, queue: Queue) -> None:
        """Detach the links of a queue whose sessions are lost, without delay."""
        for consumer in tuple(self._consumers.get(queue, ())):
            consumer.detach_if_lost()

    def detach_links(self, path: str | None, why: RefusedError | None = None) -> None:
        """Detach the links of one entity, or of all, with a reason."""
        for connection in tuple(self.connections):
            connection.detach_links(path, why)
            self.touch(connection)
        self.turn()

    def turn(self) -> None:
        """Run one turn: see the docstring of this module."""
        self.namespace.run_due()
        while woken := self.namespace.take_woken():
            for queue in woken:
                self._serve(queue)
        while self._touched:
            self._touched.pop().flush()
        self._set_timer()

    def start(self) -> None:
        """Start the timer."""
        self._is_running = True
        self.turn()

    def stop(self) -> None:
        """Close all connections, and cancel all timers."""
        self._is_running = False
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._set_timer()
        for connection in tuple(self.connections):
            connection.close()

    def _serve(self, queue: Queue) -> None:
        for waiting in [c for c in self._waiting if c.queue is queue]:
            if waiting.attach_to_session(None):
                self._waiting.pop(waiting).cancel()
                self.add_consumer(waiting)
        # One message for each link in turn, until a whole round has sent no message.
        line = self._consumers.get(queue, deque())
        idle = 0
        while idle < len(line):
            idle = 0 if line[0].serve() else idle + 1
            line.rotate(-1)

    def _give_up(self, consumer: Consumer) -> None:
        del self._waiting[consumer]
        consumer.give_up()
        self.turn()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.namespace.next_deadline()
        if due is not None and self._is_running:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - self._clock()), self.turn)


class _FaultControl:
    """Applies faults to a broker; see ``bridge.simulator.servicebus.faults``."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def check_entity(self, path: str) -> None:
        """Refuse a path that belongs to no entity."""
        self._hub.namespace.find(path)

    def drop_connections(self) -> None:
        """Break all connections."""
        for connection in tuple(self._hub.connections):
            connection.drop()

    def detach_links(self, path: str | None) -> None:
        """Detach the links of one entity, or of all."""
        self._hub.detach_links(path)

    def expire_locks(self, path: str) -> None:
        """Expire the locks of an entity."""
        queue = self._hub.namespace.find_queue(path)
        queue.expire_locks()
        self._hub.detach_lost(queue)
        self._hub.turn()

    def freeze(self, *, frozen: bool) -> None:
        """Stop reading and writing, or continue."""
        for connection in tuple(self._hub.connections):
            connection.freeze(frozen=frozen)
            self._hub.touch(connection)
        self._hub.turn()

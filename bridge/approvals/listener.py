"""The approval listener: messages in, each handled on its own, then settled.

    receive ─▶ one handling per message, 100 at most ─▶ complete | dead-letter | abandon

A message that waits for IMDS holds up no other. One that is delivered again while
its first delivery is still being handled is not handled twice: the handling that
runs settles the latest delivery, whose lock is the one that holds. The same message
sent twice has its second handled after its first, and so finds what was decided.
What still waits when the bridge stops is given back, for whoever is there then.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol
from weakref import WeakValueDictionary

from bridge.approvals.desk import Desk
from bridge.approvals.handling import Handling, Settlement, key_of
from bridge.approvals.received import ReceivedMessage
from bridge.approvals.rules import Rule
from bridge.errors import ApprovalQueueError
from bridge.namespace import Entity, NamespaceConfig, entity_faults, entity_in
from bridge.retry import RetryPolicy
from bridge.values import Duration, placeholder_faults

log = logging.getLogger(__name__)

_AT_ONCE = 100  # so many locks can be renewed in time, even half-minute ones
_BACKOFF = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_WAIT = 0.5


Name = tuple[str, int | None]  # key of the message, and its sequence number


class ApprovalsConfig(NamespaceConfig, frozen=True, kw_only=True):
    """``[approvals]``: where approvals come from, and what is allowed."""

    queue: str = ""
    topic: str = ""
    subscription: str = ""
    sessions: tuple[str, ...] = ()
    reply_to: tuple[str, ...] = ()
    on_unknown: Literal["dead-letter", "abandon"] = "dead-letter"
    unknown_grace: Duration = Duration(15)
    allow_event_types: tuple[str, ...] = ()
    max_age: Duration = Duration(86400)
    rules: tuple[Rule, ...] = ()

    @property
    def target(self) -> Entity:
        """The queue or topic that approvals are sent to, to be compared."""
        return entity_in(self, self.queue, self.topic)

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the namespace, that there is one entity, and the placeholders."""
        yield from super().faults()
        yield from entity_faults(self, self.queue, self.topic)
        if bool(self.topic) != bool(self.subscription):
            yield "subscription", "topic and subscription must be given together"
        if not self.max_age:
            yield "max_age", "must be more than 0, or every request is too old"
        yield from self._session_faults()
        yield from self._rule_faults()

    def _session_faults(self) -> Iterator[tuple[str, str]]:
        for index, session in enumerate(self.sessions):
            place = f"sessions[{index}]"
            if not session:
                yield place, "must not be empty"
            for what in placeholder_faults(session):
                yield place, what

    def _rule_faults(self) -> Iterator[tuple[str, str]]:
        names = [rule.name for rule in self.rules]
        for index, name in enumerate(names):
            if name and name in names[:index]:
                yield f"rules[{index}].name", f"{name!r} is taken by another rule"


class Queue(Protocol):
    """The receiving end of the approval entity."""

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        """Wait for messages; none when ``stop`` is set or nothing comes.

        Raises:
            ApprovalQueueError: there is no receiver now; the next call opens one.
        """
        ...

    async def complete(self, message: ReceivedMessage) -> None:
        """Settle: it was dealt with. Raises ApprovalQueueError."""
        ...

    async def abandon(self, message: ReceivedMessage) -> None:
        """Give it back. Raises ApprovalQueueError."""
        ...

    async def dead_letter(
        self, message: ReceivedMessage, reason: str, description: str
    ) -> None:
        """Put it aside. Raises ApprovalQueueError."""
        ...


@dataclass(slots=True)
class Listener:
    """Receives approvals from one entity, or one session of it."""

    queue: Queue
    desk: Desk
    name: str = "listener"
    _running: dict[Name, Handling] = field(default_factory=dict)
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until asked to stop; what is decided is still settled."""
        async with asyncio.TaskGroup() as handlings:
            while not stop.is_set():
                await self.step(stop, handlings)

    async def step(self, stop: asyncio.Event, handlings: asyncio.TaskGroup) -> None:
        """Receive once, and begin to handle what came."""
        self._room.clear()
        if len(self._running) >= _AT_ONCE:
            await self.desk.clock.wait(self._room, _BACKOFF.max_backoff)
            return
        try:
            messages = await self.queue.receive(stop)
        except ApprovalQueueError as error:
            await self._later(stop, error)
            return
        self._failures = 0
        for message in messages:
            self._begin(message, stop, handlings)

    def _begin(
        self,
        message: ReceivedMessage,
        stop: asyncio.Event,
        handlings: asyncio.TaskGroup,
    ) -> None:
        key = key_of(self.desk.entity, message)
        name = (key, message.sequence_number)
        if (running := self._running.get(name)) is not None:
            running.message = message
            return
        self._running[name] = Handling(self.desk, message, key)
        turn = self._turns.setdefault(key, asyncio.Lock())
        handlings.create_task(self._handle(name, turn, stop))

    async def _handle(
        self, name: Name, turn: asyncio.Lock, stop: asyncio.Event
    ) -> None:
        handling = self._running[name]
        try:
            async with turn:
                settlement = await handling.run(stop) or Settlement("abandon")
            settled = None
            while settled is not handling.message:  # it may come anew meanwhile
                settled = handling.message
                await self._settle(settled, settlement)
        finally:
            del self._running[name]
            self._room.set()

    async def _settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        try:
            if settlement.verdict == "complete":
                await self.queue.complete(message)
            elif settlement.verdict == "abandon":
                await self.queue.abandon(message)
            else:
                reason, words = settlement.reason, settlement.words
                await self.queue.dead_letter(message, reason, words)
        except ApprovalQueueError as error:
            log.warning(
                "approval not settled: it will be delivered again",
                extra={"messageId": message.message_id, "fault": str(error)},
            )

    async def _later(self, stop: asyncio.Event, error: ApprovalQueueError) -> None:
        self._failures += 1
        log.warning("approvals not received", extra={"fault": str(error)})
        delay = _BACKOFF.delay(self._failures, unit=self.desk.chance())
        await self.desk.clock.wait(stop, max(delay, _LEAST_WAIT))

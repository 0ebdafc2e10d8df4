"""The approval listener: receives messages, handles each one, and settles it.

    receive ─▶ one handling per message ─▶ complete | dead-letter | abandon
                 100 active, 1,000 waiting

At most 100 messages are active. A message that waits (for a time, for IMDS or for its
turn) does not count as active, so it does not block others. When 1,000 messages wait,
no more are received, and readiness reports that. If a message is redelivered while it
is handled, no second handling begins: the running one settles the latest delivery,
whose lock is valid. If equal messages are sent, they are handled one after the other,
so the second one finds the decision on the first. At the stop, messages that still wait
are abandoned, so that another bridge or the next start can handle them.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

from bridge.approvals.context import ApprovalContext
from bridge.approvals.message_flow import Handling, key_of
from bridge.foundation.errors import ApprovalQueueError
from bridge.foundation.pace import RetryPolicy
from bridge.servicebus.decode import ABANDON, ReceivedMessage, Settlement

log = logging.getLogger(__name__)

MOST_ACTING = 100
MOST_WAITING = 1000  # so many locks can be renewed in time, even locks of 30 s
_AWAY = RetryPolicy(first=1.0, max_backoff=3.0)  # an approval may be valid for 30 s
_REFUSED = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_WAIT = 0.5
_LOG_EVERY = 60.0
_LOOK_FOR_ROOM = 30.0


Name = tuple[str, int | None]  # key of the message, and its sequence number


class Queue(Protocol):
    """The receiving end: see ``ApprovalQueue``. Both may raise ApprovalQueueError."""

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        """Wait for messages; return [] if ``stop`` is set or no message comes."""
        ...

    async def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        """Complete, abandon or dead-letter a message."""
        ...


@dataclass(slots=True)
class Listener:
    """Receives approvals from one entity, or one session of it.

    Attributes:
        source: the name of the entity or session in readiness and log lines.
        is_full: whether no more messages are received, because too many wait.
    """

    queue: Queue
    context: ApprovalContext
    name: str = "listener"
    source: str = ""
    is_full: bool = False
    _running: dict[Name, Handling] = field(default_factory=dict)
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: int = 0
    _logged_at: float = float("-inf")

    @property
    def fault(self) -> str | None:
        """Why approvals wait, for their keys cannot be read; None = they can."""
        approvers = self.context.approvers
        return None if approvers is None else approvers.fault

    async def run(self, stop: asyncio.Event) -> None:
        """Receive until ``stop`` is set; then settle the messages in progress."""
        async with asyncio.TaskGroup() as handlings:
            while not stop.is_set():
                await self.step(stop, handlings)

    async def step(self, stop: asyncio.Event, handlings: asyncio.TaskGroup) -> None:
        """Receive once, and begin to handle the messages."""
        self._room.clear()
        if not self._has_room():
            await self.context.clock.wait(self._room, _LOOK_FOR_ROOM)
            return
        try:
            messages = await self.queue.receive(stop)
        except ApprovalQueueError as error:
            await self._later(stop, error)
            return
        self._failures, self._logged_at = 0, float("-inf")
        for message in messages:
            self._begin(message, stop, handlings)

    def _has_room(self) -> bool:
        """Return whether to receive another message; log once if too many wait."""
        waiting = sum(handling.rests for handling in self._running.values())
        was_full, self.is_full = self.is_full, waiting >= MOST_WAITING
        if self.is_full and not was_full:
            log.warning(
                "approvals not received while so many wait",
                extra={"entity": self.source, "waiting": waiting},
            )
        return not self.is_full and len(self._running) - waiting < MOST_ACTING

    def _begin(
        self,
        message: ReceivedMessage,
        stop: asyncio.Event,
        handlings: asyncio.TaskGroup,
    ) -> None:
        key = key_of(self.context, message)
        name = (key, message.sequence_number)
        if (running := self._running.get(name)) is not None:
            running.message = message
            return
        handling = Handling(self.context, message, key, self._room.set)
        self._running[name] = handling
        turn = self._turns.setdefault(key, asyncio.Lock())
        if turn.locked():
            handling.rest()
        handlings.create_task(self._handle(name, turn, stop))

    async def _handle(
        self, name: Name, turn: asyncio.Lock, stop: asyncio.Event
    ) -> None:
        handling = self._running[name]
        try:
            async with turn:
                settlement = await handling.run(stop) or ABANDON
            settled = None
            while settled is not handling.message:  # it may be redelivered meanwhile
                settled = handling.message
                await self._settle(settled, settlement)
        finally:
            del self._running[name]
            self._room.set()

    async def _settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        try:
            await self.queue.settle(message, settlement)
        except ApprovalQueueError as error:
            log.warning(
                "approval not settled: it will be delivered again",
                extra={"messageId": message.message_id, "fault": str(error)},
            )

    async def _later(self, stop: asyncio.Event, error: ApprovalQueueError) -> None:
        self._failures += 1
        clock = self.context.clock
        if clock.monotonic() - self._logged_at >= _LOG_EVERY:
            self._logged_at = clock.monotonic()
            log.warning("approvals not received", extra={"fault": str(error)})
        policy = _REFUSED if error.is_refusal else _AWAY
        delay = policy.delay(self._failures, unit=self.context.chance())
        await clock.wait(stop, max(delay, _LEAST_WAIT))

"""Receives messages of bridges and Azure, and settles them after they are stored.

receive ──▶ parse ──▶ store, in one transaction ──▶ complete
                      └─ the store is away: the receiver closes, no message is
                         abandoned, and the broker delivers all of them again later
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ApprovalQueueError,
    HubStoreError,
    UnreadableMessageError,
)
from bridge.hub import azure_messages
from bridge.hub.config import AzureSource, HubConfig, SourceConfig
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store
from bridge.hub.view_rows import Situation
from bridge.servicebus.decode import ReceivedMessage
from bridge.servicebus.receiver import ApprovalQueue, open_queue

# -- The time by the broker's clock, as far as the hub's sources show it ---------------
#
# All that the hub compares was stamped by other machines: EnqueuedTime by the broker.
# So the hub corrects its own clock by the smallest lag seen, which is that of a message
# that was received as soon as it was enqueued. Messages that have waited in a source
# have a larger lag, which shows nothing.


WRONG_SECONDS = 60.0  # a clock that is further off is alarmed
_WINDOW_SECONDS = 600.0  # so long the smallest lag is kept
_STEADY_SECONDS = 30.0  # a busy source is drained if its lag stays the same so long
_SAME_SECONDS = 2.0
_ZERO = datetime(1970, 1, 1, tzinfo=UTC)


class BrokerClock:
    """A clock that shows the broker's time.

    It runs by the monotonic clock from the last correction on, so it does not jump when
    the clock of this machine is set. Before the first message it shows that clock.

    Args:
        clock: the clock of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._bases: list[timedelta | None] = [None, None]
        self._last: timedelta | None = None
        self._steady: tuple[float, timedelta] | None = None

    @property
    def offset(self) -> float:
        """Seconds by which the clock of this machine is ahead of the broker's."""
        return (self._clock.now() - self.now()).total_seconds()

    @property
    def fault(self) -> str | None:
        """What is wrong with the clock of this machine; None = nothing."""
        offset = self.offset
        if abs(offset) <= WRONG_SECONDS:
            return None
        side = "ahead of" if offset > 0 else "behind"
        return f"the clock of this machine is {abs(offset):.0f} s {side} the broker's"

    def now(self) -> datetime:
        """Return the present time by the broker's clock, in UTC."""
        if self._last is None:
            return self._clock.now()
        return _ZERO + self._last + timedelta(seconds=self._clock.monotonic())

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        return self._clock.monotonic()

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False)."""
        return await self._clock.wait(event, seconds, slack=slack)

    def note(self, enqueued: datetime, *, is_fresh: bool) -> None:
        """Learn from a message that was just received.

        Args:
            enqueued: when the broker enqueued it.
            is_fresh: whether it came while its source was empty: then it has not
                waited. A message that has waited shows only that the clock is not
                further ahead than its lag.
        """
        monotonic = self._clock.monotonic()
        base = enqueued - _ZERO - timedelta(seconds=monotonic)
        if monotonic - self._began > _WINDOW_SECONDS:
            self._began, self._bases = monotonic, [None, self._bases[0]]
        if is_fresh or self._is_steady(base, monotonic) or enqueued > self.now():
            known = self._bases[0]
            self._bases[0] = base if known is None else max(known, base)
            self._last = max(one for one in self._bases if one is not None)

    def _is_steady(self, base: timedelta, monotonic: float) -> bool:
        """Whether the lag has stayed the same for a while: no backlog does that."""
        same = timedelta(seconds=_SAME_SECONDS)
        if self._steady is None or abs(base - self._steady[1]) > same:
            self._steady = monotonic, base
        return monotonic - self._steady[0] >= _STEADY_SECONDS


# -- Receives messages of bridges and Azure, and settles them after they are stored ----


log = logging.getLogger(__name__)

_PAUSE = 5.0  # seconds until a source or the store is tried again
_LONG_PAUSE = 30.0  # after a refusal, such as missing permissions
_LONGEST = 64 * 1024  # bytes of a message of a bridge
_FRESH = timedelta(seconds=10)  # older messages have waited in the source
_IDLE = timedelta(seconds=1)  # so long without a message, the source is empty


def read(
    source: SourceConfig, message: ReceivedMessage, now: datetime
) -> list[Incoming]:
    """Parse a message; one of Azure may hold several events, each with its content.

    A fault is part of the result, so this raises nothing.

    Args:
        source: the source of the message.
        message: the message, as received.
        now: replaces EnqueuedTime, if the broker has not set it.
    """
    plain = Incoming(
        origin=source.name,
        body=message.body,
        heard=message.enqueued_at or now,
        reply_to=message.reply_to,
        session=message.reply_to_session_id,
    )
    if message.fault is not None:
        return [plain.put_aside(message.fault)]
    if not isinstance(source, AzureSource):
        return [parsed(source, plain)]
    found = list[Incoming]()
    try:
        for part in azure_messages.parts_of(message.body):
            found.append(parsed(source, replace(plain, body=part)))
    except UnreadableMessageError as error:
        found.append(plain.put_aside(str(error)))
    return found


def parsed(source: SourceConfig, plain: Incoming) -> Incoming:
    """Return a message with its content, or with the reason why it has none.

    Bridges keep their messages within 60 KiB: larger ones are not theirs.
    """
    try:
        is_azures = isinstance(source, AzureSource)
        if not is_azures and len(plain.body) > _LONGEST:
            words = f"it has {len(plain.body)} bytes, and at most 64 KiB are read"
            return plain.put_aside(words)
        return plain.with_content(is_azures=is_azures)
    except UnreadableMessageError as error:
        return plain.put_aside(str(error))


class SourceReader(Struct):
    """Receives from one source.

    Attributes:
        broker: learns from the messages; None = the clock is right.
        last_error: why the source cannot be read; None = it can.
    """

    config: SourceConfig
    store: Store
    clock: Clock
    metrics: HubMetrics
    broker: BrokerClock | None = None
    last_error: str | None = None
    _since: datetime | None = None
    _waiting: datetime | None = None
    _is_empty: bool = False

    @property
    def name(self) -> str:
        """The name of the source."""
        return f"source {self.config.name}"

    @property
    def is_connected(self) -> bool:
        """Whether the source is connected."""
        return self._waiting is not None or self._since is not None

    def listening(self) -> datetime | None:
        """Return since when the source is connected and drained; None = it is not."""
        now = self.clock.now()
        is_idle = self._waiting is not None and now - self._waiting >= _IDLE
        if self._since is None and is_idle:
            self._since = now
        return self._since

    async def run(self, stop: asyncio.Event) -> None:
        """Receive until asked to stop."""
        opened = open_queue(self.config, self.config.origin, self.clock)
        async with opened as queue:
            while not stop.is_set():
                await self.step(queue, stop)

    async def step(self, queue: ApprovalQueue, stop: asyncio.Event) -> None:
        """Receive one batch, store it, and settle its messages."""
        try:
            await queue.reach()
            self._connected()
            began = self.clock.monotonic()
            messages = await queue.receive(stop)
            self._learn(messages, self.clock.monotonic() - began)
            await self._take(queue, messages, stop)
        except ApprovalQueueError as error:
            self._lost(str(error))
            pause = _LONG_PAUSE if error.is_refusal else _PAUSE
            await self.clock.wait(stop, pause)

    def _learn(self, messages: Sequence[ReceivedMessage], seconds: float) -> None:
        """Let the clock learn from messages that were received after a wait."""
        is_fresh = self._is_empty or seconds >= _IDLE.total_seconds()
        times = [one.enqueued_at for one in messages if one.enqueued_at is not None]
        if self.broker is not None and times:
            self.broker.note(max(times), is_fresh=is_fresh)
        self._is_empty = not messages

    async def _take(
        self,
        queue: ApprovalQueue,
        messages: Sequence[ReceivedMessage],
        stop: asyncio.Event,
    ) -> None:
        now = self.clock.now()
        batch = [one for message in messages for one in read(self.config, message, now)]
        self._note_lag(batch, now)
        try:
            await self.store.keep(batch)
        except HubStoreError as error:
            await self._wait_for_store(queue, batch, stop, error)
            return
        self._count(batch)
        for message in messages:
            with suppress(ApprovalQueueError):  # delivered again: stored only once
                await queue.settle(message)

    async def _wait_for_store(
        self,
        queue: ApprovalQueue,
        batch: Sequence[Incoming],
        stop: asyncio.Event,
        error: HubStoreError,
    ) -> None:
        """Close the receiver, and retry to store the batch until the store is back.

        The broker delivers the messages again later. Without the close it would deliver
        them while the store is still away, count each delivery, and dead-letter them at
        the end. A store that answers but accepts nothing (full, read-only) counts as
        away, so only a successful write shows that it is back.
        """
        self._lost(str(error))
        self.metrics.store_away.set(1)
        await queue.close()
        while not await self.clock.wait(stop, _PAUSE):
            try:
                await self.store.keep(batch)
            except HubStoreError:
                continue
            self.metrics.store_away.set(0)
            return

    def _connected(self) -> None:
        if self.last_error is not None:
            log.info("source is back", extra={"source": self.config.name})
        self.last_error = None
        self._waiting = self.clock.now()
        self.metrics.connected.labels(self.config.name).set(1)

    def _lost(self, why: str) -> None:
        if self.last_error != why:
            log.warning(
                "source cannot be read",
                extra={"source": self.config.name, "fault": why},
            )
        self.last_error, self._since, self._waiting = why, None, None
        self.metrics.connected.labels(self.config.name).set(0)
        self.metrics.drained.labels(self.config.name).set(0)

    def _note_lag(self, batch: Sequence[Incoming], now: datetime) -> None:
        """Note whether the source is drained: it is not, if messages waited in it."""
        if any(now - one.heard > _FRESH for one in batch):
            self._since = None
        elif self._since is None:
            self._since = now
        is_drained = self._since is not None
        self.metrics.drained.labels(self.config.name).set(is_drained)

    def _count(self, batch: Sequence[Incoming]) -> None:
        for one in batch:
            is_news = bool(one.fact or one.report or one.notes)
            if one.fault is not None:
                log.warning(
                    "message cannot be read",
                    extra={"source": one.origin, "fault": one.fault},
                )
            outcome = "kept" if is_news else "left-out"
            label = "unreadable" if one.fault is not None else outcome
            self.metrics.messages.labels(self.config.name, label).inc()


class Sources(Struct):
    """All sources of a hub, and what is known of the present besides the store.

    Attributes:
        absent_until: see ``Situation``.
    """

    config: HubConfig
    store: Store
    clock: BrokerClock
    readers: tuple[SourceReader, ...]
    absent_until: datetime | None = None

    @classmethod
    def of(
        cls, config: HubConfig, store: Store, clock: BrokerClock, metrics: HubMetrics
    ) -> Self:
        """Return all sources of a configuration, not read yet."""
        readers = (
            SourceReader(one, store, clock, metrics, clock) for one in config.sources
        )
        return cls(config, store, clock, tuple(readers))

    def missing(self) -> list[str]:
        """Return why the hub is not ready; without names of queues or topics."""
        faults = self.store.health.fault, self.store.pinned.fault
        away = (one.config.name for one in self.readers if not one.is_connected)
        return [
            *(fault for fault in faults if fault is not None),
            *(f"source {name} is not connected" for name in away),
        ]

    def situation(self) -> Situation:
        """Return the current time, and what the hub knows besides the store."""
        hub = self.config
        azure = [one for one in hub.sources if isinstance(one, AzureSource)]
        return Situation(
            now=self.clock.now(),
            clock_fault=self.clock.fault,
            listening={
                one.config.name: one.listening()
                for one in self.readers
                if not isinstance(one.config, AzureSource)
            },
            absent_until=self.absent_until,
            forget_after=hub.forget_after,
            missing_after=min((one.missing_after for one in azure), default=None),
            store_fault=self.store.health.fault,
            expect=tuple(glob for one in azure for glob in one.expect),
            not_connected={
                one.config.name: one.last_error or "not yet"
                for one in self.readers
                if not one.is_connected
            },
            access=hub.access,
        )

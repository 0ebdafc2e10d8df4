"""Receives messages of bridges and Azure, and settles them after they are stored.

receive ──▶ parse ──▶ store, in one transaction ──▶ complete
                      └─ the store is away: the receiver closes, no message is
                         abandoned, and the broker delivers all of them again later
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ApprovalQueueError,
    HubStoreError,
    UnreadableMessageError,
)
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.arm_config import AzureSource, SourceConfig
from bridge.hub.broker_clock import BrokerClock
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.intake import Incoming
from bridge.hub.store.store import Store
from bridge.servicebus.message import ReceivedMessage
from bridge.servicebus.receiver import ApprovalQueue, open_queue

log = logging.getLogger(__name__)

_PAUSE = 5.0  # seconds until a source or the store is tried again
_LONG_PAUSE = 30.0  # after a refusal, such as missing permissions
_LONGEST = 64 * 1024  # bytes of a message of a bridge
_FRESH = timedelta(seconds=10)  # older messages have waited in the source
_IDLE = timedelta(seconds=1)  # so long without a message, the source is empty


def read_all(
    source: SourceConfig, message: ReceivedMessage, now: datetime
) -> list[Incoming]:
    """Parse a message; one of Azure may hold several events, each with its content.

    Args:
        source: the source of the message.
        message: the message, as received.
        now: replaces EnqueuedTime, if the broker has not set it.
    """
    first = read(source, message, now)
    if not isinstance(source, AzureSource) or message.fault is not None:
        return [first]
    found = list[Incoming]()
    try:
        for part in azure_messages.parts_of(message.body):
            is_whole = part is message.body
            plain = replace(first, body=part, fact=None, notes=(), fault=None)
            found.append(first if is_whole else parsed(source, plain))
    except UnreadableMessageError as error:
        found.append(first.put_aside(str(error)))
    return found


def read(source: SourceConfig, message: ReceivedMessage, now: datetime) -> Incoming:
    """Parse a message; a fault is part of the result, so this raises nothing.

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
        return plain.put_aside(message.fault)
    return parsed(source, plain)


def parsed(source: SourceConfig, plain: Incoming) -> Incoming:
    """Return a message with its content, or with the reason why it has none.

    Bridges keep their messages within 60 KiB: larger ones are not theirs.
    """
    try:
        if isinstance(source, AzureSource):
            fact = azure_messages.read(plain.body, heard=plain.heard)
            notes = azure_messages.notes_in(plain.body, heard=plain.heard)
            return replace(plain, fact=fact, notes=notes)
        if len(plain.body) > _LONGEST:
            words = f"it has {len(plain.body)} bytes, and at most 64 KiB are read"
            return plain.put_aside(words)
        found = bridge_messages.read(
            plain.body,
            heard=plain.heard,
            source=source.name,
            reply_to=plain.reply_to,
            session=plain.session,
        )
        notes = (found.note,) if found.note is not None else ()
        return replace(plain, fact=found.fact, report=found.report, notes=notes)
    except UnreadableMessageError as error:
        return plain.put_aside(str(error))


@dataclass(slots=True)
class SourceReader:
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
        batch = [
            one for message in messages for one in read_all(self.config, message, now)
        ]
        self._note_lag(batch, now)
        try:
            await self.store.keep(batch)
        except HubStoreError as error:
            await self._wait_for_store(queue, batch, stop, error)
            return
        self._count(batch)
        for message in messages:
            with suppress(ApprovalQueueError):  # delivered again: stored only once
                await queue.complete(message)

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

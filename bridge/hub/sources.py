"""Receives what bridges and Azure say, and settles it once it is kept.

receive ──▶ read ──▶ keep, in one transaction ──▶ complete
└─ the store is away: the receiver closes, nothing is
abandoned, and all of it is delivered again later
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ApprovalQueueError,
    HubStoreAwayError,
    UnreadableMessageError,
)
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.facts import Fact
from bridge.hub.metrics import HubMetrics
from bridge.hub.source_config import AzureSource, SourceConfig
from bridge.hub.store.intake import Incoming
from bridge.hub.store.store import Store
from bridge.servicebus.message import ReceivedMessage
from bridge.servicebus.receiver import ApprovalQueue, open_queue

log = logging.getLogger(__name__)

_PAUSE = 5.0  # until a source or the store is tried again
_LONG_PAUSE = 30.0  # where it refuses
_FRESH = timedelta(seconds=10)  # what is older was waiting in the source
_IDLE = timedelta(seconds=1)  # without a message: nothing waits


def read(source: SourceConfig, message: ReceivedMessage, now: datetime) -> Incoming:
    """Read a message; whatever it is, there is something to keep, or nothing in it.

    Args:
        source: where it came from.
        message: as it was received.
        now: in place of EnqueuedTime, where the broker told none.
    """
    heard = message.enqueued_at or now
    plain = Incoming(origin=source.name, body=message.body, heard=heard)
    if message.fault is not None:
        return _faulty(plain, message.fault)
    try:
        if isinstance(source, AzureSource):
            return _with(plain, message, azure_messages.read(message.body), None)
        found = bridge_messages.read(
            message.body,
            heard=heard,
            source=source.name,
            reply_to=message.reply_to,
            session=message.reply_to_session_id,
        )
        return _with(plain, message, found.fact, found.report)
    except UnreadableMessageError as error:
        return _faulty(plain, str(error))


def _with(
    plain: Incoming,
    message: ReceivedMessage,
    fact: Fact | None,
    report: bridge_messages.BridgeReport | None,
) -> Incoming:
    return Incoming(
        origin=plain.origin,
        body=plain.body,
        heard=plain.heard,
        reply_to=message.reply_to,
        session=message.reply_to_session_id,
        fact=fact,
        report=report,
    )


def _faulty(plain: Incoming, fault: str) -> Incoming:
    return Incoming(
        origin=plain.origin, body=plain.body, heard=plain.heard, fault=fault
    )


@dataclass(slots=True)
class SourceReader:
    """Reads one source.

    Attributes:
        last_error: why it was not read last; None once it is.
    """

    config: SourceConfig
    store: Store
    clock: Clock
    metrics: HubMetrics
    last_error: str | None = None
    _since: datetime | None = None
    _waiting: datetime | None = None

    @property
    def name(self) -> str:
        """The name of the source."""
        return f"source {self.config.name}"

    @property
    def is_connected(self) -> bool:
        """Whether it is being read."""
        return self._waiting is not None or self._since is not None

    def listening(self) -> datetime | None:
        """Return since when the source is connected and drained; None = it is not."""
        now = self.clock.now()
        is_idle = self._waiting is not None and now - self._waiting >= _IDLE
        if self._since is None and is_idle:
            self._since = now
        return self._since

    async def run(self, stop: asyncio.Event) -> None:
        """Read until asked to stop."""
        opened = open_queue(self.config, self.config.origin, self.clock)
        async with opened as queue:
            while not stop.is_set():
                await self.step(queue, stop)

    async def step(self, queue: ApprovalQueue, stop: asyncio.Event) -> None:
        """Take what is there, keep it, and settle it."""
        try:
            await queue.reach()
            self._connected()
            messages = await queue.receive(stop)
            await self._take(queue, messages, stop)
        except ApprovalQueueError as error:
            self._lost(str(error))
            pause = _LONG_PAUSE if error.is_refusal else _PAUSE
            await self.clock.wait(stop, pause)

    async def _take(
        self,
        queue: ApprovalQueue,
        messages: Sequence[ReceivedMessage],
        stop: asyncio.Event,
    ) -> None:
        now = self.clock.now()
        batch = [read(self.config, message, now) for message in messages]
        self._note_lag(batch, now)
        try:
            await self.store.keep(batch)
        except HubStoreAwayError as error:
            await self._wait_for_store(queue, batch, stop, error)
            return
        self._count(batch)
        for message in messages:
            with suppress(ApprovalQueueError):  # it is delivered again, and known
                await queue.complete(message)

    async def _wait_for_store(
        self,
        queue: ApprovalQueue,
        batch: Sequence[Incoming],
        stop: asyncio.Event,
        error: HubStoreAwayError,
    ) -> None:
        """Close the receiver: what it holds is delivered again, once it can be kept.

        A store that answers and takes nothing (full, read-only) is away, too: were it
        received again before, the broker would count that, and dead-letter it at last.
        """
        self._lost(str(error))
        self.metrics.store_away.set(1)
        await queue.close()
        while not await self.clock.wait(stop, _PAUSE):
            try:
                await self.store.keep(batch)
            except HubStoreAwayError:
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
        """Note whether the source is drained: what waited there says it was not."""
        if any(now - one.heard > _FRESH for one in batch):
            self._since = None
        elif self._since is None:
            self._since = now
        is_drained = self._since is not None
        self.metrics.drained.labels(self.config.name).set(is_drained)

    def _count(self, batch: Sequence[Incoming]) -> None:
        for one in batch:
            is_news = one.fact is not None or one.report is not None
            outcome = "kept" if is_news else "left-out"
            label = "unreadable" if one.fault is not None else outcome
            self.metrics.messages.labels(self.config.name, label).inc()

"""Sends decisions to the bridges of an event, or to ARM.

claim, check all rules again ──▶ send ──▶ store that it was accepted ──▶ outcome
└─ after a crash anywhere: the claim expires, and the same bytes are sent again
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import orjson
from msgspec import Struct, field

from bridge.events.cloudevent import STRUCTURED_TYPE
from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, HubStoreError
from bridge.hub.config import BridgesSource, HubConfig
from bridge.hub.decisions import Claimed, Result
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.claims import claim, due_ones, keep_result, renew
from bridge.hub.store.store import Store
from bridge.hub.view_rows import Situation
from bridge.servicebus.sender import Message, Senders, short_id

log = logging.getLogger(__name__)

_EVERY = 0.5
_AT_ONCE = 64
_PAUSE = 5.0
_SECONDS = 40.0
_RENEW_EVERY = 5.0  # a third of the duration of a claim
_MOST_SENDERS = 32


class Transport(Protocol):
    """Makes one attempt to send a decision."""

    async def send(self, claimed: Claimed) -> Result:
        """Make the attempt; expected failures are part of the result."""
        ...


class Dispatcher(Struct):
    """Sends decisions until asked to stop.

    Attributes:
        transports: by the ``via`` of decisions: bridge, arm.
    """

    store: Store
    config: HubConfig
    clock: Clock
    metrics: HubMetrics
    situation: Callable[[], Situation]
    transports: Mapping[str, Transport]
    name: str = "dispatcher"
    _under_way: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Send due decisions, each in a task of its own, so a slow one delays no other.

        Returns after the attempts in progress have ended.
        """
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                pause = _EVERY
                try:
                    await self._begin(group)
                except HubStoreError as error:
                    log.warning("decisions cannot be read", extra={"fault": str(error)})
                    pause = _PAUSE
                await self.clock.wait(stop, pause)

    async def step(self) -> int:
        """Make one attempt for each due decision; returns how many were claimed.

        Raises:
            HubStoreError: the store cannot be used now.
        """
        async with asyncio.TaskGroup() as group:
            tasks = await self._begin(group)
        return sum(task.result() for task in tasks)

    async def _begin(self, group: asyncio.TaskGroup) -> list[asyncio.Task[bool]]:
        """Start attempts for due decisions, within the limit; returns their tasks."""
        now, busy = self.clock.now(), set(self._under_way)
        found = await self.store.read(lambda c: due_ones(c, now, _AT_ONCE + len(busy)))
        fresh = [one for one in found if one not in busy][: _AT_ONCE - len(busy)]
        for one in fresh:
            task = group.create_task(self._send_safely(one))
            self._under_way[one] = task
            task.add_done_callback(partial(self._ended, one))
        return [self._under_way[one] for one in fresh]

    def _ended(self, decision: str, _: "asyncio.Task[bool]") -> None:
        del self._under_way[decision]

    async def _send_safely(self, decision: str) -> bool:
        """Send a decision. If the store is away, log it: it is sent again later."""
        try:
            return await self._send(decision)
        except HubStoreError as error:
            extra = {"decision": decision, "fault": str(error)}
            log.warning("decision cannot be carried", extra=extra)
            return False

    async def _send(self, decision: str) -> bool:
        situation = self.situation()
        claimed = await self.store.write(
            lambda c: claim(c, decision, self.config, situation)
        )
        if claimed is None:
            return False
        async with asyncio.TaskGroup() as group:
            holding = group.create_task(self._renew_until_cancelled(claimed))
            result = await self._attempt(claimed)
            holding.cancel()
        now = self.clock.now()
        await self.store.write(lambda c: keep_result(c, claimed, result, now))
        self._report(claimed, result)
        return True

    async def _renew_until_cancelled(self, claimed: Claimed) -> None:
        """Renew a claim until cancelled, or until the claim is lost."""
        held: Claimed | None = claimed
        while held is not None:
            await self.clock.wait(asyncio.Event(), _RENEW_EVERY)
            try:
                held = await self._renewed(held)
            except HubStoreError:  # the claim expires; sending the same bytes twice is
                return  # harmless

    async def _renewed(self, held: Claimed) -> Claimed | None:
        now = self.clock.now()
        return await self.store.write(lambda c: renew(c, held, now))

    async def _attempt(self, claimed: Claimed) -> Result:
        transport = self.transports.get(claimed.via)
        if transport is None:
            return Result(fault=f"decisions cannot be sent via {claimed.via}")
        try:
            async with asyncio.timeout(_SECONDS):
                return await transport.send(claimed)
        except TimeoutError:
            return Result(fault="no answer in time")

    def _report(self, claimed: Claimed, result: Result) -> None:
        state = "sent" if result.is_accepted else "not-sent"
        if result.end is not None:
            state = result.end.state.value
        self.metrics.decisions.labels(claimed.via, state).inc()
        log.info(
            "decision carried",
            extra={
                "decision": claimed.id,
                "eventId": claimed.event_id,
                "via": claimed.via,
                "state": state,
                "reason": result.fault or None,
            },
        )


class BridgeTransport(Struct):
    """Sends decisions to approval entities.

    Attributes:
        sources: the sources of bridges, by name. The namespace of an address is the
            namespace of its source.
        senders: to the entities.
    """

    sources: Mapping[str, BridgesSource]
    clock: Clock
    senders: Senders = field(default_factory=lambda: Senders(_MOST_SENDERS))

    async def send(self, claimed: Claimed) -> Result:
        """Make one attempt; it is accepted when the broker has stored the message."""
        address = claimed.address
        if address is None or address.source not in self.sources:
            return Result(fault="the source of this address is not configured")
        message = message_of(claimed, self.clock.now())
        try:
            await self.senders.send(
                self.sources[address.source], address.entity, message
            )
        except DeliveryError as error:
            return Result(fault=str(error))
        return Result(is_accepted=True)


def message_of(claimed: Claimed, now: datetime) -> Message:
    """Return the Service Bus message of a decision; body and id never change."""
    session = claimed.address.session if claimed.address else ""
    return Message(
        body=claimed.message,
        content_type=STRUCTURED_TYPE,
        message_id=claimed.id,
        subject=str(orjson.loads(claimed.message)["type"]),
        correlation_id=short_id(claimed.event_id),
        session_id=short_id(session) if session else None,
        time_to_live=max(claimed.expires - now, timedelta(seconds=1)),
    )

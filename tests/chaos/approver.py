"""Sends approvals through the real SDK: good ones, bad ones, and what is no message."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusServerBusyError

from bridge.simulator.servicebus.broker import Broker
from tests.chaos.history import REPLIES, Event, History, Sent
from tests.support.raw_amqp import encoded, nested, proton, section, send_raw

QUEUE = "vm-approvals"
_PROPERTIES = 0x73  # the section that begins with the MessageId
_REFUSALS = 5  # at most so many sends in a row does the broker refuse as busy
_INVALID = (
    b"",
    b"no JSON",
    b"[]",
    b'{"StartRequests": []}',
    b'{"StartRequests": [{"EventId": 7}]}',
    b'{"specversion": "1.0", "type": "other", "data": {}}',
    b'{"StartRequests": [{"EventId": "x"}], "x": "\xff"}',
)


@dataclass(slots=True)
class Approver:
    """Whoever sends to the approval queue."""

    broker: Broker
    sender: ServiceBusSender
    history: History
    chance: random.Random
    calm: asyncio.Lock  # whoever holds it, no connection breaks: each is sent once

    async def approve(self, events: Sequence[Event], *, copies: int = 1) -> None:
        """Send a good approval of events, in either of two forms."""
        if len(events) == 1 and self.chance.random() < 0.5:
            await self._send("good", _structured(events[0]), _keys(events), copies)
        else:
            await self._send("good", _plain(_spelled(events)), _keys(events), copies)

    async def burst(self, events: Sequence[Event]) -> None:
        """Send many at once: for each event a good one, and all kinds of others."""
        async with asyncio.TaskGroup() as group:
            for event in events:
                group.create_task(self.approve([event], copies=self._copies()))
            for _ in range(3):
                group.create_task(self.mischief(list(events)))

    def _copies(self) -> int:
        return self.chance.choice((1, 1, 1, 2, 3))

    async def mischief(self, events: Sequence[Event]) -> None:
        """Send one that must not be relayed."""
        kind = self.chance.choice(
            ("expired", "changed", "unknown", "invalid", "undecodable")
        )
        if kind == "undecodable":
            await self._send_undecodable()
        elif kind == "invalid":
            await self._send(kind, self.chance.choice(_INVALID), (), self._copies())
        elif kind == "unknown" or not events:
            stranger = str(uuid.UUID(int=self.chance.getrandbits(128))).upper()
            await self._send("unknown", _plain([stranger]), (stranger,), 1)
        else:
            event = self.chance.choice(events)
            spoiled = _expired(event) if kind == "expired" else _changed(event)
            await self._send(kind, spoiled, _keys([event]), self._copies())

    async def _send(
        self, kind: str, body: bytes, keys: tuple[str, ...], copies: int
    ) -> None:
        name = f"{kind}-{len(self.history.sent)}"  # unique: it is noted at once
        for _ in range(copies):
            self.history.sent.append(Sent(time.time(), kind, name, keys))
        messages = [
            ServiceBusMessage(body, message_id=name, reply_to=REPLIES)
            for _ in range(copies)
        ]
        while True:
            with suppress(ServiceBusServerBusyError):  # nothing of it was taken
                async with self.calm:
                    return await self.sender.send_messages(messages)

    async def _send_undecodable(self) -> None:
        name = f"undecodable-{len(self.history.sent)}"
        self.history.sent.append(Sent(time.time(), "undecodable", name))
        bad = encoded("{}", id=name, properties={"x": proton.char("a")})
        deep = section(_PROPERTIES, [name]) + nested(70)
        payload = self.chance.choice((bad, deep))
        async with self.calm:
            for _ in range(_REFUSALS + 1):
                if await send_raw(self.broker, QUEUE, [payload]):
                    return
        self.history.flaws.append("the broker took no undecodable message")


def _spelled(events: Sequence[Event]) -> list[str]:
    return [event["EventId"] for event in events]


def _keys(events: Sequence[Event]) -> tuple[str, ...]:
    return tuple(event_id.upper() for event_id in _spelled(events))


def _plain(event_ids: Sequence[str]) -> bytes:
    wanted = [{"EventId": event_id} for event_id in event_ids]
    return json.dumps({"StartRequests": wanted}).encode()


def _structured(event: Event, **data: object) -> bytes:
    about: dict[str, object] = {
        "StartRequests": [{"EventId": event["EventId"].lower()}],
        "approvedBy": "chaos",
        "approvedEvent": event,
        **data,
    }
    return json.dumps(
        {
            "specversion": "1.0",
            "type": "sebridge.startrequest.v1",
            "source": "urn:chaos",
            "id": "1",
            "data": about,
        }
    ).encode()


def _expired(event: Event) -> bytes:
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    return _structured(event, expiresAt=long_ago.isoformat())


def _changed(event: Event) -> bytes:
    return _structured(event, approvedEvent={**event, "EventType": "Terminate"})

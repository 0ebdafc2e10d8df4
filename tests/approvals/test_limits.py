"""Limits of an approval, over the wire: each one counts, or the message is refused.

The messages go by the SDK or by Proton through the broker to a real receiver, and end
as a POST to IMDS or as a dead letter.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.approvals.listener import Listener
from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import ApprovalSource, NamespaceConfig
from bridge.servicebus.receiver import open_queue
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import Entities, QueueSettings
from tests.approvals.approval_world import World, world_of
from tests.support.builders import EVENT_ID, imds_event
from tests.support.fakes import START

ENTITIES = Entities(queues=(QueueSettings(name="q"),))
SEEN = imds_event(EventType="Freeze", DurationInSeconds=5, Resources=["vm-1"])
BODY: dict[str, object] = {"StartRequests": [{"EventId": EVENT_ID}]}
PAST, SOON = "2020-01-01T00:00:00Z", (START + timedelta(hours=1)).isoformat()
JAVA_SEEN = {name[0].lower() + name[1:]: value for name, value in SEEN.items()}
OTHER = {**SEEN, "EventType": "Reboot"}

Letter = tuple[str, str]


def event(data: Mapping[str, object], **attributes: object) -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": "1",
        "source": "/approver",
        "type": "sebridge.startrequest.v1",
        "data": dict(data),
        **attributes,
    }


class Stage:
    """A broker, and a bridge that receives approvals from it."""

    def __init__(self, broker: Broker, world: World) -> None:
        self.broker = broker
        self.world = world

    @property
    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.broker.connection_string)

    async def put(self, name: str, body: object, **properties: object) -> None:
        """Send an approval whose MessageId is ``name``."""
        sent: Any = properties
        message = ServiceBusMessage(
            json.dumps(body), message_id=name, application_properties=sent
        )
        async with self._client as client, client.get_queue_sender("q") as sender:
            await sender.send_messages(message)

    async def letters(self) -> dict[str, Letter]:
        """Handle all messages; return reason and description of each dead letter."""
        stop = asyncio.Event()
        secret = Secret(self.broker.connection_string, {})
        config = NamespaceConfig(connection_string=secret)
        source = ApprovalSource(queue="q")
        async with open_queue(config, source, SystemClock()) as queue:
            listener = Listener(queue=queue, context=self.world.context)
            listening = asyncio.create_task(listener.run(stop))
            async with asyncio.timeout(60):
                while (left := self.broker.snapshot()["q"]).active or left.locked:
                    await asyncio.sleep(0.02)
            stop.set()
            await listening
        return await self._dead()

    async def _dead(self) -> dict[str, Letter]:
        count = self.broker.snapshot()["q"].dead
        async with (
            self._client as client,
            client.get_queue_receiver("q", sub_queue="deadletter") as receiver,
        ):
            found = await receiver.peek_messages(count) if count else []
        return {
            str(one.message_id): (
                one.dead_letter_reason or "",
                one.dead_letter_error_description or "",
            )
            for one in found
        }


@pytest.fixture
async def stage(brisk_sdk: None, tmp_path: Path) -> AsyncIterator[Stage]:
    async with Broker(ENTITIES) as broker, world_of(tmp_path / "state.db") as world:
        world.imds.shows(SEEN)
        world.with_terms(max_age=1e9)
        yield Stage(broker, world)


async def test_expiry_counts_in_every_place_and_spelling(stage: Stage) -> None:
    for name in ("expiresAt", "ExpiresAt", "EXPIRESAT"):
        await stage.put(f"body {name}", {**BODY, name: PAST})
        await stage.put(f"data {name}", event({**BODY, name: PAST}))
        await stage.put(f"property {name}", BODY, **{name: PAST})
        await stage.put(f"beside {name}", event(BODY), **{name: PAST})
    await stage.put("attribute", event(BODY, expirytime=PAST))
    await stage.put("minute", {**BODY, "expiresAt": "2026-01-27T10:00Z"})
    await stage.put("time", BODY, expiresAt=datetime(2026, 1, 1, tzinfo=UTC))

    letters = await stage.letters()

    assert len(letters) == 15
    assert {reason for reason, _ in letters.values()} == {"Expired"}
    assert not stage.world.imds.posts


async def test_limits_that_hold_let_an_approval_through(stage: Stage) -> None:
    """In the spelling of JavaScript, of .NET and of Java."""
    java = {"startRequests": [{"eventId": EVENT_ID}], "approvedBy": "ada"}
    await stage.put("plain", {**BODY, "expiresAt": SOON, "approvedEvent": SEEN})
    await stage.put(".net", event({**BODY, "ExpiresAt": SOON, "ApprovedEvent": SEEN}))
    await stage.put("java", {**java, "expiresAt": SOON, "approvedEvent": JAVA_SEEN})
    await stage.put("java event", event({**java, "approvedEvent": JAVA_SEEN}))
    await stage.put("nulls", {**BODY, "ExpiresAt": None, "expires": None})
    await stage.put("twice", {**BODY, "expiresAt": SOON}, expiresAt=SOON)
    await stage.put("text", BODY, approvedEvent=json.dumps(SEEN))
    await stage.put(
        "harmless",
        event({**BODY, "DocumentIncarnation": 5, "ticket": {"expires": PAST}}, a1="b"),
        NotBefore="x",
    )
    await stage.put("whole entry", {"StartRequests": [SEEN]})

    assert await stage.letters() == {}
    assert await stage.world.kinds() == ["relayed"] * 9


@pytest.mark.parametrize("name", ["approvedEvent", "ApprovedEvent"])
async def test_denial_names_what_is_not_as_approved(stage: Stage, name: str) -> None:
    bare = {"EventId": EVENT_ID}
    longer = {**SEEN, "DurationInSeconds": 4}
    await stage.put("body", {**BODY, name: OTHER})
    await stage.put("data", event({**BODY, name: OTHER}))
    await stage.put("property", BODY, **{name: json.dumps(OTHER)})
    await stage.put("attribute", event(BODY, approvedevent=OTHER))
    await stage.put("missing", {**BODY, name: bare})
    await stage.put("longer", {**BODY, name: longer})
    await stage.put("odd", {**BODY, name: {**SEEN, "DurationInSeconds": "5"}})

    letters = await stage.letters()

    denied = "this bridge may not approve the event: EventChanged: "
    differs = ("Denied", f"{denied}EventType not as in approvedEvent")
    duration = ("Denied", f"{denied}DurationInSeconds not as in approvedEvent")
    assert letters == {
        **dict.fromkeys(("body", "data", "property", "attribute"), differs),
        "missing": ("Denied", f"{denied}EventType, Resources missing in approvedEvent"),
        "longer": duration,
        "odd": duration,
    }
    assert not stage.world.imds.posts


LOOK_ALIKES = (
    *("expires", "Expiry", "expires_at", "expires-on", "expiration", "notAfter"),
    *("validUntil", "valid_to", "deadline", "ttl", "maxAge", "exp", "until"),
    *("approved_event", "expectedEvent", "seenEvent", "eventAsSeen", "ifMatch"),
    *("expectedEventType", "allowEventTypes", "dryRun", "condition", "validFrom"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOK_ALIKES)
async def test_member_that_looks_like_a_limit_is_refused_by_its_name(
    stage: Stage, name: str
) -> None:
    await stage.put("body", {**BODY, name: PAST})
    await stage.put("data", event({**BODY, name: PAST}))
    await stage.put("attribute", event(BODY, **{name: PAST}))
    await stage.put("property", BODY, **{name: PAST})
    entry = {"EventId": EVENT_ID, name: PAST}
    await stage.put("entry", {"StartRequests": [entry]})

    letters = await stage.letters()

    assert {reason for reason, _ in letters.values()} == {"InvalidMessage"}
    words = {
        place: text.partition(" has no effect")[0]
        for place, (_, text) in letters.items()
    }
    assert words == {
        "body": name,
        "data": f"data.{name}",
        "attribute": name,
        "property": f"the property {name}",
        "entry": f"StartRequests[0].{name}",
    }
    assert not stage.world.imds.posts


async def test_limit_that_is_given_twice_must_be_the_same(stage: Stage) -> None:
    twice = (
        '{"StartRequests": [{"EventId": "x"}], "expiresAt": "%s", "expiresAt": "%s"}'
    )
    await stage.put("spellings", {**BODY, "expiresAt": SOON, "ExpiresAt": PAST})
    await stage.put("places", {**BODY, "expiresAt": SOON}, expiresAt=PAST)
    await stage.put("attribute", event({**BODY, "expiresAt": SOON}, expirytime=PAST))
    await stage.put("events", {**BODY, "approvedEvent": SEEN, "ApprovedEvent": OTHER})
    await stage.put("members", {**BODY, "approvedEvent": {**SEEN, "eventType": "x"}})
    await stage.put("ids", {"StartRequests": [{"EventId": "x", "eventId": "y"}]})
    await stage.put("lists", {**BODY, "startRequests": [{"EventId": "y"}]})
    await stage.put("names", twice % (SOON, PAST))  # as JavaScript quotes a text
    await stage.put(
        "entry", {"StartRequests": [{"EventId": EVENT_ID, "expiresAt": SOON}]}
    )
    await stage.put("envelope", {**event({**BODY, "expiresAt": PAST}), **BODY})

    letters = await stage.letters()

    assert len(letters) == 10
    assert {reason for reason, _ in letters.values()} == {"InvalidMessage"}
    assert letters["names"][1] == "expiresAt is given twice, with different values"
    assert not stage.world.imds.posts

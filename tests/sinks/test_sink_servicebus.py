"""The Service Bus sink: its message, and the real SDK against a broker's bad days."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import NamespaceConfig, Timings
from bridge.servicebus.sender import KeptLink, Message, Sender, linked
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import parse_entities
from bridge.simulator.servicebus.values import Condition
from bridge.sinks.base import ApprovalAddress, Resources
from bridge.sinks.batch import BatchSink
from bridge.sinks.servicebus.sink import ServiceBusSinkConfig, SessionBy, render
from tests.support.sink_fixtures import (
    EVENT_ID,
    cloud_event,
    config_faults,
    drained,
    opened_sink,
    sink_config,
)

HERE = ApprovalAddress(namespace="here", entity="vm-approvals", session="web")
LIFE = replace(cloud_event("bridge.started"), extensions={}, data={})


def rendered(
    event: CloudEvent,
    session: SessionBy = "event",
    vm_id: str | None = "vm-1",
    approvals: ApprovalAddress | None = HERE,
) -> Message:
    return render(event, session=session, vm_id=vm_id, approvals=approvals)


@pytest.mark.parametrize(
    ("interval", "seconds"), [(60.0, 180), (0.1, 1), (1e9, 14 * 86400)]
)
def test_heartbeat_lives_as_long_as_it_is_news(interval: float, seconds: int) -> None:
    data = {"intervalSeconds": interval}
    beat = replace(cloud_event("bridge.heartbeat"), extensions={}, data=data)
    assert rendered(beat).time_to_live == timedelta(seconds=seconds)


@pytest.mark.parametrize("interval", [None, "60", True])
def test_heartbeat_without_an_interval_lives_as_the_entity_says(
    interval: object,
) -> None:
    data = {"intervalSeconds": interval}
    beat = replace(cloud_event("bridge.heartbeat"), extensions={}, data=data)
    assert rendered(beat).time_to_live is None
    assert rendered(replace(LIFE, data={"intervalSeconds": 60})).time_to_live is None


def test_message_is_the_event_in_the_words_of_service_bus() -> None:
    event = cloud_event()

    assert rendered(event) == Message(
        body=event.to_json(),
        content_type="application/cloudevents+json",
        message_id=event.id,
        subject="sebridge.scheduledevent.scheduled.v1",
        correlation_id=EVENT_ID,
        session_id=EVENT_ID,
        reply_to="vm-approvals",
        reply_to_session_id="web",
        application_properties={
            "cloudEvents_specversion": "1.0",
            "cloudEvents_id": event.id,
            "cloudEvents_source": event.source,
            "cloudEvents_type": event.type,
            "cloudEvents_subject": EVENT_ID,
            "cloudEvents_time": "2026-11-21T10:00:00Z",
            "cloudEvents_datacontenttype": "application/json",
            "cloudEvents_dataschema": "urn:sebridge:schema:scheduledevent:v1",
            "cloudEvents_correlationid": EVENT_ID,
            "cloudEvents_severitynumber": 17,
        },
    )


@pytest.mark.parametrize(
    ("event", "session", "vm_id", "expected"),
    [
        (cloud_event(), "event", "vm-1", EVENT_ID),
        (cloud_event(), "vm", "vm-1", "vm-1"),
        (cloud_event(), "none", "vm-1", None),
        (LIFE, "event", "vm-1", "vm-1"),
        (LIFE, "event", None, LIFE.source),
        (LIFE, "none", "vm-1", None),
    ],
)
def test_session_is_as_configured_and_never_missing(
    event: CloudEvent, session: SessionBy, vm_id: str | None, expected: str | None
) -> None:
    """An entity with sessions refuses a message that has none."""
    assert rendered(event, session, vm_id).session_id == expected


def test_ids_that_are_too_long_are_hashed() -> None:
    long = "x" * 129
    event = replace(cloud_event(), id=long, extensions={"correlationid": long})

    message = rendered(event)

    assert message.message_id == message.session_id == hash32(long)
    assert message.correlation_id == long


def test_id_of_128_characters_is_left_alone() -> None:
    assert rendered(replace(cloud_event(), id="x" * 128)).message_id == "x" * 128


@pytest.mark.parametrize(
    ("what", "status", "asks"),
    [
        ("scheduled", "Scheduled", True),
        ("updated", "Scheduled", True),
        ("updated", "Started", False),
        ("started", "Started", False),
        ("completed", "Started", False),
        ("cancelled", "Scheduled", False),
        ("ended", "Scheduled", False),
    ],
)
def test_reply_is_asked_for_as_long_as_there_is_something_to_approve(
    what: str, status: str, *, asks: bool
) -> None:
    event = cloud_event(f"scheduledevent.{what}", event={"EventStatus": status})

    message = rendered(event)

    assert (message.reply_to is not None) is asks
    assert (message.reply_to_session_id is not None) is asks


def test_no_reply_is_asked_for_without_approvals() -> None:
    assert rendered(cloud_event(), approvals=None).reply_to is None


def test_no_reply_is_asked_for_what_became_of_a_command() -> None:
    """It names the step that it was run for: that asked for a reply already."""
    event = cloud_event("command.failed", transition="scheduled")

    assert rendered(event).reply_to is None


@pytest.mark.parametrize("raw", [None, [], "x", {"EventStatus": 5}])
def test_odd_event_is_rendered_all_the_same(raw: object) -> None:
    event = cloud_event("scheduledevent.updated", event=raw)

    assert rendered(event).reply_to is None


def bus(broker: Broker, **options: object) -> dict[str, object]:
    given = {"connection_string": broker.connection_string, "topic": "scheduled-events"}
    return {"type": "servicebus", **given, **options}


async def test_message_arrives_as_it_was_rendered(
    resources: Resources, broker: Broker
) -> None:
    event = cloud_event()
    host = f"127.0.0.1:{broker.port}"
    lent = with_fields(resources, approvals=with_fields(HERE, namespace=host))
    async with opened_sink(lent, bus(broker)) as sink:
        await sink.deliver(event)

    (message,) = await drained(broker)
    properties = message.application_properties or {}
    assert b"".join(message.body) == event.to_json()
    assert message.content_type == "application/cloudevents+json"
    assert (message.message_id, message.subject) == (event.id, event.type)
    assert (message.correlation_id, message.session_id) == (EVENT_ID, EVENT_ID)
    assert (message.reply_to, message.reply_to_session_id) == ("vm-approvals", "web")
    assert properties[b"cloudEvents_type"] == event.type.encode()
    assert properties[b"cloudEvents_severitynumber"] == 17


def sql(expression: str) -> dict[str, object]:
    return {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}


def correlation(severity: object) -> dict[str, object]:
    wanted = {"Properties": {"cloudEvents_severitynumber": severity}}
    return {"FilterType": "Correlation", "CorrelationFilter": wanted}


def with_rule(properties: Mapping[str, object]) -> str:
    """Return an entity file in which this rule lets messages into the subscription."""
    rules = [{"Name": "severe", "Properties": properties}]
    subscriptions = [{"Name": "consumer", "Rules": rules}]
    topics = [{"Name": "scheduled-events", "Subscriptions": subscriptions}]
    namespaces = [{"Name": "sbemulatorns", "Topics": topics}]
    file = {"UserConfig": {"Namespaces": namespaces}}
    return msgspec.json.encode(file).decode()


@pytest.mark.parametrize(
    ("rule", "arrives"),
    [
        (sql("cloudEvents_severitynumber >= 13"), True),
        (sql("cloudEvents_severitynumber > 17"), False),
        (correlation(17), True),
        (correlation("17"), False),
    ],
)
async def test_filters_see_the_severity_as_a_number(
    rule: Mapping[str, object], resources: Resources, *, arrives: bool
) -> None:
    async with Broker(parse_entities(with_rule(rule))) as broker:
        async with opened_sink(resources, bus(broker)) as sink:
            await sink.deliver(cloud_event())
        counts = broker.snapshot()["scheduled-events/Subscriptions/consumer"]
    assert counts.active == arrives


async def test_no_reply_goes_to_another_namespace(
    resources: Resources, broker: Broker
) -> None:
    lent = with_fields(resources, approvals=HERE)
    async with opened_sink(lent, bus(broker)) as sink:
        await sink.deliver(cloud_event())

    (message,) = await drained(broker)
    assert message.reply_to is None


async def test_same_event_again_is_dropped_by_the_broker(
    resources: Resources, broker: Broker
) -> None:
    async with opened_sink(resources, bus(broker)) as sink:
        await sink.deliver(cloud_event())
        await sink.deliver(cloud_event())

    assert stored(broker, "scheduled-events/Subscriptions/consumer") == 1


async def test_queue_with_sessions_takes_every_event(
    resources: Resources, broker: Broker
) -> None:
    options = bus(broker, topic="", queue="vm-approvals-sessions")
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())
        await sink.deliver(LIFE)

    assert stored(broker, "vm-approvals-sessions") == 2


def stored(broker: Broker, path: str) -> int:
    return broker.snapshot()[path].active


def message(number: int, size: int = 100, session: str | None = None) -> Message:
    return Message(
        body=b"x" * size,
        content_type="text/plain",
        message_id=f"m-{number}",
        session_id=session,
    )


@pytest.fixture
async def sender(namespace: NamespaceConfig) -> AsyncIterator[Sender]:
    opened = Sender(namespace, "vm-approvals")
    yield opened
    await opened.close()


async def test_concurrent_sends_arrive_once_each(
    sender: Sender, broker: Broker
) -> None:
    """Unguarded, five at once are enough to break the SDK's sender for good."""
    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(sender.send(message(number)))

    found = await drained(broker, "vm-approvals", count=200)
    assert sorted(m.message_id or "" for m in found) == sorted(
        f"m-{number}" for number in range(200)
    )


async def test_batch_that_does_not_fit_goes_out_in_several(
    sender: Sender, broker: Broker
) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(sender.send(message(number, size=120_000)))

    assert stored(broker, "vm-approvals") == 8


async def test_one_that_is_too_large_does_not_harm_the_others(
    sender: Sender, broker: Broker
) -> None:
    sizes = [100, 3_000_000, 100]
    sends = (sender.send(message(n, size)) for n, size in enumerate(sizes))

    results = await asyncio.gather(*sends, return_exceptions=True)

    assert [type(r) for r in results] == [
        type(None),
        PermanentDeliveryError,
        type(None),
    ]
    assert "3000000 bytes" in str(results[1])
    assert stored(broker, "vm-approvals") == 2


@pytest.mark.parametrize("fault", ["drop_connections", "detach_links"])
async def test_dead_sender_costs_a_second_attempt_and_no_failure(
    fault: str, sender: Sender, broker: Broker
) -> None:
    """What the service does to a link that was idle for ten minutes."""
    await sender.send(message(1))
    getattr(broker.faults, fault)()
    await asyncio.gather(*(sender.send(message(n)) for n in (2, 3)))

    assert stored(broker, "vm-approvals") == 3


async def test_broker_that_was_away_is_found_again(
    sender: Sender, broker: Broker
) -> None:
    await sender.send(message(1))
    await broker.__aexit__(None, None, None)
    with pytest.raises(TransientDeliveryError) as caught:
        await sender.send(message(2))
    await broker.__aenter__()
    await sender.send(message(2))

    assert caught.value.reason is Reason.CONNECTION
    assert stored(broker, "vm-approvals") == 2


async def test_broker_that_fell_silent_is_a_timeout_for_all_who_wait(
    sender: Sender, broker: Broker
) -> None:
    """Without a timeout a send to a silent peer never ends."""
    await sender.send(message(1))
    broker.faults.freeze()
    sender.link.timings = Timings(stale=0.3, attempt=0.7)
    sends = (sender.send(message(n)) for n in (2, 3))
    results = await asyncio.gather(*sends, return_exceptions=True)
    sender.link.timings = Timings()  # a broker that answers has more time
    broker.faults.thaw()
    await sender.send(message(4))

    assert [type(result) for result in results] == [TransientDeliveryError] * 2
    assert all(getattr(r, "reason", None) is Reason.TIMEOUT for r in results)


async def test_full_or_busy_entity_is_transient_and_the_sender_is_kept(
    sender: Sender, broker: Broker
) -> None:
    await sender.send(message(1))
    kept = sender.link.sender
    broker.faults.fill("vm-approvals")
    with pytest.raises(TransientDeliveryError, match="is full") as full:
        await sender.send(message(2))
    broker.faults.clear()
    broker.faults.busy_for_sends(1)
    with pytest.raises(TransientDeliveryError, match="is busy") as busy:
        await sender.send(message(2))
    await sender.send(message(2))

    assert (full.value.is_shared, busy.value.is_shared) == (False, True)

    assert sender.link.sender is kept
    assert stored(broker, "vm-approvals") == 2


async def test_busy_batch_fails_for_each_that_is_in_it(
    sender: Sender, broker: Broker
) -> None:
    await sender.send(message(0))
    broker.faults.busy_for_sends(1)
    holder = asyncio.create_task(sender.send(message(1)))
    sends = (sender.send(message(n)) for n in (2, 3))
    results = await asyncio.gather(holder, *sends, return_exceptions=True)

    failed = [r for r in results if isinstance(r, TransientDeliveryError)]
    assert len(failed) + stored(broker, "vm-approvals") == 4
    assert len({id(error) for error in failed}) == len(failed)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (Condition.ENTITY_DISABLED, Reason.NOT_FOUND),
        (Condition.UNAUTHORIZED, Reason.UNAUTHORIZED),
        (Condition.NOT_FOUND, Reason.NOT_FOUND),
    ],
)
async def test_entity_that_refuses_parks_the_sink_until_it_takes_again(
    condition: Condition, reason: Reason, sender: Sender, broker: Broker
) -> None:
    broker.faults.refuse_attach("vm-approvals", condition)
    with pytest.raises(RefusedDeliveryError) as caught:
        await sender.send(message(1))
    broker.faults.allow_attach("vm-approvals")
    await sender.send(message(1))

    assert caught.value.reason is reason


async def test_name_of_a_host_that_does_not_exist_is_said() -> None:
    """The name is of a domain that can have no addresses (RFC 6761)."""
    text = "Endpoint=sb://nobody.invalid/;SharedAccessKeyName=a;SharedAccessKey=YWJj"
    sender = Sender(NamespaceConfig(connection_string=Secret(text, {})), "q")

    with pytest.raises(TransientDeliveryError) as caught:
        await sender.send(message(1))

    assert "Service Bus entity q: the name nobody.invalid does not exist" in str(
        caught.value
    )


async def test_unknown_entity_is_refused(namespace: NamespaceConfig) -> None:
    sender = Sender(namespace, "no-such")
    with pytest.raises(RefusedDeliveryError, match="no-such: does not exist"):
        await sender.send(message(1))


async def test_misspelt_topic_is_reported_as_one_that_is_not_there(
    resources: Resources, broker: Broker
) -> None:
    """Not as a role that is missing: the service answers to its token by 404."""
    options = {
        "type": "servicebus",
        "topic": "shceduled-events",
        "connection_string": broker.connection_string,
    }
    with pytest.raises(RefusedDeliveryError) as caught:
        await sink_config(options).reach(resources)

    assert caught.value.reason is Reason.NOT_FOUND
    words = str(caught.value)
    assert "does not exist (ServiceBusAuthenticationError, status 404)" in words
    assert "create or enable shceduled-events" in words
    assert "role" not in words


async def test_cancelled_leader_takes_nobody_with_him(
    sender: Sender, broker: Broker
) -> None:
    """Whoever sends for all may be cancelled; the others' outcome is not his."""
    await sender.send(message(0))
    broker.faults.delay_replies(timedelta(seconds=0.3))
    leader = asyncio.create_task(sender.send(message(1)))
    follower = asyncio.create_task(sender.send(message(2)))
    await asyncio.sleep(0.1)
    leader.cancel()
    broker.faults.delay_replies(timedelta())
    await follower

    found = await drained(broker, "vm-approvals", count=3)
    assert leader.cancelled()
    assert {m.message_id for m in found} == {"m-0", "m-1", "m-2"}


class PartitionedLink(KeptLink):
    """A link to what a ``PartitionedSender`` says."""

    def __init__(self, sender: "PartitionedSender") -> None:
        super().__init__(partial(linked, NamespaceConfig(), ""), Timings())
        self.attempt = sender.attempt

    async def send(self, batch: list[Any]) -> int:
        return await self.attempt(batch)


class PartitionedSender(Sender):
    """As to an entity with partitions, which takes no batch of several sessions.

    Attributes:
        takes_none: whether it takes no batch at all.
        refused: the MessageIds that it refuses, also alone.
        most_attempts: after that many, there is no connection any more.
    """

    def __init__(self, *refused: str, takes_none: bool = False) -> None:
        where = NamespaceConfig(namespace="x.example.net")
        super().__init__(where, "partitioned")
        self.link = PartitionedLink(self)
        self.attempts: list[int] = []
        self.takes_none = takes_none
        self.refused = set(refused)
        self.most_attempts = 99

    async def attempt(self, batch: list[Any]) -> int:
        self.attempts.append(len(batch))
        await asyncio.sleep(0)
        if len(self.attempts) > self.most_attempts:
            raise ServiceBusConnectionError(message="gone")
        sessions = {one.message.session_id for one in batch}
        if len(sessions) > 1 or (self.takes_none and len(batch) > 1):
            raise ServiceBusError("x", condition=b"amqp:not-allowed")
        if self.refused & {one.message.message_id for one in batch}:
            raise ServiceBusError("x", condition=b"com.microsoft:argument-error")
        return len(batch)


def sessions(*names: str | None) -> list[Message]:
    return [
        replace(message(place), session_id=name) for place, name in enumerate(names)
    ]


async def test_entity_with_partitions_is_sent_one_session_at_a_time() -> None:
    """It is learnt from the first refusal, and kept."""
    sender = PartitionedSender()

    found = await sender.send_many(sessions("a", "b", "a", "a"))
    later = await sender.send_many(sessions("a", "a", "b"))

    assert [*found, *later] == [None] * 7
    assert sender.attempts == [4, 3, 1, 2, 1]


async def test_transfer_holds_no_more_messages_than_it_may() -> None:
    sender = PartitionedSender()
    sender.most = 2

    await sender.send_many(sessions(*"aaaaa"))

    assert sender.attempts == [2, 2, 1]


async def test_entity_that_takes_no_batches_is_sent_one_by_one_from_then_on() -> None:
    sender = PartitionedSender(takes_none=True)
    await asyncio.gather(*(sender.send(message(n)) for n in range(4)))
    await asyncio.gather(*(sender.send(message(n)) for n in range(3)))

    assert sender.attempts == [1, 3, 1, 1, 1, 1, 1, 1]


async def test_entity_that_takes_no_batches_is_sent_one_by_one_in_all_sessions() -> (
    None
):
    sender = PartitionedSender(takes_none=True)

    found = await sender.send_many(sessions("a", "a", "b", "b"))
    later = await sender.send_many(sessions("a", "a"))

    assert [*found, *later] == [None] * 6
    assert sender.attempts == [4, 2, 1, 1, 1, 1, 1, 1]


async def test_message_that_is_refused_alone_does_not_part_later_ones() -> None:
    """That the entity takes no batches is not proven: the message was the cause."""
    sender = PartitionedSender("m-1")

    found = await sender.send_many(sessions("a", "a", "a"))
    sender.attempts.clear()
    sender.refused.clear()
    later = await sender.send_many(sessions("a", "a", "a"))

    assert [error is None for error in found] == [True, False, True]
    assert later == [None] * 3
    assert sender.attempts == [3]


async def test_sessions_that_part_a_batch_are_learnt_beside_a_refused_message() -> None:
    """Not from the batch with that message, but from the next one."""
    sender = PartitionedSender("m-3")

    found = await sender.send_many(sessions("a", "a", "b", "b"))
    assert [error is None for error in found] == [True, True, True, False]
    sender.refused.clear()
    await sender.send_many(sessions("a", "a", "b", "b"))
    sender.attempts.clear()
    await sender.send_many(sessions("a", "a", "b", "b"))

    assert sender.attempts == [2, 2]


@pytest.mark.parametrize("names", [(None, None), ("a", None, "b")])
async def test_message_without_a_session_leaves_later_ones_in_one_transfer(
    names: tuple[str | None, ...], namespace: NamespaceConfig, broker: Broker
) -> None:
    """A queue with sessions refuses it, and that transfer only."""
    sender = Sender(namespace, "vm-approvals-sessions")
    found = await sender.send_many(sessions(*names))
    broker.faults.busy_for_sends(1)
    later = await sender.send_many(sessions("a", "b", "b"))
    await sender.close()

    assert [error is None for error in found] == [name is not None for name in names]
    assert [error and error.reason for error in later] == [Reason.THROTTLED] * 3


async def test_link_that_breaks_after_a_refused_batch_fails_all_of_it() -> None:
    """Else each session would wait for an answer in turn."""
    sender = PartitionedSender()
    sender.most_attempts = 1

    found = await sender.send_many(sessions("a", "b", "c"))

    assert [error and error.reason for error in found] == [Reason.CONNECTION] * 3
    assert sender.attempts == [3, 1]


@pytest.mark.parametrize("session", ["event", "vm", "none"])
async def test_several_events_arrive_each_as_a_message_of_its_own(
    session: str, resources: Resources, broker: Broker
) -> None:
    options = {
        "type": "servicebus",
        "topic": "scheduled-events",
        "connection_string": broker.connection_string,
        "session": session,
        "batch": 100,
    }
    events = [replace(cloud_event(), id=f"{number:032x}") for number in range(40)]
    async with opened_sink(resources, options) as sink:
        assert isinstance(sink, BatchSink)
        assert await sink.deliver_many(events) == [None] * 40

    found = await drained(broker, count=40)
    assert [m.message_id for m in found] == [event.id for event in events]


async def test_message_that_is_too_large_fails_alone(
    resources: Resources, broker: Broker
) -> None:
    options = {
        "type": "servicebus",
        "topic": "scheduled-events",
        "connection_string": broker.connection_string,
        "batch": 100,
    }
    large = cloud_event(more="x" * 2_000_000)
    async with opened_sink(resources, options) as sink:
        assert isinstance(sink, BatchSink)
        small, error = await sink.deliver_many([LIFE, large])

    assert small is None
    assert isinstance(error, PermanentDeliveryError)
    assert error.reason is Reason.TOO_LARGE


def test_sink_has_the_keys_of_a_namespace() -> None:
    """They stand twice, since a msgspec class has but one base with fields."""
    theirs = {f.name: f for f in msgspec.structs.fields(ServiceBusSinkConfig)}

    for mine in msgspec.structs.fields(NamespaceConfig):
        assert theirs[mine.name].type == mine.type
        assert theirs[mine.name].default == mine.default


CLOUD = "Endpoint=sb://x.example.net;SharedAccessKeyName=n;SharedAccessKey=5ec12e7"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"namespace": "x.example.net"},
            "queue: exactly one of queue and topic must be given",
        ),
        (
            {"namespace": "x.example.net", "queue": "q", "topic": "t"},
            "queue: exactly one of queue and topic must be given",
        ),
        (
            {"topic": "t"},
            "namespace: exactly one of namespace and connection_string must be given",
        ),
        (
            {"connection_string": f"{CLOUD};EntityPath=other", "topic": "t"},
            "topic: is not the EntityPath in connection_string",
        ),
        (
            {"namespace": "x.example.net", "topic": "t", "session": "id"},
            'session: must be one of "event", "vm", "none"',
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    options: Mapping[str, object], fault: str
) -> None:
    assert config_faults({"type": "servicebus", **options}) == [fault]


def test_message_id_may_be_that_of_the_bytes() -> None:
    """What several VMs report of one step is not dropped, nor can it be displaced."""
    one, other = cloud_event(), replace(cloud_event(), time="2026-03-02T12:00:01Z")
    found = {
        render(
            event, session="none", vm_id=None, approvals=None, message_id="body"
        ).message_id
        for event in (one, one, other)
    }
    assert found == {sha256(each.to_json()).hexdigest() for each in (one, other)}
    assert len({rendered(each).message_id for each in (one, other)}) == 1

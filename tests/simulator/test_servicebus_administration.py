"""The administration API, as the client of Python meets it, over HTTPS."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from bridge.simulator.servicebus.administration.server import (
    Administration,
    AdministrationPorts,
)
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.tls import TlsFiles
from bridge.simulator.tls_certificate import make_certificate
from tests.simulator.servicebus_fixtures import opened

# The client's types say of each property that it may be absent; none is here.
Admin = Any
MINUTE = timedelta(minutes=1)
FOR_EVER_DAYS = 10_675_199


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def door(broker: Broker, files: TlsFiles) -> AsyncIterator[Administration]:
    async with Administration(broker, ports=AdministrationPorts(tls=files)) as running:
        yield running


@pytest.fixture
async def admin(
    door: Administration, files: TlsFiles
) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with ServiceBusAdministrationClient.from_connection_string(
        door.addresses()["administrationTlsConnectionString"],
        connection_verify=str(files.authority),
        retry_total=0,
    ) as client:
        yield client


async def once_settled(admin: Admin, queue: str) -> Any:
    """Return the counts of a queue as soon as no message waits in it any more.

    The SDK does not wait for the broker's answer when it settles a message: a request
    over HTTP may come there before.
    """
    async with asyncio.timeout(30):
        while (
            found := await admin.get_queue_runtime_properties(queue)
        ).active_message_count:
            await asyncio.sleep(0.02)
    return found


async def names(listed: Any) -> list[str]:
    return [found.name async for found in listed]


async def test_namespace_is_reported(admin: Admin) -> None:
    found = await admin.get_namespace_properties()

    assert (found.name, found.messaging_sku) == ("sbemulatorns", "Standard")
    assert found.namespace_type == "Messaging"
    assert abs(found.created_at_utc - datetime.now(UTC)) < MINUTE


async def test_queue_is_made_with_the_defaults_of_the_cloud(
    admin: Admin,
) -> None:
    made = await admin.create_queue("orders")

    assert made.name == "orders"
    assert made.lock_duration == MINUTE
    assert made.max_delivery_count == 10
    assert made.default_message_time_to_live.days == FOR_EVER_DAYS
    assert made.auto_delete_on_idle.days == FOR_EVER_DAYS
    assert made.duplicate_detection_history_time_window == 10 * MINUTE
    assert made.max_size_in_megabytes == 1024
    assert made.status == "Active"
    assert made.availability_status == "Available"
    assert made.enable_batched_operations is True
    for flag in ("requires_session", "requires_duplicate_detection", "enable_express"):
        assert getattr(made, flag) is False, flag
    assert dict(await admin.get_queue("ORDERS")) == {**made, "name": "ORDERS"}


async def test_queue_keeps_what_it_is_given(
    admin: Admin,
) -> None:
    given: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(days=2),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(hours=1, seconds=1.5),
        "duplicate_detection_history_time_window": 2 * MINUTE,
        "enable_batched_operations": False,
        "enable_express": True,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 7,
        "max_size_in_megabytes": 2048,
        "requires_duplicate_detection": True,
        "requires_session": True,
        "user_metadata": "a <note> & more",
    }

    await admin.create_queue("orders", **given)

    found = await admin.get_queue("orders")
    assert {name: found[name] for name in given} == given


async def test_partitioned_entity_tells_the_size_of_16_partitions(
    admin: Admin,
) -> None:
    made = await admin.create_queue(
        "parted", enable_partitioning=True, max_size_in_megabytes=2048
    )
    assert made.max_size_in_megabytes == 16 * 2048

    made.max_delivery_count = 3
    await admin.update_queue(made)

    found = await admin.get_queue("parted")
    assert (found.max_size_in_megabytes, found.max_delivery_count) == (32_768, 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_size_in_megabytes": 6144}, "is one of 1024, 2048, 3072, 4096, 5120"),
        ({"max_size_in_megabytes": 1000}, "MaxSizeInMegabytes is one of 1024"),
        ({"max_size_in_megabytes": 16 * 1024 + 1}, "MaxSizeInMegabytes is one of"),
        ({"max_message_size_in_kilobytes": 1024}, "only Premium has other sizes"),
    ],
)
async def test_sizes_are_those_of_the_tier_standard(
    admin: Admin, given: dict[str, int], words: str
) -> None:
    with pytest.raises(HttpResponseError, match=words):
        await admin.create_queue("big", **given)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 11, 27, 10, 0, 7),  # noqa: DTZ001 - without a zone
        datetime(2026, 11, 27, 10, tzinfo=UTC),
        5,
        2**40,
    ],
)
async def test_value_of_a_rule_comes_back_as_it_was(admin: Admin, value: Any) -> None:
    given = SqlRuleFilter("at = @at", parameters={"@at": value})
    await admin.create_rule("news", "all", "r", filter=given)

    found = await admin.get_rule("news", "all", "r")

    assert found.filter.parameters == {"@at": value}


async def test_filters_of_a_topic_are_counted(admin: Admin) -> None:
    """What admits everything counts as a filter of SQL, as in the cloud."""
    await admin.create_topic("t")
    await admin.create_subscription("t", "s")
    await admin.create_rule("t", "s", "sql", filter=SqlRuleFilter("a = 1"))
    related = CorrelationRuleFilter(label="x")
    await admin.create_rule("t", "s", "related", filter=related)

    found = await admin.get_topic_runtime_properties("t")

    assert (found.sql_filter_count, found.correlation_filter_count) == (2, 1)


async def test_time_of_access_is_year_1_until_it_is_used(
    admin: Admin, broker: Broker
) -> None:
    await admin.create_queue("fresh")
    fresh = await admin.get_queue_runtime_properties("fresh")

    broker.put("fresh", b"x")

    used = await admin.get_queue_runtime_properties("fresh")
    inner = await admin.get_subscription_runtime_properties("news", "all")
    assert fresh.accessed_at_utc.year == 1
    assert used.accessed_at_utc.year > 2000
    assert inner.accessed_at_utc.year > 2000  # a subscription's is never year 1


async def test_size_of_a_topic_counts_scheduled_messages(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_topic_sender("news") as sender:
        later = datetime.now(UTC) + timedelta(hours=1)
        await sender.schedule_messages(ServiceBusMessage("x" * 100), later)

    assert (await admin.get_topic_runtime_properties("news")).size_in_bytes > 100


async def test_authorization_rules_are_reported_again(
    admin: Admin,
) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
        key_name="boss",
        primary_key="cHJpbWFyeQ==",
        secondary_key="c2Vjb25k",
    )

    await admin.create_queue("orders", authorization_rules=[rule])

    (found,) = (await admin.get_queue("orders")).authorization_rules
    assert (found.key_name, found.rights) == ("boss", ["Manage", "Send", "Listen"])
    assert found.primary_key == "cHJpbWFyeQ=="
    assert found.secondary_key == "c2Vjb25k"
    assert found.claim_type == "SharedAccessKey"


async def test_made_queue_works_by_its_description(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    await admin.create_queue("target")
    await admin.create_queue("orders", max_delivery_count=1, forward_to="target")
    await admin.create_queue("picky", max_delivery_count=1)
    orders = broker_client.get_queue_sender("orders")
    picky = broker_client.get_queue_sender("picky")
    target = broker_client.get_queue_receiver("target")
    receiver = broker_client.get_queue_receiver("picky")
    async with opened(orders, picky, target, receiver):
        await orders.send_messages(ServiceBusMessage("forwarded"))
        await picky.send_messages(ServiceBusMessage("once"))
        assert [str(m) for m in await target.peek_messages()] == ["forwarded"]
        (message,) = await receiver.receive_messages(1, max_wait_time=30)
        await receiver.abandon_message(message)

    runtime = await once_settled(admin, "picky")
    assert runtime.dead_letter_message_count == 1
    assert (runtime.active_message_count, runtime.total_message_count) == (0, 1)
    assert (await admin.get_queue("orders")).forward_to.endswith("/target")


async def test_runtime_counts_are_reported(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        later = datetime.now(UTC) + timedelta(hours=1)
        await sender.schedule_messages(ServiceBusMessage("3"), later)

    found = await admin.get_queue_runtime_properties("plain")

    assert (found.active_message_count, found.scheduled_message_count) == (2, 1)
    assert (found.total_message_count, found.transfer_message_count) == (3, 0)
    assert found.size_in_bytes > 0
    assert abs(found.created_at_utc - datetime.now(UTC)) < MINUTE
    topics = [t async for t in admin.list_topics_runtime_properties()]
    assert [(t.name, t.subscription_count) for t in topics] == [("news", 2)]


async def test_queue_is_changed(admin: Admin, broker_client: ServiceBusClient) -> None:
    queue = await admin.get_queue("plain")
    before = await admin.get_queue_runtime_properties("plain")
    queue.lock_duration = timedelta(seconds=7)
    queue.max_delivery_count = 1

    await admin.update_queue(queue)

    found = await admin.get_queue("plain")
    assert (found.lock_duration, found.max_delivery_count) == (timedelta(seconds=7), 1)
    after = await admin.get_queue_runtime_properties("plain")
    assert after.created_at_utc == before.created_at_utc
    assert after.updated_at_utc > before.updated_at_utc
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await receiver.receive_messages(1, max_wait_time=30)
        until: Any = message.locked_until_utc
        left = until - datetime.now(UTC)
        assert left <= timedelta(seconds=7.001)  # rounded to milliseconds
        await receiver.abandon_message(message)
    assert (await once_settled(admin, "plain")).dead_letter_message_count == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requires_session": True}, "RequiresSession property of an existing Queue"),
        ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection property"),
        ({"lock_duration": timedelta(minutes=6)}, "from PT1S to PT5M, not 'PT6M'"),
        (
            {"max_delivery_count": 0},
            "MaxDeliveryCount is a whole number from 1 to 2000",
        ),
        ({"auto_delete_on_idle": MINUTE}, "AutoDeleteOnIdle is a duration from PT5M"),
        ({"user_metadata": "x" * 1025}, "UserMetadata is a text of 1024 characters"),
        ({"status": "Sleeping"}, "Status is one of Active, Disabled, SendDisabled"),
        (
            {"forward_to": "nowhere"},
            "The messaging entity 'nowhere' could not be found",
        ),
    ],
)
async def test_change_that_is_not_allowed_is_refused(
    admin: Admin, change: dict[str, Any], words: str
) -> None:
    queue = await admin.get_queue("plain")

    with pytest.raises(HttpResponseError) as error:
        await admin.update_queue(queue, **change)

    assert error.value.status_code in {400, 404}
    assert words in str(error.value)
    assert dict(await admin.get_queue("plain")) == dict(queue)


async def test_queue_may_forward_to_itself_once_it_exists(
    admin: Admin, broker: Broker
) -> None:
    """As in the cloud; a new one names a target that does not exist yet."""
    with pytest.raises(HttpResponseError, match="'loop' could not be found"):
        await admin.create_queue("loop", forward_to="loop")
    queue = await admin.create_queue("loop")

    await admin.update_queue(queue, forward_to="loop")
    broker.put("loop", b"x")

    assert broker.snapshot()["loop"] == Counts(dead=1)


async def test_subscription_forwards_to_the_queue_of_its_own_name_once_made(
    admin: Admin, broker: Broker
) -> None:
    await admin.create_queue("orders")

    await admin.create_subscription("news", "orders", forward_to="orders")
    broker.put("news", b"x")

    assert broker.snapshot()["orders"] == Counts(active=1)


async def test_taken_name_is_a_conflict(admin: Admin) -> None:
    for make in (admin.create_queue, admin.create_topic):
        with pytest.raises(ResourceExistsError) as error:
            await make("News")
        response: Any = error.value.response
        assert "SubCode=40900. Conflict. The entity 'News' exists." in str(
            response.text()
        )


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 261, "a?b", "/x", "x."])
async def test_bad_name_is_refused(admin: Admin, name: str) -> None:
    with pytest.raises(HttpResponseError) as error:
        await admin.create_queue(name)

    assert error.value.status_code == 400
    assert "is not a name of a queue" in str(error.value)


async def test_what_is_not_there_is_not_found(
    admin: Admin,
) -> None:
    stranger = await admin.get_queue("plain")
    stranger.name = "none"
    for asked in (
        admin.get_queue("none"),
        admin.get_topic("none"),
        admin.get_subscription("news", "none"),
        admin.get_rule("news", "all", "none"),
        admin.get_rule("none", "all", "none"),
        admin.delete_queue("none"),
        admin.delete_subscription("news", "none"),
        admin.delete_rule("news", "all", "none"),
        admin.create_subscription("none", "s"),
        admin.create_subscription("plain", "s"),
        admin.update_queue(stranger),
        names(admin.list_subscriptions("none")),
        names(admin.list_rules("news", "none")),
    ):
        with pytest.raises(ResourceNotFoundError):
            await asked


async def test_all_queues_are_listed_page_by_page(
    admin: Admin,
) -> None:
    there = await names(admin.list_queues())
    for number in range(12):
        await admin.create_queue(f"z{number:02}")

    assert await names(admin.list_queues(max_page_size=5)) == [
        *there,
        *(f"z{number:02}" for number in range(12)),
    ]
    assert await names(admin.list_queues(start_index=len(there) + 10)) == ["z10", "z11"]


async def test_topic_lives_its_life(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    made = await admin.create_topic("t/inner", user_metadata="note")
    assert (made.user_metadata, made.support_ordering) == ("note", True)
    assert await names(admin.list_topics()) == ["news", "t/inner"]
    await admin.create_subscription("t/inner", "s", max_delivery_count=3)
    assert await names(admin.list_subscriptions("t/inner")) == ["s"]

    async with broker_client.get_topic_sender("t/inner") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    runtime = await admin.get_subscription_runtime_properties("t/inner", "s")
    assert (runtime.active_message_count, runtime.total_message_count) == (1, 1)

    made.default_message_time_to_live = timedelta(hours=2)
    await admin.update_topic(made)
    found = await admin.get_topic("t/inner")
    assert found.default_message_time_to_live == timedelta(hours=2)
    subscription = await admin.get_subscription("t/inner", "s")
    assert subscription.max_delivery_count == 3
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is True
    subscription.lock_duration = timedelta(seconds=30)
    await admin.update_subscription("t/inner", subscription)
    changed = await admin.get_subscription("t/inner", "s")
    assert changed.lock_duration == timedelta(seconds=30)

    await admin.delete_subscription("t/inner", "s")
    assert await names(admin.list_subscriptions("t/inner")) == []
    await admin.create_subscription("t/inner", "s")
    await admin.delete_topic("t/inner")
    assert await names(admin.list_topics()) == ["news"]
    with pytest.raises(ResourceNotFoundError):
        await admin.get_subscription("t/inner", "s")


PARAMETERS: dict[str, Any] = {
    "@text": "it's <x>",
    "@whole": 5,
    "@long": 2**40,
    "@part": 2.5,
    "@flag": True,
    "@time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "@span": timedelta(minutes=90),
}


async def test_sql_rule_is_kept_with_its_parameters(
    admin: Admin,
) -> None:
    expression = "a < @whole AND b > @part OR t < @time"
    action = SqlRuleAction("SET a = @text; SET f = @flag", parameters=PARAMETERS)
    sql = SqlRuleFilter(expression, parameters=PARAMETERS)

    await admin.create_rule("news", "all", "r", filter=sql, action=action)

    found = await admin.get_rule("news", "all", "r")
    assert isinstance(found.filter, SqlRuleFilter)
    assert found.filter.sql_expression == expression
    assert dict(found.filter.parameters or {}) == PARAMETERS
    assert isinstance(found.action, SqlRuleAction)
    assert found.action.sql_expression == "SET a = @text; SET f = @flag"
    assert dict(found.action.parameters or {}) == PARAMETERS
    assert abs(found.created_at_utc - datetime.now(UTC)) < MINUTE


async def test_correlation_rule_is_kept_whole(
    admin: Admin,
) -> None:
    given: dict[str, Any] = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "l",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "ct",
        "properties": PARAMETERS,
    }

    await admin.create_rule("news", "all", "r", filter=CorrelationRuleFilter(**given))

    found = (await admin.get_rule("news", "all", "r")).filter
    assert isinstance(found, CorrelationRuleFilter)
    kept = {name: getattr(found, name) for name in given}
    assert {**kept, "properties": dict(found.properties or {})} == given


async def test_rules_are_listed_changed_and_deleted(
    admin: Admin,
) -> None:
    await admin.create_rule("news", "all", "true", filter=TrueRuleFilter())
    await admin.create_rule("news", "all", "false", filter=FalseRuleFilter())
    found = [rule async for rule in admin.list_rules("news", "all")]
    assert [(rule.name, type(rule.filter)) for rule in found] == [
        ("$Default", TrueRuleFilter),
        ("true", TrueRuleFilter),
        ("false", FalseRuleFilter),
    ]

    rule = await admin.get_rule("news", "all", "false")
    rule.filter = SqlRuleFilter("level = 3")
    await admin.update_rule("news", "all", rule)
    await admin.delete_rule("news", "all", "true")

    found = [rule async for rule in admin.list_rules("news", "all", max_page_size=1)]
    assert [rule.name for rule in found] == ["$Default", "false"]
    assert isinstance(found[1].filter, SqlRuleFilter)
    assert found[1].filter.sql_expression == "level = 3"


async def test_faulty_sql_is_refused_with_its_place(
    admin: Admin,
) -> None:
    with pytest.raises(HttpResponseError) as error:
        await admin.create_rule("news", "all", "r", filter=SqlRuleFilter("a = @x"))
    assert error.value.status_code == 400
    assert "The rule 'r' cannot be read: the parameter @x has no value, at char" in str(
        error.value
    )
    with pytest.raises(ResourceExistsError):
        await admin.create_rule("news", "all", "$default")


async def test_changed_rules_are_at_work_at_once(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    await admin.delete_rule("news", "all", "$Default")
    await admin.create_rule(
        "news",
        "all",
        "r",
        filter=SqlRuleFilter("level > @least", parameters={"@least": 3}),
        action=SqlRuleAction("SET level = level * @by", parameters={"@by": 2}),
    )

    async with broker_client.get_topic_sender("news") as sender:
        for level in (3, 4):
            own: Any = {"level": level}
            await sender.send_messages(
                ServiceBusMessage("x", application_properties=own)
            )

    async with broker_client.get_subscription_receiver("news", "all") as receiver:
        found = [m.application_properties for m in await receiver.peek_messages(5)]
    assert found == [{b"level": 8, b"RuleName": b"r"}]


async def test_deleted_queue_detaches_its_links(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    other = broker_client.get_queue_sender("strict")
    async with opened(sender, receiver, other):
        await sender.send_messages(ServiceBusMessage("lost"))
        await admin.delete_queue("plain")

        with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
            await receiver.receive_messages(1, max_wait_time=5)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))
        await other.send_messages(ServiceBusMessage("x"))

    await admin.create_queue("plain")
    assert (await admin.get_queue_runtime_properties("plain")).total_message_count == 0


async def test_deleted_queue_refuses_who_waits_for_a_session(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    waiting = broker_client.get_queue_receiver(
        "sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20
    )
    attached = asyncio.ensure_future(waiting.__aenter__())
    await asyncio.sleep(0.3)
    await admin.delete_queue("sessions")

    with pytest.raises(MessagingEntityNotFoundError):
        await attached
    await waiting.close()


async def test_disabled_queue_is_of_no_use_until_it_is_active(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    queue = await admin.get_queue("plain")
    async with broker_client.get_queue_sender("plain") as sender:
        await admin.update_queue(queue, status="SendDisabled")
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(MessagingEntityDisabledError, match="SendDisabled"):
            await broker_client.get_queue_sender("plain").__aenter__()
        async with broker_client.get_queue_receiver("plain"):
            pass

    await admin.update_queue(queue, status="ReceiveDisabled")
    async with broker_client.get_queue_sender("plain") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityDisabledError, match="ReceiveDisabled"):
        await broker_client.get_queue_receiver("plain").__aenter__()

    await admin.update_queue(queue, status="Active")
    async with broker_client.get_queue_receiver("plain") as receiver:
        assert len(await receiver.peek_messages()) == 1


async def test_forwarding_to_a_deleted_queue_ends(
    admin: Admin, broker_client: ServiceBusClient
) -> None:
    await admin.create_queue("target")
    await admin.create_queue("source", forward_to="target")
    await admin.delete_queue("target")

    async with broker_client.get_queue_sender("source") as sender:
        await sender.send_messages(ServiceBusMessage("x"))

    found = await admin.get_queue_runtime_properties("source")
    assert found.active_message_count == 1

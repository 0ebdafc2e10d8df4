"""SQL actions: how a rule changes the copy of a message that it admits.

Sources: learn.microsoft.com/azure/service-bus-messaging:
         service-bus-messaging-sql-rule-action, service-bus-filter-examples,
         topic-filters.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.rules.row import Draft
from bridge.simulator.servicebus.rules.rule import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from bridge.simulator.servicebus.settings import (
    Entities,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import encode_section
from bridge.simulator.servicebus.wire import parse_message
from bridge.simulator.sql.operators import EvaluationError, Value
from bridge.simulator.wire.values import (
    Described,
    Float32,
    Int32,
    Symbol,
    Timestamp,
    UByte,
    UInt,
)
from tests.simulator.servicebus_fixtures import START, row

pytestmark = pytest.mark.usefixtures("brisk_sdk")

OWN = {
    "quantity": Int32(5),
    "Priority": "high",
    "price": 2.5,
    "size": UByte(200),
    "rate": Float32(1.5),
    "at": Timestamp(1_700_000_000_000),
}
SENT = b"".join(
    (
        encode_section(0x70, [None, None, UInt(60_000)]),
        encode_section(0x73, ["m1", None, None, "red", None, "high"]),
        encode_section(0x74, OWN),
        encode_section(0x77, "text"),
    )
)


def changed(expression: str, **parameters: Value) -> Message:
    """Return the message as an action leaves it, as a receiver would parse it."""
    sent = parse_message(SENT)
    given = {f"@{name}": value for name, value in parameters.items()}
    draft = Draft(sent, row(sent).arrival)
    SqlAction.of(expression, given).apply(draft)
    return draft.message()


def own(expression: str, **parameters: Value) -> dict[str, object]:
    """Return the application properties that an action leaves, off the wire."""
    found = parse_message(changed(expression, **parameters).content)
    return dict(found.application_properties)


def test_documented_example_halves_removes_and_corrects() -> None:
    expression = (
        "SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';"
    )

    message = changed(expression)

    found = parse_message(message.content)
    assert found.application_properties["quantity"] == 2
    assert "Priority" not in found.application_properties
    assert found.properties["CorrelationId"] == "low"
    assert found.properties["Label"] == "red"
    assert message.content.endswith(parse_message(SENT).content[-6:])


@pytest.mark.parametrize(
    ("expression", "name", "value"),
    [
        ("SET new = 'x'", "new", "x"),
        ("SET [a b] = 1, SET [a b] = [a b] + 1", "a b", 2),
        ("SET PRIORITY = 'low' SET other = priority", "other", "low"),
        ("SET Priority = 7", "Priority", 7),
        ("SET new = missing", "new", None),
        ("SET new = sys.Label + '!'", "new", "red!"),
        ("SET new = TRUE", "new", True),
        ("SET new = p('price') * 2", "new", 5.0),
        ("SET price = 3", "price", 3.0),
        ("SET quantity = 2.5", "quantity", 2.5),
        ("REMOVE missing; SET new = -1;", "new", -1),
    ],
)
def test_own_property_is_set(expression: str, name: str, value: object) -> None:
    assert own(expression)[name] == value
    assert type(own(expression)[name]) is type(value)


def test_number_keeps_its_type_if_the_new_one_fits() -> None:
    found = own("SET quantity = 9; SET size = 7; SET rate = 2")

    assert isinstance(found["quantity"], Int32)
    assert isinstance(found["size"], UByte)
    assert isinstance(found["rate"], Float32)
    assert (found["quantity"], found["size"], found["rate"]) == (9, 7, 2.0)


def test_number_gets_a_wider_type_if_the_new_one_does_not_fit() -> None:
    found = own("SET size = 300; SET quantity = 9999999999; SET at = 5")

    assert (found["size"], found["quantity"], found["at"]) == (300, 9999999999, 5)
    assert type(found["at"]) is int


def test_times_durations_and_ids_have_their_types() -> None:
    found = own(
        "SET at = @time; SET took = @span; SET id = newid()",
        time=datetime.fromtimestamp(START + 1.5, UTC),
        span=timedelta(seconds=1.5),
    )

    assert found["at"] == Timestamp(int(START * 1000) + 1500)
    assert isinstance(found["at"], Timestamp)
    took = found["took"]
    assert isinstance(took, Described)
    assert (took.descriptor, took.value) == ("com.microsoft:timespan", 15_000_000)
    assert isinstance(found["id"], UUID)


def test_system_properties_are_set_and_removed() -> None:
    message = changed(
        "SET sys.To = 'Entity'; SET sys.subject = 'blue'; REMOVE sys.CorrelationId;"
        "SET sys.SessionId = 's1'; SET sys.MessageId = newid();"
        "SET sys.ReplyTo = 'r'; SET sys.ReplyToSessionId = 'rs';"
        "SET sys.ContentType = 'text/plain'; SET sys.PartitionKey = 'p';"
        "SET sys.TimeToLive = @ttl; SET sys.ScheduledEnqueueTimeUtc = @later",
        ttl=timedelta(seconds=5),
        later=datetime(2100, 1, 1, tzinfo=UTC),
    )

    found = parse_message(message.content)
    assert {**found.properties, "MessageId": ""} == {
        "To": "Entity",
        "Label": "blue",
        "SessionId": "s1",
        "MessageId": "",
        "ReplyTo": "r",
        "ReplyToSessionId": "rs",
        "ContentType": "text/plain",
    }
    assert UUID(found.message_id).version == 4
    assert (message.session_id, message.message_id) == ("s1", found.message_id)
    assert message.annotations[Symbol("x-opt-partition-key")] == "p"
    assert (message.time_to_live, message.header[2]) == (5.0, 5000)
    # A scheduled time is ignored on a subscription.
    assert message.scheduled_for is None


def test_removed_message_id_time_and_key_leave_a_valid_message() -> None:
    message = changed(
        "REMOVE sys.MessageId; REMOVE sys.TimeToLive; REMOVE sys.PartitionKey;"
        "REMOVE sys.ScheduledEnqueueTimeUtc"
    )

    assert UUID(parse_message(message.content).message_id).version == 4
    assert message.time_to_live is None
    assert message.header[2] is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("SET sys.Label = 5", "sys.Label takes a text, not a number"),
        ("SET sys.TimeToLive = 5", "sys.TimeToLive takes a duration, not a number"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'x'", "takes a time, not a text"),
        ("SET sys.PartitionKey = TRUE", "sys.PartitionKey takes a text, not a boole"),
        ("SET new = Priority - 1", "a text - a number has no value"),
        ("SET new = p('sys.Colour')", "there is no system property 'Colour'"),
        ("SET new = @years + @years", "a duration beyond 64 bits"),
        ("SET sys.ContentType = 'é'", "AMQP cannot encode the message"),
    ],
)
def test_value_that_does_not_fit_is_an_error_of_evaluation(
    expression: str, words: str
) -> None:
    with pytest.raises(EvaluationError) as error:
        changed(expression, years=timedelta(days=10_675_199))

    assert words in str(error.value)


def rule(name: str, admits: Filter, action: str | None = None) -> Rule:
    sql = None if action is None else SqlAction.of(action)
    return Rule(name=name, filter=admits, action=sql)


async def received(
    *rules: Rule, dead_letters: bool = False
) -> tuple[list[ServiceBusReceivedMessage], list[ServiceBusReceivedMessage]]:
    """Send one message to a topic; return what its subscription has, and the dead."""
    subscription = SubscriptionSettings(
        name="s", rules=rules, dead_letter_filter_errors=dead_letters
    )
    topic = TopicSettings(name="t", subscriptions=(subscription,))
    message = ServiceBusMessage(
        "body",
        subject="red",
        message_id="m1",
        application_properties={"quantity": 10, "color": "red", "priority": "high"},
    )
    async with (
        Broker(Entities(topics=(topic,))) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s") as receiver,
    ):
        await sender.send_messages(message)
        found = await receiver.peek_messages(10)
        async with client.get_subscription_receiver(
            "t", "s", sub_queue="deadletter"
        ) as dead:
            return found, await dead.peek_messages(10)


async def test_rules_without_actions_give_one_copy_and_each_action_one_more() -> None:
    """Documented: five rules, two of them with actions, give three messages."""
    red = SqlFilter.of("color = 'red'")

    found, _ = await received(
        rule("one", TrueFilter()),
        rule("two", red),
        rule("three", CorrelationFilter(properties={"Label": "red"})),
        rule("half", red, "SET quantity = quantity / 2"),
        rule("bare", red, "REMOVE priority"),
        rule("never", FalseFilter(), "SET quantity = 0"),
    )

    assert [message.application_properties for message in found] == [
        {b"quantity": 10, b"color": b"red", b"priority": b"high"},
        {b"quantity": 5, b"color": b"red", b"priority": b"high", b"RuleName": b"half"},
        {b"quantity": 10, b"color": b"red", b"RuleName": b"bare"},
    ]
    assert [message.message_id for message in found] == ["m1"] * 3
    assert [str(message) for message in found] == ["body"] * 3


async def test_message_that_a_rule_cannot_be_applied_to_is_not_admitted_by_it() -> None:
    found, dead = await received(
        rule("bad", SqlFilter.of("quantity < 'x'")), rule("good", TrueFilter())
    )

    assert (len(found), dead) == (1, [])


async def test_filter_that_fails_dead_letters_the_message_if_so_configured() -> None:
    found, dead = await received(
        rule("bad", SqlFilter.of("quantity < 'x'")),
        rule("worse", TrueFilter(), "SET sys.To = quantity"),
        dead_letters=True,
    )

    assert found == []
    assert [message.dead_letter_reason for message in dead] == [
        "FilterEvaluationException"
    ]
    assert dead[0].dead_letter_error_description == (
        "rule bad: a number < a text has no answer; "
        "rule worse: sys.To takes a text, not a number"
    )


async def test_subscription_without_rules_gets_nothing() -> None:
    assert await received() == ([], [])

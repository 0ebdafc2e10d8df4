"""The emulator's entity file: what is read, and what is named as wrong."""

import json
import re
from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from bridge.simulator.servicebus.config import (
    ConfigError,
    load_entities,
    parse_entities,
)
from bridge.simulator.servicebus.rules.rule import (
    CorrelationFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from bridge.simulator.servicebus.settings import Entities

SAMPLES = Path(__file__).parent
SAMPLE = """
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1", // a comment, as in the emulator's own sample
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT5M",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "http://no-comment",
              "ForwardTo": "",
              "LockDuration": "PT1M30S",
              "MaxDeliveryCount": 5,
              "RequiresDuplicateDetection": true,
              "RequiresSession": true
            }
          },
          {"Name": "http://no-comment"}
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Subscriptions": [
              {"Name": "all"},
              {
                "Name": "some",
                "Rules": [
                  {
                    "Name": "by-label",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {
                        "Label": "alarm",
                        // "To": "xyz"
                        "Properties": {"colour": "red", "level": 3, "loud": true}
                      }
                    }
                  }
                ]
              }
            ]
          }
        ]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


def document(
    queues: object = (), topics: object = (), **namespace: object
) -> dict[str, object]:
    inner = {"Name": "ns", "Queues": queues, "Topics": topics, **namespace}
    return {"UserConfig": {"Namespaces": [inner], "Logging": {"Type": "File"}}}


def read(**parts: object) -> Entities:
    return parse_entities(orjson.dumps(document(**parts)).decode())


def faults(**parts: object) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(**parts)
    assert str(error.value) == "\n".join(error.value.faults)
    return list(error.value.faults)


def with_rule(properties: object) -> dict[str, object]:
    rule = {"Name": "r", "Properties": properties}
    subscription = {"Name": "s", "Rules": [rule]}
    return {"topics": [{"Name": "t", "Subscriptions": [subscription]}]}


def test_queue_is_read_with_all_of_its_properties() -> None:
    queue = parse_entities(SAMPLE).queues[0]

    assert queue.name == "queue.1"
    assert queue.lock_duration == timedelta(seconds=90)
    assert queue.max_delivery_count == 5
    assert queue.requires_session
    assert queue.duplicate_window == timedelta(seconds=20)
    assert queue.default_time_to_live == timedelta(minutes=5)
    assert queue.dead_letter_expired
    assert queue.forward_to is None
    assert queue.forward_dead_letters_to == "http://no-comment"


def test_absent_properties_are_those_of_the_emulator() -> None:
    queue = parse_entities(SAMPLE).queues[1]

    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.max_delivery_count == 3
    assert queue.default_time_to_live == timedelta(hours=1)
    assert queue.duplicate_window is None
    assert not queue.requires_session


def test_correlation_filter_is_read() -> None:
    everything, some = parse_entities(SAMPLE).topics[0].subscriptions

    assert [rule.filter for rule in everything.rules] == [TrueFilter()]
    assert tuple(rule.filter for rule in some.rules) == (
        CorrelationFilter(
            properties={"Label": "alarm"},
            application_properties={"colour": "red", "level": 3, "loud": True},
        ),
    )


def test_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text(SAMPLE, encoding="utf-8")

    assert load_entities(path) == parse_entities(SAMPLE)


def test_byte_order_mark_of_a_windows_editor_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text(SAMPLE, encoding="utf-8-sig")

    assert load_entities(path) == parse_entities(SAMPLE)


def with_sql(expression: str, **more: object) -> dict[str, object]:
    sql = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    return with_rule({**sql, **more})


def test_emulators_sample_is_read_whole() -> None:
    """Its shape is that of the Config.json that the emulator's guide begins with."""
    entities = load_entities(SAMPLES / "servicebus-config.json")

    assert [queue.name for queue in entities.queues] == ["queue.1"]
    (topic,) = entities.topics
    names = [f"subscription.{number}" for number in range(1, 5)]
    assert [subscription.name for subscription in topic.subscriptions] == names
    assert [subscription.rules for subscription in topic.subscriptions] == [
        (
            Rule(
                name="app-prop-filter-1",
                filter=CorrelationFilter(
                    properties={"ContentType": "application/json"}
                ),
            ),
        ),
        (
            Rule(
                name="user-prop-filter-1",
                filter=CorrelationFilter(application_properties={"prop1": "value1"}),
            ),
        ),
        (Rule(name="$Default", filter=TrueFilter()),),
        (
            Rule(
                name="sql-filter-1",
                filter=SqlFilter.of(
                    "sys.MessageId = '123456' AND userProp1 = 'value1'"
                ),
                action=SqlAction.of("SET sys.To = 'Entity'"),
            ),
        ),
    ]


PLACE = "Topics[0].Subscriptions[0].Rules[0].Properties"


def test_faulty_sql_filter_is_named_with_its_place() -> None:
    (fault,) = faults(**with_sql("colour ="))

    assert fault.startswith(
        f"{PLACE}.SqlFilter: the SQL filter 'colour =' cannot be read: the text ends "
        "too early; expected "
    )
    assert fault.endswith(", at character 9")


def test_faulty_sql_action_is_named_with_its_place() -> None:
    (fault,) = faults(**with_sql("1=1", Action={"SqlExpression": "SET sys.Size = 1"}))

    assert fault.startswith(
        f"{PLACE}.Action: the SQL action 'SET sys.Size = 1' cannot be read: sys.Size "
        "cannot be changed; allowed: ContentType, "
    )
    assert fault.endswith(", at character 5")


def test_filter_of_another_type_is_named() -> None:
    (fault,) = faults(**with_rule({"FilterType": "Jms"}))

    assert fault.endswith("FilterType 'Jms' is not one of 'Correlation', 'Sql'")


def test_rules_have_names_of_their_own() -> None:
    rule = {
        "Name": "r",
        "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}},
    }
    subscription = {"Name": "s", "Rules": [rule, {**rule, "Name": "R"}]}

    (fault,) = faults(topics=[{"Name": "t", "Subscriptions": [subscription]}])

    assert fault.endswith("the name 'r' is given more than once")


def test_correlation_filter_without_a_property_is_an_error() -> None:
    (fault,) = faults(**with_rule({"FilterType": "Correlation"}))

    assert fault.endswith("CorrelationFilter: names no property to compare")


@pytest.mark.parametrize(
    "number",
    [str(2**63), str(-(2**63) - 1), str(2**64), "1" + 400 * "0", "-1" + 5000 * "0"],
)
def test_whole_number_beyond_64_bits_is_named_with_its_place(number: str) -> None:
    """JSON has no limit, and the properties of messages have one."""
    filters = {"CorrelationFilter": {"Properties": {"level": 0}}}
    text = json.dumps(document(**with_rule({"FilterType": "Correlation"} | filters)))
    text = text.replace('"level": 0', f'"level": {number}')

    with pytest.raises(ConfigError) as caught:
        parse_entities(text)

    place = (
        "Topics[0].Subscriptions[0].Rules[0].Properties.CorrelationFilter.Properties"
    )
    allowed = "a whole number from -9223372036854775808 to 9223372036854775807"
    assert caught.value.faults == (f"{place}.level: should be {allowed}",)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 1e300, 2.0**64])
def test_number_that_a_property_can_have_is_read(number: float) -> None:
    filters = {"CorrelationFilter": {"Properties": {"level": number}}}
    found = read(**with_rule({"FilterType": "Correlation"} | filters))

    (rule,) = found.topics[0].subscriptions[0].rules
    assert rule.filter == CorrelationFilter(application_properties={"level": number})


@pytest.mark.parametrize("count", [0, 2**31, 10**400, True, 1.0])
def test_delivery_count_is_a_number_that_can_be_counted_to(count: float) -> None:
    queue = {"Name": "q", "Properties": {"MaxDeliveryCount": 0}}
    text = json.dumps(document(queues=[queue])).replace(": 0", f": {json.dumps(count)}")

    with pytest.raises(ConfigError) as caught:
        parse_entities(text)

    place = "Queues[0].Properties.MaxDeliveryCount"
    assert caught.value.faults == (
        f"{place}: should be a whole number from 1 to 2147483647",
    )


def test_all_faults_are_named_at_once() -> None:
    properties = {
        "LockDuration": "1 minute",
        "MaxDeliveryCount": 0,
        "RequiresSession": "yes",
        "ForwardTo": 5,
    }

    found = faults(queues=[{"Name": "q", "Properties": properties}, {}])

    assert [fault.removeprefix("Queues[0].Properties.") for fault in found] == [
        "LockDuration: should be a duration such as PT1M, in days or less",
        "MaxDeliveryCount: should be a whole number from 1 to 2147483647",
        "RequiresSession: should be true or false",
        "ForwardTo: should be a text",
        "Queues[1].Name: is missing",
    ]


def test_unknown_fields_are_named_at_every_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Microsoft's emulator ignores them, so they are no reason not to start."""
    rule = {
        "Name": "r",
        "Extra": 1,
        "Properties": {
            "FilterType": "Correlation",
            "CorrelationFilter": {"Label": "x", "Subject": "x"},
            "Extra": 1,
        },
    }
    subscription = {"Name": "s", "Extra": 1, "Rules": [rule]}
    topic = {"Name": "t", "Extra": 1, "Subscriptions": [subscription]}

    found = read(topics=[topic], Extra=1)

    assert found.topics[0].subscriptions[0].rules[0].name == "r"
    ending = ": unknown field, which has no effect"
    assert [each.removesuffix(ending) for each in warnings(caplog)] == [
        "Topics[0].Subscriptions[0].Rules[0].Properties.CorrelationFilter.Subject",
        "Topics[0].Subscriptions[0].Rules[0].Properties.Extra",
        "Topics[0].Subscriptions[0].Rules[0].Extra",
        "Topics[0].Subscriptions[0].Extra",
        "Topics[0].Extra",
        "Extra",
    ]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the entity file has that has no effect."""
    return [str(record.__dict__["why"]) for record in caplog.records]


def test_file_that_the_emulator_takes_starts_with_a_warning_for_each_oddity(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = """
    {
      "$schema": "Config-schema.json",
      "UserConfig": {"Namespaces": [{
        "Name": "ns", "Properties": {"Sku": "Standard"},
        "Topics": [{"Name": "t", /* here,] */ "Subscriptions": [{
          "Name": "s", "MaxDeliveryCount": 7,
          "Rules": [{"Name": "r", "Properties": {
            "FilterType": "Sql", "CorrelationFilter": {"Label": "a,]"},
          }}],
        }]}]
      }]}
    }
    """

    (subscription,) = parse_entities(text).topics[0].subscriptions

    assert subscription.max_delivery_count == 3  # that of the emulator
    assert subscription.rules[0].filter == CorrelationFilter(
        properties={"Label": "a,]"}
    )
    place = "Topics[0].Subscriptions[0]"
    assert warnings(caplog) == [
        "a comma before } or ] is no JSON, and has no effect",
        "$schema: unknown field, which has no effect",
        (
            f"{place}.Rules[0].Properties: FilterType is 'Sql', but there is only a "
            "CorrelationFilter"
        ),
        f"{place}.MaxDeliveryCount: unknown field, which has no effect",
        "Properties: unknown field, which has no effect",
    ]


def test_filter_that_is_absent_is_a_fault() -> None:
    rule = {"Name": "r", "Properties": {"FilterType": "Sql"}}
    subscription = {"Name": "s", "Rules": [rule]}

    (fault,) = faults(topics=[{"Name": "t", "Subscriptions": [subscription]}])

    assert fault.endswith("Properties.SqlFilter.SqlExpression: is missing")


def test_subscription_does_not_detect_duplicates() -> None:
    properties = {"RequiresDuplicateDetection": True}
    subscription = {"Name": "s", "Properties": properties}

    (fault,) = faults(topics=[{"Name": "t", "Subscriptions": [subscription]}])

    assert fault.startswith("Topics[0].Subscriptions[0].Properties.Requires")


@pytest.mark.parametrize(
    ("target", "what"),
    [("nowhere", "no queue or topic 'nowhere'"), ("Q", "cannot forward to itself")],
)
def test_forwarding_needs_another_entity(target: str, what: str) -> None:
    properties = {"ForwardTo": target}

    (fault,) = faults(queues=[{"Name": "q", "Properties": properties}])

    assert fault.startswith("Queues[0].Properties.ForwardTo: ")
    assert what in fault


def test_subscription_may_forward_to_the_queue_of_its_own_name() -> None:
    properties = {"ForwardTo": "orders"}
    subscription = {"Name": "orders", "Properties": properties}

    found = read(
        queues=[{"Name": "orders"}],
        topics=[{"Name": "shop", "Subscriptions": [subscription]}],
    )

    assert found.topics[0].subscriptions[0].forward_to == "orders"


def test_names_are_unique_without_regard_to_case() -> None:
    (fault,) = faults(queues=[{"Name": "a"}], topics=[{"Name": "A"}])

    assert fault == "the name 'a' is given more than once"


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "{}", '{"UserConfig": {"Namespaces": 5}}', '"text"'),
        *(
            "NaN",
            '{"UserConfig": NaN}',
            r'{"UserConfig": "\ud800"}',
            "[" * 1010,
            "[" * 100_000,
            "[1e999]",
            "9" * 5000,
        ),
    ],
)
def test_text_of_another_shape_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_entities(text)


@pytest.mark.parametrize(
    "duration", ["P", "PT", "P1Y", "P1M", "PT0S", "", "5", "P9999999999D"]
)
def test_duration_is_refused(duration: str) -> None:
    properties = {"LockDuration": duration}

    (fault,) = faults(queues=[{"Name": "q", "Properties": properties}])

    assert re.match(r"Queues\[0\]\.Properties\.LockDuration: ", fault)


@pytest.mark.parametrize(
    ("duration", "seconds"), [("P1D", 86400), ("PT1H2M3S", 3723), ("PT0.5S", 0.5)]
)
def test_duration_is_read(duration: str, seconds: float) -> None:
    properties = {"LockDuration": duration}

    (queue,) = read(queues=[{"Name": "q", "Properties": properties}]).queues

    assert queue.lock_duration == timedelta(seconds=seconds)

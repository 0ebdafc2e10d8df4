"""The requests about rules behind <subscription>/$management, without a connection."""

import pytest

from bridge.simulator.servicebus.management import Reply, answer
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    Entities,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import Condition
from bridge.simulator.wire.values import Described
from tests.simulator.servicebus_fixtures import Rig, one_queue

SQL = {"sql-filter": {"expression": "1=1"}}


def subscription() -> Queue:
    topic = TopicSettings(name="t", subscriptions=(SubscriptionSettings(name="s"),))
    return Rig(Entities(topics=(topic,))).queue("t/Subscriptions/s")


def ask(queue: Queue, operation: str, body: object) -> Reply:
    return answer(f"com.microsoft:{operation}", queue, body, object())


def names(queue: Queue) -> list[str]:
    reply = ask(queue, "enumerate-rules", {"skip": 0, "top": 100})
    assert reply.body is not None
    rules = reply.body.get("rules", [])
    assert isinstance(rules, list)
    found = []
    for entry in rules:
        described = entry["rule-description"]
        assert isinstance(described, Described)
        assert isinstance(described.value, list)
        found.append(str(described.value[2]))
    return found


def test_rules_are_listed_in_the_order_in_which_they_came() -> None:
    queue = subscription()
    for name in ("b", "a"):
        ask(queue, "add-rule", {"rule-name": name, "rule-description": SQL})

    assert names(queue) == ["$Default", "b", "a"]


def test_rule_is_found_without_regard_to_case() -> None:
    queue = subscription()

    assert ask(queue, "remove-rule", {"rule-name": "$DEFAULT"}).status == 200
    assert names(queue) == []


def test_second_rule_of_a_name_is_a_conflict() -> None:
    queue = subscription()
    body = {"rule-name": "$default", "rule-description": SQL}

    reply = ask(queue, "add-rule", body)

    assert (reply.status, reply.condition) == (409, Condition.ENTITY_ALREADY_EXISTS)


def test_rule_that_is_not_there_cannot_be_removed() -> None:
    reply = ask(subscription(), "remove-rule", {"rule-name": "none"})

    assert (reply.status, reply.condition) == (404, Condition.NOT_FOUND)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "rule-name is a text of 1 to 50"),
        ({"rule-name": ""}, "rule-name is a text of 1 to 50"),
        ({"rule-name": "x" * 51}, "rule-name is a text of 1 to 50"),
        ({"rule-name": "r"}, "either a sql-filter or a correlation-filter"),
        (
            {
                "rule-name": "r",
                "rule-description": {**SQL, "correlation-filter": {"label": "x"}},
            },
            "either a sql-filter or a correlation-filter",
        ),
        (
            {
                "rule-name": "r",
                "rule-description": {"correlation-filter": {"subject": "x"}},
            },
            "the correlation-filter names no property",
        ),
        ({"rule-name": "r", "rule-description": 5}, "rule-description is not a map"),
        (
            {"rule-name": "r", "rule-description": {"sql-filter": {"expression": 1}}},
            "expression is not a text",
        ),
        (
            {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "x"}}},
            "rule r: a condition is expected, not a value, at character 1",
        ),
        (
            {
                "rule-name": "r",
                "rule-description": {**SQL, "sql-rule-action": {"expression": "x"}},
            },
            "rule r: 'x' is not expected; expected REMOVE or SET, at character 1",
        ),
    ],
)
def test_rule_that_cannot_be_read_is_refused(body: object, words: str) -> None:
    queue = subscription()

    reply = ask(queue, "add-rule", body)

    assert (reply.status, reply.condition) == (400, Condition.ARGUMENT_ERROR)
    assert words in reply.description
    assert names(queue) == ["$Default"]


@pytest.mark.parametrize("body", [{}, {"skip": -1, "top": 1}, {"skip": 0, "top": "x"}])
def test_page_of_rules_is_given_in_numbers(body: object) -> None:
    assert ask(subscription(), "enumerate-rules", body).status == 400


def test_only_a_subscription_has_rules() -> None:
    queue = subscription()
    assert queue.dead_letters is not None

    for other in (one_queue().queue(), queue.dead_letters):
        body = {"rule-name": "r", "rule-description": SQL}
        assert ask(other, "add-rule", body).status == 501

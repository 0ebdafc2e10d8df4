"""``[approvals]``: faults that are found before the bridge starts."""

from pathlib import Path

import pytest

from bridge.approvals.config import ApprovalsConfig
from bridge.events.identity import Identity
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Reader
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import UNKNOWN_HOST, Entity

NAMESPACE = {"namespace": "contoso.servicebus.windows.net"}


def faults(**keys: object) -> list[str]:
    reader = Reader("f.toml")
    reader.section(ApprovalsConfig, {**NAMESPACE, **keys}, "approvals")
    return [fault.removeprefix("f.toml: approvals.") for fault in reader.faults]


@pytest.mark.parametrize(
    "keys",
    [
        {"queue": "q"},
        {"topic": "t", "subscription": "s"},
        {"queue": "q", "sessions": ["{vm_id}", "group-7"]},
    ],
)
def test_entity_and_sessions_are_taken(keys: dict[str, object]) -> None:
    assert not faults(**keys)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({}, "queue: "),
        ({"queue": "q", "topic": "t", "subscription": "s"}, "queue: "),
        ({"topic": "t"}, "subscription: "),
        ({"queue": "q", "subscription": "s"}, "subscription: "),
        ({"queue": "q", "sessions": [""]}, "sessions[0]: "),
        ({"queue": "q", "sessions": ["a", "{vm}"]}, "sessions[1]: '{vm}' is no "),
        ({"queue": "q", "sessions": ["a", "{vm_id"]}, "sessions[1]: '{vm_id' is no "),
        ({"queue": "q", "sessions": ["{vm_id}}"]}, "sessions[0]: '}' is no "),
        ({"queue": "q", "on_unknown": "drop"}, "on_unknown: "),
        ({"queue": "q", "max_age": 0}, "max_age: "),
        ({"queue": "q", "max_delivery_count": 0}, "max_delivery_count: must be 1 to "),
        ({"queue": "q", "max_delivery_count": 2001}, "max_delivery_count: must be 1 "),
        ({"queue": "q", "max_delivery_count": "9"}, "max_delivery_count: must be a w"),
    ],
)
def test_fault_names_its_place(keys: dict[str, object], place: str) -> None:
    found = faults(**keys)

    assert any(fault.startswith(place) for fault in found), found


def test_entity_is_compared_with_the_connection_string_without_case() -> None:
    text = "Endpoint=sb://ns.example.net/;SharedAccessKeyName=n;SharedAccessKey=k"

    assert not faults(
        queue="Approvals",
        namespace="",
        connection_string=f"{text};EntityPath=APPROVALS",
    )


@pytest.mark.parametrize("keys", [{"queue": "q"}, {"topic": "t", "subscription": "s"}])
def test_entity_must_be_the_entity_of_the_connection_string(
    keys: dict[str, object],
) -> None:
    text = "Endpoint=sb://ns.example.net/;SharedAccessKeyName=n;SharedAccessKey=k"
    reader = Reader("f.toml")
    table = {**keys, "connection_string": f"{text};EntityPath=other"}

    reader.section(ApprovalsConfig, table, "approvals")

    (fault,) = reader.faults
    assert next(iter(keys)) in fault
    assert "EntityPath" in fault


def targets(host: str, *names: str) -> list[Entity | None]:
    return [None, *(Entity(key="queue", host=host, name=name) for name in names)]


HERE = "contoso.servicebus.windows.net"
ELSEWHERE = "fabrikam.servicebus.windows.net"


@pytest.mark.parametrize(
    ("host", "answered"),
    [(HERE, None), (UNKNOWN_HOST, None), (ELSEWHERE, "replies")],
)
def test_sinks_entity_gets_replies_only_in_another_namespace(
    host: str, answered: str | None
) -> None:
    config = ApprovalsConfig(
        namespace=HERE.title(), queue="Approvals", reply_to=("*", "*/*")
    )

    rules = config.reply_rules(targets(host, "replies", "events"))

    assert rules.entity("replies") == answered
    assert rules.entity("other") == "other"
    for own in ("approvals", "APPROVALS/$DeadLetterQueue", "approvals/x"):
        assert rules.entity(own) is None


def test_approval_subscription_never_gets_a_reply() -> None:
    config = ApprovalsConfig(
        namespace=HERE, topic="asked", subscription="vm-1", reply_to=("*", "*/*")
    )

    rules = config.reply_rules([])

    assert rules.entity("asked") is None
    assert rules.entity("asked/Subscriptions/vm-1") is None


def test_missing_connection_string_is_named_in_the_error(tmp_path: Path) -> None:
    """It was readable at the start; the error must not mention sessions."""
    gone = Secret(f"file:{tmp_path / 'gone'}", {})
    config = ApprovalsConfig(connection_string=gone, queue="q", sessions=("mine",))

    with pytest.raises(ConfigError, match=r"^approvals\.connection_string: the file "):
        config.address(str)


def test_placeholder_without_a_value_is_named_in_the_error() -> None:
    config = ApprovalsConfig(namespace=HERE, queue="q", sessions=("{group}",))

    with pytest.raises(ValueError, match="not known"):
        config.address(Identity().expand)

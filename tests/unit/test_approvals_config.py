"""``[approvals]``: what is refused before anything starts."""

import pytest

from bridge.approvals.listener import ApprovalsConfig
from bridge.options import Reader

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
def test_entity_must_be_the_one_that_the_connection_string_is_good_for(
    keys: dict[str, object],
) -> None:
    text = "Endpoint=sb://ns.example.net/;SharedAccessKeyName=n;SharedAccessKey=k"
    reader = Reader("f.toml")
    table = {**keys, "connection_string": f"{text};EntityPath=other"}

    reader.section(ApprovalsConfig, table, "approvals")

    (fault,) = reader.faults
    assert next(iter(keys)) in fault
    assert "EntityPath" in fault

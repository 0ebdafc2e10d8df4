"""Names of entities with placeholders: checked when read, filled in on the VM."""

import pytest

from bridge.configuration.config import Config
from bridge.configuration.load import parse
from bridge.events.identity import Identity
from bridge.foundation.errors import ConfigError

HERE = Identity(vm_id="7", vm_name="web-1", vm_scale_set_name="Web")


def config(queue: str = "in-{vm_id}", topic: str = "out-{group}") -> Config:
    namespace = {"namespace": "contoso.servicebus.windows.net"}
    bus = {"name": "bus", "type": "servicebus", "topic": topic}
    return parse(
        {
            "sinks": [bus | namespace],
            "approvals": {"queue": queue, **namespace},
        },
        file="f.toml",
        environ={},
    )


def test_placeholders_are_replaced_by_values_of_this_vm() -> None:
    found = config().filled_in(HERE.expand)

    assert found.approvals is not None
    assert found.approvals.queue == "in-7"
    assert [sink.target and sink.target.key for sink in found.sinks] == ["topic"]
    assert getattr(found.sinks[0], "topic", None) == "out-web"


def test_names_without_placeholders_and_no_approvals_are_left_alone() -> None:
    plain = parse({}, file="f.toml", environ={})

    assert plain.filled_in(HERE.expand) == plain


def test_each_unknown_placeholder_is_a_fault_at_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        config(queue="{vm}", topic="{group")

    assert [fault.split(": ")[1] for fault in caught.value.faults] == [
        "approvals.queue",
        "sinks.bus.topic",
    ]
    assert "allowed are {vm_id}, {vm_name}, {group}" in caught.value.faults[0]


def test_placeholder_that_is_empty_here_is_a_fault() -> None:
    with pytest.raises(ConfigError, match=r"approvals.queue: {vm_id} in 'in-{vm_id}'"):
        config().filled_in(Identity(vm_scale_set_name="web").expand)

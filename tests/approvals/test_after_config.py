"""``after`` in a configuration: faults, warnings, and rules without a queue."""

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.app.approve_request import address
from bridge.configuration.config import Config
from bridge.configuration.load import load, load_for_approver, load_for_sink
from bridge.foundation.errors import ConfigError

DRAIN = """
[[sinks]]
name = "drain"
type = "command"
command = ["/etc/sebridge/hooks/drain"]
"""
SIEM = '[[sinks]]\nname = "siem"\ntype = "webhook"\nurl = "https://siem.example/"\n'
RULE = """
[[approvals.rules]]
name = "drained"
action = "auto-approve"
after = ["drain"]
"""
TYPES = 'event_types = ["Reboot", "Redeploy"]\n'


def read(folder: Path, text: str) -> Config:
    path = folder / "b.toml"
    path.write_text(text)
    return load(path, {})


def faults(folder: Path, text: str) -> list[str]:
    """Return the faults, without file and line."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [fault.split(": ", 1)[1] for fault in caught.value.faults]


# -- conditions that are never met -----------------------------------------------


@pytest.mark.parametrize(
    ("sinks", "what"),
    [
        (SIEM, "'drain' is not a command sink; there are: none"),
        (
            DRAIN.replace('"drain"', '"other"'),
            "'drain' is not a command sink; there are: other",
        ),
        (
            f'{DRAIN}[sinks.when]\ntransitions = ["completed", "ended"]\n',
            "'drain' never gets the steps scheduled and updated",
        ),
        (
            f'{DRAIN}[sinks.when]\nevent_types = ["Freeze", "preempt"]\n',
            "'drain' gets none of the rule's event_types",
        ),
        (
            f'{DRAIN}[sinks.when]\nevent_sources = ["User"]\n',
            "'drain' gets none of the rule's event_sources",
        ),
    ],
)
def test_rule_with_an_after_that_is_never_met_is_refused(
    tmp_path: Path, sinks: str, what: str
) -> None:
    rule = f'{RULE}{TYPES}event_sources = ["Platform"]\n'

    assert faults(tmp_path, f"{sinks}{rule}") == [f"approvals.rules[0].after: {what}"]


@pytest.mark.parametrize(
    "when",
    [
        "",
        'transitions = ["scheduled"]',
        'transitions = ["updated", "completed"]',
        'event_types = ["reboot", "REDEPLOY", "Preempt"]',
    ],
)
def test_rule_with_a_valid_after_is_accepted(tmp_path: Path, when: str) -> None:
    config = read(tmp_path, f"{DRAIN}[sinks.when]\n{when}\n{RULE}{TYPES}")

    assert not [one for one in config.warnings() if "approvals.rules" in one]


def test_fault_of_a_sink_is_reported_once(tmp_path: Path) -> None:
    """The sink of the command has a fault, but it is not reported as missing."""
    (fault,) = faults(tmp_path, f"{DRAIN}max_attempts = 0\n{RULE}{TYPES}")

    assert fault.startswith("sinks.drain.max_attempts")


@pytest.mark.parametrize(("types", "is_accepted"), [(TYPES, True), ("", True)])
def test_events_that_are_held_forever_are_a_warning(
    tmp_path: Path, types: str, *, is_accepted: bool
) -> None:
    when = '[sinks.when]\nevent_types = ["Reboot"]\n'
    config = read(tmp_path, f"{DRAIN}{when}{RULE}{types}")

    found = [one for one in config.warnings() if "rules[0].event_types" in one]
    assert bool(found) is is_accepted
    assert "'drain' gets only reboot" in found[0]


@pytest.mark.parametrize(
    ("keys", "place", "what"),
    [
        ('action = "allow"\nafter = ["drain"]', "after", '"auto-approve" only'),
        ('action = "deny"\nafter = ["drain"]', "after", '"auto-approve" only'),
        ('action = "auto-approve"\nafter = []', "after", "must not be empty"),
        ('action = "auto-approve"\nothers = "ignore"', "others", "after only"),
        (
            'action = "auto-approve"\nothers = "x"\nafter = ["drain"]',
            "others",
            "ignore",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    tmp_path: Path, keys: str, place: str, what: str
) -> None:
    (fault,) = faults(tmp_path, f"{DRAIN}[[approvals.rules]]\n{keys}\n")

    assert fault.startswith(f"approvals.rules[0].{place}: ")
    assert what in fault


# -- without a queue -------------------------------------------------------------


def test_rules_alone_are_enough(tmp_path: Path) -> None:
    config = read(tmp_path, f"{DRAIN}{RULE}")

    assert config.approvals is not None
    assert config.approval_entity is None
    assert config.approvals.entity_path == ""
    assert config.notes() == []
    assert config.filled_in(lambda text: text).approvals == config.approvals


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ('queue = "q"', "exactly one of namespace and connection_string"),
        ('namespace = "ns.example.net"', "exactly one of queue and topic"),
        ('reply_to = ["replies"]', "exactly one of queue and topic"),
        ('sessions = ["{vm_id}"]', "exactly one of queue and topic"),
    ],
)
def test_incomplete_entity_is_a_fault(tmp_path: Path, key: str, what: str) -> None:
    found = faults(tmp_path, f"[approvals]\n{key}\n{RULE}{DRAIN}")

    assert any(what in one for one in found)


def test_approvals_without_rules_need_an_entity(tmp_path: Path) -> None:
    assert any("queue" in one for one in faults(tmp_path, f"[approvals]\n{DRAIN}"))


def test_buttons_need_an_entity(tmp_path: Path) -> None:
    slack = """
[[sinks]]
name = "ops"
type = "slack"
token = "env:TOKEN"
channel = "C1"
button_secret = "env:SECRET"
buttons = true
"""
    path = tmp_path / "b.toml"
    path.write_text(f"{slack}{DRAIN}{RULE}")
    with pytest.raises(ConfigError) as caught:
        load(path, {"TOKEN": "xoxb-1-2", "SECRET": "x" * 40})

    assert any(
        "sinks.ops.buttons" in fault and "queue or topic" in fault
        for fault in caught.value.faults
    )


def test_commands_that_read_a_part_of_the_file_report_no_missing_sink(
    tmp_path: Path,
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f"{SIEM}{DRAIN}{RULE}")

    config, _ = load_for_sink(path, {}, "siem")
    assert [sink.name for sink in config.sinks] == ["siem"]
    approver, _ = load_for_approver(path, {})
    with pytest.raises(ConfigError, match="says where approvals are sent"):
        address(approver, session=None, seen=None)


@pytest.mark.integration
def test_without_an_entity_no_receiver_is_loaded() -> None:
    code = "import sys, bridge.app.approvals\n"
    code += (
        "names = ('bridge.approvals.listener', 'bridge.servicebus.receiver', 'azure')\n"
    )
    code += "print(*sorted(set(names) & set(sys.modules)))"
    found = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == []

"""Configuration, environment and output of a command, and what is said of its end."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bridge.configuration import json_schema
from bridge.configuration import load as configuration
from bridge.events import samples
from bridge.events.cloudevent import CloudEvent
from bridge.events.command_result import CommandResult, from_command
from bridge.events.document import ScheduledEvent
from bridge.events.material import is_material
from bridge.events.routing import Subject
from bridge.foundation.errors import ConfigError
from bridge.sinks.acting import Action
from bridge.sinks.command.environment import Occasion, inherited, variables_of
from bridge.sinks.command.output import Kept, cleaned
from bridge.sinks.command.sink import CommandSinkConfig
from bridge.sinks.slack.card import after
from bridge.sinks.slack.text import describe, describe_card
from bridge.sinks.syslog.format import as_cef
from bridge.sinks.webhook.presets import elastic
from bridge.sinks.webhook.presets.fields import facts
from tests.support.builders import EVENT_ID, ME, event_context_of, imds_event, router
from tests.support.example_events import seen
from tests.support.sink_fixtures import cloud_event, config_faults, sink_config

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOOK = {"type": "command", "command": ["/hooks/drain"]}


# -- configuration -----------------------------------------------------------------


def test_defaults_are_those_of_the_contract() -> None:
    config = sink_config(HOOK)
    assert isinstance(config, CommandSinkConfig)

    assert [config.lead, config.timeout, config.max_attempts] == [1800, 600, 3]
    assert (config.retry_exit_codes, config.output) == ((75,), "failed")
    route = config.route
    assert (route.scope, route.lifecycle, route.is_for_steps) == ("own", False, True)
    assert route.when.transitions == (
        "scheduled",
        "updated",
        "completed",
        "cancelled",
        "ended",
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"command": []}, "command: must be a program and its arguments"),
        ({"command": [""]}, "command: must be a program and its arguments"),
        ({"command": ["drain"]}, "command: must begin with the whole path"),
        ({"command": ["/a", "b\nc"]}, "command: must have no line break"),
        ({"command": "/a"}, "command: "),
        ({"timeout": 0}, "timeout: must be more than 0s"),
        ({"max_attempts": 0}, "max_attempts: must be 1 to 100"),
        ({"retry_exit_codes": [0]}, "retry_exit_codes: must be exit codes from 1"),
        ({"retry_exit_codes": [256]}, "retry_exit_codes: must be exit codes from 1"),
        ({"output": "sometimes"}, "output: "),
        ({"unit": "x.service"}, "unit: "),
        ({"when": {"lifecycle": True}}, "when.lifecycle: must not be true"),
    ],
)
def test_fault_names_the_key(options: Mapping[str, object], fault: str) -> None:
    (found,) = config_faults({**HOOK, **options})

    assert found.startswith(fault)


def test_command_is_missing() -> None:
    (found,) = config_faults({"type": "command"})

    assert "command" in found


@pytest.mark.parametrize(("grace", "is_reported"), [("30s", False), ("31s", True)])
def test_stop_that_the_unit_cuts_short_is_reported(
    grace: str, *, is_reported: bool
) -> None:
    tables = {"shutdown_grace": grace, "sinks": [{"name": "drain", **HOOK}]}
    found = configuration.parse(tables, file="x", environ={}).warnings()

    assert any("TimeoutStopSec" in text for text in found) is is_reported


def test_stop_is_not_told_of_without_a_command() -> None:
    tables = {
        "shutdown_grace": "99s",
        "sinks": [{"name": "f", "type": "file", "path": "/x"}],
    }

    assert configuration.parse(tables, file="x", environ={}).warnings() == []


def test_secret_is_no_part_of_a_command() -> None:
    with pytest.raises(ConfigError):
        configuration.parse(
            {"sinks": [{"name": "drain", **HOOK, "token": "x"}]}, file="x", environ={}
        )


@pytest.mark.parametrize(
    "subject",
    [
        Subject(events=(seen(imds_event()),)),  # startrequest.*, command.*
        Subject(is_lifecycle=True),
    ],
)
def test_nothing_but_steps_ever_runs_a_command(subject: Subject) -> None:
    found = router({"drain": sink_config(HOOK).route})
    (obstacle, *_) = found.obstacles("drain", subject, follows=True)

    assert (
        str(obstacle) == "type wants transitions of scheduled events only; this is none"
    )
    assert found.sinks(subject, {"drain"}) == ()


# -- environment -------------------------------------------------------------------


def occasion(event: Mapping[str, object] | None = None, **fields: object) -> Occasion:
    raw = imds_event() if event is None else event
    values: dict[str, object] = {
        "sink": "drain",
        "action": Action.PREPARE,
        "type": "sebridge.scheduledevent.scheduled.v1",
        "id": "0f",
        "transition": "scheduled",
        "event": ScheduledEvent(event_id=str(raw["EventId"]), raw=raw),
        "others": ("A", "B"),
        "vm_name": "WestNO_0",
        "attempt": 2,
        "now": NOW,
        **fields,
    }
    return Occasion(**values)  # type: ignore[arg-type]  # each is of its type


def test_environment_is_that_of_the_contract() -> None:
    assert variables_of(occasion()) == {
        "SEBRIDGE_ACTION": "prepare",
        "SEBRIDGE_TYPE": "sebridge.scheduledevent.scheduled.v1",
        "SEBRIDGE_ID": "0f",
        "SEBRIDGE_TRANSITION": "scheduled",
        "SEBRIDGE_EVENT_ID": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "SEBRIDGE_EVENT_TYPE": "Freeze",
        "SEBRIDGE_EVENT_STATUS": "Scheduled",
        "SEBRIDGE_EVENT_SOURCE": "Platform",
        "SEBRIDGE_NOT_BEFORE": "2026-03-02T12:15:00Z",
        "SEBRIDGE_NOTICE_SECONDS": "900",
        "SEBRIDGE_DURATION_SECONDS": "5",
        "SEBRIDGE_VM_NAME": "WestNO_0",
        "SEBRIDGE_SINK": "drain",
        "SEBRIDGE_ATTEMPT": "2",
        "SEBRIDGE_RESOURCES": "WestNO_0 WestNO_1",
        "SEBRIDGE_OTHER_EVENTS": "A B",
    }


def test_what_is_not_known_is_empty() -> None:
    found = variables_of(
        occasion({"EventId": "X"}, others=(), now=NOW + timedelta(hours=1))
    )
    empty = {name for name, value in found.items() if value == ""}

    assert empty == {
        f"SEBRIDGE_{name}"
        for name in (
            *("EVENT_TYPE", "EVENT_STATUS", "EVENT_SOURCE", "NOT_BEFORE"),
            *("NOTICE_SECONDS", "DURATION_SECONDS", "RESOURCES", "OTHER_EVENTS"),
        )
    }


def test_notice_that_has_passed_is_negative() -> None:
    found = variables_of(occasion(now=NOW + timedelta(seconds=1000)))

    assert found["SEBRIDGE_NOTICE_SECONDS"] == "-100"


def test_test_says_so() -> None:
    assert variables_of(occasion(is_test=True))["SEBRIDGE_TEST"] == "1"


@pytest.mark.slow
@given(text=st.text(), names=st.lists(st.text(), max_size=50))
def test_values_are_data(text: str, names: list[str]) -> None:
    raw = imds_event(text or "x", EventType=text, Resources=names)
    found = variables_of(occasion(raw, others=tuple(names)))

    for value in found.values():
        assert not set(value) & {"\n", "\r", "\x00", "\x1b", "\u2028"}
        assert len(value) <= 16 * 1024
        value.encode()
    assert len(found["SEBRIDGE_RESOURCES"].split(" ")) == max(1, len(names))


def test_long_lists_have_an_end() -> None:
    raw = imds_event(Resources=[f"vm-{n:05}" for n in range(100_000)])
    found = variables_of(occasion(raw))["SEBRIDGE_RESOURCES"]

    assert len(found) <= 16 * 1024
    assert found.endswith(tuple("0123456789"))


@pytest.mark.parametrize(
    "others",
    [
        tuple(f"{n:08}-0000-4000-8000-000000000000" for n in range(2000)),
        ("x" * 100_000,),
        ("",),
        (" ", "\n"),
    ],
)
def test_other_events_are_never_empty_where_there_are_some(
    others: tuple[str, ...],
) -> None:
    """A hook restores only when it is empty, whatever has no room in it."""
    found = variables_of(occasion(others=others))["SEBRIDGE_OTHER_EVENTS"]

    assert 0 < len(found) <= 16 * 1024
    assert not set(found.split(" ")) - {*others, "?", "x" * 1024}


def test_little_of_the_bridges_own_environment_is_passed_on() -> None:
    outer = {
        "PATH": "/bin",
        "HOME": "/",
        "LANG": "C",
        "SLACK_URL": "s",
        "LD_PRELOAD": "x",
    }
    assert inherited(outer) == {"PATH": "/bin", "HOME": "/", "LANG": "C"}

    windows = {"SystemRoot": "C:\\Windows", "Path": "C:\\", "TOKEN": "s"}
    assert inherited(windows) == {"PATH": "C:\\", "SYSTEMROOT": "C:\\Windows"}
    folders = {
        "ProgramData": "C:\\D",
        "ProgramFiles": "P",
        "windir": "W",
        "USERPROFILE": "U",
    }
    assert inherited(windows | folders) == {
        "PATH": "C:\\",
        "SYSTEMROOT": "C:\\Windows",
        **{name.upper(): value for name, value in folders.items()},
    }


# -- output ------------------------------------------------------------------------


def kept(*chunks: bytes) -> str:
    found = Kept()
    for chunk in chunks:
        found.feed(chunk)
    return found.text()


@given(st.lists(st.binary(max_size=5000), max_size=20))
def test_what_is_kept_has_an_end(chunks: list[bytes]) -> None:
    assert len(kept(*chunks)) <= 8 * 1024 + 100


def test_short_output_is_kept_whole() -> None:
    lines = b"".join(b"line %d\n" % n for n in range(800))
    assert len(lines) <= 8192

    assert kept(lines[:3000], lines[3000:]) == lines.decode().rstrip("\n")


def test_first_and_last_part_of_long_output_are_kept() -> None:
    lines = [b"line %06d\n" % n for n in range(10_000)]
    found = kept(*lines)

    assert found.startswith("line 000000\n")
    assert found.endswith("line 009999")
    assert "bytes left out" in found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"a\x1b[31mred\x1b[0m\x07", "ared"),
        (b"\x1b]0;title\x07x", "x"),
        (b"a\r\nb\rc", "a\nbc"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"Bearer abc.def-ghi more", "Bearer <secret> more"),
        (b"SharedAccessSignature sr=x&sig=abc", "SharedAccessSignature <secret>"),
        (b"https://x/?sv=1&sig=ab%2Bc&se=2", "https://x/?sv=1&sig=<secret>&se=2"),
        (
            b"Endpoint=sb://x/;SharedAccessKey=abc=;E=p",
            "Endpoint=sb://x/;SharedAccessKey=<secret>;E=p",
        ),
        (b"token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "token <secret>"),
    ],
)
def test_controls_and_secrets_are_taken_away(text: bytes, shown: str) -> None:
    assert cleaned(text) == shown


def test_rest_of_a_token_whose_beginning_is_left_out_is_not_kept() -> None:
    token = b"Bearer " + b"s3cr3t" * 2000
    found = kept(b"x" * 3000 + b" " + token + b" end")

    assert "s3cr3t" not in found.partition("left out")[2]
    assert found.endswith("end")


# -- what is published of it -------------------------------------------------------


def result(**fields: object) -> CommandResult:
    values: dict[str, object] = {
        "sink": "drain",
        "outcome": "failed",
        "action": "prepare",
        "cause": cloud_event(),
        "exit_code": 1,
        "signal": None,
        "timed_out": False,
        "seconds": 1.23456,
        "attempts": 3,
        "output": "words",
        "reason": "it ended with exit code 1",
        **fields,
    }
    return CommandResult(**values)  # type: ignore[arg-type]  # each is of its type


@pytest.mark.parametrize(
    ("outcome", "severity"),
    [("succeeded", "INFO"), ("failed", "ERROR"), ("skipped", "INFO")],
)
def test_result_is_an_event_as_the_schema_has_it(outcome: str, severity: str) -> None:
    found = from_command(event_context_of(), result(outcome=outcome), NOW)
    sent = json.loads(found.event.to_json())

    schema = json.loads(json_schema.text("event"))
    assert list(Draft202012Validator(schema).iter_errors(sent)) == []
    assert sent["type"] == f"sebridge.command.{outcome}.v1"
    assert sent["severitytext"] == severity
    assert sent["data"]["seconds"] == 1.235
    assert found.key == sent["subject"].upper()


def test_result_holds_what_the_contract_names() -> None:
    data = from_command(event_context_of(), result(), NOW).event.data

    assert set(data) == {
        *("sink", "action", "event", "transition", "exitCode", "signal"),
        *("timedOut", "seconds", "attempts", "output", "reason"),
        *("observedAt", "reporter"),
    }
    assert data["event"] == cloud_event().data["event"]


def test_id_of_a_result_is_of_vm_sink_cause_and_outcome_alone() -> None:
    def result_id(**fields: object) -> str:
        return from_command(event_context_of(), result(**fields), NOW).event.id

    first = result_id()
    assert first == result_id(seconds=9.0, attempts=1, output=None)
    others = {result_id(sink="x"), result_id(outcome="skipped"), first}
    later = from_command(event_context_of(), result(), NOW + timedelta(days=1))
    assert later.event.id == first
    assert len(others) == 3


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, False),
        ({"Description": "x"}, False),
        ({"DurationInSeconds": 4}, False),
        ({"DurationInSeconds": 6}, True),
        ({"DurationInSeconds": -1}, True),
        ({"EventType": "freeze"}, False),
        ({"EventType": "Reboot"}, True),
        ({"Resources": ["_westno_0"]}, False),
        ({"Resources": ["WestNO_0", "WestNO_1", "x"]}, True),
    ],
)
def test_material_is_what_an_approver_would_have_to_know(
    change: dict[str, object], *, found: bool
) -> None:
    before, after = seen(imds_event()), seen(imds_event(EVENT_ID, **change))

    assert is_material(before, after) is found
    assert ME.is_named_in(after.resources)


# -- how others show it ------------------------------------------------------------


def result_event(outcome: str = "failed") -> CloudEvent:
    body = from_command(
        event_context_of(), result(outcome=outcome), NOW
    ).event.to_json()
    return CloudEvent.from_json(body)


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "skipped"])
def test_slack_says_which_command_and_what_became_of_it(outcome: str) -> None:
    telling = describe(result_event(outcome), NOW)

    assert telling.headline == f"Command drain prepare {outcome}"
    assert ("Reason", "it ended with exit code 1") in telling.facts
    assert telling.paragraphs == ("words",)


def test_slack_shows_it_in_the_message_of_the_event() -> None:
    card = after(None, cloud_event())
    card = after(card, result_event())
    assert card is not None
    again = after(card, result_event())
    (line, *_) = [p for p in describe_card(card, NOW).paragraphs if "Command" in p]

    assert again == card
    assert line.startswith(":no_entry: *Command drain prepare failed*")
    assert card.can_be_decided(NOW)  # a failed command is no decision


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [("succeeded", "success"), ("failed", "failure"), ("skipped", "unknown")],
)
def test_siem_gets_its_outcome(outcome: str, shown: str) -> None:
    found = elastic.document(result_event(outcome))["event"]

    assert isinstance(found, dict)
    assert (found["action"], found["outcome"]) == (f"command-{outcome}", shown)
    name = f"|command.{outcome}|Command {outcome}|"
    assert name in as_cef(result_event(outcome), version="1")


def test_headline_of_presets_names_the_command() -> None:
    assert facts(result_event()).headline == "Command drain prepare failed: Reboot"


def test_result_that_was_received_is_routed_as_it_was() -> None:
    found = samples.read(result_event().to_json(), event_context_of(), NOW)

    assert found.subject.transition is None
    assert not found.subject.is_lifecycle
    assert (
        router({"drain": sink_config(HOOK).route}).sinks(found.subject, frozenset())
        == ()
    )

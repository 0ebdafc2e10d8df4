"""``send-test``, ``render`` and ``route``, with the real sinks: their output."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import FormatChecker, validate

from bridge.app.identify import settle
from bridge.cli.main import main
from bridge.configuration import event_schema
from bridge.configuration import load as configuration
from bridge.diagnostics import dry_run
from bridge.events.identity import Identity
from bridge.foundation.clock import SystemClock
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsSettings
from bridge.simulator.servicebus.broker import Broker
from tests.support.builders import body_of, imds_event, started
from tests.support.configurations import (
    NOWHERE,
    Table,
    servicebus,
    toml,
    webhook,
)
from tests.support.sink_fixtures import (
    SECRET,
    Inbox,
    cloud_event,
    drained,
    opened_sink,
)

BUS = (
    "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=k;"
    f"SharedAccessKey={SECRET};UseDevelopmentEmulator=true"
)


@pytest.fixture(autouse=True)
def ordinary_log() -> Iterator[None]:
    """Restore the log settings of the test process, which the command changes."""
    root, azure = logging.getLogger(), logging.getLogger("azure")
    kept = (root.handlers[:], root.level, azure.level)
    yield
    root.handlers[:], root.level, azure.level = kept


def written(folder: Path, *sinks: Table, imds: str = NOWHERE, **tables: Table) -> Path:
    path, state = folder / "bridge.toml", {"path": folder / "state.db"}
    every = {"imds": {"endpoint": imds}, "state": state, **tables, "sinks": sinks}
    path.write_text(toml(every))
    return path


def sebridge(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(
        main, [str(one) for one in arguments], input=stdin, catch_exceptions=False
    )


async def aside(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    """Run a command in a thread, so that the servers of this test keep running."""
    return await asyncio.to_thread(sebridge, *arguments, stdin=stdin)


# -- send-test ---------------------------------------------------------------------


async def test_sink_gets_a_marked_event_in_the_real_form(
    inbox: Inbox, tmp_path: Path
) -> None:
    async with ImdsSimulator(ImdsSettings(vm_name="vm-7")) as imds:
        config = written(tmp_path, webhook(inbox.url), imds=imds.url)

        result = await aside("send-test", "-c", config, "--event-type", "Preempt")

    (request,) = inbox.received
    event = json.loads(request.body)
    validate(event, event_schema.event(), format_checker=FormatChecker())
    assert event["type"] == "sebridge.scheduledevent.scheduled.v1"
    assert (event["eventtype"], event["sebridgetest"]) == ("Preempt", "true")
    assert event["data"]["test"] is True
    assert event["data"]["reporter"]["vmName"] == "vm-7"
    assert result.exit_code == 0
    assert result.stderr == ""
    first, second = result.stdout.splitlines()
    assert first == f"test event for {event['subject']} (Preempt)"
    assert second.startswith("ok   siem: accepted in 0.")


def command(folder: Path, text: str) -> dict[str, Any]:
    hook = folder / "hook"
    hook.write_text(f"#!/bin/sh\n{text}\n")
    hook.chmod(0o700)
    return {"name": "drain", "type": "command", "command": [str(hook)]}


def test_command_is_run_only_with_the_option_run(tmp_path: Path) -> None:
    lines = {"name": "lines", "type": "file", "path": str(tmp_path / "events")}
    ran = tmp_path / "ran"
    hook = command(tmp_path, f'echo "$SEBRIDGE_TEST $SEBRIDGE_ACTION" >>{ran}')
    config = written(tmp_path, lines, hook)

    result = sebridge("send-test", "-c", config)
    assert result.exit_code == 0
    assert "sinks.drain: its command is not run; use --run to run it" in result.stderr
    assert not ran.exists()

    assert sebridge("send-test", "-c", config, "--run").exit_code == 0
    assert ran.read_text() == "1 prepare\n"


def test_configuration_with_only_a_command_is_an_error_without_run(
    tmp_path: Path,
) -> None:
    config = written(tmp_path, command(tmp_path, "exit 0"))

    result = sebridge("send-test", "-c", config)
    assert result.exit_code == 2
    assert "there is no other sink to send to" in result.stderr


def test_test_of_a_command_prints_its_output(tmp_path: Path) -> None:
    config = written(tmp_path, command(tmp_path, "echo no room >&2; exit 3"))

    result = sebridge("send-test", "-c", config, "--run")
    assert result.exit_code == 1
    assert "it ended with exit code 3: no room" in result.stdout


def test_render_shows_the_environment_of_a_command(tmp_path: Path) -> None:
    config = written(
        tmp_path, command(tmp_path, "exit 0"), identity={"vm_name": "web-7"}
    )

    result = sebridge("render", "-c", config, "--sink", "drain")
    assert result.exit_code == 0
    head, _, body = result.stdout.partition("\n\n")
    assert head.startswith(f"run {tmp_path}/hook\n")
    assert "SEBRIDGE_VM_NAME=web-7" in head.splitlines()
    assert json.loads(body)["type"] == "sebridge.scheduledevent.scheduled.v1"


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_report_goes_to_stderr_if_a_sink_uses_stdout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    config = written(tmp_path, {"name": "out", "type": "file", "path": "-"})

    result = sebridge("send-test", "-c", config, *arguments)

    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["sebridgetest"] == "true"
    assert result.stdout == ""
    assert "out" in result.stderr


async def test_forwarders_state_is_left_alone(inbox: Inbox, tmp_path: Path) -> None:
    config = written(tmp_path, webhook(inbox.url))

    await aside("send-test", "-c", config)

    assert [path.name for path in tmp_path.iterdir()] == ["bridge.toml"]


async def test_each_sink_gets_one_attempt_and_its_answer_is_printed(
    inbox: Inbox, tmp_path: Path
) -> None:
    async with Inbox(status=401).serving() as wrong, Inbox(status=503).serving() as ill:
        config = written(
            tmp_path,
            webhook(inbox.url, when={"event_types": ["Freeze"]}),
            webhook(f"{wrong.url}/?sig={SECRET}", "refuses"),
            webhook(ill.url, "ails"),
        )

        result = await aside("send-test", "-c", config, "--json")

        assert [len(one.received) for one in (inbox, wrong, ill)] == [1, 1, 1]
    found = json.loads(result.stdout)
    assert found["event"] == json.loads(inbox.received[0].body)
    assert found["eventId"] == found["event"]["subject"]
    assert [one["name"] for one in found["sinks"]] == ["siem", "refuses", "ails"]
    assert [one["delivered"] for one in found["sinks"]] == [True, False, False]
    assert (
        "answered 401: ok; the bridge would retry, and soon park the sink"
        in (found["sinks"][1]["error"])
    )
    assert found["sinks"][2]["error"].endswith("503: ok; the bridge would retry")
    assert SECRET not in result.output
    assert result.exit_code == 1


async def test_only_the_sinks_that_are_named_are_tried(
    inbox: Inbox, tmp_path: Path
) -> None:
    config = written(tmp_path, webhook(inbox.url), webhook(NOWHERE, "other"))

    good = await aside("send-test", "-c", config, "--sink", "siem")
    bad = await aside("send-test", "-c", config, "--sink", "siem", "--sink", "other")

    assert good.exit_code == 0
    assert bad.exit_code == 1
    assert "\nFAIL other: http://127.0.0.1:9 cannot be reached" in bad.stdout
    assert len(inbox.received) == 2


async def test_message_on_the_bus_cannot_be_approved(
    broker: Broker, tmp_path: Path
) -> None:
    approvals = {
        "connection_string": broker.connection_string,
        "queue": "vm-approvals-{group}",
    }
    sink = servicebus(broker.connection_string)
    config = written(tmp_path, sink, approvals=approvals)

    result = await aside("send-test", "-c", config)

    (message,) = await drained(broker)
    assert result.exit_code == 0
    assert message.reply_to is None
    assert message.application_properties is not None
    assert message.application_properties[b"cloudEvents_sebridgetest"] == b"true"


async def test_slack_shows_that_it_is_a_test(inbox: Inbox, tmp_path: Path) -> None:
    sink = {"name": "ops", "type": "slack", "webhook_url": inbox.url}

    result = await aside("send-test", "-c", written(tmp_path, sink))

    assert result.exit_code == 0
    message = json.loads(inbox.received[0].body)
    assert "TEST (no machine)" in message["text"]
    assert "nothing is going to happen" in json.dumps(message["blocks"])


async def test_vm_that_metadata_does_not_name_is_that_of_the_configuration(
    inbox: Inbox, tmp_path: Path
) -> None:
    config = written(tmp_path, webhook(inbox.url), identity={"vm_name": "vm-9"})

    result = await aside("send-test", "-c", config)

    assert result.exit_code == 0
    assert "IMDS cannot be reached" in result.stderr
    assert result.stderr.endswith(" vm-9 is used\n")
    event = json.loads(inbox.received[0].body)
    assert event["data"]["reporter"]["vmName"] == "vm-9"


async def test_metadata_that_hangs_is_not_waited_for_long(
    inbox: Inbox, tmp_path: Path
) -> None:
    async with Inbox(is_silent=True).serving() as imds:
        path = written(tmp_path, webhook(inbox.url), imds=imds.url)
        config = configuration.load(Path(path), {})

        report = await dry_run.send_test(
            config, "Reboot", SystemClock(), environ={}, patience=0.1
        )

    assert report.is_good
    assert str(report.warning).endswith("(no answer within 0.1 s): it is not known")


async def test_type_that_is_misspelt_is_sent_with_a_warning(
    inbox: Inbox, tmp_path: Path
) -> None:
    config = written(tmp_path, webhook(inbox.url))

    result = await aside("send-test", "-c", config, "--event-type", "Rebot")

    assert result.exit_code == 0
    assert result.stderr.startswith("warning: --event-type: 'Rebot' is not documented")


@pytest.mark.parametrize(
    ("sinks", "arguments", "words"),
    [
        ([], [], "has neither [[sinks]] nor [approvals]"),
        ([webhook(NOWHERE)], ["--sink", "sien"], "'sien'; did you mean 'siem'?"),
        ([webhook(NOWHERE)], ["--sink", "x"], "'x'; there are: siem"),
        (
            [servicebus(BUS, queue="q-{group}")],
            [],
            "sinks.bus.queue: {group} in 'q-{group}' is not known here",
        ),
    ],
)
def test_unknown_or_missing_sink_ends_with_2(
    sinks: list[dict[str, Any]], arguments: list[str], words: str, tmp_path: Path
) -> None:
    result = sebridge("send-test", "-c", written(tmp_path, *sinks), *arguments)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_sink_that_cannot_be_opened_has_failed(tmp_path: Path) -> None:
    sink = {**webhook(NOWHERE), "headers": {"x-group": "{group}"}}

    result = sebridge("send-test", "-c", written(tmp_path, sink))

    assert result.exit_code == 1
    assert "FAIL siem: sinks.siem.headers: {group} in '{group}'" in result.stdout


# -- render ------------------------------------------------------------------------


def rendered(result: Result) -> tuple[dict[str, str], Any]:
    """Return the lines of the head by name, and the body as JSON."""
    assert result.exit_code == 0, result.stderr
    head, _, body = result.stdout.partition("\n\n")
    lines = head.splitlines()
    return dict(line.split(": ", 1) for line in lines[1:]), json.loads(body)


async def test_rendered_message_equals_the_sent_message(
    broker: Broker, tmp_path: Path, resources: Any
) -> None:
    sink = servicebus(broker.connection_string)
    config = written(tmp_path, sink)
    event = cloud_event()
    async with opened_sink(resources, sink) as opened:
        await opened.deliver(event)
    (message,) = await drained(broker)

    result = await aside(
        "render", "-c", config, "--sink", "bus", "--event", "-", stdin=event.to_json()
    )

    properties = {
        key.decode(): value.decode() if isinstance(value, bytes) else str(value)
        for key, value in (message.application_properties or {}).items()
        if isinstance(key, bytes)
    }
    assert rendered(result)[0] == {
        "MessageId": message.message_id,
        "ContentType": message.content_type,
        "Subject": message.subject,
        "CorrelationId": message.correlation_id,
        "SessionId": message.session_id,
        **properties,
    }
    assert result.stdout.encode().endswith(b"\n\n" + b"".join(message.body) + b"\n")


def test_render_sends_nothing_and_shows_no_secret(tmp_path: Path) -> None:
    approvals = {"connection_string": BUS, "queue": "q", "sessions": ["{vm_id}"]}
    sink = servicebus(BUS, queue="to-{group}", session="vm")
    config = written(tmp_path, sink, approvals=approvals)

    result = sebridge("render", "-c", config, "--sink", "bus")

    head, event = rendered(result)
    assert result.stdout.startswith("Service Bus queue to-group-1 in 127.0.0.1:9\n")
    nobody = "00000000-0000-0000-0000-000000000000"
    assert (head["ReplyTo"], head["ReplyToSessionId"]) == ("q", nobody)
    assert head["SessionId"] == nobody
    assert event["data"]["event"]["EventType"] == "Reboot"
    assert "test" not in event["data"]
    assert SECRET not in result.output


HEADERS = {"x-vm": "{vm_name} of {group}", "x-id": "{vm_id}"}


def test_unknown_placeholders_show_the_vm_of_the_sample(
    tmp_path: Path,
) -> None:
    """This machine knows no VM: values of an invented VM are shown, with a note."""
    config = written(tmp_path, {**webhook(NOWHERE), "headers": HEADERS})

    result = sebridge("render", "-c", config, "--sink", "siem")

    head, event = rendered(result)
    assert head["x-vm"] == "vm-1 of group-1"
    assert event["data"]["event"]["Resources"] == ["vm-1"]
    reporter = event["data"]["reporter"]
    assert (reporter["vmName"], reporter["vmId"]) == ("vm-1", head["x-id"])
    assert result.stderr == (
        "note: {vm_id}, {vm_name} and {group} are not known here, and those of an "
        "invented VM are shown; set [identity] to show this VM\n"
    )


def test_known_placeholders_are_not_invented(tmp_path: Path) -> None:
    where = "/subscriptions/s/resourceGroups/Web/x"
    me = {"vm_name": "web-0", "vm_id": "id-1", "resource_id": where}
    config = written(tmp_path, {**webhook(NOWHERE), "headers": HEADERS}, identity=me)

    result = sebridge("render", "-c", config, "--sink", "siem")

    head, _ = rendered(result)
    assert (head["x-vm"], head["x-id"]) == ("web-0 of web", "id-1")
    assert result.stderr == ""


def test_reporter_of_an_event_fills_in_placeholders(tmp_path: Path) -> None:
    config = written(tmp_path, {**webhook(NOWHERE), "headers": HEADERS})
    arguments = ("render", "-c", config, "--sink", "siem", "--event", "-")

    result = sebridge(*arguments, stdin=cloud_event().to_json())

    head, _ = rendered(result)
    assert (head["x-vm"], head["x-id"]) == ("web-0 of group-1", "vm-1")
    assert result.stderr.startswith("note: {group} is not known here, and that of an ")


NOT_HERE = "env:NOT_SET_ON_THIS_MACHINE"
SECRETLY: list[dict[str, Any]] = [
    {
        "type": "webhook",
        "url": NOT_HERE,
        "headers": {"Authorization": NOT_HERE, "x-team": "infra"},
        "signature": {"secrets": ["file:/not/there", NOT_HERE]},
        "client_certificate": "/not/there.pem",
        "client_key": "/not/there.key",
        "ca_file": "/not/there.ca",
    },
    {
        "type": "webhook",
        "url": NOT_HERE,
        "proxy": NOT_HERE,
        "auth": {"type": "basic", "username": "u", "password": NOT_HERE},
    },
    {"type": "webhook", "url": NOT_HERE, "preset": "splunk-hec"}
    | {"auth": {"token": NOT_HERE}},
    {"type": "servicebus", "connection_string": NOT_HERE, "topic": "t"},
    {"type": "servicebus", "connection_string": "file:/not/there", "queue": "x"},
    {"type": "slack", "webhook_url": NOT_HERE},
    {
        "type": "slack",
        "token": NOT_HERE,
        "channel": "ops",
        "buttons": True,
        "button_secret": "file:/not/there",
    },
]


@pytest.mark.parametrize("sink", SECRETLY, ids=lambda sink: sink["type"])
def test_render_needs_no_secret(sink: dict[str, Any], tmp_path: Path) -> None:
    approvals = {"connection_string": NOT_HERE, "queue": "vm-approvals"}
    other = {**webhook(NOT_HERE, "other"), "headers": {"x": "{unknown}"}}
    config = written(
        tmp_path,
        other,
        {"name": "mine", **sink},
        approvals=approvals,
        http={"token": NOT_HERE},
        identity={"vm_name": "web-0"},
    )

    result = sebridge("render", "-c", config, "--sink", "mine")

    head, body = rendered(result)
    assert body
    assert "invalid" not in result.output
    assert "whsec" not in result.output
    secrets = [name for name in head if name in {"Authorization", "webhook-signature"}]
    assert all(head[name].endswith("<secret>") for name in secrets)
    assert "note: sinks.mine." in result.stderr
    assert "other" not in result.stderr
    assert "http" not in result.stderr


def test_values_from_a_missing_secret_are_shown_as_secret(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        {"name": "bus", **SECRETLY[3]},
        {"name": "hook", **SECRETLY[0]},
        approvals={"connection_string": NOT_HERE, "queue": "vm-approvals"},
    )

    bus = sebridge("render", "-c", config, "--sink", "bus")
    hook = sebridge("render", "-c", config, "--sink", "hook")

    assert bus.stdout.startswith("Service Bus topic t in <secret>\n")
    assert rendered(bus)[0]["ReplyTo"] == "vm-approvals"  # with the same reference
    assert hook.stdout.startswith("POST <secret>\n")
    assert rendered(hook)[0]["x-team"] == "infra"
    missing = "the environment variable NOT_SET_ON_THIS_MACHINE is not set"
    assert f"note: sinks.hook.url: {missing}: shown as <secret>\n" in hook.stderr


def test_readable_secret_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URL_THAT_IS_SET", f"https://hook.example/{SECRET}")
    config = written(tmp_path, webhook("env:URL_THAT_IS_SET"))

    result = sebridge("render", "-c", config, "--sink", "siem")

    assert result.stdout.startswith("POST https://hook.example\n")
    assert "<secret>" not in result.output
    assert SECRET not in result.output


def test_other_faults_are_reported_although_secrets_are_missing(tmp_path: Path) -> None:
    sink = {**webhook(NOT_HERE), "headrs": {}, "content_mode": "odd"}

    result = sebridge("render", "-c", written(tmp_path, sink), "--sink", "siem")

    assert result.exit_code == 2
    assert "sinks.siem.headrs: unknown key" in result.stderr
    assert "sinks.siem.content_mode: must be one of" in result.stderr


def test_variables_of_other_sinks_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path, webhook(NOT_HERE), webhook(NOT_HERE, "other"))
    monkeypatch.setenv("SEBRIDGE__SINKS__OTHER__TIMEOUT", "3s")
    monkeypatch.setenv("SEBRIDGE__SINKS__SIEM__URL", "https://siem.example/x")

    result = sebridge("render", "-c", config, "--sink", "siem")

    assert result.exit_code == 0
    assert result.stdout.startswith("POST https://siem.example\n")


def test_event_of_imds_is_rendered_as_it_would_be_published(tmp_path: Path) -> None:
    config = written(tmp_path, servicebus(BUS), identity={"vm_name": "WestNO_0"})
    source = tmp_path / "document.json"
    source.write_bytes(body_of(started()))

    result = sebridge("render", "-c", config, "--sink", "bus", "--event", source)

    head, event = rendered(result)
    assert head["Subject"] == "sebridge.scheduledevent.started.v1"
    assert event["data"]["affectsThisVm"] is True
    assert "ReplyTo" not in head


def test_pretty_indents_the_body(tmp_path: Path) -> None:
    config = written(tmp_path, servicebus(BUS))
    body = cloud_event(note="ü\x1b").to_json()
    arguments = ("render", "-c", config, "--sink", "bus", "--event", "-")

    plain = sebridge(*arguments, stdin=body)
    pretty = sebridge(*arguments, "--pretty", stdin=body)

    assert rendered(plain) == rendered(pretty)
    assert "\n" not in plain.stdout.partition("\n\n")[2].strip()
    assert '\n    "note": "ü\\u001b"\n' in pretty.stdout


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["--sink", "buss"], b"", "no sink is called 'buss'; did you mean 'bus'?"),
        (["--sink", "bus", "--event", "-"], b"{", "--event is no JSON object"),
        (["--sink", "bus", "--event", "-"], body_of(), "--event holds no events"),
        (["--sink", "bus", "--event", "gone.json"], b"", "gone.json"),
        ([], b"", "--sink"),
    ],
)
def test_event_that_cannot_be_rendered_ends_with_2(
    arguments: list[str], stdin: bytes, words: str, tmp_path: Path
) -> None:
    config = written(tmp_path, servicebus(BUS))

    result = sebridge("render", "-c", config, *arguments, stdin=stdin)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


# -- route -------------------------------------------------------------------------


def test_route_names_each_sink_and_its_obstacles(tmp_path: Path) -> None:
    when = {"event_types": ["Reboot"], "transitions": ["started"]}
    limited = webhook(NOWHERE, when=when)
    config = written(tmp_path, servicebus(BUS), limited, webhook(NOWHERE, "own"))
    event = json.dumps(imds_event(Resources=["web-1"])).encode()
    arguments = ("route", "-c", config, "--event", "-", "--vm", "web-2")

    result = sebridge(*arguments, stdin=event)

    scope = "when.scope wants this VM, web-2, in Resources by default; Resources: web-1"
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "yes  bus",
        "no   siem",
        "       when.transitions wants started; this is scheduled",
        "       when.event_types wants Reboot; EventType is Freeze",
        f"       {scope}",
        "no   own",
        f"       {scope}",
    ]
    assert result.stderr.startswith("note: a sink that got one event of an EventId")


def test_route_prints_json(tmp_path: Path) -> None:
    config = written(
        tmp_path, servicebus(BUS), webhook(NOWHERE, when={"event_types": ["Reboot"]})
    )
    was = imds_event(EventType="Redeploy")
    event = cloud_event("scheduledevent.updated", event=imds_event(), previous=was)
    arguments = ("route", "-c", config, "--event", "-", "--json")

    result = sebridge(*arguments, stdin=event.to_json())

    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert found["eventId"] == event.subject
    assert found["type"] == "sebridge.scheduledevent.updated.v1"
    assert found["vm"] == "web-0"  # the reporter of the event
    bus, siem = found["sinks"]
    assert bus == {"name": "bus", "told": True, "reasons": []}
    assert siem["told"] is False
    assert siem["reasons"][0] == {
        "key": "when.event_types",
        "wants": "Reboot",
        "has": "EventType is Freeze",
        "previous": False,
    }
    assert siem["reasons"][-1]["previous"] is True
    assert len(found["notes"]) == 1


def test_unknown_vm_passes_every_scope_with_a_note(tmp_path: Path) -> None:
    config = written(tmp_path, webhook(NOWHERE))
    event = json.dumps(imds_event(Resources=["web-1"])).encode()

    result = sebridge("route", "-c", config, "--event", "-", stdin=event)

    assert result.stdout == "yes  siem\n"
    assert result.stderr.startswith("note: the name of this VM is not known here")
    assert len(result.stderr.splitlines()) == 1


async def test_vm_comes_from_the_local_state_file(tmp_path: Path) -> None:
    config = written(tmp_path, webhook(NOWHERE))
    event = json.dumps(imds_event(Resources=["web-1"])).encode()
    async with Database.open(File(tmp_path / "state.db")) as database:
        await settle(database, Identity(vm_name="WEB-1", vm_id="1"), "/s")

    result = await aside("route", "-c", config, "--event", "-", "--json", stdin=event)

    assert json.loads(result.stdout)["vm"] == "WEB-1"


def test_file_that_is_no_state_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("no database, but long enough " * 10)
    config = written(tmp_path, webhook(NOWHERE))
    event = json.dumps(imds_event()).encode()

    result = sebridge("route", "-c", config, "--event", "-", stdin=event)

    assert result.stdout == "yes  siem\n"


@pytest.mark.parametrize(
    ("step", "now", "was", "reason"),
    [
        ("scheduled", {}, None, None),
        ("scheduled", {"EventType": "Freeze"}, None, "when.event_types"),
        ("scheduled", {"Resources": ["other"]}, None, "when.scope"),
        ("started", {}, {}, "when.transitions"),
        ("started", {"Resources": ["other"]}, {}, None),
        ("completed", {}, {}, None),
    ],
)
def test_route_shows_which_steps_run_a_command(
    tmp_path: Path,
    step: str,
    now: dict[str, object],
    was: dict[str, object] | None,
    reason: str | None,
) -> None:
    hook = command(tmp_path, "exit 0") | {"when": {"event_types": ["Reboot"]}}
    reboot = imds_event(EventType="Reboot")
    config = written(tmp_path, hook, identity={"vm_name": "WestNO_0"})
    event = cloud_event(
        f"scheduledevent.{step}",
        event=reboot | now,
        previous=None if was is None else reboot | was,
    )
    arguments = ("route", "-c", config, "--event", "-", "--json")

    result = sebridge(*arguments, stdin=event.to_json())

    (found,) = json.loads(result.stdout)["sinks"]
    assert (found["name"], found["told"]) == ("drain", reason is None)
    keys = [one["key"] for one in found["reasons"]]
    assert keys[:1] == ([] if reason is None else [reason])


@pytest.mark.parametrize("step", ["bridge.started", "command.succeeded"])
def test_only_steps_run_a_command(tmp_path: Path, step: str) -> None:
    config = written(tmp_path, command(tmp_path, "exit 0"))
    event = cloud_event(step, event=imds_event())

    result = sebridge("route", "-c", config, "--event", "-", stdin=event.to_json())

    assert result.stdout.startswith("no   drain\n")
    assert "type wants transitions of scheduled events only" in result.stdout


def test_route_needs_no_secret(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        webhook("env:NOT_SET_HERE"),
        http={"token": "env:NOT_SET_HERE"},
        approvals={"connection_string": "env:NOT_SET_HERE", "queue": "q"},
    )
    event = json.dumps(imds_event()).encode()

    result = sebridge("route", "-c", config, "--event", "-", stdin=event)

    assert result.stdout == "yes  siem\n"


def test_faults_of_routes_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(
        '[events]\nscop = "own"\n[[sinks]]\nname = "a"\ntype = "webbhook"\n'
        '[[sinks]]\nname = "b"\ntype = "webhook"\nwhen = {scope = "mine"}\n'
        '[[sinks]]\ntype = "slack"\n'
    )

    result = sebridge("route", "-c", path, "--event", "-", stdin=b"{}")

    assert result.exit_code == 2
    assert [line.split(": ")[2] for line in result.stderr.splitlines()] == [
        "events.scop",
        "sinks.a.type",
        "sinks.b.when.scope",
        "sinks[2]",
    ]
    path.write_text("sinks = 5")
    result = sebridge("route", "-c", path, "--event", "-", stdin=b"{}")
    assert result.stderr.endswith("sinks: must be a list of tables: [[sinks]]\n")


def test_lifecycle_needs_no_notes(tmp_path: Path) -> None:
    slack = {"name": "ops", "type": "slack", "webhook_url": NOWHERE}
    config = written(tmp_path, slack)
    event = cloud_event("bridge.started", reporter={}).to_json()

    result = sebridge("route", "-c", config, "--event", "-", stdin=event)

    wants = "no bridge.* and document.* events by default"
    assert result.stdout.splitlines() == [
        "no   ops",
        f"       when.lifecycle wants {wants}; this is one",
    ]
    assert result.stderr == ""

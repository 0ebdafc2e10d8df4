"""The commands: their output on each stream, and their exit codes."""

import asyncio
import contextlib
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bridge import __version__
from bridge.cli.long_running import until_stopped
from bridge.cli.main import ELSEWHERE, main
from bridge.cli.simulate import simulator_extra
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError, ConfigError, Reason, install_command
from bridge.health import port as health
from bridge.health.config import HttpConfig
from bridge.health.port import serve_commands
from bridge.health.status import StatusSource
from bridge.outbox.questions import Selection
from bridge.outbox.records import REPLIES
from bridge.outbox.statefile import locked
from bridge.outbox.storage.lock import StateLock
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from tests.support.book import Book
from tests.support.builders import outgoing, patient_outbox, router
from tests.support.fakes import START, FakeClock
from tests.support.ports import free_port

NOW = START.timestamp()
SINK = "siem"
GOOD = """
[state]
path = "{state}"
[http]
listen = "{listen}"
[[sinks]]
name = "siem"
type = "webhook"
url = "https://siem.example/ingest"
"""
BAD = """
[imds]
poll_intervall = "1s"
[log]
level = "loud"
[[sinks]]
name = "siem"
type = "file"
path = "-"
"""
COMMANDS = [
    (),
    *((name,) for name in ("run", "check", "status", "simulate", "demo", "schema")),
    *(
        (name,)
        for name in ("init", "approve", "events", "send-test", "render", "route")
    ),
    ("outbox",),
    *(("outbox", name) for name in ("list", "show", "retry", "discard")),
]
WITH_CONFIG = ["run", "check", "status", "outbox list", "outbox retry"]


@pytest.fixture(autouse=True)
def ordinary_log() -> Iterator[None]:
    """Restore the log settings of the test process, which a command changes."""
    root, azure = logging.getLogger(), logging.getLogger("azure")
    kept = (root.handlers[:], root.level, azure.level)
    yield
    root.handlers[:], root.level, azure.level = kept


def sebridge(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env, catch_exceptions=False)


def written(folder: Path, text: str = GOOD, listen: str = "") -> Path:
    path = folder / "bridge.toml"
    state = (folder / "state.db").as_posix()
    path.write_text(text.replace("{state}", state).replace("{listen}", listen))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path)


# -- help and usage ----------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...], flag: str) -> None:
    result = sebridge(*command, flag)

    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert result.stderr == ""


def test_every_command_and_option_is_explained() -> None:
    for command in every(main):
        assert command.help, command.name
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, option.name


def test_every_help_has_an_example_that_parses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEBRIDGE_CONFIG", "bridge.toml")
    (tmp_path / "event.json").write_text("{}")

    for command in [main, *every(main)]:
        assert command.help is not None
        found = re.findall(r"Example: sebridge (.+)\Z", command.help, re.DOTALL)
        assert len(found) == 1, command.name
        named = parsed(shlex.split(found[0]))
        assert isinstance(command, click.Group) or named is command


def parsed(words: list[str]) -> click.Command:
    """Parse a command line as click does, without running the command."""
    command: click.Command = main
    context = click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context)
    # Raises a UsageError if the command line is wrong.
    with command.make_context(command.name, words, parent=context.parent):
        return command


def test_help_of_every_command_is_whole_sentences() -> None:
    for command in every(main):
        assert command.help is not None
        assert "..." not in command.get_short_help_str(60), command.name
        texts = [p.help for p in command.params if isinstance(p, click.Option)]
        for text in [command.help.split("\n\n")[0], *filter(None, texts)]:
            assert text[0].isupper(), text
            assert text.endswith("."), text


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_list_of_commands_has_the_first_sentence_of_each_help(name: str) -> None:
    """The list has its own copy of each text, so that no command must be loaded."""
    _, found = ELSEWHERE[name]
    command = main.get_command(click.Context(main), name)
    listed = " ".join(sebridge("--help").stdout.split())

    assert command is not None
    assert found == command.get_short_help_str(200)
    assert f" {name} {found} " in f"{listed} "


def every(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from every(command)


def test_version_is_that_of_the_package() -> None:
    for flag in ("--version", "-V"):
        assert sebridge(flag).stdout == f"sebridge, version {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "rum", "run", "check", "outbox", "outbox lst", "schema", "schema x"),
        *("check -c", "check -c . ", "check --conect -c x", "status -c x y"),
        *("outbox show -c x one", "outbox list -c x --state big"),
        *("simulate --speed 0", "simulate --imds-port 65536", "demo --speed 0"),
        *("simulate --speed inf", "simulate --inbox-port -1", "demo --speed inf"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: str) -> None:
    result = sebridge(*arguments.split())

    assert result.exit_code == 2
    assert "Error: " in result.stderr or "Usage: " in result.stderr
    assert result.stdout == ""


@pytest.mark.skipif(sys.platform == "win32", reason="a FIFO is POSIX's")
def test_configuration_may_come_from_a_pipe(tmp_path: Path) -> None:
    """As in ``sebridge check -c <(sops -d bridge.toml)``: it can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = GOOD.replace("{state}", f"{tmp_path}/state.db").replace("{listen}", "")
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()

    result = sebridge("check", "-c", str(pipe))

    assert (result.exit_code, result.stdout) == (0, f"{pipe}: ok\n")


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize(("to", "code"), [("> /dev/full", 1), (">&-", 0), ("2>&-", 0)])
@pytest.mark.parametrize("command", ["check -c", "events -c", "--help"])
def test_output_that_cannot_be_written_is_one_line(
    command: str, to: str, code: int, deliveries: Path
) -> None:
    words = f"{sys.executable} -m bridge {command}"
    where = str(deliveries) if command.endswith("-c") else ""
    ran = subprocess.run(  # noqa: S602 - our own words
        f"{words} {where} {to}", shell=True, capture_output=True, text=True, check=False
    )

    text = "sebridge: the output cannot be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (code, text if code else "")


# -- configuration -----------------------------------------------------------------


def test_good_configuration_is_ok(config: Path) -> None:
    result = sebridge("check", "-c", str(config))

    assert result.exit_code == 0
    assert result.stdout == f"{config}: ok\n"
    assert result.stderr == ""


@pytest.mark.parametrize("command", WITH_CONFIG)
def test_all_faults_are_printed_and_the_exit_code_is_2(
    command: str, tmp_path: Path
) -> None:
    path = written(tmp_path, BAD)

    result = sebridge(*command.split(), "-c", str(path))

    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line.split(": ")[2] for line in result.stderr.splitlines()] == [
        "imds.poll_intervall",
        "log.level",
    ]
    first = f"sebridge: {path}:3: imds.poll_intervall: unknown key; "
    assert result.stderr.startswith(first)


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (
            BAD,
            [
                {
                    "line": 3,
                    "place": "imds.poll_intervall",
                    "text": "unknown key; did you mean 'poll_interval'?",
                },
                {
                    "line": 5,
                    "place": "log.level",
                    "text": 'must be one of "debug", "info", "warning", "error"',
                },
            ],
        ),
        (
            "[imds",
            [
                {
                    "line": None,
                    "place": "",
                    "text": "{path}: no valid TOML: Expected ']' at the end of a table "
                    "declaration (at end of document)",
                }
            ],
        ),
    ],
)
def test_check_prints_faults_as_json(
    content: str, faults: list[dict[str, object]], tmp_path: Path
) -> None:
    path = written(tmp_path, content)

    result = sebridge("check", "--json", "-c", str(path))

    assert result.exit_code == 2
    assert result.stderr == ""
    report = json.loads(result.stdout.replace(str(path), "{path}"))
    assert report["faults"] == faults
    assert report["warnings"] == report["findings"] == []


@pytest.mark.parametrize("command", ["check", "run"])
def test_file_without_sinks_and_approvals_is_a_fault(
    command: str, tmp_path: Path
) -> None:
    path = written(tmp_path, UNKNOWN + '[state]\npath = "{state}"\n')

    result = sebridge(command, "-c", str(path))

    assert result.exit_code == 2
    assert result.stderr == (
        f"sebridge: {path}: has neither [[sinks]] nor [approvals] nor [traffic]: "
        "nothing would be sent, received or answered "
        "(--allow-empty accepts it)\n"
    )


def test_file_without_sinks_and_approvals_may_be_allowed(tmp_path: Path) -> None:
    path = written(tmp_path, '[state]\npath = "{state}"\n')

    result = sebridge("check", "--allow-empty", "--json", "-c", str(path))

    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["faults"] == []
    assert [one.split(":")[0] for one in report["warnings"]] == ["sinks"]
    strict = sebridge("check", "--allow-empty", "--strict", "-c", str(path))
    assert strict.exit_code == 1
    assert strict.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("rum", "No such command 'rum'. Did you mean 'run'?"),
        ("chekc -c x", "Did you mean 'check'?"),
        ("STATUS", "Did you mean 'status'?"),
        ("send_test", "Did you mean 'send-test'?"),
        ("outbox lst", "Did you mean 'list'?"),
        ("xyzzy", "No such command 'xyzzy'."),
    ],
)
def test_unknown_command_suggests_the_nearest(arguments: str, suggestion: str) -> None:
    result = sebridge(*arguments.split())

    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(suggestion)


@pytest.mark.parametrize("command", WITH_CONFIG)
def test_missing_configuration_is_one_line(command: str, tmp_path: Path) -> None:
    path = tmp_path / "no.toml"

    result = sebridge(*command.split(), "-c", str(path))

    assert result.exit_code == 2
    assert result.stderr == (
        f"sebridge: {path}: cannot be read: No such file or directory\n"
    )


def test_literal_secret_is_accepted_with_a_warning(tmp_path: Path) -> None:
    text = GOOD + '[[sinks]]\nname = "ops"\ntype = "slack"\nwebhook_url = "https://x/s"'
    result = sebridge("check", "-c", str(written(tmp_path, text)))

    assert result.exit_code == 0
    assert result.stderr.startswith("warning: sinks.ops.webhook_url: a literal secret")
    assert result.stdout.endswith(": ok\n")


def test_assumption_about_the_approval_entity_is_a_note(tmp_path: Path) -> None:
    keys = '[approvals]\nnamespace = "n.example.net"\nqueue = "q"\n'
    path = written(tmp_path, f"{GOOD}{keys}max_delivery_count = 4\n")

    result = sebridge("check", "-c", str(path))
    report = json.loads(sebridge("check", "--json", "-c", str(path)).stdout)

    note, last = result.stdout.splitlines()
    assert note.startswith(
        "note: approvals.max_delivery_count: the bridge assumes that q "
    )
    assert last == f"{path}: ok"
    assert [f"note: {text}" for text in report["notes"]] == [note]


def test_environment_overrides_the_configuration(config: Path) -> None:
    result = sebridge("check", "-c", str(config), env={"SEBRIDGE__LOG__LEVEL": "loud"})

    assert result.exit_code == 2
    assert "SEBRIDGE__LOG__LEVEL: must be one of" in result.stderr


def test_each_failed_connection_is_one_line(tmp_path: Path) -> None:
    text = KNOWN + GOOD.replace("https://siem.example", "http://127.0.0.1:1")

    result = sebridge("check", "--connect", "-c", str(written(tmp_path, text)))

    assert result.exit_code == 1
    metadata, events, sink, *_ = result.stdout.splitlines()
    assert metadata.startswith("ok   imds: instance metadata: ")  # not needed
    assert events.startswith("FAIL imds: scheduledevents: ")
    assert sink.startswith("FAIL sinks.siem: ")


# -- schemas -----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["config", "event", "approval"])
def test_schema_is_json(what: str) -> None:
    result = sebridge("schema", what)

    assert result.exit_code == 0
    assert result.stdout.isascii()  # ASCII, so that every terminal can show it
    assert json.loads(result.stdout)["$id"] == f"urn:sebridge:schema:{what}:v1"


# -- outbox ------------------------------------------------------------------------


@pytest.fixture
def deliveries(config: Path) -> Path:
    """Return a configuration whose outbox holds one delivery of each kind."""

    async def fill(outbox: Outbox) -> None:
        await outbox.commit([outgoing(n, key="K") for n in ("1", "2", "3")], now=NOW)
        await outbox.commit([outgoing("4", key="ŁÓDŹ"), outgoing("5")], now=NOW)
        for name, state in (("1", "dead"), ("2", "delivered"), ("3", "dead")):
            (one,) = await outbox.deliveries.of_cloud_event(SINK, name)
            if state == "dead":
                error = "siem answered 400"
                reason = Reason.REJECTED
                await outbox.deliveries.dead_letter(
                    one, now=NOW, error=error, reason=reason
                )
            else:
                await outbox.deliveries.delivered(one, now=NOW)

    in_outbox(config, fill)
    return config


def in_outbox(config: Path, work: Callable[[Outbox], Awaitable[object]]) -> None:
    async def working() -> None:
        path = config.with_name("state.db")
        async with patient_outbox(
            path, router({SINK: router().routes["siem"]})
        ) as outbox:
            await work(outbox)

    asyncio.run(working())


def outbox(command: str, config: Path, *arguments: str) -> Result:
    result = sebridge("outbox", command, "-c", str(config), *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def listed(config: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        outbox("list", config, "--json", *arguments).stdout
    )
    return found


def events(found: list[dict[str, Any]]) -> list[str]:
    return [one["cloudEventId"] for one in found]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["1", "2", "3", "4", "5"]),
        (("--state", "dead"), ["1", "3"]),
        (("--state", "pending"), ["4", "5"]),
        (("--state", "delivered"), ["2"]),
        (("--state", "discarded"), []),
        (("--event", "k"), ["1", "2", "3"]),
        (("--event", "łódź"), ["4"]),
        (("--event", "K", "--state", "delivered"), ["2"]),
        (("--sink", "siem", "--event", "k"), ["1", "2", "3"]),
    ],
)
def test_outbox_list_obeys_its_filters(
    arguments: tuple[str, ...], expected: list[str], deliveries: Path
) -> None:
    assert events(listed(deliveries, *arguments)) == expected


def test_outbox_list_prints_the_documented_json(deliveries: Path) -> None:
    assert listed(deliveries, "--state", "dead")[0] == {
        "id": 1,
        "sink": "siem",
        "state": "dead",
        "eventId": "K",
        "cloudEventId": "1",
        "type": "sebridge.scheduledevent.scheduled.v1",
        "attempts": 1,
        "nextAttempt": None,
        "lastError": "siem answered 400",
    }


def test_outbox_list_prints_one_line_for_each_delivery(deliveries: Path) -> None:
    heads, *lines = outbox("list", deliveries).stdout.splitlines()

    assert heads.split()[:3] == ["ID", "STATE", "SINK"]
    assert len(lines) == 5
    when = f"{START.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    assert " ".join(lines[0].split()) == (
        f"1 dead siem {when} - scheduled - K 1 siem answered 400"
    )
    assert lines[4].split()[-3:] == ["-", "-", "0"]


def test_foreign_text_does_not_control_the_terminal(config: Path) -> None:
    """An EventId is any text that IMDS sends."""
    event = outgoing("1", key="a\x1b[2J\nforged")
    in_outbox(config, lambda outbox: outbox.commit([event], now=NOW))

    text = outbox("list", config).stdout

    assert "\x1b" not in text
    assert len(text.splitlines()) == 2


def test_outbox_shows_a_delivery_with_its_event(deliveries: Path) -> None:
    shown = json.loads(outbox("show", deliveries, "4").stdout)

    assert shown["event"]["id"] == shown["cloudEventId"] == "4"
    assert shown["eventId"] == "ŁÓDŹ"
    assert shown["state"] == "pending"


@pytest.mark.parametrize("number", ["0", "6", str(2**62)])
def test_unknown_delivery_is_one_line(number: str, deliveries: Path) -> None:
    arguments = ("outbox", "show", "-c", str(deliveries), "--", number)

    result = sebridge(*arguments)

    assert result.exit_code == 1
    assert result.stderr == f"sebridge: there is no delivery {number}\n"


@pytest.mark.parametrize("number", ["-1", str(2**62 + 1), str(2**63)])
def test_number_beyond_any_delivery_is_wrong_usage(
    number: str, deliveries: Path
) -> None:
    result = sebridge("outbox", "show", "-c", str(deliveries), "--", number)

    assert result.exit_code == 2


def test_retry_sends_dead_letters_in_order_and_names_those_left_out(
    deliveries: Path,
) -> None:
    result = outbox("retry", deliveries, "--json")

    assert events(json.loads(result.stdout)) == ["3"]
    assert result.stderr.startswith(
        "delivery 1 left out: a later step was already delivered"
    )
    assert "--force" in result.stderr
    assert events(listed(deliveries, "--state", "pending")) == ["3", "4", "5"]


def test_forced_retry_also_sends_overtaken_dead_letters(deliveries: Path) -> None:
    result = outbox("retry", deliveries, "--force", "--json")

    assert events(json.loads(result.stdout)) == ["1", "3"]
    assert "left out" not in result.stderr


def test_retry_obeys_its_filters(deliveries: Path) -> None:
    outbox("retry", deliveries, "--event", "nothing", "--json")

    assert events(listed(deliveries, "--state", "dead")) == ["1", "3"]


def test_retry_makes_pending_deliveries_due_now(deliveries: Path) -> None:
    result = outbox("retry", deliveries, "--state", "pending", "--json")

    assert events(json.loads(result.stdout)) == ["4", "5"]


def test_discard_discards_only_dead_letters(deliveries: Path) -> None:
    result = outbox("discard", deliveries, "--all", "--json")

    assert events(json.loads(result.stdout)) == ["1", "3"]
    assert events(listed(deliveries, "--state", "discarded")) == ["1", "3"]
    assert events(listed(deliveries, "--state", "pending")) == ["4", "5"]


def test_discard_of_one_event(deliveries: Path) -> None:
    outbox("discard", deliveries, "--event", "łódź", "--state", "pending")

    assert events(listed(deliveries, "--state", "discarded")) == ["4"]


def test_retry_prints_how_many_will_be_sent(deliveries: Path) -> None:
    result = outbox("retry", deliveries, "--force")
    *rows, last = result.stdout.splitlines()

    assert [row.split()[:3] for row in rows] == [
        ["ID", "STATE", "SINK"],
        ["1", "dead", "siem"],
        ["3", "dead", "siem"],
    ]
    assert last == "2 deliveries (2 to siem) will be sent again"
    assert result.stderr == "not yet: no forwarder runs: it sends when it starts\n"


def test_retry_says_that_nothing_is_sent_to_a_sink_that_is_not_configured(
    deliveries: Path,
) -> None:
    text = deliveries.read_text()
    deliveries.write_text(text.replace('name = "siem"', 'name = "other"'))

    result = outbox("retry", deliveries, "--force")

    first, _ = result.stderr.splitlines()
    assert first == "not yet: 'siem' is not configured: nothing is sent to it"


def test_retry_prints_how_many_are_tried_at_once(deliveries: Path) -> None:
    async def postpone(outbox: Outbox) -> None:
        (one,) = await outbox.deliveries.of_cloud_event(SINK, "4")
        due = NOW + 10**9
        await outbox.deliveries.postpone(
            one, due=due, error="busy", reason=Reason.SERVER
        )

    in_outbox(deliveries, postpone)
    result = outbox("retry", deliveries, "--event", "łódź")

    assert result.stdout == (
        "0 deliveries will be sent again\n"
        "1 delivery that waited will be tried at once\n"
    )


def test_discard_prints_how_many_were_discarded(deliveries: Path) -> None:
    heads, row, last = outbox(
        "discard", deliveries, "--event", "łódź", "--state", "pending"
    ).stdout.splitlines()

    assert (heads.split()[0], row.split()[0]) == ("ID", "4")
    assert last == "1 delivery (1 to siem) discarded"


@pytest.mark.parametrize("json_too", [(), ("--json",)])
@pytest.mark.parametrize("command", ["retry", "discard"])
@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("--sink", REPLIES), ["'$replies' has no deliveries"]),
        (("--event", "L"), ["there is no delivery of EventId L"]),
        (
            ("--sink", REPLIES, "--event", "L"),
            ["'$replies' has no deliveries", "there is no delivery of EventId L"],
        ),
        (("--event", "łódź", "--state", "dead"), ["no selected delivery is dead"]),
    ],
)
def test_retry_and_discard_say_what_was_not_found(
    command: str,
    arguments: tuple[str, ...],
    json_too: tuple[str, ...],
    lines: list[str],
    deliveries: Path,
) -> None:
    result = outbox(command, deliveries, *arguments, *json_too)

    assert result.stderr.splitlines() == [f"not found: {line}" for line in lines]
    done = {"retry": "will be sent again", "discard": "discarded"}[command]
    assert result.stdout == ("[]\n" if json_too else f"0 deliveries {done}\n")


@pytest.mark.parametrize(
    ("sink", "hint"),
    [("sime", "did you mean 'siem'?"), ("zzz", "there are: siem")],
)
@pytest.mark.parametrize(
    "command",
    ["list", "list --json", "list --watch", "show", "retry", "retry --json", "discard"],
)
def test_sink_that_nobody_knows_is_wrong_usage(
    command: str, sink: str, hint: str, deliveries: Path
) -> None:
    name, *options = command.split()

    at = ("-c", str(deliveries), "--sink", sink)
    result = sebridge("outbox", name, *options, *at)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"sebridge: no sink is called '{sink}'; {hint}\n"


@pytest.mark.parametrize("command", ["list", "retry", "discard"])
def test_sink_that_left_the_configuration_and_has_deliveries_can_be_selected(
    command: str, deliveries: Path
) -> None:
    text = deliveries.read_text()
    deliveries.write_text(text.replace('name = "siem"', 'name = "other"'))

    result = outbox(command, deliveries, "--sink", "siem", "--json")

    assert result.exit_code == 0
    assert events(json.loads(result.stdout))


@pytest.mark.parametrize("command", ["list", "retry", "discard"])
def test_outbox_without_a_state_file_is_one_line(command: str, config: Path) -> None:
    result = sebridge("outbox", command, "-c", str(config))

    assert result.exit_code == 1
    assert result.stderr.startswith("sebridge: there is no state file ")
    assert len(result.stderr.splitlines()) == 1
    assert not config.with_name("state.db").exists()


def test_damaged_state_file_is_one_line(config: Path) -> None:
    config.with_name("state.db").write_bytes(b"no database" * 1000)

    result = sebridge("outbox", "list", "-c", str(config))

    assert result.exit_code == 1
    assert result.stderr.startswith("sebridge: the state file ")
    assert len(result.stderr.splitlines()) == 1


# -- doctor ------------------------------------------------------------------------

UNREACHABLE = """
[imds]
endpoint = "http://127.0.0.1:1"
[state]
path = "{state}"
[http]
listen = "{listen}"
"""


def test_doctor_prints_faults_with_advice(tmp_path: Path) -> None:
    config = written(tmp_path, UNREACHABLE)

    result = sebridge("check", "--connect", "--allow-empty", "-c", str(config))

    assert result.exit_code == 1
    first, *rest = result.stdout.splitlines()
    assert re.fullmatch(r"FAIL imds: instance metadata: .* -> is this an .*", first)
    assert any(line.startswith("ok   versions: bridge ") for line in rest)
    assert f"{config}: ok" not in rest
    assert not config.with_name("state.db").exists()


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("check", "--connect"), b"waiting for imds: instance metadata ("),
        (("send-test",), b"waiting for imds: instance metadata ("),
    ],
    ids=["check --connect", "send-test"],
)
def test_running_test_is_shown_on_the_terminal(
    command: tuple[str, ...], what: bytes, tmp_path: Path
) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = UNKNOWN.replace("http://127.0.0.1:1", endpoint) + GOOD
        path = written(tmp_path, text.replace("https://siem.example", endpoint))
        ours, theirs = os.openpty()
        running = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-m", "bridge", *command, "-c", str(path)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(theirs)
        seen = b""
        while what not in seen:
            seen += os.read(ours, 65536)
        running.kill()
        out, _ = running.communicate()
        os.close(ours)

    assert out == b""  # only the report goes to standard output


def test_doctor_prints_json(tmp_path: Path) -> None:
    config = written(tmp_path, UNREACHABLE)

    result = sebridge(
        "check", "--connect", "--allow-empty", "--json", "-c", str(config)
    )

    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["file"] == str(config)
    assert report["warnings"] == [
        "sinks: there are none: events are observed, but not sent"
    ]
    assert {one["result"] for one in report["findings"]} >= {"ok", "fault"}
    assert all(set(one) == {"result", "text", "advice"} for one in report["findings"])


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-8", "\x1b[31m✗\x1b[0m "), ("ascii", "\x1b[31mFAIL")]
)
def test_doctor_has_signs_for_a_terminal_that_has_them(
    encoding: str, mark: str, tmp_path: Path
) -> None:
    config = written(tmp_path, UNREACHABLE)
    env = {"PYTHONIOENCODING": encoding}

    command = ("check", "--connect", "--allow-empty", "-c", str(config))
    out = on_terminal(*command, env=env, code=1)

    assert out.splitlines()[-1].startswith(("\x1b[32m", "\x1b[33m"))
    assert mark in out


# -- status ------------------------------------------------------------------------


def test_status_of_a_forwarder_that_does_not_run(deliveries: Path) -> None:
    result = sebridge("status", "-c", str(deliveries), "--json")

    assert result.exit_code == 1
    assert result.stderr == ""
    status = json.loads(result.stdout)
    assert set(status) == {
        *("vm", "document", "imds", "sinks", "approvals", "commands", "replies"),
        "statePath",
    }
    assert set(status["imds"]) == {"lastSuccess", "state"}
    (sink,) = status["sinks"]
    assert set(sink) == {
        *("name", "state", "pending", "dead", "oldestSeconds", "lastError"),
    }
    assert (sink["name"], sink["pending"], sink["dead"]) == ("siem", 2, 2)


async def test_status_of_a_running_forwarder(
    tmp_path: Path, clock: FakeClock, metrics: Metrics
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    config = written(tmp_path, listen=listen)
    status_source = StatusSource(clock, metrics, tmp_path / "state.db")

    async with health.serve(HttpConfig(listen=listen), status_source):
        status = ("status", "-c", str(config))
        result = await asyncio.to_thread(sebridge, *status, "--json")
        shown = await asyncio.to_thread(sebridge, *status)

    assert result.exit_code == 0
    assert json.loads(result.stdout)["imds"]["state"] == "starting"
    assert "The bridge is starting" in shown.stdout


async def test_live_status_names_another_forwarder_at_the_port(
    tmp_path: Path, clock: FakeClock, metrics: Metrics
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    config = written(tmp_path, listen=listen)
    status_source = StatusSource(clock, metrics, tmp_path / "other.db")

    async with health.serve(HttpConfig(listen=listen), status_source):
        status = ("status", "--live", "-c", str(config))
        result = await asyncio.to_thread(sebridge, *status)

    assert (result.exit_code, result.stdout) == (1, "")
    assert str(tmp_path / "other.db") in result.stderr


def test_status_for_people_is_a_table(deliveries: Path) -> None:
    result = sebridge("status", "-c", str(deliveries))
    text = result.stdout

    assert result.exit_code == 1
    assert "siem: 2 dead letters (sebridge outbox list --state dead)" in text
    assert "No forwarder answers" in text
    assert re.search(r"\n  SINK +STATE +PENDING +DEAD +OLDEST", text)
    assert re.search(r"\n  siem +not known +2 +2 ", text)
    assert "\x1b" not in text


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_used_only_on_a_terminal_that_supports_them(
    environ: dict[str, str], deliveries: Path, *, is_coloured: bool
) -> None:
    out = on_terminal("status", "-c", str(deliveries), env=environ, code=1)

    assert ("\x1b[33m" in out) is is_coloured
    assert "No forwarder answers" in out


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
@pytest.mark.parametrize(
    ("command", "first"),
    [
        (("simulate",), "The simulator listens; Ctrl-C ends it.\r\n  imds url"),
        (("simulate", "--json"), '{"imds":{"url":"http://'),
        (("status", "--watch"), "\x1b[H\x1b[2J"),
    ],
)
def test_terminal_gets_lines_until_ctrl_c(
    command: tuple[str, ...], first: str, deliveries: Path
) -> None:
    where = ("-c", str(deliveries)) if command[0] == "status" else ()

    assert on_terminal(*command, *where, env={}, until=first).startswith(first)


def test_status_is_not_watched_in_a_pipe(deliveries: Path) -> None:
    result = sebridge("status", "--watch", "-c", str(deliveries))

    assert result.exit_code == 2
    assert result.stderr == "sebridge: --watch needs a terminal, or --json\n"


def on_terminal(
    *arguments: str, env: Mapping[str, str], code: int = 0, until: str = ""
) -> str:
    """Return what a command writes to a terminal; Ctrl-C follows ``until``."""
    ours, theirs = os.openpty()
    unset = {"NO_COLOR", "TERM", "COLUMNS"}
    environ = {key: value for key, value in os.environ.items() if key not in unset}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-m", "bridge", *arguments],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**environ, "TERM": "xterm", **env},
        )
        os.close(theirs)
        out = b""
        with contextlib.suppress(OSError):  # Linux: the other side has closed
            while part := terminal.read(65536):
                out += part
                if until and until.encode() in out:
                    process.send_signal(signal.SIGINT)
                    until = ""
        assert process.wait(30) == code
    return out.decode()


def test_status_without_forwarder_and_state_is_one_sentence(config: Path) -> None:
    result = sebridge("status", "-c", str(config), "--json")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("sebridge: no forwarder answers, and there is no ")
    assert len(result.stderr.splitlines()) == 1


# -- simulator -----------------------------------------------------------------------


def test_unknown_scenario_is_one_line() -> None:
    result = sebridge("simulate", "--scenario", "no-such-scenario")

    assert result.exit_code == 2
    assert result.stderr.startswith("sebridge: ")
    assert len(result.stderr.splitlines()) == 1


def test_every_fault_of_an_entity_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    queue = {"Name": "q", "Properties": {"LockDuration": "x", "MaxDeliveryCount": "y"}}
    namespace = {"Name": "sbemulatorns", "Queues": [queue]}
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))

    result = sebridge("simulate", "--servicebus-config", str(file))

    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert [line.split(": ")[2] for line in lines] == [
        "Queues[0].Properties.LockDuration",
        "Queues[0].Properties.MaxDeliveryCount",
    ]


def test_import_error_without_an_extra_is_a_traceback() -> None:
    with pytest.raises(ImportError, match="bug"), simulator_extra("the demo"):
        raise ImportError("bug", name="bridge.gone")


# -- processes -----------------------------------------------------------------------


def process(
    *arguments: str, hook: str = "", env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start the command as a process, which first runs the Python code ``hook``."""
    code = f"{textwrap.dedent(hook)}\nfrom bridge.__main__ import main\nmain()"
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
        cwd=Path(__file__).parents[2],
    )


def ended(
    *arguments: str, hook: str = "", env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    with process(*arguments, hook=hook, env=env) as running:
        out, err = running.communicate(timeout=60)
        return running.returncode, out, err


@pytest.mark.integration
@pytest.mark.parametrize(
    "text", [None, "", "x = ", '[[sinks]]\nname = "é"\ntype = "webhock"']
)
def test_run_prints_the_same_with_and_without_click(
    text: str | None, tmp_path: Path
) -> None:
    """A service calls ``run`` without click; ``sebridge`` in this test uses click."""
    path = tmp_path / "bridge.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    code, out, err = ended("run", "-c", str(path))

    assert (code, out) == (2, "")
    assert err.startswith("sebridge: ")
    other = sebridge("run", f"--config={path}")
    assert (code, out, err) == (other.exit_code, other.stdout, other.stderr)


BLOCKING = """
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "{module}":
                raise ModuleNotFoundError("No module named '{module}'", name="{module}")

    sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.integration
def test_missing_extra_is_one_sentence_with_the_command_that_installs_it() -> None:
    code, out, err = ended("demo", hook=BLOCKING.replace("{module}", "rich"))

    assert (code, out) == (1, "")
    assert err == (
        f"sebridge: the demo needs the extra [simulator]: "
        f"{install_command('simulator')}\n"
    )


@pytest.mark.integration
@pytest.mark.parametrize("is_json", [False, True])
def test_check_says_which_extra_is_missing_and_fails(
    tmp_path: Path, *, is_json: bool
) -> None:
    sink = """
        [[sinks]]
        name = "mail"
        type = "email"
        host = "smtp.example"
        sender = "vm@contoso.example"
        recipients = ["ops@contoso.example"]
    """
    path = written(tmp_path, KNOWN + sink + sink.replace('"mail"', '"more"'))
    options = ["--json"] if is_json else []

    hook = BLOCKING.replace("{module}", "aiosmtplib")
    code, out, _ = ended("check", "-c", str(path), *options, hook=hook)

    assert code == 1
    assert out.count("the email sink needs the extra [email]") == 1
    assert install_command("email") in out
    assert "ok" not in out


@pytest.mark.integration
def test_check_of_a_hub_fails_where_it_could_not_run(tmp_path: Path) -> None:
    path = written(tmp_path, HUB)

    hook = BLOCKING.replace("{module}", "sqlalchemy")
    code, out, _ = ended("check", "-c", str(path), hook=hook)

    assert code == 1
    assert "the hub needs the extra [hub]" in out
    assert install_command("hub") in out
    assert ended("check", "-c", str(path))[0] == 0


HUB = """
    [hub]
    store = "sqlite:hub.db"
    [[hub.sources]]
    name = "bridges"
    type = "bridges"
    namespace = "contoso.servicebus.windows.net"
    topic = "scheduled-events"
    subscription = "hub"
"""


@pytest.mark.integration
def test_slack_sink_without_its_extra_is_one_sentence(tmp_path: Path) -> None:
    text = GOOD.replace('"webhook"', '"slack"').replace("\nurl", "\nwebhook_url")
    path = written(tmp_path, KNOWN + text)

    code, _, err = ended(
        "run", "-c", str(path), hook=BLOCKING.replace("{module}", "slack_sdk")
    )

    assert code == 1
    assert err.splitlines()[-1] == (
        f"sebridge: the Slack sink needs the extra [slack]: {install_command('slack')}"
    )
    assert "Traceback" not in err


# A VM whose identity is configured, and one whose IMDS does not answer.
KNOWN = """
[imds]
endpoint = "http://127.0.0.1:1"
[identity]
vm_name = "vm"
vm_id = "1"
resource_id = "/subscriptions/s/resourceGroups/g/x"
"""
UNKNOWN = """
[imds]
endpoint = "http://127.0.0.1:1"
"""


@pytest.mark.integration
def test_bad_configuration_of_a_process_ends_with_2(tmp_path: Path) -> None:
    code, out, err = ended("run", "-c", str(written(tmp_path, BAD)))

    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 2


@pytest.mark.integration
def test_fault_at_run_time_is_one_line(tmp_path: Path) -> None:
    """Although the error is raised in a group of exceptions."""
    path = tmp_path / "state.db"
    lock = StateLock(path)
    lock.take()
    text = GOOD.replace("{state}", path.as_posix())

    code, out, err = ended("run", "-c", str(written(tmp_path, text)))
    lock.release()

    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("sebridge: a forwarder already runs on ")
    assert "Traceback" not in err


@pytest.mark.integration
def test_placeholder_that_is_not_known_here_ends_with_2(tmp_path: Path) -> None:
    text = KNOWN.replace('vm_name = "vm"', "") + 'location = "x"\n' + GOOD
    text = text.replace('resource_id = "/subscriptions/s/resourceGroups/g/x"', "")
    path = written(tmp_path, text + 'headers = {"x-vm" = "{vm_name}"}')

    code, _, err = ended("run", "-c", str(path), hook=IMPATIENT)

    assert code == 2
    assert err.splitlines()[-1].startswith("sebridge: sinks.siem.headers: {vm_name} ")
    assert "Traceback" not in err


# A test must not wait a minute for an IMDS that does not exist.
IMPATIENT = """
    from bridge.app import forwarder as app
    from bridge.app.composition import Timings
    app.run.__defaults__ = (*app.run.__defaults__[:-1], Timings(identity=0.1))
"""


@pytest.mark.integration
def test_stop_while_the_vm_is_unknown_ends_with_0(tmp_path: Path) -> None:
    path = written(tmp_path, UNKNOWN + GOOD)

    with process("run", "-c", str(path)) as running:
        assert running.stderr is not None
        while "asking who this VM is" not in running.stderr.readline():
            pass
        running.send_signal(signal.SIGTERM)
        code = running.wait(60)

    assert code == 0


SLOW = """
    import sys, time

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == "msgspec":
                print("loading", flush=True)
                time.sleep(30)

    sys.meta_path.insert(0, Slow())
"""


@pytest.mark.integration
def test_stop_while_the_command_is_still_loading_ends_with_0(config: Path) -> None:
    with process("run", "-c", str(config), hook=SLOW) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "loading\n"
        running.send_signal(signal.SIGTERM)
        code = running.wait(60)
        assert running.stderr is not None
        err = running.stderr.read()

    assert (code, err) == (0, "")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_of_a_running_forwarder_ends_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    path = written(tmp_path, KNOWN + GOOD)

    with process("run", "-c", str(path)) as running:
        assert running.stderr is not None
        while "forwarder started" not in running.stderr.readline():
            pass
        running.send_signal(number)
        code = running.wait(60)
        err = running.stderr.read()

    assert code == 0
    assert "forwarder stopped" in err
    assert "Traceback" not in err


SIGNALS = [
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGINT, signal.SIGTERM),
]


@pytest.mark.integration
@pytest.mark.parametrize("signals", SIGNALS)
def test_second_signal_ends_a_forwarder_without_a_traceback(
    signals: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    path = written(tmp_path, KNOWN + GOOD)

    with process("run", "-c", str(path)) as running:
        assert running.stderr is not None
        while "forwarder started" not in running.stderr.readline():
            pass
        for number in signals:
            running.send_signal(number)
        code = running.wait(60)
        err = running.stderr.read()

    assert code in {0, -signals[-1]}
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT,), *SIGNALS])
@pytest.mark.parametrize(
    "command", ["events --follow", "events --watch", "outbox list --watch"]
)
def test_long_running_commands_end_without_a_traceback(
    command: str, signals: tuple[signal.Signals, ...], deliveries: Path
) -> None:
    with process(*command.split(), "-c", str(deliveries)) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert "EVENTID" in running.stdout.readline()
        for number in signals:
            running.send_signal(number)
        code = running.wait(60)
        err = running.stderr.read()

    assert code in ({0} if len(signals) == 1 else {0, -signals[-1]})
    assert err == ""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_killed_command_does_not_exit_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Exit code 0 would mean that all is well, or that an approval was relayed."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = UNKNOWN.replace("http://127.0.0.1:1", endpoint) + GOOD
        command = ("check", "--connect", "-c", str(written(tmp_path, text)))
        with process(*command) as running:
            silent.settimeout(60)
            asked, _ = silent.accept()
            running.send_signal(number)
            running.send_signal(number)
            code = running.wait(60)
            asked.close()
            assert running.stderr is not None
            err = running.stderr.read()

    assert code != 0
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("outbox", "list"),
        ("outbox", "list", "--json"),
        ("outbox", "show", "4"),
        ("status",),
        ("status", "--json"),
        ("check",),
    ],
    ids=" ".join,
)
def test_unencodable_output_is_no_traceback(
    arguments: tuple[str, ...], deliveries: Path
) -> None:
    """For example on Windows, where a pipe uses the code page of the system."""
    code, out, err = ended(
        *arguments, "-c", str(deliveries), env={"PYTHONIOENCODING": "cp1252"}
    )

    assert (code, err) == ("status" in arguments, "")
    if "--json" in arguments or "show" in arguments:
        assert "ŁÓDŹ" in str(json.loads(out)) or "status" in arguments


def test_each_fault_is_one_line_whatever_raised_it() -> None:
    @click.command()
    def failing() -> None:
        raise ConfigError(["a", "b"])

    @click.command()
    def broken() -> None:
        raise BridgeError("c")

    main.add_command(failing)
    main.add_command(broken)
    try:
        first, second = sebridge("failing"), sebridge("broken")
    finally:
        del main.commands["failing"], main.commands["broken"]

    assert (first.exit_code, first.stderr) == (2, "sebridge: a\nsebridge: b\n")
    assert (second.exit_code, second.stderr) == (1, "sebridge: c\n")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (BridgeError("c"), 1),
        (ConfigError(["c"]), 2),
        (ExceptionGroup("", [ExceptionGroup("", [BridgeError("c")])]), 1),
        (ExceptionGroup("", [ExceptionGroup("", [ConfigError(["c"])])]), 2),
    ],
    ids=["error", "fault", "error in a group", "fault in a group"],
)
def test_fault_of_a_long_running_command_is_one_line(
    fault: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(stop: asyncio.Event) -> None:
        raise fault

    with pytest.raises(SystemExit) as ended:
        until_stopped(work)

    assert ended.value.code == code
    assert capsys.readouterr().err == "sebridge: c\n"


def test_bug_of_a_long_running_command_is_a_traceback() -> None:
    async def work(stop: asyncio.Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        until_stopped(work)


def test_running_forwarder_sees_retry_and_discard(
    deliveries: Path,
) -> None:
    """The forwarder has the lock: the command cannot open the file itself."""
    clock, path = SystemClock(), deliveries.with_name("state.db")

    async def act(outbox: Outbox) -> None:
        source = StatusSource(clock=clock, metrics=Metrics([SINK], "1"), outbox=outbox)
        with locked(path) as lock:
            async with serve_commands(lock, source):
                await asyncio.to_thread(
                    sebridge, "outbox", "retry", "-c", str(deliveries)
                )
        due, _ = await outbox.deliveries.due(SINK, now=2 * NOW, limit=9)
        assert [one.cloud_event_id for one in due] == ["4", "5", "3"]
        assert len(await Book(outbox).find(Selection())) == 5

    in_outbox(deliveries, act)

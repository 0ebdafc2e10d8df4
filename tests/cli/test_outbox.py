"""``sebridge outbox show``, ``retry`` and ``discard``, and ``sebridge events``."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import main
from bridge.foundation.errors import Reason
from bridge.outbox.questions import Selection
from bridge.outbox.records import Delivery
from tests.support.book import Book
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.configurations import NOWHERE, config_text, webhook
from tests.support.disks import hide

NOW = 1_800_000_000.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration whose outbox has two pending and one dead delivery."""
    path = tmp_path / "bridge.toml"
    path.write_text(config_text(webhook(NOWHERE), state=tmp_path / "state.db"))

    async def fill() -> None:
        async with patient_outbox(tmp_path / "state.db", router()) as outbox:
            events = [
                outgoing("1", key="K"),
                outgoing("2", key="K"),
                outgoing("3", key="L"),
            ]
            await outbox.commit(events, now=NOW)
            first, _, third = await Book(outbox).find(Selection())
            await outbox.deliveries.postpone(
                first, due=NOW * 2, error="busy", reason=Reason.SERVER
            )
            await outbox.deliveries.dead_letter(
                third, now=NOW, error="bad", reason=Reason.REJECTED
            )

    asyncio.run(fill())
    return path


def outbox(command: str, config: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(
        main, ["outbox", command, "-c", str(config), *arguments]
    )
    assert result.exit_code == 0, result.stderr
    return result


def deliveries(config: Path) -> list[Delivery]:
    async def find() -> list[Delivery]:
        async with patient_outbox(config.with_name("state.db"), router()) as opened:
            return await Book(opened).find(Selection())

    return asyncio.run(find())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["1", "2", "3"]),
        (("--event", "k"), ["1", "2"]),
        (("--state", "dead"), ["3"]),
        (("--json", "--sink", SINK, "--event", "L"), ["3"]),
    ],
)
def test_selected_deliveries_are_shown_in_full(
    arguments: tuple[str, ...], expected: list[str], config: Path
) -> None:
    shown = json.loads(outbox("show", config, *arguments).stdout)

    assert [one["event"]["id"] for one in shown] == expected


def test_retry_also_tries_pending_deliveries_at_once(config: Path) -> None:
    outbox("retry", config, "--event", "K")

    assert next(one.due for one in deliveries(config)) < NOW * 2


def test_retry_does_not_change_unselected_deliveries(config: Path) -> None:
    outbox("retry", config, "--event", "L")

    assert next(one.due for one in deliveries(config)) == NOW * 2


@pytest.mark.parametrize(
    ("command", "word"), [(("outbox", "list"), "delivery"), (("events",), "event")]
)
def test_nothing_to_list_is_said(
    command: tuple[str, ...], word: str, config: Path
) -> None:
    asked = [*command, "-c", str(config), "--event", "none"]
    result = CliRunner().invoke(main, asked)
    empty = CliRunner().invoke(main, [*asked, "--json"])

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"no {word} found\n"
    assert empty.stderr == ""


@pytest.mark.parametrize("command", ["outbox list", "events", "status"])
def test_reading_commands_need_no_secret(command: str, config: Path) -> None:
    secret = 'headers = { authorization = "env:ONLY_THE_SERVICE_HAS_IT" }'
    token = '[http]\ntoken = "file:/none/but/the/service/has/it"'
    text = config.read_text().replace("[http]", token)
    config.write_text(f"{text}{secret}\n")

    result = CliRunner().invoke(main, [*command.split(), "-c", str(config), "--json"])

    assert result.exit_code == (command == "status"), result.stderr
    assert SINK in result.stdout


# -- events ----------------------------------------------------------------------


def events(config: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["events", "-c", str(config), *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_events_show_observations_and_their_deliveries(config: Path) -> None:
    found = [json.loads(line) for line in events(config, "--json").splitlines()]

    assert [one["event"]["id"] for one in found] == ["1", "2", "3"]
    assert found[0]["deliveries"] == [
        {"sink": SINK, "state": "pending", "attempts": 1, "lastError": "busy"}
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--last", "2"), ["2", "3"]),
        (("--last", "0"), []),
        (("--event", "k"), ["1", "2"]),
        (("--event", "nobody's"), []),
        (("--since", "2027-01-15T08:00:00Z"), ["1", "2", "3"]),
        (("--since", "2999-01-01T00:00:00Z"), []),
        (("--state", "pending", "--last", "1"), ["2"]),
        (("--state", "delivered"), []),
        (("--type", "FREEZE"), []),
        (("--type", "freeze", "--type", "Scheduled"), ["1", "2", "3"]),
    ],
)
def test_events_obeys_its_filters(
    arguments: tuple[str, ...], expected: list[str], config: Path
) -> None:
    lines = events(config, "--json", *arguments).splitlines()
    found = [json.loads(line) for line in lines]

    assert [one["event"]["id"] for one in found] == expected


def test_events_table_shows_failed_deliveries_with_the_reason(config: Path) -> None:
    heads, *lines = events(config).splitlines()

    assert heads.split() == ["TIME", "EVENT", "STEP", "VM", "EVENTID", "WENT", "TO"]
    assert len(lines) == 5
    assert lines[0].endswith("siem:pending")
    assert lines[1].strip() == "siem: busy"
    assert lines[4].strip() == "siem: bad"


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="TZ is POSIX's")
def test_events_are_shown_in_local_time_and_with_utc_in_utc(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    try:
        local, utc = events(config), events(config, "--utc")
    finally:
        monkeypatch.undo()
        time.tzset()

    assert local.splitlines()[1].startswith("2026-03-02 17:30:00 IST")
    assert utc.splitlines()[1].startswith("2026-03-02 12:00:00 UTC")
    assert " IST " not in utc


def test_event_without_a_delivery_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(config_text(webhook(NOWHERE), state=tmp_path / "state.db"))

    async def fill() -> None:
        async with patient_outbox(tmp_path / "state.db", router({})) as outbox:
            await outbox.commit([outgoing("1")], now=NOW)

    asyncio.run(fill())

    assert events(path).rstrip().endswith(" no sink")


def test_state_file_that_this_user_may_not_see_is_one_clear_error(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(config.with_name("state.db"), monkeypatch)
    result = CliRunner().invoke(main, ["outbox", "list", "-c", str(config)])

    assert result.exit_code == 1
    assert result.stderr.startswith("sebridge: this user may not read the state file ")
    assert "as the user of the service" in result.stderr


# -- discard needs a filter, --all or an answer ---------------------------------------


def discarded(config: Path) -> list[str | None]:
    return [d.cloud_event_id for d in deliveries(config) if d.state == "discarded"]


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--event", "")])
def test_discard_of_everything_needs_the_option_all(
    arguments: tuple[str, ...], config: Path
) -> None:
    command = ["outbox", "discard", "-c", str(config), *arguments]

    result = CliRunner().invoke(main, command, input="y\n")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "sebridge: discard without --sink, --state or --event discards every dead "
        "letter: use one of them, or --all\n"
    )
    assert discarded(config) == []


@pytest.mark.parametrize(
    "arguments", [("--all",), ("--sink", SINK), ("--state", "dead"), ("--event", "L")]
)
def test_discard_with_a_filter_asks_nothing(
    arguments: tuple[str, ...], config: Path
) -> None:
    outbox("discard", config, *arguments)

    assert discarded(config) == ["3"]


@pytest.mark.integration
@pytest.mark.parametrize(("answer", "expected"), [("y", ["3"]), ("n", []), ("", [])])
def test_discard_asks_on_a_terminal(
    answer: str, expected: list[str], config: Path
) -> None:
    command = [sys.executable, "-m", "bridge", "outbox", "discard", "-c", str(config)]
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())

    done = subprocess.run(  # noqa: S603 - our own arguments
        command, stdin=theirs, capture_output=True, text=True, timeout=120, check=False
    )
    os.close(theirs)
    os.close(ours)

    state = config.with_name("state.db")
    question = f"Discard every dead letter in {state} for good? [y/N]: "
    assert done.stderr.startswith(question)
    assert discarded(config) == expected
    if expected:
        assert done.returncode == 0
    else:
        assert done.returncode == 1
        assert done.stderr.endswith("sebridge: nothing was discarded\n")

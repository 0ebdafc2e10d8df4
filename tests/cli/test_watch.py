"""``--watch`` and ``--follow``: the output while deliveries change."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.cli.events import display_of, following
from bridge.cli.rows import Show, deliveries, delivery_row, watching
from bridge.outbox.admin import as_json
from bridge.outbox.questions import Selection, Wanted
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from tests.support.book import Book
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.configurations import NOWHERE, config_text, webhook
from tests.support.fakes import START, FakeClock, settled

NOW = START.timestamp()


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    async with patient_outbox(tmp_path / "state.db", router()) as opened:
        await opened.commit([outgoing("1", key="K"), outgoing("2", key="L")], now=NOW)
        yield opened


async def deliver(outbox: Outbox, name: str) -> None:
    (one,) = await outbox.deliveries.of_cloud_event(SINK, name)
    await outbox.deliveries.delivered(one, now=NOW)


def show(*, json_too: bool) -> Show[Delivery]:
    return Show(
        listing=deliveries,
        rows=lambda one: [delivery_row(one)],
        record=as_json,
        state=lambda one: (one.id, (one.state, one.attempts)),
        as_json=json_too,
    )


@pytest.mark.parametrize("json_too", [False, True])
async def test_watch_shows_pending_and_then_delivered(
    outbox: Outbox,
    clock: FakeClock,
    capsys: pytest.CaptureFixture[str],
    *,
    json_too: bool,
) -> None:
    """Where lines cannot be redrawn, each change is one line, and nothing else is."""
    stop, ledger = asyncio.Event(), Book(outbox)
    look = watching(
        lambda: ledger.newest(Selection(), 9),
        show(json_too=json_too).again,
        clock=clock,
        stop=stop,
    )
    task = asyncio.create_task(look)
    for name in ("1", None, "2"):
        await settled(outbox)
        if name:
            await deliver(outbox, name)
        await clock.advance(1)
    await settled(outbox)
    stop.set()
    await task

    lines = capsys.readouterr().out.splitlines()
    rows = [_row(line, json_too=json_too) for line in lines]
    assert rows[0 if json_too else 1 :] == [
        *(("1", "pending"), ("2", "pending")),
        *(("1", "delivered"), ("2", "delivered")),
    ]


def _row(line: str, *, json_too: bool) -> tuple[str, str]:
    if json_too:
        found = json.loads(line)
        return str(found["id"]), found["state"]
    number, state, *_ = line.split()
    return number, state


async def test_shown_delivery_stays_although_it_no_longer_fits_the_filter(
    outbox: Outbox,
) -> None:
    ledger, chosen = Book(outbox), Selection(states=("pending",))

    assert [one.id for one in await ledger.newest(chosen, 1)] == [2]
    await deliver(outbox, "2")

    assert [one.id for one in await ledger.newest(chosen, 9)] == [1]
    assert [(d.id, d.state) for d in await ledger.newest(chosen, 9, also={2})] == [
        (1, "pending"),
        (2, "delivered"),
    ]


async def test_events_are_followed_until_the_stop(
    outbox: Outbox, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = asyncio.Event()
    display = display_of(as_json=True)
    ledger = Book(outbox)
    task = asyncio.create_task(
        following(ledger.at(NOW), Wanted(), 1, display, clock=clock, stop=stop)
    )
    for name in ("new-1", "new-2"):
        await settled(outbox)
        await outbox.commit([outgoing(name)], now=NOW)
        await clock.advance(1)
    await settled(outbox)
    stop.set()
    await task

    lines = capsys.readouterr().out.splitlines()
    ids = [json.loads(line)["event"]["id"] for line in lines]
    assert ids == ["2", "new-1", "new-2"]


def on_terminal(
    command: str, config: Path, environ: dict[str, str]
) -> tuple[int, "subprocess.Popen[bytes]"]:
    """Start a command on a pseudo-terminal."""
    ours, theirs = os.openpty()
    unset = {"NO_COLOR", "COLUMNS", "LINES"}
    around = {key: value for key, value in os.environ.items() if key not in unset}
    process = subprocess.Popen(  # noqa: S603 - our own arguments
        [
            *(sys.executable, "-m", "bridge", *command.split()),
            *("--watch", "-c", str(config)),
        ],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**around, "TERM": "xterm", "COLUMNS": "120", "LINES": "9", **environ},
    )
    os.close(theirs)
    return ours, process


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}])
@pytest.mark.parametrize("command", ["events", "outbox list"])
async def test_terminal_is_redrawn(
    command: str, environ: dict[str, str], outbox: Outbox, tmp_path: Path
) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text(config_text(webhook(NOWHERE), state=tmp_path / "state.db"))
    ours, process = on_terminal(command, config, environ)

    def screen(word: bytes) -> bytes:
        """Return the content of the terminal as soon as it contains ``word``."""
        seen = b""
        while word not in (last := seen.rpartition(b"\x1b[H\x1b[2J")[2]) or (
            b"Ctrl-C" not in last
        ):
            seen += os.read(ours, 65536)
        return last

    try:
        first = await asyncio.to_thread(screen, b"pending")
        await deliver(outbox, "1")
        second = await asyncio.to_thread(screen, b"delivered")
    finally:
        process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(process.wait, 30)
        os.close(ours)

    assert code == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    for shown in (first, second):
        lines = shown.decode().splitlines()
        assert "EVENTID" in lines[0]
        assert len(lines) == 4  # the heads, two rows, and the line about Ctrl-C
        assert (b"\x1b[33m" in shown) is not ("NO_COLOR" in environ)

"""``sebridge status``: print the status of a forwarder, or of a fleet from its hub."""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from bridge.cli import door
from bridge.cli.common import (
    config_option,
    echo_json,
    hub_option,
    hub_scope_option,
    painter,
)
from bridge.cli.ending import FAILED, WRONG, fail
from bridge.cli.long_running import run, until_stopped
from bridge.cli.rows import HOME_AND_CLEAR
from bridge.configuration import load as configuration
from bridge.diagnostics import status_query
from bridge.diagnostics.status_query import Status
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import BridgeError
from bridge.foundation.printable import printable
from bridge.health import status_table
from bridge.health.status_view import corrected
from bridge.telemetry.metrics import LogConfig, configure_logging

_EVERY, _EVERY_OF_HUB = 1.0, 5.0  # seconds


@click.command()
@config_option
@hub_option
@hub_scope_option
@click.option(
    "--live",
    is_flag=True,
    help="Ask the running forwarder only; do not read its state file.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh each second (a hub: each 5 s), until Ctrl-C is pressed.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON; with --watch, one line for each refresh.",
)
def status(  # noqa: PLR0913  each is an option
    path: Path,
    *,
    hub: str | None,
    hub_scope: str | None,
    live: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Show the state of the bridge: events, deliveries, sinks.

    With --hub: show the open events of a whole fleet, and which bridges are silent.

    Exit code 0: a running forwarder has answered, or the hub, and the hub is ready.
    1: not so; without an answer, and without --hub and --live, the command shows the
    content of the state file.

    Example: sebridge status --json
    """
    if watch and not (as_json or sys.stdout.isatty()):
        fail("--watch needs a terminal, or --json", code=WRONG)
    read = _of_hub(hub, hub_scope) if hub is not None else _of_bridge(path, live=live)
    if watch:
        every = _EVERY if hub is None else _EVERY_OF_HUB
        until_stopped(lambda stop: _watching(read, every, stop, as_json=as_json))
        return
    seen = run(read())
    if as_json:
        echo_json(seen.report)
    else:
        click.echo(seen.text(), color=True)
    if not seen.is_good:
        sys.exit(FAILED)


class Seen(Struct, frozen=True):
    """What was read: as JSON, and as text for people."""

    report: Mapping[str, object]
    text: Callable[[], str]
    is_good: bool = True


Read = Callable[[], Coroutine[object, object, Seen]]


async def _watching(
    read: Read, every: float, stop: asyncio.Event, *, as_json: bool
) -> None:
    """Show the status again and again; a fault is shown in its place."""
    clock = SystemClock()
    while True:
        try:
            seen = await read()
            report, text = seen.report, seen.text()
        except BridgeError as error:
            report, text = {"fault": str(error)}, printable(str(error))
        if as_json:
            echo_json(report)
        else:
            click.echo(f"{HOME_AND_CLEAR}{text}\n\n(Ctrl-C ends this)", color=True)
        if await clock.wait(stop, every):
            return


def _of_bridge(path: Path, *, live: bool) -> Read:
    settings, sinks = configuration.load_settings(path, os.environ)
    clock = SystemClock()
    if not live:
        door.enter(settings)

    async def read() -> Seen:
        if live:
            heard = await status_query.running(settings)
            if heard.report is None:
                raise BridgeError(heard.silence)
            answer = Status(heard.report, is_live=True)
        else:
            answer = await status_query.status(settings, sinks, clock)
        report = msgspec.to_builtins(answer.report)
        return Seen(report, lambda: _plain(answer, clock), answer.is_live)

    return read


def _plain(answer: Status, clock: Clock) -> str:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    paint, now = painter(sys.stdout), corrected(answer.report, clock.now())
    return status_table.plain(answer.report, now, width=width, paint=paint)


def _of_hub(hub: str, scope: str | None) -> Read:
    # Loaded only for this: most machines have no hub.
    from bridge.cli import hub_client  # noqa: PLC0415 - see above
    from bridge.cli.hub_client import url_of  # noqa: PLC0415 - see above

    try:
        url = url_of(hub, scope)
    except ValueError as error:
        fail(str(error), code=WRONG)
    configure_logging(LogConfig(level="error", format="text"))

    async def read() -> Seen:
        found = await hub_client.fetch(url, scope)
        return Seen(
            msgspec.to_builtins(found),
            lambda: "\n".join(hub_client.lines(found, painter(sys.stdout))),
            is_good=not found.missing,
        )

    return read

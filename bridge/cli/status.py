"""``sebridge status``: print the status of a forwarder, or of a fleet from its hub."""

import os
import shutil
import sys
from pathlib import Path

import click

from bridge.cli import door
from bridge.cli.common import (
    config_option,
    echo_json,
    hub_option,
    hub_scope_option,
    painter,
)
from bridge.cli.ending import FAILED, WRONG, fail
from bridge.cli.long_running import run
from bridge.configuration import load as configuration
from bridge.configuration.config import Settings
from bridge.diagnostics import status_query
from bridge.diagnostics.status_query import Status
from bridge.foundation.clock import SystemClock
from bridge.health import status_table
from bridge.health.status_view import corrected
from bridge.telemetry.metrics import LogConfig, configure_logging


@click.command()
@config_option
@hub_option
@hub_scope_option
@click.option(
    "--live",
    is_flag=True,
    help="Ask the running forwarder only; do not read its state file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(
    path: Path, *, hub: str | None, hub_scope: str | None, live: bool, as_json: bool
) -> None:
    """Show the state of the bridge: events, deliveries, sinks.

    With --hub: show the open events of a whole fleet, and which bridges are silent.

    Exit code 0: a running forwarder or the hub has answered. 1: there was no answer;
    without --hub and --live, the command then shows the content of the state file.

    Example: sebridge status --json
    """
    if hub is not None:
        _show_hub(hub, hub_scope, as_json=as_json)
        return
    settings, sinks = configuration.load_settings(path, os.environ)
    clock = SystemClock()
    if live:
        answer = run(_live(settings))
    else:
        door.enter(settings)
        answer = run(status_query.status(settings, sinks, clock))
    if as_json:
        echo_json(answer.report)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        paint, now = painter(sys.stdout), corrected(answer.report, clock.now())
        text = status_table.plain(answer.report, now, width=width, paint=paint)
        click.echo(text, color=True)
    if not answer.is_live:
        sys.exit(FAILED)


async def _live(settings: Settings) -> Status:
    report = await status_query.running(settings)
    if report is None:
        fail("no forwarder answers")
    return Status(report, is_live=True)


def _show_hub(hub: str, scope: str | None, *, as_json: bool) -> None:
    # Loaded only for this: most machines have no hub.
    from bridge.cli import hub_client  # noqa: PLC0415 - see above
    from bridge.cli.hub_client import url_of  # noqa: PLC0415 - see above

    try:
        url = url_of(hub, scope)
    except ValueError as error:
        fail(str(error), code=WRONG)
    configure_logging(LogConfig(level="error", format="text"))
    found = run(hub_client.fetch(url, scope))
    if as_json:
        echo_json(found)
    else:
        click.echo("\n".join(hub_client.lines(found, painter(sys.stdout))), color=True)

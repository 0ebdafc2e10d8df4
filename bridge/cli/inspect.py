"""The commands that change nothing: ``check``, ``status``, ``schema``."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from bridge.cli.common import (
    FAILED,
    WRONG,
    allow_empty_option,
    config_option,
    echo_json,
    fail,
    hub_option,
    hub_scope_option,
    is_unicode,
    painter,
)
from bridge.cli.progress import shown
from bridge.cli.running import run
from bridge.configuration import json_schema
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics import doctor, host_checks, status_query, traffic_check
from bridge.diagnostics.host_checks import Finding
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Fault
from bridge.health import status_table
from bridge.hub import load as hub_load
from bridge.hub.load import HubFile
from bridge.telemetry.metrics import LogConfig, configure_logging, printable


@click.command()
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also test the connections to IMDS, entities and endpoints; for a hub, to "
    "its store and its sources, and whether somebody else decides. Nothing is sent.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, including the faults."
)
@allow_empty_option
def check(path: Path, *, connect: bool, as_json: bool, allow_empty: bool) -> None:
    """Validate the configuration: report all faults.

    Example: sebridge check --connect
    """
    try:
        config = _loaded(path, allow_empty=allow_empty)
    except ConfigError as error:
        if not as_json:
            raise
        _echo_report(path, faults=error.faults)
        sys.exit(WRONG)
    warnings, notes = config.warnings(), config.notes()
    findings = run(shown(_examined(config), SystemClock())) if connect else []
    if as_json:
        _echo_report(path, warnings=warnings, notes=notes, findings=findings)
    else:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        for note in notes:
            click.echo(f"note: {note}")
        for line in _lines(findings):
            click.echo(line, color=True)
    if not all(finding.is_good for finding in findings):
        sys.exit(FAILED)
    if not as_json:
        click.echo(f"{path}: ok")


def _loaded(path: Path, *, allow_empty: bool) -> Config | HubFile:
    """Read a file of the forwarder, or one of the hub.

    Raises:
        ConfigError: with every fault there is, each with its place.
    """
    if hub_load.is_hub_file(path):
        return hub_load.load(path, os.environ)
    return configuration.load(path, os.environ, allow_empty=allow_empty)


def _echo_report(
    path: Path,
    *,
    faults: Sequence[str] = (),
    warnings: Sequence[str] = (),
    notes: Sequence[str] = (),
    findings: Sequence[Finding] = (),
) -> None:
    """Print the result of the check as JSON."""
    echo_json(
        {
            "file": str(path),
            "faults": [_fault_as_json(fault) for fault in faults],
            "warnings": list(warnings),
            "notes": list(notes),
            "findings": [_as_json(finding) for finding in findings],
        }
    )


def _fault_as_json(fault: str) -> dict[str, str | int | None]:
    if isinstance(fault, Fault):
        return {"line": fault.line, "place": fault.place, "text": fault.what}
    return {"line": None, "place": "", "text": fault}  # concerns the whole file


async def _examined(config: Config | HubFile) -> list[Finding]:
    configure_logging(LogConfig(level="error", format="text"))  # the SDK logs a lot
    if isinstance(config, HubFile):
        from bridge.cli.hub import needs_extra  # noqa: PLC0415 - of a hub alone

        with needs_extra():
            from bridge.cli import hub_check  # noqa: PLC0415 - an extra
        return await hub_check.examine(config.hub, SystemClock())
    answer = await status_query.running(config)
    found = await doctor.examine(config, SystemClock())
    found += host_checks.examine(config, os.environ, answer)
    is_running = answer is not None
    return found + await traffic_check.examine(config.traffic, is_running=is_running)


def _result(finding: Finding) -> str:
    if not finding.is_good:
        return "fault"
    return "warning" if finding.is_warning else "ok"


def _as_json(finding: Finding) -> dict[str, str]:
    return {
        "result": _result(finding),
        "text": finding.text,
        "advice": finding.advice,
    }


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line for each finding, with a sign or a word for its result."""
    paint = painter(sys.stdout)
    has_signs = sys.stdout.isatty() and is_unicode(sys.stdout)
    for finding in findings:
        word, sign, mood = _MARKS[_result(finding)]
        mark = paint(sign if has_signs else word, mood)
        advice = f" -> {finding.advice}" if finding.advice else ""
        yield f"{mark} {printable(finding.text + advice)}"


_MARKS = {
    "ok": ("ok  ", "✓", "good"),
    "warning": ("warn", "!", "warning"),
    "fault": ("FAIL", "✗", "bad"),
}


@click.command()
@config_option
@hub_option
@hub_scope_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(
    path: Path, *, hub: str | None, hub_scope: str | None, as_json: bool
) -> None:
    """Show the state of the bridge: events, deliveries, sinks.

    With --hub: what is announced for a whole fleet, and which bridges are silent.

    Exit code 0: a running forwarder, or the hub, answered. 1: none answered; without
    --hub the output is what the state file holds.

    Example: sebridge status --json
    """
    if hub is not None:
        _show_hub(hub, hub_scope, as_json=as_json)
        return
    settings, sinks = configuration.load_settings(path, os.environ)
    clock = SystemClock()
    answer = run(status_query.status(settings, sinks, clock))
    if as_json:
        echo_json(answer.report)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        paint, now = painter(sys.stdout), clock.now()
        text = status_table.plain(answer.report, now, width=width, paint=paint)
        click.echo(text, color=True)
    if not answer.is_live:
        sys.exit(FAILED)


def _show_hub(hub: str, scope: str | None, *, as_json: bool) -> None:
    # Loaded only for this: most machines have no hub.
    from bridge.cli import hub_status  # noqa: PLC0415 - see above
    from bridge.cli.hub_client import url_of  # noqa: PLC0415 - see above

    try:
        url = url_of(hub, scope)
    except ValueError as error:
        fail(str(error), code=WRONG)
    configure_logging(LogConfig(level="error", format="text"))
    found = run(hub_status.fetch(url, scope))
    if as_json:
        echo_json(found)
    else:
        click.echo("\n".join(hub_status.lines(found, painter(sys.stdout))), color=True)


@click.command()
@click.argument("what", type=click.Choice(["config", "event", "approval"]))
def schema(what: str) -> None:
    """Print the JSON Schema of one kind of document.

    Example: sebridge schema event
    """
    click.echo(json_schema.text(what), nl=False)

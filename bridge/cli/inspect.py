"""The commands that only look: ``check``, ``status``, ``schema``."""

import asyncio
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
    is_unicode,
    painter,
)
from bridge.cli.progress import shown
from bridge.configuration import json_schema
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics import doctor, host_checks, status_query, traffic_check
from bridge.diagnostics.host_checks import Finding
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Fault
from bridge.health import status_table
from bridge.telemetry.metrics import LogConfig, configure_logging, printable


@click.command()
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also reach IMDS, entities and endpoints; nothing is published.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, faults too.")
@allow_empty_option
def check(path: Path, *, connect: bool, as_json: bool, allow_empty: bool) -> None:
    """Validate the configuration: all faults at once."""
    try:
        config = configuration.load(path, os.environ, allow_empty=allow_empty)
    except ConfigError as error:
        if not as_json:
            raise
        _echo_report(path, faults=error.faults)
        sys.exit(WRONG)
    warnings, notes = config.warnings(), config.notes()
    looking = shown(_examined(config), SystemClock()) if connect else None
    findings = [] if looking is None else asyncio.run(looking)
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


def _echo_report(
    path: Path,
    *,
    faults: Sequence[str] = (),
    warnings: Sequence[str] = (),
    notes: Sequence[str] = (),
    findings: Sequence[Finding] = (),
) -> None:
    """Print what was found as JSON."""
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
    return {"line": None, "place": "", "text": fault}  # of the file as a whole


async def _examined(config: Config) -> list[Finding]:
    configure_logging(LogConfig(level="error", format="text"))  # the SDK is talkative
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
    """Yield a line for each finding: signs for a terminal that has them, else words."""
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
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(path: Path, *, as_json: bool) -> None:
    """Show what the bridge knows.

    Exit code 0: a forwarder answered. 1: none does, and what is shown is what its
    state file knows.
    """
    settings, sinks = configuration.load_settings(path, os.environ)
    clock = SystemClock()
    answer = asyncio.run(status_query.status(settings, sinks, clock))
    if as_json:
        echo_json(answer.report)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        paint, now = painter(sys.stdout), clock.now()
        text = status_table.plain(answer.report, now, width=width, paint=paint)
        click.echo(text, color=True)
    if not answer.is_live:
        sys.exit(FAILED)


@click.command()
@click.argument("what", type=click.Choice(["config", "event", "approval"]))
def schema(what: str) -> None:
    """Print a JSON Schema."""
    click.echo(json_schema.text(what), nl=False)

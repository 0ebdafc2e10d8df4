"""The commands that only look: ``check``, ``status``, ``schema``."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from bridge import config as configuration
from bridge import doctor, inspection, plain, schemas, surroundings
from bridge.cli_support import FAILED, config_option, echo_json, is_unicode, painter
from bridge.clock import SystemClock
from bridge.surroundings import Finding
from bridge.telemetry import LogConfig, configure_logging, printable


@click.command()
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also reach IMDS, entities and endpoints; nothing is published.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(path: Path, *, connect: bool, as_json: bool) -> None:
    """Validate the configuration: all faults at once."""
    config = configuration.load(path, os.environ)
    warnings = config.warnings()
    findings = asyncio.run(_examined(config)) if connect else []
    if as_json:
        found = [_as_json(finding) for finding in findings]
        echo_json({"file": str(path), "warnings": warnings, "findings": found})
    else:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        for line in _lines(findings):
            click.echo(line, color=True)
    if not all(finding.is_good for finding in findings):
        sys.exit(FAILED)
    if not as_json:
        click.echo(f"{path}: ok")


async def _examined(config: configuration.Config) -> list[Finding]:
    configure_logging(LogConfig(level="error", format="text"))  # the SDK is talkative
    answer = await inspection.running(config)
    found = await doctor.examine(config, SystemClock())
    return [*found, *surroundings.examine(config, os.environ, answer)]


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
    """Show what the bridge knows."""
    settings, sinks = configuration.load_settings(path, os.environ)
    clock = SystemClock()
    report = asyncio.run(inspection.status(settings, sinks, clock))
    if as_json:
        echo_json(report)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    text = plain.plain(report, clock.now(), width=width, paint=painter(sys.stdout))
    click.echo(text, color=True)


@click.command()
@click.argument("what", type=click.Choice(["config", "event", "approval"]))
def schema(what: str) -> None:
    """Print a JSON Schema."""
    click.echo(schemas.text(what), nl=False)

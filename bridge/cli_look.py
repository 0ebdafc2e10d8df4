"""The commands that only look: ``check``, ``status``, ``schema``."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import click

from bridge import config as configuration
from bridge import doctor, inspection, plain, schemas
from bridge.cli_support import FAILED, config_option, echo_json, painter
from bridge.clock import SystemClock
from bridge.telemetry import printable


@click.command()
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also reach IMDS, entities and endpoints; nothing is published.",
)
def check(path: Path, *, connect: bool) -> None:
    """Validate the configuration: all faults at once."""
    config = configuration.load(path, os.environ)
    for warning in config.warnings():
        click.echo(f"warning: {warning}", err=True)
    if connect:
        findings = asyncio.run(doctor.examine(config, SystemClock()))
        for finding in findings:
            mark = "ok  " if finding.is_good else "FAIL"
            click.echo(f"{mark} {printable(finding.text)}")
        if not all(finding.is_good for finding in findings):
            sys.exit(FAILED)
    click.echo(f"{path}: ok")


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

"""``sebridge check``: report the faults of a configuration, and test connections."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from bridge.cli import hub
from bridge.cli.common import (
    allow_empty_option,
    config_option,
    echo_json,
    is_unicode,
    painter,
)
from bridge.cli.ending import FAILED, WRONG
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics.finding import Finding
from bridge.foundation.errors import ConfigError, MissingExtraError
from bridge.foundation.printable import printable
from bridge.foundation.sections import Fault
from bridge.hub import load as hub_load
from bridge.hub.load import HubFile


@click.command()
@config_option
@click.option(
    "--connect",
    is_flag=True,
    help="Also test the connections to IMDS, entities and endpoints. For a hub: test "
    "its store and its sources, and report other approvers. Nothing is sent.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, including the faults."
)
@click.option(
    "--strict", is_flag=True, help="Exit with code 1 also if there is only a warning."
)
@allow_empty_option
def check(
    path: Path, *, connect: bool, as_json: bool, strict: bool, allow_empty: bool
) -> None:
    """Validate the configuration: report all faults.

    Exit code 0: no fault. 1: an optional package is missing, a connection does not
    work, or with --strict there is a warning. 2: the configuration has faults.

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
    findings = list(_missing(config))
    if connect and not findings:
        findings = _examined(config)
    if as_json:
        _echo_report(path, warnings=warnings, notes=notes, findings=findings)
    else:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        for note in notes:
            click.echo(f"note: {note}")
        for line in _lines(findings):
            click.echo(line, color=True)
    results = {finding.result for finding in findings}
    is_doubtful = bool(warnings) or "warning" in results
    if "fault" in results or (strict and is_doubtful):
        sys.exit(FAILED)
    if not as_json:
        click.echo(f"{path}: ok")


def _loaded(path: Path, *, allow_empty: bool) -> Config | HubFile:
    """Read the configuration of a forwarder or of a hub.

    Raises:
        ConfigError: holds every fault with its place.
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
            "findings": msgspec.to_builtins(findings),
        }
    )


def _fault_as_json(fault: str) -> dict[str, str | int | None]:
    if isinstance(fault, Fault):
        return {"line": fault.line, "place": fault.place, "text": fault.what}
    return {"line": None, "place": "", "text": fault}  # concerns the whole file


def _missing(config: Config | HubFile) -> Iterator[Finding]:
    """Yield each extra that the configuration needs and that is not installed."""
    loads: list[Callable[[], None]] = [sink.load for sink in config.sinks]
    if isinstance(config, HubFile):
        loads.append(hub.load_extra)
    found = set[str]()
    for load in loads:
        try:
            load()
        except MissingExtraError as error:
            if error.need not in found:
                found.add(error.need)
                yield Finding("fault", error.need, error.advice)


def _examined(config: Config | HubFile) -> list[Finding]:
    from bridge.cli import check_connect  # noqa: PLC0415 - most of the forwarder

    return check_connect.examined(config)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line for each finding, with a sign or a word for its result."""
    paint = painter(sys.stdout)
    has_signs = sys.stdout.isatty() and is_unicode(sys.stdout)
    for finding in findings:
        word, sign, mood = _MARKS[finding.result]
        mark = paint(sign if has_signs else word, mood)
        advice = f" -> {finding.advice}" if finding.advice else ""
        yield f"{mark} {printable(finding.text + advice)}"


_MARKS = {
    "ok": ("ok  ", "✓", "good"),
    "warning": ("warn", "!", "warning"),
    "fault": ("FAIL", "✗", "bad"),
}

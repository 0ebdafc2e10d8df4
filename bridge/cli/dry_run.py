"""Commands to try a configuration out: ``send-test``, ``render``, ``route``."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import click
from msgspec.structs import replace as with_fields

from bridge.cli import completion
from bridge.cli.common import FAILED, WRONG, config_option, echo_json, fail
from bridge.cli.progress import shown
from bridge.configuration import load as configuration
from bridge.configuration.config import Config, Settings
from bridge.diagnostics import dry_run
from bridge.diagnostics.dry_run import Guise, Report, Routing
from bridge.events import samples
from bridge.events.document import EVENT_TYPES, misspelt
from bridge.events.identity import Identity
from bridge.events.routing import Router
from bridge.events.samples import Sample
from bridge.foundation.clock import SystemClock
from bridge.telemetry.metrics import LogConfig, configure_logging, printable

_FILE = (
    "A file, or -: a CloudEvent as it was received, or an event of IMDS, alone or as a "
    "document of one."
)


@click.command("send-test")
@config_option
@click.option(
    "--sink",
    "names",
    metavar="NAME",
    multiple=True,
    help="Only to this one; may be given again.",
    shell_complete=completion.sinks,
)
@click.option(
    "--event-type",
    metavar="TYPE",
    default="Reboot",
    show_default=True,
    help="EventType of the event.",
)
@click.option(
    "--run", "runs", is_flag=True, help="Run commands too, with SEBRIDGE_TEST=1."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def send_test(
    path: Path, names: tuple[str, ...], *, event_type: str, runs: bool, as_json: bool
) -> None:
    """Send a marked test event to the sinks, and say what each answered.

    It looks like a real one, but is marked as a test, concerns no machine that exists,
    and cannot be approved. Every sink gets it, whatever its [sinks.when] says, in one
    attempt and not through the outbox: a forwarder that runs knows nothing of it.
    Where a sink writes to standard output, the report goes to standard error.

    Exit code 0: all sinks took it. 1: one did not.
    """
    configure_logging(LogConfig(level="error", format="text"))
    config = _chosen(configuration.load(path, os.environ), names)
    if not runs:
        config = _without_commands(config)
    if hint := misspelt(event_type, EVENT_TYPES):
        _warn(f"--event-type: {hint}")
    clock = SystemClock()
    report = asyncio.run(shown(dry_run.send_test(config, event_type, clock), clock))
    if report.warning:
        _warn(report.warning)
    with _reporting_beside(config):
        if as_json:
            echo_json(_report(report))
        else:
            _tell(report, event_type)
    if not report.is_good:
        raise SystemExit(FAILED)


def _without_commands(config: Config) -> Config:
    """Return the configuration without the sinks that act on this machine."""
    sent = tuple(sink for sink in config.sinks if not sink.is_for_steps)
    for sink in config.sinks:
        if sink.is_for_steps:
            _warn(f"sinks.{sink.name}: its command is not run; --run would run it")
    if not sent:
        fail("there is no other sink", code=WRONG)
    return with_fields(config, sinks=sent)


def _reporting_beside(config: Config) -> contextlib.AbstractContextManager[object]:
    """Leave standard output to the sink that writes events to it, if there is one."""
    if any(sink.file == "-" for sink in config.sinks):
        return contextlib.redirect_stdout(sys.stderr)
    return contextlib.nullcontext()


def _tell(report: Report, event_type: str) -> None:
    click.echo(printable(f"{report.event.subject} ({event_type}) is sent as a test"))
    for one in report.attempts:
        took = f"took it in {one.seconds:.2f} s"
        mark = "ok  " if one.error is None else "FAIL"
        click.echo(printable(f"{mark} {one.sink}: {one.error or took}"))


def _report(report: Report) -> dict[str, object]:
    return {
        "eventId": report.event.subject,
        "event": json.loads(report.event.to_json()),
        "sinks": [
            {
                "name": one.sink,
                "delivered": one.error is None,
                "seconds": round(one.seconds, 3),
                "error": one.error,
            }
            for one in report.attempts
        ],
    }


@click.command()
@config_option
@click.option(
    "--sink",
    "name",
    metavar="NAME",
    required=True,
    help="For which sink.",
    shell_complete=completion.sinks,
)
@click.option(
    "--event", "source", type=click.File("rb"), help=f"{_FILE} Else a sample."
)
@click.option("--pretty", is_flag=True, help="Indent a body that is JSON.")
def render(path: Path, name: str, *, source: IO[bytes] | None, pretty: bool) -> None:
    """Print what would be sent for an event; nothing is sent, no secret is shown.

    First where to and every header or property, then an empty line and the body, just
    as it would go out. Secrets that are not to be had here are not needed: what they
    would say is shown as <secret>.
    """
    config, missing = configuration.load_for_sink(path, os.environ, name)
    for place, why in missing:
        _note(f"{place}: {why}: <secret> stands for it")
    sample, guise = asyncio.run(_guised(config, source))
    shown = asyncio.run(dry_run.preview(config, sample, guise))
    if note := guise.note():
        _note(note)
    for line in shown.head:
        click.echo(printable(line))
    click.echo()
    if pretty:
        with contextlib.suppress(ValueError):
            echo_json(json.loads(shown.body), indent=2)
            return
    click.echo(shown.body)


@click.command()
@config_option
@click.option("--event", "source", type=click.File("rb"), required=True, help=_FILE)
@click.option(
    "--vm",
    metavar="NAME",
    help="The VM that is asked for.",
    show_default="identity.vm_name, or as the state file or the event says",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def route(path: Path, *, source: IO[bytes], vm: str | None, as_json: bool) -> None:
    """Say which sinks would get an event, and why not the others."""
    settings, told = configuration.load_routes(path, os.environ)
    sample, identity = asyncio.run(_sample(settings, source))
    if vm:
        identity = replace(identity, vm_name=vm)
    router = Router(routes=told, scope=settings.events.scope, identity=identity)
    routes = dry_run.routings(router, sample)
    notes = dry_run.notes(routes, sample, identity)
    if as_json:
        echo_json(_routes(routes, notes, sample, identity))
        return
    for one in routes:
        click.echo(f"{'yes' if one.is_told else 'no '}  {one.sink}")
        for obstacle in one.obstacles:
            click.echo(f"       {printable(str(obstacle))}")
    for note in notes:
        _note(note)


def _routes(
    routes: Sequence[Routing], notes: Sequence[str], sample: Sample, who: Identity
) -> dict[str, object]:
    return {
        "eventId": sample.event.text("correlationid"),
        "type": sample.event.type,
        "vm": who.vm_name,
        "sinks": [
            {
                "name": one.sink,
                "told": one.is_told,
                "reasons": [
                    {
                        "key": obstacle.key,
                        "wants": obstacle.wants,
                        "has": obstacle.has,
                        "previous": obstacle.is_previous,
                    }
                    for obstacle in one.obstacles
                ],
            }
            for one in routes
        ],
        "notes": list(notes),
    }


def _chosen(config: Config, names: Sequence[str]) -> Config:
    try:
        return dry_run.chosen(config, names)
    except ValueError as error:
        fail(str(error), code=WRONG)


async def _guised(config: Settings, source: IO[bytes] | None) -> tuple[Sample, Guise]:
    """Return the event that is meant, else one of a VM that is made up if need be."""
    if source is not None:
        sample, who = await _sample(config, source)
        return sample, Guise(who)
    guise = Guise(await dry_run.known_here(config))
    event_context = dry_run.event_context_of(config, guise.identity)
    return samples.sample(event_context, SystemClock().now()), guise


async def _sample(config: Settings, source: IO[bytes]) -> tuple[Sample, Identity]:
    """Return the event that is meant, and who would tell of it."""
    here = await dry_run.known_here(config)
    event_context = dry_run.event_context_of(config, here)
    try:
        found = samples.read(source.read(), event_context, SystemClock().now())
    except ValueError as error:
        fail(f"--event {error}", code=WRONG)
    if here.is_known:
        return found, here
    return found, await dry_run.known_here(config, found.reporter)


def _note(text: str) -> None:
    click.echo(f"note: {printable(text)}", err=True)


def _warn(text: str) -> None:
    click.echo(f"warning: {printable(text)}", err=True)

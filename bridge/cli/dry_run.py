"""The commands that try a configuration: ``send-test``, ``render``, ``route``."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import click
from msgspec.structs import replace

from bridge.cli import completion, door
from bridge.cli.common import config_option, echo_json
from bridge.cli.ending import FAILED, WRONG, fail
from bridge.cli.long_running import run, shown
from bridge.configuration import load as configuration
from bridge.configuration.config import Config, Settings
from bridge.diagnostics import dry_run
from bridge.diagnostics.dry_run import Report, Routing, ShownIdentity
from bridge.events import samples
from bridge.events.document import misspelt
from bridge.events.identity import Identity
from bridge.events.routing import Router
from bridge.events.samples import Sample
from bridge.events.vocabulary import EVENT_TYPES
from bridge.foundation.clock import SystemClock
from bridge.foundation.printable import printable
from bridge.telemetry.metrics import LogConfig, configure_logging

_FILE = (
    "A file, or - for standard input. It holds a CloudEvent as it was received, or an "
    "event of IMDS, alone or in a document with only this event."
)


@click.command("send-test")
@config_option
@click.option(
    "--sink",
    "names",
    metavar="NAME",
    multiple=True,
    help="Send to this sink only; may be given more than once.",
    shell_complete=completion.sinks,
)
@click.option(
    "--event-type",
    metavar="TYPE",
    default="Reboot",
    show_default=True,
    help="The EventType of the test event.",
)
@click.option(
    "--run",
    "runs",
    is_flag=True,
    help="Also run the commands of command sinks, with SEBRIDGE_TEST=1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def send_test(
    path: Path, names: tuple[str, ...], *, event_type: str, runs: bool, as_json: bool
) -> None:
    """Send a test event and print what each sink answered.

    The test event has the form of a real one, but is marked as a test, names a VM that
    does not exist, and cannot be approved. The command makes one attempt for each
    sink, whatever the sink's [sinks.when] says. The event is not stored in the outbox,
    so a running forwarder has no record of it. If a sink writes to standard output,
    the report goes to standard error.

    Exit code 0: all sinks accepted the event. 1: at least one did not.

    Example: sebridge send-test --sink slack --event-type Freeze
    """
    configure_logging(LogConfig(level="error", format="text"))
    config = _chosen(configuration.load(path, os.environ), names)
    door.enter(config)
    if not runs:
        config = _without_commands(config)
    if hint := misspelt(event_type, EVENT_TYPES):
        _warn(f"--event-type: {hint}")
    clock = SystemClock()
    report = run(
        shown(dry_run.send_test(config, event_type, clock, environ=os.environ), clock)
    )
    if report.warning:
        _warn(report.warning)
    with _reporting_beside(config):
        if as_json:
            echo_json(_report(report))
        else:
            _print_report(report, event_type)
    if not report.is_good:
        raise SystemExit(FAILED)


def _without_commands(config: Config) -> Config:
    """Return the configuration without the sinks that act on this machine."""
    sent = tuple(sink for sink in config.sinks if not sink.is_for_steps)
    for sink in config.sinks:
        if sink.is_for_steps:
            _warn(f"sinks.{sink.name}: its command is not run; use --run to run it")
    if not sent:
        fail("there is no other sink to send to", code=WRONG)
    return replace(config, sinks=sent)


def _reporting_beside(config: Config) -> contextlib.AbstractContextManager[object]:
    """Send the report to stderr if a sink writes its events to standard output."""
    if any(sink.file == "-" for sink in config.sinks):
        return contextlib.redirect_stdout(sys.stderr)
    return contextlib.nullcontext()


def _print_report(report: Report, event_type: str) -> None:
    click.echo(printable(f"test event for {report.event.subject} ({event_type})"))
    for one in report.attempts:
        took = f"accepted in {one.seconds:.2f} s"
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
    help="The sink to render the event for.",
    shell_complete=completion.sinks,
)
@click.option(
    "--event",
    "source",
    type=click.File("rb"),
    help=f"{_FILE} Without this option, a sample event is used.",
)
@click.option("--pretty", is_flag=True, help="Indent a JSON body.")
def render(path: Path, name: str, *, source: IO[bytes] | None, pretty: bool) -> None:
    """Print what a sink would send for an event.

    Nothing is sent, and no secret is shown.

    The output is the address and every header or property, then an empty line and the
    body, exactly as it would be sent. Secrets need not be readable on this machine:
    each one that is missing is shown as <secret>.

    Example: sebridge render --sink slack --pretty
    """
    config, missing = configuration.load_for_sink(path, os.environ, name)
    for place, why in missing:
        _note(f"{place}: {why}: shown as <secret>")
    door.enter(config)
    sample, shown_as = run(_with_identity(config, source))
    shown = run(dry_run.preview(config, sample, shown_as, os.environ))
    if note := shown_as.note():
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
    help="The VM whose bridge would publish the event.",
    show_default="identity.vm_name, or the VM in the state file or in the event",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def route(path: Path, *, source: IO[bytes], vm: str | None, as_json: bool) -> None:
    """Print which sinks would get an event, and why.

    Example: sebridge route --event event.json --vm web-1
    """
    settings, found = configuration.load_routes(path, os.environ)
    door.enter(settings)
    sample, identity = run(_sample(settings, source))
    if vm:
        identity = replace(identity, vm_name=vm)
    router = Router(routes=found, scope=settings.events.scope, identity=identity)
    routes = dry_run.routings(router, sample)
    notes = dry_run.notes(routes, sample, identity)
    if as_json:
        echo_json(_routes(routes, notes, sample, identity))
        return
    for one in routes:
        click.echo(f"{'yes' if one.gets_it else 'no '}  {one.sink}")
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
                "told": one.gets_it,
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


async def _with_identity(
    config: Settings, source: IO[bytes] | None
) -> tuple[Sample, ShownIdentity]:
    """Return the given event, or a sample of a VM, and the VM that publishes it."""
    if source is not None:
        sample, who = await _sample(config, source)
        return sample, ShownIdentity(who)
    shown_as = ShownIdentity(await dry_run.known_here(config, SystemClock()))
    event_context = dry_run.event_context_of(config, shown_as.identity)
    return samples.sample(event_context, SystemClock().now()), shown_as


async def _sample(config: Settings, source: IO[bytes]) -> tuple[Sample, Identity]:
    """Return the given event, and the VM that would publish it."""
    here = await dry_run.known_here(config, SystemClock())
    event_context = dry_run.event_context_of(config, here)
    try:
        found = samples.read(source.read(), event_context, SystemClock().now())
    except ValueError as error:
        fail(f"--event {error}", code=WRONG)
    if here.is_known:
        return found, here
    return found, await dry_run.known_here(config, SystemClock(), found.reporter)


def _note(text: str) -> None:
    click.echo(f"note: {printable(text)}", err=True)


def _warn(text: str) -> None:
    click.echo(f"warning: {printable(text)}", err=True)

"""The commands of ``sebridge``: arguments in, text and exit codes out.

Exit codes: 0 done or stopped as asked; 1 failed at run time; 2 wrong usage or
configuration. The only room that prints, reads argv and touches signals.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from bridge import __version__
from bridge import config as configuration
from bridge.clock import SystemClock
from bridge.errors import BridgeError, ConfigError, MissingExtraError
from bridge.telemetry import LogConfig, configure_logging

log = logging.getLogger(__name__)

_FAILED = 1
_WRONG = 2


class Commands(click.Group):
    """Turns the bridge's own errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            fail(*error.faults, code=_WRONG)
        except BridgeError as error:
            fail(str(error))


def fail(*lines: str, code: int = _FAILED) -> NoReturn:
    """End the process with lines on standard error."""
    for line in lines:
        click.echo(f"sebridge: {line}", err=True)
    sys.exit(code)


config_option = click.option(
    "-c",
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file (TOML).",
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sebridge")
def main() -> None:
    """Azure Scheduled Events to Service Bus, Slack and webhooks, and approvals back."""


@main.command()
@config_option
def run(path: Path) -> None:
    """Run the forwarder until it is asked to stop."""
    from bridge import app  # noqa: PLC0415 - `--help` needs none of it

    config = configuration.load(path, os.environ)
    configure_logging(config.log)
    for warning in config.warnings():
        log.warning("configuration", extra={"warning": warning})
    until_stopped(lambda stop: app.run(config, stop, SystemClock()))


@main.command()
@config_option
@click.option("--connect", is_flag=True, help="Also reach IMDS and every sink.")
def check(path: Path, *, connect: bool) -> None:
    """Validate the configuration: all faults at once."""
    config = configuration.load(path, os.environ)
    for warning in config.warnings():
        click.echo(f"warning: {warning}", err=True)
    if connect:
        from bridge import doctor  # noqa: PLC0415 - it loads the SDKs

        findings = asyncio.run(doctor.examine(config, SystemClock()))
        for finding in findings:
            click.echo(f"{'ok  ' if finding.is_good else 'FAIL'} {finding.text}")
        if not all(finding.is_good for finding in findings):
            sys.exit(_FAILED)
    click.echo(f"{path}: ok")


@main.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(path: Path, *, as_json: bool) -> None:
    """Show what the bridge knows."""
    from bridge import inspection  # noqa: PLC0415 - only these commands need it

    config = configuration.load(path, os.environ)
    report = asyncio.run(inspection.status(config, SystemClock()))
    click.echo(report.as_json() if as_json else report.as_text())


@main.command()
@click.option("--imds-port", default=0, show_default="any")
@click.option("--servicebus-port", default=0, show_default="any")
@click.option(
    "--servicebus-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Entities, in the official emulator's Config.json format.",
)
@click.option("--inbox-port", default=0, show_default="any")
@click.option("--scenario", metavar="NAME|FILE", help="A life of events to play.")
@click.option("--speed", default=1.0, show_default=True, help="How many times faster.")
def simulate(**options: object) -> None:
    """Run a local IMDS, Service Bus and inbox to develop consumers against."""
    with simulator_extra("the simulator"):
        from bridge.simulator import serve  # noqa: PLC0415 - an extra
    configure_logging(LogConfig(level="warning", format="text"))
    chosen = serve.SimulatorOptions(**options)  # type: ignore[arg-type]  # click has checked them
    try:
        until_stopped(lambda stop: serve.serve(chosen, stop, sys.stdout))
    except serve.SimulatorError as error:
        fail(str(error))


@main.command()
@click.option("--scenario", default="live-migration", show_default=True)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="How many times faster than in reality.",
)
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save what was shown as a picture.",
)
def demo(scenario: str, speed: float | None, svg: Path | None) -> None:
    """Watch a real event travel the whole way on this machine, without Azure."""
    with simulator_extra("the demo"):
        from bridge.demo import stage  # noqa: PLC0415 - an extra
    sys.exit(stage.play(scenario, speed, svg))


@main.command()
@click.argument("what", type=click.Choice(["config", "event", "approval"]))
def schema(what: str) -> None:
    """Print a JSON Schema."""
    from bridge import schemas  # noqa: PLC0415 - only this command needs it

    click.echo(schemas.text(what), nl=False)


@contextmanager
def simulator_extra(what: str) -> Iterator[None]:
    """Say how to install what is missing, rather than that a module is."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in {"proton", "cproton", "rich"}:
            raise
        raise MissingExtraError(what, "simulator") from error


def until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run ``work`` until it ends or a signal asks it to stop."""
    try:
        asyncio.run(_until_signal(work))
    except* BridgeError as errors:
        first = _first(errors)
        if isinstance(first, ConfigError):
            fail(*first.faults, code=_WRONG)
        fail(str(first))


def _first(errors: BaseExceptionGroup[BridgeError]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]

    def ask() -> None:
        for number in signals:  # so that a second signal kills
            if sys.platform == "win32":
                signal.signal(number, signal.SIG_DFL)
            else:
                loop.remove_signal_handler(number)
        stop.set()

    for number in signals:
        if sys.platform == "win32":
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ask))
        else:
            loop.add_signal_handler(number, ask)
    await work(stop)

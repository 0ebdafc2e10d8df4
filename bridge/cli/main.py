"""The commands of ``sebridge``: arguments in, text and exit codes out.

Exit codes: 0 done or stopped as asked; 1 failed at run time; 2 wrong usage or
configuration. The only room that prints, reads argv and touches signals.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bridge import __version__
from bridge.cli.common import Suggesting, allow_empty_option, config_option
from bridge.cli.process import (
    errors_told,
    fail,
    forward,
    spell_everything,
    until_stopped,
)
from bridge.foundation.errors import MissingExtraError
from bridge.telemetry.metrics import LogConfig, configure_logging

PORT = click.IntRange(0, 65535)
SPEED = click.FloatRange(min=0, min_open=True, max=1e6)
# Written out, as the simulator is an extra; a test holds it to the files.
SCENARIOS = (
    "live-migration, user-reboot, host-agent-maintenance, redeploy-after-host-failure, "
    "user-redeploy, cancelled-maintenance, spot-eviction, host-failure"
)


# What `run` does not need is loaded when it is called: the forwarder stays small.
ELSEWHERE = {
    "approve": "bridge.cli.approve",
    "check": "bridge.cli.inspect",
    "events": "bridge.cli.events",
    "init": "bridge.cli.init",
    "outbox": "bridge.cli.outbox",
    "render": "bridge.cli.dry_run",
    "route": "bridge.cli.dry_run",
    "schema": "bridge.cli.inspect",
    "send-test": "bridge.cli.dry_run",
    "status": "bridge.cli.inspect",
}


class Commands(Suggesting):
    """Turns the bridge's own errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loaded by now."""
        if cmd_name in ELSEWHERE:
            module = importlib.import_module(ELSEWHERE[cmd_name])
            command: click.Command = getattr(module, cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        with errors_told():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sebridge")
def main() -> None:
    """Azure Scheduled Events to where they are acted on, and approvals back."""
    spell_everything()


@main.command()
@config_option
@allow_empty_option
def run(path: Path, *, allow_empty: bool) -> None:
    """Run the forwarder until it is asked to stop."""
    forward(path, allow_empty=allow_empty)


@main.command()
@click.option(
    "--imds-port", type=PORT, default=0, show_default="any", help="Of the IMDS."
)
@click.option(
    "--servicebus-port", type=PORT, default=0, show_default="any", help="Of the broker."
)
@click.option(
    "--servicebus-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Entities, in the official emulator's Config.json format.",
)
@click.option(
    "--inbox-port", type=PORT, default=0, show_default="any", help="Of the receiver."
)
@click.option(
    "--scenario",
    metavar="NAME|FILE",
    help=f"A life of events to play: a file, or one of {SCENARIOS}.",
)
@click.option(
    "--speed", type=SPEED, default=1.0, show_default=True, help="How many times faster."
)
def simulate(**options: object) -> None:
    """Run a local IMDS, Service Bus and inbox to develop consumers against."""
    with simulator_extra("the simulator"):
        from bridge.simulator import serve  # noqa: PLC0415 - an extra
    configure_logging(LogConfig(level="warning", format="text"))
    chosen = serve.SimulatorOptions(**options)  # type: ignore[arg-type]  # click has checked them
    try:
        until_stopped(lambda stop: serve.serve(chosen, stop, sys.stdout))
    except serve.EntityFileError as error:
        fail(*error.lines)
    except serve.SimulatorError as error:
        fail(str(error))


@main.command()
@click.option(
    "--scenario",
    metavar="NAME",
    default="live-migration",
    show_default=True,
    help=f"The life of an event to watch: one of {SCENARIOS}.",
)
@click.option("--speed", type=SPEED, help="How many times faster than in reality.")
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


@contextmanager
def simulator_extra(what: str) -> Iterator[None]:
    """Say how to install what is missing, rather than that a module is."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in {"proton", "cproton", "rich"}:
            raise
        raise MissingExtraError(what, "simulator") from error

"""The commands of ``sebridge``: arguments in, text and exit codes out.

Exit codes: 0 done, or stopped as requested; 1 failed at run time; 2 wrong usage or
configuration. Only this package prints, reads argv and handles signals.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from bridge import __version__
from bridge.cli.common import WRONG, Suggesting, allow_empty_option, config_option
from bridge.cli.process import (
    errors_reported,
    escape_unencodable,
    fail,
    forward,
    until_stopped,
)
from bridge.foundation.errors import MissingExtraError
from bridge.telemetry.metrics import LogConfig, configure_logging

PORT = click.IntRange(0, 65535)
SPEED = click.FloatRange(min=0, min_open=True, max=1e6)
# Written out here, because the simulator is an extra; a test compares the names.
SCENARIOS = (
    "live-migration, user-reboot, host-agent-maintenance, redeploy-after-host-failure, "
    "user-redeploy, cancelled-maintenance, spot-eviction, host-failure"
)


# Loaded only when called, so that the forwarder needs less memory.
ELSEWHERE = {
    "approve": "bridge.cli.approve",
    "check": "bridge.cli.inspect",
    "events": "bridge.cli.events",
    "hub": "bridge.cli.hub",
    "init": "bridge.cli.init",
    "outbox": "bridge.cli.outbox",
    "render": "bridge.cli.dry_run",
    "route": "bridge.cli.dry_run",
    "schema": "bridge.cli.inspect",
    "send-test": "bridge.cli.dry_run",
    "status": "bridge.cli.inspect",
}


class Commands(Suggesting):
    """The group of all commands; reports a ``BridgeError`` with an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; load its module if needed."""
        if cmd_name in ELSEWHERE:
            module = importlib.import_module(ELSEWHERE[cmd_name])
            command: click.Command = getattr(module, cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        with errors_reported():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sebridge")
def main() -> None:
    """Forward Azure Scheduled Events to Slack, webhooks, Service Bus and more.

    Approvals travel the other way: the bridge relays them to Azure.

    Example: sebridge run -c bridge.toml
    """
    escape_unencodable()


@main.command()
@config_option
@allow_empty_option
def run(path: Path, *, allow_empty: bool) -> None:
    """Run the forwarder until Ctrl-C or SIGTERM.

    Example: sebridge run -c bridge.toml
    """
    forward(path, allow_empty=allow_empty)


@main.command()
@click.option(
    "--imds-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of the simulated IMDS.",
)
@click.option(
    "--servicebus-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of the simulated Service Bus.",
)
@click.option(
    "--servicebus-tls-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of its AMQP over TLS; see --tls.",
)
@click.option(
    "--servicebus-websocket-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of its AMQP over WebSockets.",
)
@click.option(
    "--servicebus-http-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of its administration API and of /health.",
)
@click.option(
    "--servicebus-https-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of the same by HTTPS, which most clients need; see --tls.",
)
@click.option(
    "--emulator",
    is_flag=True,
    help="Stand in for Microsoft's Service Bus emulator in a container: ports 5672 and "
    "5300 on all addresses, its place of Config.json, EMULATOR_HTTP_PORT.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Serve TLS with a certificate for localhost that is made now; the output says "
    "which file a client has to trust.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Serve TLS with this certificate (PEM).",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The private key of --tls-certificate (PEM).",
)
@click.option(
    "--servicebus-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the queues and topics, in the format of Microsoft's emulator "
    "(Config.json).",
)
@click.option(
    "--inbox-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of the inbox, which receives webhooks.",
)
@click.option(
    "--arm-port",
    type=PORT,
    default=0,
    show_default="any",
    help="Port of the simulated Azure Resource Manager.",
)
@click.option(
    "--event-grid",
    type=click.Choice(["cloudevents", "eventgrid"]),
    help="Tell of the events in the queue azure-events, too, in this schema of "
    "Event Grid.",
)
@click.option(
    "--scenario",
    metavar="NAME|FILE",
    help=f"The scenario to play: a file, or one of {SCENARIOS}.",
)
@click.option(
    "--speed",
    type=SPEED,
    default=1.0,
    show_default=True,
    help="How many times faster than real time the scenario is played.",
)
def simulate(*, emulator: bool, **options: object) -> None:
    """Run a local IMDS, Service Bus and webhook inbox.

    They stand in for Azure while a consumer of the events is developed.

    Example: sebridge simulate --scenario user-reboot --speed 10
    """
    with simulator_extra("the simulator"):
        from bridge.simulator import container, serve  # noqa: PLC0415 - an extra
    configure_logging(LogConfig(level="warning", format="text"))
    chosen = serve.SimulatorOptions(**options)  # type: ignore[arg-type]  # click has checked them
    try:
        if emulator:
            chosen = container.as_emulator(chosen, os.environ)
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
    help=f"The scenario to play: one of {SCENARIOS}.",
)
@click.option(
    "--speed", type=SPEED, help="How many times faster than real time it is played."
)
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save the output as an SVG picture in this file.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the folder with the configuration, state file and log.",
)
@click.option(
    "--fleet",
    type=click.IntRange(3, 50),
    metavar="N",
    help="Play N forwarders and a hub with its page, in place of a scenario.",
)
@click.option(
    "--no-wait", is_flag=True, help="With --fleet: end when everything was seen."
)
def demo(  # noqa: PLR0913 - each is an option
    scenario: str,
    speed: float | None,
    svg: Path | None,
    *,
    keep: bool,
    fleet: int | None,
    no_wait: bool,
) -> None:
    """Show the way of one event through the bridge.

    With --fleet: many forwarders, and a hub that shows them all.

    It needs no Azure: the simulator stands in for IMDS.

    Example: sebridge demo --scenario spot-eviction
    """
    with simulator_extra("the demo"):
        import_module("rich")
        click.echo("Loading the simulator: a few seconds, more at the first time.")
        from bridge.demo import stage  # noqa: PLC0415 - an extra
    if fleet is not None:
        sys.exit(_play_fleet(fleet, is_ended=no_wait))
    if no_wait:
        fail("--no-wait is for --fleet", code=WRONG)
    sys.exit(stage.play(scenario, speed, svg, keep=keep))


def _play_fleet(count: int, *, is_ended: bool) -> int:
    from bridge.cli.hub import needs_extra  # noqa: PLC0415 - an extra
    from bridge.demo import fleet  # noqa: PLC0415 - an extra

    with needs_extra():
        for name in ("alembic", "jinja2", "sqlalchemy"):
            import_module(name)
    return fleet.play(count, is_ended=is_ended)


@contextmanager
def simulator_extra(what: str) -> Iterator[None]:
    """Turn a failed import into a message that says how to install the extra."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        raise MissingExtraError(what, "simulator") from error

"""``sebridge simulate`` and ``demo``: a local replacement for Azure."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from bridge.cli.ending import WRONG, fail
from bridge.cli.long_running import until_stopped
from bridge.foundation.errors import MissingExtraError
from bridge.telemetry.metrics import LogConfig, configure_logging

SPEED = click.FloatRange(min=0, min_open=True, max=1e6)
# Written out here, because the simulator is an extra; a test compares the names.
SCENARIOS = (
    "live-migration, user-reboot, host-agent-maintenance, redeploy-after-host-failure, "
    "user-redeploy, cancelled-maintenance, spot-eviction, host-failure"
)


_PORTS = {
    "--imds-port": "Port of the simulated IMDS.",
    "--servicebus-port": "Port of the simulated Service Bus.",
    "--servicebus-tls-port": "Port of the simulated Service Bus for AMQP over TLS; see "
    "--tls.",
    "--servicebus-websocket-port": "Port of the simulated Service Bus for AMQP over "
    "WebSockets.",
    "--servicebus-http-port": "Port of the simulated Service Bus for its "
    "administration API and /health.",
    "--servicebus-https-port": "Port of the administration API over HTTPS, which most "
    "clients need; see --tls.",
    "--inbox-port": "Port of the inbox, which receives webhooks.",
    "--arm-port": "Port of the simulated Azure Resource Manager.",
}


def _with_ports(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the ports."""
    for name, text in reversed(_PORTS.items()):
        kind = click.IntRange(0, 65535)
        option = click.option(name, type=kind, default=0, show_default="any", help=text)
        command = option(command)
    return command


@click.command()
@_with_ports
@click.option(
    "--emulator",
    is_flag=True,
    help="Replace Microsoft's Service Bus emulator in a container: listen on ports "
    "5672 and 5300 of all addresses, read Config.json from the emulator's path, and "
    "use EMULATOR_HTTP_PORT.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Serve TLS with a new certificate for localhost. The output names the file "
    "that a client must trust.",
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
    "--event-grid",
    type=click.Choice(["cloudevents", "eventgrid"]),
    help="Also send the events to the queue azure-events, in this schema of Event "
    "Grid.",
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
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the addresses as one line of JSON, also on a terminal.",
)
def simulate(*, emulator: bool, as_json: bool, **options: object) -> None:
    """Run a local IMDS, Service Bus and webhook inbox.

    They replace Azure while you develop a consumer of the events. The addresses are
    printed: a terminal gets lines, a pipe gets one line of JSON.

    Example: sebridge simulate --scenario user-reboot --speed 10
    """
    with simulator_extra("the simulator"):
        from bridge.simulator import errors, serve  # noqa: PLC0415 - an extra
    configure_logging(LogConfig(level="warning", format="text"))
    chosen = serve.SimulatorOptions(**options)  # type: ignore[arg-type]  # click has checked them
    try:
        if emulator:
            chosen = serve.as_emulator(chosen, os.environ)
        is_for_people = sys.stdout.isatty() and not as_json
        shown = serve.as_lines if is_for_people else serve.as_json
        until_stopped(lambda stop: serve.serve(chosen, stop, sys.stdout, shown=shown))
    except errors.EntityFileError as error:
        fail(*error.lines, code=WRONG)
    except errors.ScenarioError as error:
        fail(str(error), code=WRONG)
    except serve.SimulatorError as error:
        fail(str(error))


@contextmanager
def simulator_extra(what: str) -> Iterator[None]:
    """Turn a failed import into a message that says how to install the extra.

    What is installed on a VM by a package has neither simulator nor demo.
    """
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith(
            ("rich", "bridge.simulator", "bridge.demo")
        ):
            raise
        raise MissingExtraError(what, "simulator") from error


# -- ``sebridge demo``: play one event, or a whole fleet, on this machine --------------


@click.command()
@click.option(
    "--scenario",
    metavar="NAME",
    default="live-migration",
    show_default=True,
    help=f"The scenario to play: one of {SCENARIOS}.",
)
@click.option(
    "--speed",
    type=SPEED,
    help="How many times faster than real time the scenario is played.",
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
    help="Run N forwarders and a hub with its page, instead of a scenario.",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="With --fleet: end after the last step, without waiting for Ctrl-C.",
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

    With --fleet, many forwarders run, and a hub shows them all.

    The demo needs no Azure: the simulator replaces IMDS.

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
    from bridge.cli.hub import load_extra  # noqa: PLC0415 - an extra
    from bridge.demo import fleet  # noqa: PLC0415 - an extra

    load_extra()
    return fleet.play(count, is_ended=is_ended)

"""``sebridge demo``: play one event, or a whole fleet, on this machine."""

import sys
from importlib import import_module
from pathlib import Path

import click

from bridge.cli.ending import WRONG, fail
from bridge.cli.simulate import SCENARIOS, SPEED, simulator_extra


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

"""``sebridge outbox``: the commands that look at deliveries and act on them."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import click

from bridge import cli_completion
from bridge import config as configuration
from bridge.cli_support import config_option, echo_json, fail
from bridge.clock import SystemClock
from bridge.outbox.database import Database
from bridge.outbox.ledger import Ledger, Selection, State
from bridge.outbox.ledger import as_json as as_json_of
from bridge.outbox.rows import Delivery
from bridge.statefile import is_there
from bridge.telemetry import printable

_LARGEST = 2**63 - 1  # that SQLite counts to


@click.group()
def outbox() -> None:
    """Look at deliveries and act on them, also while the forwarder runs."""


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which deliveries are meant."""
    states = click.Choice(["pending", "dead", "delivered", "discarded"])
    for option in (
        click.option("--json", "as_json", is_flag=True, help="As JSON."),
        click.option(
            "--event",
            metavar="EVENTID",
            help="Only of this EventId.",
            shell_complete=cli_completion.event_ids,
        ),
        click.option("--state", type=states, help="Only in this state."),
        click.option(
            "--sink", help="Only to this sink.", shell_complete=cli_completion.sinks
        ),
        config_option,
    ):
        command = option(command)
    return command


@outbox.command("list")
@selecting
def list_(path: Path, *, as_json: bool, **meant: str | None) -> None:
    """List deliveries, oldest first."""
    found = act(path, lambda ledger, _: ledger.find(selection(None, **meant)))
    show(found, as_json=as_json)


@outbox.command("show")
@selecting
@click.argument(
    "number", type=click.IntRange(max=_LARGEST), metavar="[ID]", required=False
)
def show_(
    path: Path, *, number: int | None, as_json: bool, **meant: str | None
) -> None:
    """Show one delivery whole, or all that are meant, with the event that is sent."""
    chosen = replace(selection(None, **meant), id=number)
    found = act(path, lambda ledger, _: ledger.find(chosen))
    if number is not None and not found:
        fail(f"there is no delivery {number}")
    whole = [{**as_json_of(one), "event": json.loads(one.body)} for one in found]
    echo_json(whole if number is None else whole[0], indent=None if as_json else 2)


@outbox.command()
@selecting
@click.option("--force", is_flag=True, help="Also what a later step has overtaken.")
def retry(path: Path, *, as_json: bool, force: bool, **meant: str | None) -> None:
    """Send dead letters again, in order; what waits, also for a parked sink, too."""
    chosen = selection(("dead",), **meant)
    sent, late = act(
        path, lambda ledger, now: ledger.retry(chosen, now=now, force=force)
    )
    for delivery in late:
        text = f"delivery {delivery.id} left out: a later step has been delivered"
        click.echo(f"{text} (--force sends it all the same)", err=True)
    show(sent, as_json=as_json)


@outbox.command()
@selecting
def discard(path: Path, *, as_json: bool, **meant: str | None) -> None:
    """Give dead letters up for good."""
    chosen = selection(("dead",), **meant)
    show(
        act(path, lambda ledger, now: ledger.discard(chosen, now=now)), as_json=as_json
    )


T = TypeVar("T")


def act(path: Path, work: Callable[[Ledger, float], Awaitable[T]]) -> T:
    """Open the state file of a configuration and work on its deliveries."""
    state = stored(path)

    async def working() -> T:
        async with Database.open(state) as database:
            return await work(Ledger(database), SystemClock().now().timestamp())

    return asyncio.run(working())


def stored(path: Path) -> Path:
    """Return the state file of a configuration; ends the command if there is none."""
    settings, _ = configuration.load_settings(path, os.environ)
    state = Path(settings.state.path)
    if not is_there(state):
        fail(f"there is no state file {state}: nothing was ever to be delivered")
    return state


def selection(
    default: tuple[State, ...] | None,
    *,
    sink: str | None,
    state: str | None,
    event: str | None,
) -> Selection:
    """Return which deliveries the options mean."""
    states = default if state is None else (cast("State", state),)
    return Selection(sink=sink, states=states, event_id=event)


def show(found: Sequence[Delivery], *, as_json: bool) -> None:
    """Print deliveries: JSON, or a line each."""
    records = [as_json_of(delivery) for delivery in found]
    if as_json:
        echo_json(records)
        return
    for r in records:
        line = f"{r['id']:>7}  {r['state']:<9}  {r['sink']:<12}  {r['type']}"
        tried = f"  attempts {r['attempts']}"
        fault = f"  {r['lastError']}" if r["lastError"] else ""
        click.echo(printable(f"{line}  {r['eventId'] or '-'}{tried}{fault}"))

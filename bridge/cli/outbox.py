"""``sebridge outbox``: the commands that look at deliveries and act on them."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import click

from bridge.cli import completion
from bridge.cli.common import (
    WRONG,
    Suggesting,
    config_option,
    echo_json,
    fail,
    until_stopped,
)
from bridge.cli.rows import by_sink, counted, deliveries, delivery_row
from bridge.cli.watch import MOST, Show, watching
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock
from bridge.foundation.sections import nearest
from bridge.outbox.admin import Ledger, Selection, State
from bridge.outbox.admin import as_json as as_json_of
from bridge.outbox.delivery import Delivery
from bridge.outbox.records import value_of
from bridge.outbox.statefile import is_there
from bridge.outbox.storage.database import Database
from bridge.telemetry.metrics import printable

_LARGEST = 2**63 - 1  # that SQLite counts to


@click.group(cls=Suggesting)
def outbox() -> None:
    """Look at deliveries and act on them, also while the forwarder runs."""


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which deliveries are meant."""
    states = click.Choice(["pending", "dead", "delivered", "discarded", "skipped"])
    for option in (
        click.option("--json", "as_json", is_flag=True, help="As JSON."),
        click.option(
            "--event",
            metavar="EVENTID",
            help="Only of this EventId.",
            shell_complete=completion.event_ids,
        ),
        click.option("--state", type=states, help="Only in this state."),
        click.option(
            "--sink", help="Only to this sink.", shell_complete=completion.sinks
        ),
        config_option,
    ):
        command = option(command)
    return command


@outbox.command("list")
@selecting
@click.option(
    "--watch",
    is_flag=True,
    help=f"Look each second, at the newest {MOST}; Ctrl-C ends.",
)
def list_(path: Path, *, as_json: bool, watch: bool, **meant: str | None) -> None:
    """List deliveries, oldest first."""
    chosen = selection(None, **meant)
    if watch:
        watch_deliveries(stored(path), chosen, as_json=as_json)
        return
    found = act(path, lambda ledger, _: ledger.find(chosen))
    show(found, as_json=as_json)


def watch_deliveries(state: Path, chosen: Selection, *, as_json: bool) -> None:
    """Show deliveries until somebody has seen enough; one stays once it was shown."""
    shown = set[int]()

    async def work(stop: asyncio.Event) -> None:
        async with Database.open(state) as database:
            ledger = Ledger(database)

            async def look() -> list[Delivery]:
                found = await ledger.newest(chosen, MOST, also=shown)
                shown.update(one.id for one in found)
                return found

            await watching(look, sight.again, clock=SystemClock(), stop=stop)

    sight = Show(
        listing=deliveries,
        rows=lambda one: [delivery_row(one)],
        record=as_json_of,
        state=lambda one: (one.id, (one.state, one.attempts)),
        as_json=as_json,
    )
    until_stopped(work)


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
    whole = [{**as_json_of(one), "event": value_of(one.body)} for one in found]
    echo_json(whole if number is None else whole[0], indent=None if as_json else 2)


@outbox.command()
@selecting
@click.option("--force", is_flag=True, help="Also what a later step has overtaken.")
def retry(path: Path, *, as_json: bool, force: bool, **meant: str | None) -> None:
    """Send dead letters again, in order; what waits, also for a parked sink, too."""
    chosen = selection(("dead",), **meant)
    sent, late, hastened = act(
        path, lambda ledger, now: ledger.retry(chosen, now=now, force=force)
    )
    for delivery in late:
        text = f"delivery {delivery.id} left out: a later step has been delivered"
        click.echo(f"{text} (--force sends it all the same)", err=True)
    show(sent, as_json=as_json)
    if not as_json:
        click.echo(f"{acted(sent)} will be sent again")
        if hastened:
            click.echo(f"{counted(hastened)} that waited will be tried at once")
    if not (sent or late or hastened):
        nothing(path, chosen)


@outbox.command()
@selecting
@click.option("--all", "is_all", is_flag=True, help="All dead letters, unasked.")
def discard(path: Path, *, as_json: bool, is_all: bool, **meant: str | None) -> None:
    """Give dead letters up for good; without a filter it asks, or wants --all."""
    chosen = selection(("dead",), **meant)
    if not (is_all or any(meant.values())):
        confirm_all(stored(path))
    found = act(path, lambda ledger, now: ledger.discard(chosen, now=now))
    show(found, as_json=as_json)
    if not as_json:
        click.echo(f"{acted(found)} given up")
    if not found:
        nothing(path, chosen)


def acted(found: Sequence[Delivery]) -> str:
    """Return what will be, or was done to how many deliveries, by sink."""
    return f"{counted(len(found))}{f' ({by_sink(found)})' if found else ''}"


def nothing(path: Path, chosen: Selection) -> None:
    """Say on standard error what was not found."""
    _, sinks = configuration.load_settings(path, os.environ)
    for line in act(path, lambda ledger, _: missed(ledger, chosen, sinks)):
        click.echo(f"not found: {printable(line)}", err=True)


async def missed(
    ledger: Ledger, chosen: Selection, sinks: Sequence[str]
) -> Sequence[str]:
    """Return what there is none of: the sink, the EventId, or both in this state."""
    found = list[str]()
    sink, event_id = chosen.sink, chosen.event_id
    anything = Selection(sink=sink), Selection(event_id=event_id)
    if sink is not None and not await ledger.find(anything[0], limit=1):
        near = nearest(sink, sinks)
        hint = f"; did you mean {near!r}?" if near and near != sink else ""
        known = "has no deliveries" if sink in sinks else f"is no sink{hint}"
        found.append(f"{sink!r} {known}")
    if event_id is not None and not await ledger.find(anything[1], limit=1):
        found.append(f"there is no delivery of EventId {event_id}")
    return found or [f"no delivery that is meant is {' or '.join(chosen.states or ())}"]


def confirm_all(state: Path) -> None:
    """Ask whether every dead letter is meant; ends the command if it is not.

    Only a terminal is asked: what a script pipes in is no answer to this question.
    """
    if not sys.stdin.isatty():
        fail(
            "discard without --sink, --state or --event gives up every dead letter: "
            "name which, or say --all",
            code=WRONG,
        )
    question = f"Give up every dead letter in {printable(str(state))} for good?"
    if not click.confirm(question, err=True):
        fail("nothing was discarded")


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
    """Print deliveries: JSON, or a line each under heads."""
    if as_json:
        echo_json([as_json_of(delivery) for delivery in found])
        return
    for line in deliveries().lines([delivery_row(delivery) for delivery in found]):
        click.echo(line, color=True)

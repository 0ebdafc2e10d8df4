"""``sebridge outbox``: list deliveries, send them again, or discard them."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast, get_args

import click
from msgspec import Struct
from msgspec.structs import replace

from bridge.cli import completion, door
from bridge.cli.common import Suggesting, config_option, echo_json
from bridge.cli.ending import WRONG, fail
from bridge.cli.long_running import run, until_stopped
from bridge.cli.rows import (
    MOST,
    Show,
    by_sink,
    counted,
    deliveries,
    delivery_row,
    watching,
)
from bridge.configuration import load as configuration
from bridge.configuration.environment import no_such_sink
from bridge.diagnostics.outbox_access import AskAnew, access, demand_file, forwarder_of
from bridge.foundation.clock import SystemClock
from bridge.foundation.printable import printable
from bridge.outbox.admin import Ask, Ledger
from bridge.outbox.admin import as_json as as_json_of
from bridge.outbox.questions import MANY, Newest, Selection
from bridge.outbox.records import REPLIES, Delivery, DeliveryState, value_of


@click.group(cls=Suggesting)
def outbox() -> None:
    """List, retry or discard deliveries.

    The commands also work while the forwarder runs.

    Example: sebridge outbox list --state dead
    """


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select deliveries."""
    states = click.Choice(get_args(DeliveryState))
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--event",
            metavar="EVENTID",
            help="Select deliveries of this EventId only; it must be complete.",
            shell_complete=completion.event_ids,
        ),
        click.option(
            "--state", type=states, help="Select deliveries in this state only."
        ),
        click.option(
            "--sink",
            help="Select deliveries to this sink only.",
            shell_complete=completion.sinks,
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
    help=f"Refresh each second, with the newest {MOST}, until Ctrl-C is pressed.",
)
def list_(path: Path, *, as_json: bool, watch: bool, **meant: str | None) -> None:
    """List deliveries, oldest first.

    Example: sebridge outbox list --sink slack --state pending
    """
    chosen = selection(None, **meant)
    if watch:
        ask = AskAnew(stored(path, chosen.sink).path, SystemClock())
        watch_deliveries(ask, chosen, as_json=as_json)
        return
    found = act(stored(path, chosen.sink), lambda ledger: ledger.find(chosen))
    show(found, as_json=as_json)
    if not (found or as_json):
        click.echo("no delivery found", err=True)


def watch_deliveries(ask: Ask, chosen: Selection, *, as_json: bool) -> None:
    """Show deliveries until Ctrl-C; a delivery that was shown stays in the table."""
    shown = set[int]()

    async def work(stop: asyncio.Event) -> None:
        async def look() -> list[Delivery]:
            also = tuple(sorted(shown)[-MOST:])
            found = await ask(Newest(selection=chosen, count=MOST, also=also))
            shown.update(one.id for one in found)
            return found

        await watching(look, display.again, clock=SystemClock(), stop=stop)

    display = Show(
        listing=deliveries,
        rows=lambda one: [delivery_row(one)],
        record=as_json_of,
        state=lambda one: (one.id, (one.state, one.attempts)),
        as_json=as_json,
    )
    until_stopped(work)


@outbox.command("show")
@selecting
@click.argument("number", type=click.IntRange(0, MANY), metavar="[ID]", required=False)
def show_(
    path: Path, *, number: int | None, as_json: bool, **meant: str | None
) -> None:
    """Show deliveries in full, with their events.

    ID selects one delivery; without ID, the options select.

    Example: sebridge outbox show 42
    """
    chosen = replace(selection(None, **meant), id=number)
    found = act(stored(path, chosen.sink), lambda ledger: ledger.find(chosen))
    if number is not None and not found:
        fail(f"there is no delivery {number}")
    whole = [{**as_json_of(one), "event": value_of(one.body)} for one in found]
    echo_json(whole if number is None else whole[0], indent=None if as_json else 2)


@outbox.command()
@selecting
@click.option(
    "--force",
    is_flag=True,
    help="Also retry a dead letter if a later step of its event was delivered.",
)
def retry(path: Path, *, as_json: bool, force: bool, **meant: str | None) -> None:
    """Retry dead letters and pending deliveries now.

    Dead letters are sent again in order. Pending deliveries are tried at once, also
    those to a parked sink.

    Example: sebridge outbox retry --sink slack
    """
    chosen = selection(("dead",), **meant)
    state = stored(path, chosen.sink)
    done = act(state, lambda ledger: ledger.retry(chosen, force=force), changes=True)
    sent, late, hastened = done.sent, done.late, done.hastened
    for delivery in late:
        text = f"delivery {delivery.id} left out: a later step was already delivered"
        click.echo(f"{text} (--force sends it anyway)", err=True)
    show(sent, as_json=as_json)
    if not as_json:
        click.echo(f"{summary(sent)} will be sent again")
        if hastened:
            click.echo(f"{counted(hastened)} that waited will be tried at once")
    if sent or hastened:
        named = {one.sink for one in sent} | ({chosen.sink} if chosen.sink else set())
        for line in hindrances(state, named):
            click.echo(f"not yet: {printable(line)}", err=True)
    elif not late:
        nothing(state, chosen)


def hindrances(state: "StateFile", sinks: set[str]) -> Iterator[str]:
    """Yield why nothing is sent to these sinks now."""
    for sink in sorted(sinks - {*state.sinks, REPLIES}):
        yield f"{sink!r} is not configured: nothing is sent to it"
    if forwarder_of(state.path) is None:
        yield "no forwarder runs: it sends when it starts"


@outbox.command()
@selecting
@click.option(
    "--all", "is_all", is_flag=True, help="Discard all dead letters without asking."
)
def discard(path: Path, *, as_json: bool, is_all: bool, **meant: str | None) -> None:
    """Discard dead letters for good. They are not sent any more.

    Without a filter, the command asks first; a script must pass --all.

    Example: sebridge outbox discard --sink slack
    """
    chosen = selection(("dead",), **meant)
    state = stored(path, chosen.sink)
    if not (is_all or any(meant.values())):
        demand_file(state.path)
        confirm_all(state.path)
    found = act(state, lambda ledger: ledger.discard(chosen), changes=True)
    show(found, as_json=as_json)
    if not as_json:
        click.echo(f"{summary(found)} discarded")
    if not found:
        nothing(state, chosen)


def summary(found: Sequence[Delivery]) -> str:
    """Return how many deliveries there are, in all and by sink."""
    return f"{counted(len(found))}{f' ({by_sink(found)})' if found else ''}"


def nothing(state: "StateFile", chosen: Selection) -> None:
    """Print to standard error why no delivery was found."""
    for line in act(state, lambda ledger: missed(ledger, chosen)):
        click.echo(f"not found: {printable(line)}", err=True)


async def missed(ledger: Ledger, chosen: Selection) -> Sequence[str]:
    """Return why nothing was selected: the sink, the EventId, or the state."""
    found = list[str]()
    sink, event_id = chosen.sink, chosen.event_id
    anything = Selection(sink=sink), Selection(event_id=event_id)
    if sink is not None and not await ledger.find(anything[0], limit=1):
        found.append(f"{sink!r} has no deliveries")
    if event_id is not None and not await ledger.find(anything[1], limit=1):
        found.append(f"there is no delivery of EventId {event_id}")
    return found or [f"no selected delivery is {' or '.join(chosen.states or ())}"]


def confirm_all(state: Path) -> None:
    """Ask whether to discard every dead letter; end the command if not.

    Only a terminal is asked: piped input is not accepted as the answer.
    """
    if not sys.stdin.isatty():
        fail(
            "discard without --sink, --state or --event discards every dead letter: "
            "use one of them, or --all",
            code=WRONG,
        )
    question = f"Discard every dead letter in {printable(str(state))} for good?"
    if not click.confirm(question, err=True):
        fail("nothing was discarded")


T = TypeVar("T")


class StateFile(Struct, frozen=True):
    """A state file, and the names of the sinks of its configuration."""

    path: Path
    sinks: Sequence[str]


def act(
    state: StateFile, work: Callable[[Ledger], Awaitable[T]], *, changes: bool = False
) -> T:
    """Run ``work`` with the deliveries of a state file, which it may change."""

    async def working() -> T:
        async with access(state.path, SystemClock(), changes=changes) as ledger:
            return await work(ledger)

    return run(working())


def stored(path: Path, sink: str | None = None) -> StateFile:
    """Return the state file of a configuration.

    From now on this process has no rights of root, if the file is another account's.
    The command ends if a selected sink is neither configured nor has deliveries.
    """
    settings, sinks = configuration.load_settings(path, os.environ)
    door.enter(settings)
    state = StateFile(Path(settings.state.path), sinks)
    if sink is not None and sink not in {REPLIES, *sinks}:
        anything = Selection(sink=sink)
        if not act(state, lambda ledger: ledger.find(anything, limit=1)):
            fail(no_such_sink(sink, sinks), code=WRONG)
    return state


def selection(
    default: tuple[DeliveryState, ...] | None,
    *,
    sink: str | None,
    state: str | None,
    event: str | None,
) -> Selection:
    """Return the deliveries that the options select."""
    states = default if state is None else (cast("DeliveryState", state),)
    return Selection(sink=sink, states=states, event_id=event)


def show(found: Sequence[Delivery], *, as_json: bool) -> None:
    """Print deliveries: one JSON list, or a table."""
    if as_json:
        echo_json([as_json_of(delivery) for delivery in found])
        return
    for line in deliveries().lines([delivery_row(delivery) for delivery in found]):
        click.echo(line, color=True)

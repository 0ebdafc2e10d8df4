"""``sebridge events``: list observed events and their deliveries."""

import asyncio
from pathlib import Path

import click

from bridge.cli import completion
from bridge.cli.common import config_option, echo_json
from bridge.cli.long_running import until_stopped
from bridge.cli.outbox import act, stored
from bridge.cli.rows import Show, event_rows, watching
from bridge.cli.rows import events as rows_of_events
from bridge.foundation.clock import Clock, SystemClock
from bridge.outbox.admin import Ledger, Observation
from bridge.outbox.records import value_of
from bridge.outbox.storage.database import Database

_AT_ONCE = 1000


@click.command()
@config_option
@click.option(
    "--event",
    metavar="EVENTID",
    help="Show this EventId only.",
    shell_complete=completion.event_ids,
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="How many events to show, counted from the newest.",
)
@click.option(
    "--follow", is_flag=True, help="Also show each new event, until Ctrl-C is pressed."
)
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh the states of the deliveries each second, until Ctrl-C is pressed.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON; with --follow and --watch, one line for each event.",
)
def events(  # noqa: PLR0913  each is an option
    path: Path,
    *,
    event: str | None,
    last: int,
    follow: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """List events and their deliveries, oldest first.

    Example: sebridge events --last 10 --follow
    """
    display = display_of(as_json=as_json)
    if not (follow or watch):
        show(
            act(
                stored(path),
                lambda book, _: book.published(newest=last, event_id=event),
            ),
            display,
        )
        return
    state = stored(path).path

    async def work(stop: asyncio.Event) -> None:
        async with Database.open(state) as database:
            ledger = Ledger(database)
            if watch:
                await watching(
                    lambda: ledger.published(newest=last, event_id=event),
                    display.again,
                    clock=SystemClock(),
                    stop=stop,
                )
                return
            await following(
                ledger, event, last, display, clock=SystemClock(), stop=stop
            )

    until_stopped(work)


def display_of(*, as_json: bool) -> Show[Observation]:
    """Return the display of events, for one output or for repeated ones."""
    return Show(
        listing=rows_of_events,
        rows=event_rows,
        record=as_record,
        state=lambda one: (
            one.number,
            [(d.sink, d.state, d.attempts) for d in one.deliveries],
        ),
        as_json=as_json,
    )


async def following(  # noqa: PLR0913 - the options of the command, clock and stop
    ledger: Ledger,
    event: str | None,
    last: int,
    display: Show[Observation],
    *,
    clock: Clock,
    stop: asyncio.Event,
) -> None:
    """Show the last events, then each new one, until ``stop`` is set."""
    seen = await ledger.published(newest=1)
    found = await ledger.published(newest=last, event_id=event)
    after = max([0, *(one.number for one in (*seen, *found))])
    display.once(found)

    async def look() -> list[Observation]:
        nonlocal after
        found = await ledger.published(after=after, newest=_AT_ONCE, event_id=event)
        after = max([after, *(one.number for one in found)])
        return found

    await watching(look, display.once, clock=clock, stop=stop)


def show(found: list[Observation], display: Show[Observation]) -> None:
    """Print events: one JSON list, or a table."""
    if display.as_json:
        echo_json([as_record(one) for one in found])
    else:
        display.once(found)


def as_record(one: Observation) -> dict[str, object]:
    """Return the CloudEvent and its deliveries as JSON values."""
    places = [
        {
            "sink": delivery.sink,
            "state": delivery.state,
            "attempts": delivery.attempts,
            "lastError": delivery.last_error,
        }
        for delivery in one.deliveries
    ]
    return {"event": value_of(one.body), "deliveries": places}

"""``sebridge events``: list observed events and their deliveries."""

import asyncio
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import get_args

import click

from bridge.cli import completion
from bridge.cli.common import config_option
from bridge.cli.ending import WRONG, fail
from bridge.cli.long_running import until_stopped
from bridge.cli.outbox import act, stored
from bridge.cli.rows import Show, event_rows, watching
from bridge.cli.rows import events as rows_of_events
from bridge.diagnostics.outbox_access import AskAnew
from bridge.events.document import parse_time
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.values import Duration
from bridge.outbox.admin import Ledger
from bridge.outbox.questions import Observation, Wanted
from bridge.outbox.records import DeliveryState, value_of

_AT_ONCE = 1000


class Since(click.ParamType[float]):
    """A time of RFC 3339, or how long ago: ``2h``. Converted to seconds since 1970."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the moment; click reports an invalid one as a usage error."""
        moment = parse_time(str(value))
        if moment is not None:
            return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
        try:
            return SystemClock().now().timestamp() - Duration.parse(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a time such as 2026-03-02T12:00:00Z nor a span "
                "such as 2h",
                param,
                ctx,
            )


@click.command()
@config_option
@click.option(
    "--event",
    metavar="EVENTID",
    help="Show this EventId only; it must be complete.",
    shell_complete=completion.event_ids,
)
@click.option(
    "--since",
    type=Since(),
    metavar="TIME",
    help="Show events that were stored at this time or later: 2026-03-02T12:00:00Z, "
    "or 2h for two hours ago.",
)
@click.option(
    "--state",
    type=click.Choice(get_args(DeliveryState)),
    help="Show events with a delivery in this state only.",
)
@click.option(
    "--type",
    "kinds",
    multiple=True,
    metavar="TYPE",
    help="Show events of this EventType (such as Reboot), step (such as started) or "
    "type of CloudEvent only; may be repeated.",
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
@click.option("--utc", is_flag=True, help="Show times in UTC, not in local time.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one line for each event."
)
def events(  # noqa: PLR0913  each is an option
    path: Path,
    *,
    event: str | None,
    since: float | None,
    state: DeliveryState | None,
    kinds: tuple[str, ...],
    last: int,
    follow: bool,
    watch: bool,
    utc: bool,
    as_json: bool,
) -> None:
    """List events and their deliveries, oldest first.

    Example: sebridge events --since 2h --type Reboot --follow
    """
    if follow and state is not None:
        fail(
            "--state is not for --follow: states change later; use --watch", code=WRONG
        )
    wanted = Wanted(event_id=event, since=since or 0, state=state, kinds=kinds)
    display = display_of(as_json=as_json, utc=utc)
    if not (follow or watch):
        place = stored(path)
        found = act(place, lambda book: book.published(newest=last, wanted=wanted))
        display.once(found)
        if not (found or as_json):
            click.echo("no event found", err=True)
        return
    clock = SystemClock()
    ledger = Ledger(AskAnew(stored(path).path, clock))

    async def work(stop: asyncio.Event) -> None:
        if watch:
            await watching(
                lambda: ledger.published(newest=last, wanted=wanted),
                display.again,
                clock=clock,
                stop=stop,
            )
            return
        await following(ledger, wanted, last, display, clock=clock, stop=stop)

    until_stopped(work)


def display_of(*, as_json: bool, utc: bool = False) -> Show[Observation]:
    """Return the display of events, for one output or for repeated ones."""
    return Show(
        listing=rows_of_events,
        rows=partial(event_rows, utc=utc),
        record=as_record,
        state=lambda one: (
            one.number,
            [(d.sink, d.state, d.attempts) for d in one.deliveries],
        ),
        as_json=as_json,
    )


async def following(  # noqa: PLR0913 - the options of the command, clock and stop
    ledger: Ledger,
    wanted: Wanted,
    last: int,
    display: Show[Observation],
    *,
    clock: Clock,
    stop: asyncio.Event,
) -> None:
    """Show the last events, then each new one, until ``stop`` is set."""
    after = max([0, *(one.number for one in await ledger.published(newest=1))])
    found = await ledger.published(newest=last, wanted=wanted)
    after = max([after, *(one.number for one in found)])
    display.once(found)

    async def look() -> list[Observation]:
        nonlocal after
        last = await ledger.published(after=after, newest=1)
        found = await ledger.published(after=after, newest=_AT_ONCE, wanted=wanted)
        after = max([after, *(one.number for one in (*last, *found))])
        return found

    await watching(look, display.once, clock=clock, stop=stop)


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

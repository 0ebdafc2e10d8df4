"""``sebridge events``: what has been observed, and where it went."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import click

from bridge import cli_completion
from bridge.cli_outbox import stored
from bridge.cli_support import config_option, echo_json
from bridge.outbox.database import Database
from bridge.outbox.ledger import Ledger, Observation
from bridge.telemetry import printable

_LOOK_EVERY = 1.0  # seconds
_AT_ONCE = 1000


@click.command()
@config_option
@click.option(
    "--event",
    metavar="EVENTID",
    help="Only of this EventId.",
    shell_complete=cli_completion.event_ids,
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="How many of the newest.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; a line each to follow.")
def events(
    path: Path, *, event: str | None, last: int, follow: bool, as_json: bool
) -> None:
    """Show what has been observed and where it went, oldest first."""
    state = stored(path)

    async def showing() -> None:
        async with Database.open(state) as database:
            ledger = Ledger(database)
            seen = await ledger.told(newest=1)
            found = await ledger.told(newest=last, event_id=event)
            show(found, as_json=as_json, as_lines=follow)
            after = max([0, *(one.number for one in (*seen, *found))])
            while follow:
                await asyncio.sleep(_LOOK_EVERY)
                found = await ledger.told(after=after, newest=_AT_ONCE, event_id=event)
                show(found, as_json=as_json, as_lines=True)
                after = max([after, *(one.number for one in found)])

    try:
        asyncio.run(showing())
    except KeyboardInterrupt:
        return


def show(found: list[Observation], *, as_json: bool, as_lines: bool) -> None:
    """Print observations: a list, JSON a line each, or lines for people."""
    if as_json and not as_lines:
        echo_json([as_record(one) for one in found])
        return
    for one in found:
        if as_json:
            echo_json(as_record(one))
        else:
            for line in as_text(one):
                click.echo(printable(line))


def as_record(one: Observation) -> dict[str, object]:
    """Return the CloudEvent with where it went."""
    places = [
        {
            "sink": delivery.sink,
            "state": delivery.state,
            "attempts": delivery.attempts,
            "lastError": delivery.last_error,
        }
        for delivery in one.deliveries
    ]
    return {"event": json.loads(one.body), "deliveries": places}


def as_text(one: Observation) -> Iterator[str]:
    """Yield a line on the event, and one for each delivery that is not done."""
    event = json.loads(one.body)
    went = "  ".join(f"{d.sink}: {d.state}" for d in one.deliveries) or "to nobody"
    yield f"{event['time']}  {event['type']}  {event.get('subject', '-')}  {went}"
    for delivery in one.deliveries:
        if delivery.last_error and delivery.state != "delivered":
            yield f"    {delivery.sink}: {delivery.last_error}"

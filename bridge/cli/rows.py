"""Deliveries and events as rows of a table."""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

import click

from bridge.cli.common import echo_json, painter
from bridge.events.document import parse_time
from bridge.foundation.clock import Clock
from bridge.foundation.printable import printable
from bridge.health.status_view import Cell, Mood
from bridge.outbox.admin import Observation
from bridge.outbox.delivery import Delivery
from bridge.outbox.records import value_of

_GAP = "  "
_LONGEST = 80  # characters of a cell that is not the last of its row
_MOST_RESOURCES = 3
_MOODS: Mapping[str, Mood] = {"pending": "warning", "dead": "bad", "delivered": "good"}
_DELIVERY_HEADS = (
    *("ID", "STATE", "SINK", "TIME", "EVENT", "STEP", "VM", "EVENTID", "TRIES"),
    "LAST ERROR",
)
_EVENT_HEADS = ("TIME", "EVENT", "STEP", "VM", "EVENTID", "WENT TO")

Row = Sequence[Sequence[Cell]]  # columns; each has parts, joined by a blank


@dataclass(slots=True)
class Listing:
    """A table that stays aligned even if its rows arrive one after another.

    A row of one column is a note about the row before, and is printed unaligned.

    Attributes:
        heads: titles of the columns; the last column may have any width.
        width: where lines are cut, in characters; None = not at all.
    """

    heads: Sequence[str]
    width: int | None = None
    paint: Callable[[str, Mood], str] = field(
        default_factory=lambda: painter(sys.stdout)
    )
    _sizes: list[int] = field(default_factory=list)
    _is_headed: bool = False

    def lines(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield a line for each row; the first call also yields the heads."""
        heads: Row = [[Cell(head)] for head in self.heads]
        self._sizes = self._sizes or [0] * len(heads)
        for row in (heads, *(row for row in rows if len(row) > 1)):
            lengths = [len(" ".join(cell.text for cell in column)) for column in row]
            self._sizes = list(map(max, self._sizes, lengths))
        if rows and not self._is_headed:
            self._is_headed = True
            yield self._line(heads)
        for row in rows:
            yield self._line(row)

    def _line(self, row: Row) -> str:
        left, line = self.width, ""
        for index, column in enumerate(row):
            size = 0
            for number, cell in enumerate(column):
                text = f"{' ' if number else ''}{cell.text}"[:left]
                left = None if left is None else left - len(text)
                line += self.paint(text, cell.mood)
                size += len(text)
            if index < len(row) - 1:
                fill = " " * (self._sizes[index] - size + len(_GAP))
                left = None if left is None else max(0, left - len(fill))
                line += fill
        return line.rstrip()


def deliveries(width: int | None = None) -> Listing:
    """Return a table for the rows of ``delivery_row``."""
    return Listing(_DELIVERY_HEADS, width)


def delivery_row(delivery: Delivery) -> Row:
    """Return the row of a delivery."""
    gist = Gist.of(delivery.body)
    moment = datetime.fromtimestamp(delivery.created, UTC)
    return [
        [_cell(str(delivery.id))],
        [Cell(delivery.state, _MOODS.get(delivery.state, ""))],
        [_cell(delivery.sink)],
        [_cell(local(moment))],
        [_cell(gist.event_type)],
        [_cell(step_of(delivery.type))],
        [_cell(gist.vm)],
        [_cell(delivery.event_id or "-")],
        [_cell(str(delivery.attempts))],
        [Cell(printable(delivery.last_error or ""))],
    ]


def events(width: int | None = None) -> Listing:
    """Return a table for the rows of ``event_rows``."""
    return Listing(_EVENT_HEADS, width)


def event_rows(one: Observation) -> list[Row]:
    """Return the row of an event, and one note for each failed delivery."""
    gist = Gist.of(one.body)
    went = [_went(delivery) for delivery in one.deliveries]
    row = [
        [_cell(local(gist.time) if gist.time else "-")],
        [_cell(gist.event_type)],
        [_cell(step_of(gist.type))],
        [_cell(gist.vm)],
        [_cell(gist.event_id)],
        went or [Cell("no sink")],
    ]
    errors = [
        [[Cell(f"    {printable(f'{delivery.sink}: {delivery.last_error}')}")]]
        for delivery in one.deliveries
        if delivery.last_error and delivery.state != "delivered"
    ]
    return [row, *errors]


def _went(delivery: Delivery) -> Cell:
    text = f"{delivery.sink}:{delivery.state}"
    return Cell(printable(text), _MOODS.get(delivery.state, ""))


def _cell(text: str) -> Cell:
    shown = printable(text[:_LONGEST])
    return Cell(shown if len(text) <= _LONGEST else f"{shown}…")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gist:
    """The fields of a CloudEvent that the table shows; ``-`` for a missing one."""

    type: str = ""
    time: datetime | None = None
    event_type: str = "-"
    event_id: str = "-"
    vm: str = "-"

    @classmethod
    def of(cls, body: bytes) -> "Gist":
        """Read the stored event; it may have been damaged on disk."""
        event = value_of(body)
        if event is None:
            return cls(event_type="damaged")
        data = _object(event.get("data"))
        scheduled, reporter = _object(data.get("event")), _object(data.get("reporter"))
        return cls(
            type=_text(event, "type", ""),
            time=parse_time(_text(event, "time", "")),
            event_type=_text(scheduled, "EventType"),
            event_id=_text(event, "correlationid", _text(data, "eventId")),
            vm=_resources(scheduled.get("Resources")) or _text(reporter, "vmName"),
        )


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(found: Mapping[str, object], key: str, otherwise: str = "-") -> str:
    value = found.get(key)
    return value if isinstance(value, str) and value else otherwise


def _resources(value: object) -> str:
    found = [str(one) for one in value] if isinstance(value, list) else []
    more = len(found) - _MOST_RESOURCES
    return ",".join(found[:_MOST_RESOURCES]) + (f",+{more}" if more > 0 else "")


def step_of(kind: str) -> str:
    """Return the part of a CloudEvent's type that names the step.

    For example ``started`` for a scheduled event, ``bridge.started`` for the bridge.
    """
    parts = kind.split(".")[-3:-1]
    return ".".join(parts).removeprefix("scheduledevent.") or kind or "-"


def local(moment: datetime) -> str:
    """Return a time in the time zone of this machine."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"


# -- counts of deliveries ----------------------------------------------------------


def by_sink(found: Iterable[Delivery]) -> str:
    """Return the number of deliveries to each sink: ``2 to siem, 1 to ops``."""
    counts = Counter(delivery.sink for delivery in found)
    return ", ".join(f"{count} to {sink}" for sink, count in sorted(counts.items()))


def counted(count: int) -> str:
    """Return a number of deliveries in words: ``1 delivery``, ``2 deliveries``."""
    return f"{count} delivery" if count == 1 else f"{count} deliveries"


# -- ``--watch``: read and show the same rows each second, until Ctrl-C is pressed -----


EVERY = 1.0  # seconds
MOST = 100  # rows
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"

T = TypeVar("T")


@dataclass(kw_only=True)
class Show(Generic[T]):
    """Displays deliveries or events, once or each time that they are read.

    A terminal gets a table that is redrawn; a pipe gets a line for each change.

    Attributes:
        listing: makes a table of a given width.
        rows: returns the rows of one delivery or event.
        record: returns the JSON value of one delivery or event.
        state: returns a key, and a value that differs after a change.
        as_json: whether to print JSON, one line for each delivery or event.
    """

    listing: Callable[[int | None], Listing]
    rows: Callable[[T], Sequence[Row]]
    record: Callable[[T], object]
    state: Callable[[T], tuple[Hashable, object]]
    as_json: bool
    _seen: dict[Hashable, object] = field(default_factory=dict)
    _lines: Listing | None = None

    def once(self, found: Sequence[T]) -> None:
        """Print all rows, one after another."""
        self._print(found)

    def again(self, found: Sequence[T]) -> None:
        """Redraw the table, or print what has changed since the last call."""
        if sys.stdout.isatty() and not self.as_json:
            self._draw(found)
        else:
            self._print([one for one in found if self._is_news(one)])

    def _is_news(self, one: T) -> bool:
        key, state = self.state(one)
        is_news = self._seen.get(key) != state
        self._seen[key] = state
        return is_news

    def _print(self, found: Sequence[T]) -> None:
        if self.as_json:
            for one in found:
                echo_json(self.record(one))
            return
        self._lines = self._lines or self.listing(None)
        for line in self._lines.lines([row for one in found for row in self.rows(one)]):
            click.echo(line, color=True)

    def _draw(self, found: Sequence[T]) -> None:
        size = shutil.get_terminal_size()
        rows = [row for one in found for row in self.rows(one)]
        heads, *lines = self.listing(size.columns).lines(rows) if rows else ["-"]
        shown = [heads, *lines[-max(1, size.lines - 3) :]]
        text = "\n".join(shown)
        click.echo(f"{_HOME_AND_CLEAR}{text}\n(Ctrl-C ends this)", color=True)


async def watching(
    look: Callable[[], Awaitable[Sequence[T]]],
    show: Callable[[Sequence[T]], None],
    *,
    clock: Clock,
    stop: asyncio.Event,
) -> None:
    """Call ``look`` and ``show`` each second, until ``stop`` is set."""
    while True:
        show(await look())
        if await clock.wait(stop, EVERY):
            return

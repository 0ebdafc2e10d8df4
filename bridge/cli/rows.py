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
from datetime import UTC, datetime
from typing import Generic, TypeVar

import click
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.cli.common import echo_json, painter
from bridge.events.document import parse_time
from bridge.events.wording import table
from bridge.foundation.clock import Clock
from bridge.foundation.printable import printable
from bridge.health.status_view import Cell, Mood
from bridge.outbox.questions import Observation, step_of
from bridge.outbox.records import Delivery, value_of

_GAP = "  "
_LONGEST = 80  # characters of a cell that is not the last of its row
_MOST_RESOURCES = 3
_INDENT = "    "
_ENOUGH = 8  # characters of an EventId: commands accept its beginning
_LEAST_LAST = 16  # characters of the last column; a longer one is on its own line
_LEAST_IMPORTANT = ("TRIES", "VM", "EVENT", "EVENTID", "TIME", "STEP")
_MOODS: Mapping[str, Mood] = {"pending": "warning", "dead": "bad", "delivered": "good"}
_DELIVERY_HEADS = (
    *("ID", "STATE", "SINK", "TIME", "EVENT", "STEP", "VM", "EVENTID", "TRIES"),
    "LAST ERROR",
)
_EVENT_HEADS = ("TIME", "EVENT", "STEP", "VM", "EVENTID", "WENT TO")

Row = Sequence[Sequence[Cell]]  # columns; each has parts, joined by a blank


class Listing(Struct):
    """A table that stays aligned even if its rows arrive one after another.

    A row of one column is a note about the row before, and is printed unaligned.

    Attributes:
        heads: titles of the columns; the last column may have any width.
        width: the longest line, in characters; None = any length. A table that is wider
            has shorter times and EventIds, and fewer columns.
        hidden: the titles of the columns that are left out.
    """

    heads: Sequence[str]
    width: int | None = None
    paint: Callable[[str, Mood], str] = field(
        default_factory=lambda: painter(sys.stdout)
    )
    hidden: list[str] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _is_headed: bool = False

    def lines(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield a line for each row; the first call also yields the heads."""
        heads: Row = [[Cell(head)] for head in self.heads]
        whole = [heads, *rows]
        if self.width is not None and sum(_needed(whole)) > self.width:
            heads, *rows = self._narrowed(whole, self.width)
        self._sizes = self._sizes or [0] * len(heads)
        self._sizes = list(map(max, self._sizes, _sizes([heads, *rows])))
        if rows and not self._is_headed:
            self._is_headed = True
            yield from self._line(heads)
        for row in rows:
            yield from self._line(row)

    def _narrowed(self, rows: Sequence[Row], width: int) -> list[Row]:
        """Shorten times and EventIds, and leave out columns that do not fit."""
        names = [row[0].text for row in rows[0]]
        found = [
            [_shortened(*pair) for pair in zip(names, r, strict=False)]
            if len(r) > 1
            else r
            for r in rows
        ]
        for name in _LEAST_IMPORTANT:
            *most, last = _needed(found)
            if sum(most) + min(last, _LEAST_LAST) <= width:
                break
            if name in names:
                at = names.index(name)
                found = [[*r[:at], *r[at + 1 :]] if len(r) > 1 else r for r in found]
                names.remove(name)
                self.hidden.append(name)
        return found

    def _line(self, row: Row) -> Iterator[str]:
        """Yield a row: what does not fit into its last column is on a second line."""
        *most, last = row
        start = "".join(
            self._padded(*pair) for pair in zip(most, self._sizes, strict=False)
        )
        room = (
            None
            if self.width is None
            else self.width - sum(self._sizes[: len(most)]) - len(_GAP) * len(most)
        )
        text = " ".join(cell.text for cell in last)
        if room is None or len(text) <= room or not most:
            yield (start + self._cells(last, room)).rstrip()
        else:
            yield start.rstrip()
            yield _INDENT + self._cells(last, max((self.width or 0) - len(_INDENT), 1))

    def _padded(self, cells: Sequence[Cell], size: int) -> str:
        text = " ".join(cell.text for cell in cells)
        return self._cells(cells, None) + " " * (size - len(text)) + _GAP

    def _cells(self, cells: Sequence[Cell], room: int | None) -> str:
        """Return the cells of a column; "…" ends a text that is cut."""
        if room is None or len(" ".join(cell.text for cell in cells)) <= room:
            return " ".join(self.paint(cell.text, cell.mood) for cell in cells)
        found, left = list[str](), room - 1
        for cell in cells:
            found += [self.paint(cell.text[:left], cell.mood)] if left > 0 else []
            left -= len(cell.text) + 1
        return f"{' '.join(found)}…"


def _sizes(rows: Sequence[Row]) -> list[int]:
    """Return the width of each column; notes have no columns."""
    texts = [[" ".join(c.text for c in column) for column in row] for row in rows]
    columns = zip(*(row for row in texts if len(row) > 1), strict=True)
    return [max(map(len, column)) for column in columns]


def _needed(rows: Sequence[Row]) -> list[int]:
    """Return the characters that each column needs, with the gap before it."""
    return [size + len(_GAP) * bool(at) for at, size in enumerate(_sizes(rows))]


def _shortened(head: str, column: Sequence[Cell]) -> Sequence[Cell]:
    """Return a time without year and zone, or the beginning of an EventId."""
    return [replace(cell, text=_short(head, cell.text)) for cell in column]


def _short(head: str, text: str) -> str:
    if head == "TIME" and len(text) > len("2026-03-02 12:00:00"):
        return text[5:19]
    is_long = head == "EVENTID" and len(text) > _ENOUGH + 1
    return f"{text[:_ENOUGH]}…" if is_long else text


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
        [_cell(_at(moment))],
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


def event_rows(one: Observation, *, utc: bool = False) -> list[Row]:
    """Return the row of an event, and one note for each failed delivery."""
    gist = Gist.of(one.body)
    went = [_went(delivery) for delivery in one.deliveries]
    row = [
        [_cell(_at(gist.time, utc=utc) if gist.time else "-")],
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


class Gist(Struct, frozen=True, kw_only=True):
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
        data = table(event.get("data"))
        scheduled, reporter = table(data.get("event")), table(data.get("reporter"))
        return cls(
            type=_text(event, "type", ""),
            time=parse_time(_text(event, "time", "")),
            event_type=_text(scheduled, "EventType"),
            event_id=_text(event, "correlationid", _text(data, "eventId")),
            vm=_resources(scheduled.get("Resources")) or _text(reporter, "vmName"),
        )


def _text(found: Mapping[str, object], key: str, otherwise: str = "-") -> str:
    value = found.get(key)
    return value if isinstance(value, str) and value else otherwise


def _resources(value: object) -> str:
    found = [str(one) for one in value] if isinstance(value, list) else []
    more = len(found) - _MOST_RESOURCES
    return ",".join(found[:_MOST_RESOURCES]) + (f",+{more}" if more > 0 else "")


def _at(moment: datetime, *, utc: bool = False) -> str:
    """Return a time in the time zone of this machine, or in UTC."""
    return f"{moment.astimezone(UTC if utc else None):%Y-%m-%d %H:%M:%S %Z}"


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
HOME_AND_CLEAR = "\x1b[H\x1b[2J"

T = TypeVar("T")


class Show(Struct, Generic[T], kw_only=True):
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
        listing = self.listing(size.columns)
        heads, *lines = listing.lines(rows) if rows else ["-"]
        most = max(1, size.lines - 3)
        shown = "\n".join([heads, *lines[-most:]])
        end = "; ".join((*_left_out(listing, len(lines) - most), "Ctrl-C ends this"))
        click.echo(f"{HOME_AND_CLEAR}{shown}\n({end[: size.columns - 2]})", color=True)


def _left_out(listing: Listing, older: int) -> Iterator[str]:
    """Yield what a terminal is too small to show."""
    if listing.hidden:
        yield f"too narrow for {', '.join(listing.hidden)}"
    if older > 0:
        yield f"{older} lines above"


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

"""What commands ask of the outbox, without changing anything.

A question is a value, so a command can send it to the running forwarder, or answer it
itself if none runs. It says from where the answer goes on, and gets a page of it, which
is read by an index, or in a range of ids: so it never keeps the state file's thread for
long, however much history there is.
"""

import sqlite3
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from bridge.outbox import reads
from bridge.outbox.image import delivery
from bridge.outbox.line import Waiting
from bridge.outbox.records import (
    REPLIES,
    STATES,
    Delivery,
    DeliveryState,
    Item,
    value_of,
)
from bridge.outbox.storage.journal import load
from bridge.outbox.store import Outbox

T = TypeVar("T")

PAGE = 200  # rows of an answer
MANY = 2**62  # more than there are; SQLite has no numbers above 2**63 - 1
Number = Annotated[int, Meta(ge=0, le=MANY)]
_BYTES = 1024 * 1024  # of the bodies of an answer; one may be larger
_SPAN = 5000  # ids that are looked at for an answer


class Page(Struct, Generic[T], frozen=True):
    """A part of an answer.

    Attributes:
        next: from where the next page is asked; None = this was the last.
    """

    found: list[T]
    next: int | None = None


class Question(Struct, Generic[T], frozen=True, kw_only=True):
    """What a command asks."""

    async def answer(self, outbox: Outbox, now: float) -> T:
        """Return the answer; ``now`` is in seconds since the epoch.

        Raises:
            OutboxError: the state file does not answer, or cannot be written.
        """
        raise NotImplementedError


class Query(Question[T], frozen=True, kw_only=True):
    """A question that the state file answers."""

    async def answer(self, outbox: Outbox, now: float) -> T:  # noqa: ARG002 - of the base
        """Return the answer; see ``Question``."""
        return await outbox.database.read(self.read)

    def read(self, db: sqlite3.Connection) -> T:
        """Read the answer; called by the worker of the file."""
        raise NotImplementedError


class Named(Query[bytes | None], frozen=True, kw_only=True, tag=True):
    """The value that is stored under ``name``; b"" = it is damaged."""

    name: str

    def read(self, db: sqlite3.Connection) -> bytes | None:
        """Read it."""
        return load(db, self.name)


# -- deliveries ------------------------------------------------------------------------


class Selection(Struct, frozen=True, kw_only=True):
    """Selects deliveries; None = any.

    Attributes:
        sink: only deliveries to this sink; None = to all sinks, without replies.
        states: only deliveries in one of these states.
        event_id: only deliveries of this EventId.
        id: only the delivery with this id.
    """

    sink: str | None = None
    states: tuple[DeliveryState, ...] | None = None
    event_id: str | None = None
    id: Number | None = None

    @property
    def key(self) -> str | None:
        """The EventId as it is compared."""
        return self.event_id and self.event_id.upper()

    def ids(
        self, db: sqlite3.Connection, where: str, order: str, most: int
    ) -> set[int]:
        """Return ids that may be selected: the first ``most``, and some that follow.

        Each query reads the first rows of one part of an index.
        """
        sinks = [self.sink]
        if self.sink is None:
            sinks = [sink for (sink,) in db.execute(_SINKS) if sink != REPLIES]
        chosen = [("key", self.key), ("id", self.id)]
        given = [(name, value) for name, value in chosen if value is not None]
        also = "".join(f" AND {name} = ?" for name, _ in given)
        query = f"""SELECT id FROM deliveries WHERE sink = ? AND state = ?{also}
            AND id {where} ORDER BY id {order} LIMIT ?"""  # noqa: S608 - our own text  # nosec B608
        values = [value for _, value in given]
        return {
            number
            for sink in sinks
            for state in (STATES if self.states is None else self.states)
            for (number,) in db.execute(query, (sink, state, *values, most))
        }


# Reads one row of the index for each sink.
_SINKS = """WITH RECURSIVE known(sink) AS (SELECT min(sink) FROM deliveries UNION ALL
        SELECT (SELECT min(d.sink) FROM deliveries d WHERE d.sink > known.sink)
        FROM known WHERE sink IS NOT NULL)
    SELECT sink FROM known WHERE sink IS NOT NULL"""


class Find(Query[Page[Delivery]], frozen=True, kw_only=True, tag=True):
    """Deliveries with an id above ``at``, oldest first, ``most`` at most."""

    selection: Selection
    at: Number = 0
    most: Number = PAGE

    def read(self, db: sqlite3.Connection) -> Page[Delivery]:
        """Read them."""
        most = min(self.most, PAGE)
        numbers = sorted(self.selection.ids(db, f"> {self.at:d}", "ASC", most))[:most]
        found, size = list[Delivery](), 0
        for one in _deliveries(db, numbers):
            size += len(one.body)
            if found and size > _BYTES:
                return Page(found, found[-1].id)
            found.append(one)
        return Page(found, numbers[-1] if len(numbers) == most else None)


class Newest(Query[list[Delivery]], frozen=True, kw_only=True, tag=True):
    """The ``count`` newest deliveries, oldest first.

    Attributes:
        also: ids of deliveries that count as selected, too.
    """

    selection: Selection
    count: Number
    also: tuple[Number, ...] = ()

    def read(self, db: sqlite3.Connection) -> list[Delivery]:
        """Read them."""
        count = min(self.count, PAGE)
        numbers = {*self.selection.ids(db, "> 0", "DESC", count), *self.also}
        return _deliveries(db, sorted(numbers)[-count:] if count else [])


def _deliveries(db: sqlite3.Connection, numbers: Iterable[int]) -> list[Delivery]:
    found = reads.records(db, "id", numbers)
    contents = reads.items(db, list({one.item for one, _ in found}))
    return [
        _delivery(one, state, contents.get(one.item, reads.LOST))
        for one, state in found
    ]


def _delivery(one: Waiting, state: DeliveryState, item: Item) -> Delivery:
    since, until = one.urgent_from, one.urgent_until
    window = None if since is None or until is None else (since, until)
    return delivery(one, item, window, state)


def last_delivered(
    db: sqlite3.Connection, found: Iterable[Delivery]
) -> dict[tuple[str, str | None], int]:
    """Return the newest delivered id of each sink and key that is above these."""
    first = dict[tuple[str, str], int]()
    for one in found:
        if one.key is not None:
            first.setdefault((one.sink, one.key), one.id)
    query = """SELECT id FROM deliveries WHERE sink = ? AND key = ? AND id > ?
        AND state = 'delivered' ORDER BY id DESC LIMIT 1"""
    return {
        place: number
        for place, at in first.items()
        for (number,) in db.execute(query, (*place, at))
    }


# -- events ----------------------------------------------------------------------------


class Wanted(Struct, frozen=True, kw_only=True):
    """Selects published events.

    Attributes:
        event_id: only events of this EventId; None = of any.
        since: seconds since the epoch; only events stored then or later.
        state: only events with a delivery in this state; None = any.
        kinds: only events with one of these EventTypes, steps (such as ``started``) or
            types of CloudEvents, without case; empty = any.
        is_step: only transitions of scheduled events.
    """

    event_id: str | None = None
    since: float = 0
    state: DeliveryState | None = None
    kinds: tuple[str, ...] = ()
    is_step: bool = False

    @property
    def condition(self) -> tuple[str, list[object]]:
        """The same for SQL, with its parameters, but for the kinds."""
        parts, values = ["kind = 'event'", "created >= ?"], list[object]([self.since])
        if self.event_id is not None:
            parts.append("key = ?")
            values.append(self.event_id.upper())
        if self.state is not None:
            parts.append(
                "EXISTS (SELECT 1 FROM deliveries WHERE item = items.id AND state = ?)"
            )
            values.append(self.state)
        if self.is_step:
            parts.append("type LIKE '%.scheduledevent.%'")
        return " AND ".join(parts), values


class Observation(Struct, frozen=True):
    """A CloudEvent that was published, and its deliveries.

    Attributes:
        number: the id of its item, which grows with time.
        body: the CloudEvent as JSON; b"" = it is damaged.
        deliveries: one for each sink, in order of the sinks' names, without their body.
    """

    number: int
    body: bytes
    deliveries: tuple[Delivery, ...]


class Published(Query[Page[Observation]], frozen=True, kw_only=True, tag=True):
    """The ``newest`` events with numbers between ``after`` and ``at``, newest first."""

    wanted: Wanted = Wanted()
    newest: Number = 1
    after: Number = 0
    at: Number = MANY

    def read(self, db: sqlite3.Connection) -> Page[Observation]:
        """Read them."""
        where, values = self.wanted.condition
        last = _last(db, self.at)
        start = max(self.after, last - _SPAN)
        rows = db.execute(
            f"""SELECT id, body FROM items WHERE id > ? AND id <= ? AND {where}
                ORDER BY id DESC""",  # noqa: S608 - our own conditions  # nosec B608
            (start, last, *values),
        )
        found, size = list[Observation](), 0
        for number, stored in rows:
            body = stored if isinstance(stored, bytes) else b""
            if _fits(self.wanted.kinds, body):
                found.append(_observation(db, number, body))
            size += len(body)
            if len(found) == self.newest:
                return Page(found)
            if size > _BYTES or len(found) == PAGE:
                return Page(found, number)
        return Page(found, start + 1 if start > self.after else None)


def _observation(db: sqlite3.Connection, number: int, body: bytes) -> Observation:
    item = reads.items(db, [number])[number]
    light = item._replace(body=b"")
    them = [_delivery(*one, light) for one in reads.records(db, "item", [number])]
    return Observation(number, body, tuple(sorted(them, key=attrgetter("sink"))))


def _fits(kinds: Collection[str], body: bytes) -> bool:
    """Whether an event is of one of these kinds; any, if none is named."""
    if not kinds:
        return True
    event = value_of(body) or {}
    kind, data = event.get("type"), event.get("data")
    scheduled = data.get("event") if isinstance(data, dict) else None
    event_type = scheduled.get("EventType") if isinstance(scheduled, dict) else None
    found = {kind, step_of(kind) if isinstance(kind, str) else None, event_type}
    known = {one.lower() for one in found if isinstance(one, str)}
    return not known.isdisjoint(one.lower() for one in kinds)


def step_of(kind: str) -> str:
    """Return the part of a CloudEvent's type that names the step.

    For example ``started`` for a scheduled event, ``bridge.started`` for the bridge.
    """
    parts = kind.split(".")[-3:-1]
    return ".".join(parts).removeprefix("scheduledevent.") or kind or "-"


class EventIds(Query[list[str]], frozen=True, kw_only=True, tag=True):
    """The EventIds of the last events, newest first, ``newest`` at most."""

    newest: Number

    def read(self, db: sqlite3.Connection) -> list[str]:
        """Read them."""
        query = """SELECT event_id, max(id) FROM
            (SELECT id, kind, key, event_id FROM items ORDER BY id DESC LIMIT ?)
            WHERE kind = 'event' AND event_id IS NOT NULL
            GROUP BY key ORDER BY 2 DESC LIMIT ?"""
        return [one for one, _ in db.execute(query, (_SPAN, self.newest))]


class Observed(Query[Page[str]], frozen=True, kw_only=True, tag=True):
    """The EventIds of documents that begin with ``start``, of the events after ``at``.

    An EventId that only an approval message contains may be wrong: it is left out.
    """

    start: str
    at: Number = 0

    def read(self, db: sqlite3.Connection) -> Page[str]:
        """Read them."""
        query = """SELECT event_id, max(id) FROM items WHERE kind = 'event' AND id > ?
            AND id <= ? AND type LIKE '%.scheduledevent.%' AND substr(key, 1, ?) = ?
            GROUP BY key ORDER BY 2"""
        (first,) = db.execute("SELECT min(id) FROM items WHERE id > ?", (self.at,))
        key, end = self.start.upper(), (first[0] or self.at) + _SPAN
        found = [one for one, _ in db.execute(query, (self.at, end, len(key), key))]
        return Page(found, end if end < _last(db) else None)


def _last(db: sqlite3.Connection, before: int = MANY) -> int:
    """Return the last id below ``before``: between two ids there may be a long gap."""
    query = "SELECT coalesce(max(id), 0) FROM items WHERE id < ?"
    (number,) = db.execute(query, (before,)).fetchone()
    return int(number)

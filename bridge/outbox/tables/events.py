"""Puts events and replies into the outbox: an item, and a delivery for each sink."""

import sqlite3
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import OutboxFullError
from bridge.outbox.records import REPLIES, Content, Reply
from bridge.outbox.storage.connection import Connection
from bridge.outbox.tables import deliveries, observations, successes
from bridge.outbox.tables.deliveries import RunningTimes

Sign = Callable[[CloudEvent, int | None], CloudEvent]
_NUMBER = "chain"  # the name of the number of the last signed event


def append(  # noqa: PLR0913, PLR0917 - each is a part of it
    db: Connection,
    now: float,
    running: RunningTimes,
    sign: Sign | None,
    outgoing: OutgoingEvent,
    sinks: Sequence[str],
) -> None:
    """Append an event, and a delivery of it for each sink.

    Args:
        db: the state file.
        now: seconds since the epoch.
        running: the running times of the sinks.
        sign: signs the event; None = it is not signed.
        outgoing: the event.
        sinks: the sinks that get it.

    Raises:
        OutboxFullError: the disk fails, and memory has no room for another event.
    """
    not_before = outgoing.not_before.timestamp() if outgoing.not_before else None
    window = deliveries.urgency(
        not_before=not_before, is_started=outgoing.is_started, created=now
    )
    is_urgent = deliveries.is_within(window, now)
    event = _marked(outgoing.event, db, is_urgent=is_urgent)
    if sign is not None:
        event = sign(event, _next_number(db) if db.is_durable else None)
    _count(db, outgoing, now)
    content = _content_of(event, outgoing.key)
    item = deliveries.add(db, content, created=now, not_before=not_before)
    if outgoing.key is not None and outgoing.subject.transition is not None:
        db.executemany(
            "INSERT OR REPLACE INTO followers (key, sink, at) VALUES (?, ?, ?)",
            [(outgoing.key, sink, now) for sink in sinks],
        )
    for sink in sinks:
        deliveries.insert(
            db,
            item=item,
            sink=sink,
            key=outgoing.key,
            now=now,
            window=window,
            running=running.of(sink),
        )
    if outgoing.is_last and outgoing.key is not None:
        db.execute("DELETE FROM followers WHERE key = ?", (outgoing.key,))
        successes.note_gone(db, outgoing.key, now)


def _marked(event: CloudEvent, db: Connection, *, is_urgent: bool) -> CloudEvent:
    """Return the event; mark it as not durable if it is in memory only."""
    if db.room is not None and not db.room.takes(is_urgent=is_urgent):
        raise OutboxFullError("neither disk nor memory has room for another event")
    if db.is_durable:
        return event
    return replace(event, data={**event.data, "durable": False})


def _next_number(db: Connection) -> int:
    """Return the number of the next signed event, which goes on over restarts."""
    number = int(observations.load(db, _NUMBER) or 0) + 1
    observations.save(db, {_NUMBER: b"%d" % number})
    return number


def _count(db: Connection, outgoing: OutgoingEvent, now: float) -> None:
    db.execute(
        """INSERT INTO told (cause, times, at, key) VALUES (?, 1, ?, ?)
           ON CONFLICT DO UPDATE SET times = times + 1, at = excluded.at""",
        (outgoing.cause, now, outgoing.key),
    )


def _content_of(event: CloudEvent, key: str | None) -> Content:
    return Content(
        kind="event",
        key=key,
        event_id=event.text("correlationid"),
        cloud_event_id=event.id,
        type=event.type,
        body=event.to_json(),
    )


def append_reply(
    db: sqlite3.Connection, reply: Reply, now: float, running: RunningTimes
) -> None:
    """Append a reply to an approval; for the arguments see ``append``."""
    content = Content("reply", reply.key, None, None, "reply", reply.body)
    deliveries.insert(
        db,
        item=deliveries.add(db, content, created=now),
        sink=REPLIES,
        key=None,
        now=now,
        window=(None, None),
        running=running.of(REPLIES),
    )

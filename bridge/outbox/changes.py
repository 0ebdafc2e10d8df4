"""Sends deliveries again, and discards them: commits of the loop.

    read the rows ─▶ ONE step: image, and rows to the journal ─▶ on disk

A retry keeps the order: the dead letters of one EventId are sent oldest first. A dead
letter is not sent if a later step of its EventId was already delivered: it would be out
of date.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import ledger, reads
from bridge.outbox.image import put
from bridge.outbox.line import Waiting
from bridge.outbox.records import REPLIES, Delivery
from bridge.outbox.storage.journal import Rows
from bridge.outbox.store import Outbox

T = TypeVar("T")
Retried = tuple[list[Delivery], list[Delivery], int, int | None]


async def retry(  # noqa: PLR0913 - what is asked
    outbox: Outbox,
    asked: ledger.Condition,
    now: float,
    *,
    at: int,
    force: bool,
    only: bool,
) -> Retried:
    """Make deliveries pending and due now, and wake the relays.

    Args:
        outbox: the open outbox.
        asked: selects deliveries.
        now: seconds since the epoch.
        at: only deliveries with a higher id.
        force: whether to send deliveries whose later step was already delivered.
        only: whether other pending deliveries of the same sink and EventId stay.

    Returns:
        What will be sent, what is out of date, how many others became due, and the
        ``at`` of the next page; None = that was all.

    Raises:
        OutboxError: the state file does not answer, or cannot be written.
    """

    def decide(read: _Read, rows: Rows) -> Retried:
        sent, late = list[Delivery](), list[Delivery]()
        for delivery in read.found:
            newest = read.last.get((delivery.sink, delivery.key), 0)
            (late if newest > delivery.id else sent).append(delivery)
        sent = _revive(outbox, sent, read.records, now, rows)
        is_first = at == 0 and not only
        hastened = _hasten(outbox, asked, now, rows) if is_first else 0
        return sent, late, hastened, read.next

    return await _change(
        outbox, lambda db: _read(db, asked, at, with_last=not force), decide
    )


async def discard(
    outbox: Outbox, asked: ledger.Condition, now: float, *, at: int
) -> tuple[list[Delivery], int | None]:
    """Discard deliveries that are pending or dead; arguments as ``retry``.

    Returns:
        What was discarded, and the ``at`` of the next page; None = that was all.

    Raises:
        OutboxError: the state file does not answer, or cannot be written.
    """

    def decide(read: _Read, rows: Rows) -> tuple[list[Delivery], int | None]:
        gone = [
            one
            for one in read.found
            if _discard(outbox, one, read.records[one.id], now, rows)
        ]
        return gone, read.next

    return await _change(
        outbox, lambda db: _read(db, asked, at, with_last=False), decide
    )


class _Read(Struct, frozen=True):
    """What was read of deliveries that are about to be changed."""

    found: list[Delivery]
    next: int | None
    records: dict[int, Waiting]
    last: Mapping[tuple[str, str | None], int]


async def _change(
    outbox: Outbox,
    read: Callable[[sqlite3.Connection], _Read],
    decide: Callable[[_Read, Rows], T],
) -> T:
    """Read deliveries and change them; nothing can change them in between.

    Raises:
        OutboxUnavailableError: the disk fails. What was decided already is in memory of
            a running forwarder.
    """
    state, database = outbox.state, outbox.database
    await state.ready()
    if database.fault is not None:
        text = f"the state file cannot be written: {database.fault}"
        raise OutboxUnavailableError(text)

    def then(found: _Read) -> tuple[T, "asyncio.Future[bool]"]:
        rows: Rows = {}
        result = decide(found, rows)
        outbox.wakeups.wake_all()
        return result, state.write(rows)

    result, written = await database.read(read, then)
    if not await asyncio.shield(written):
        text = f"the state file cannot be written yet: {database.fault}"
        raise OutboxUnavailableError(text)
    return result


def _read(
    db: sqlite3.Connection, asked: ledger.Condition, at: int, *, with_last: bool
) -> _Read:
    found, following = ledger.find(db, asked, at, ledger.PAGE)
    records = {
        record.id: record for record in reads.waiting(db, [one.id for one in found])
    }
    last = ledger.last_delivered(db, found) if with_last else {}
    return _Read(found, following, records, last)


def _revive(
    outbox: Outbox,
    found: Iterable[Delivery],
    records: Mapping[int, Waiting],
    now: float,
    rows: Rows,
) -> list[Delivery]:
    """Let deliveries wait as if they were new; return those that do."""
    image, running = outbox.image, outbox.state.running()
    sent, revived = list[Delivery](), list[tuple[Waiting, Delivery]]()
    for delivery in found:
        known = image.find(delivery)
        if (known is None) == (delivery.state == "pending"):
            continue  # it has changed meanwhile
        if known is None and _is_changing(outbox, delivery):
            continue
        one = known or records[delivery.id]
        one.due, one.attempts, one.waits_for_sink = now, 0, False
        one.born = running.of(one.sink)
        put(rows, one, "pending")
        sent.append(delivery)
        if known is None:
            revived.append((one, delivery))
        else:
            image.sinks[one.sink].change(one)
    image.revive(revived)
    return sent


def _hasten(outbox: Outbox, asked: ledger.Condition, now: float, rows: Rows) -> int:
    """Make what waits due now; return how many deliveries became due."""
    key, count = asked.key, 0
    for sink, lines in outbox.image.sinks.items():
        if sink != (asked.sink or sink) or sink == REPLIES != asked.sink:
            continue
        every = lines.waiting.values() if key is None else lines.of(key)
        changed = lines.shift([(one, now) for one in every if one.due > now])
        for one in changed:
            put(rows, one, "pending")
        count += len(changed)
    return count


def _discard(
    outbox: Outbox, delivery: Delivery, record: Waiting, now: float, rows: Rows
) -> bool:
    """Discard a delivery; False = it has changed meanwhile."""
    image = outbox.image
    if (known := image.find(delivery)) is not None:
        image.end(known, "discarded", rows, now=now)
        return True
    if delivery.state == "pending" or _is_changing(outbox, delivery):
        return False
    image.count(delivery.sink, delivery.state, -1)
    image.count(delivery.sink, "discarded")
    put(rows, record, "discarded", settled=now)
    return True


def _is_changing(outbox: Outbox, delivery: Delivery) -> bool:
    """Whether the row was changed after it was read."""
    return outbox.database.is_unwritten(("deliveries", (delivery.id,)))

"""Sends deliveries again, and discards them: commits of the loop.

    read the rows ─▶ ONE step: image, and rows to the journal ─▶ on disk

A retry keeps the order: the dead letters of one EventId are sent oldest first. A dead
letter is not sent if a later step of its EventId was already delivered: it would be out
of date.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.image import Image, put
from bridge.outbox.line import Waiting
from bridge.outbox.questions import (
    Find,
    Number,
    Page,
    Question,
    Selection,
    last_delivered,
)
from bridge.outbox.records import REPLIES, Delivery, DeliveryState
from bridge.outbox.storage.journal import Rows
from bridge.outbox.store import Outbox

T = TypeVar("T")


class Retried(Struct, frozen=True, kw_only=True):
    """What a retry has done.

    Attributes:
        sent: the deliveries that will be sent, as they were before.
        late: the deliveries that are out of date.
        hastened: how many other pending deliveries became due now.
        next: as in ``Page``.
    """

    sent: list[Delivery]
    late: list[Delivery]
    hastened: int = 0
    next: int | None = None


class Retry(Question[Retried], frozen=True, kw_only=True, tag=True):
    """Make deliveries with an id above ``at`` pending and due now; wake the relays.

    If the selection has no ``id``, the pending deliveries of the same sink and EventId
    become due now, too.

    Attributes:
        force: whether to send deliveries whose later step was already delivered.
    """

    selection: Selection
    force: bool = False
    at: Number = 0

    async def answer(self, outbox: Outbox, now: float) -> Retried:
        """Change them, and return them."""

        def decide(page: Page[Delivery], known: _Known, rows: Rows) -> Retried:
            sent, late = list[Delivery](), list[Delivery]()
            for one in page.found:
                is_late = known.delivered.get((one.sink, one.key), 0) > one.id
                (late if is_late and not self.force else sent).append(one)
            sent = _revive(outbox, sent, known, now, rows)
            is_first = self.at == 0 and self.selection.id is None
            hastened = self._hasten(outbox.image, now, rows) if is_first else 0
            return Retried(sent=sent, late=late, hastened=hastened, next=page.next)

        return await _change(outbox, Find(selection=self.selection, at=self.at), decide)

    def _hasten(self, image: Image, now: float, rows: Rows) -> int:
        """Make what waits due now; return how many deliveries became due."""
        key, only, count = self.selection.key, self.selection.sink, 0
        for sink, lines in image.sinks.items():
            if sink != (only or sink) or sink == REPLIES != only:
                continue
            every = lines.waiting.values() if key is None else lines.of(key)
            changed = lines.shift([(one, now) for one in every if one.due > now])
            for one in changed:
                put(rows, one, "pending")
            count += len(changed)
        return count


class Discard(Question[Page[Delivery]], frozen=True, kw_only=True, tag=True):
    """Discard deliveries with an id above ``at`` that are pending or dead.

    They can be listed until they are pruned.
    """

    selection: Selection
    at: Number = 0

    async def answer(self, outbox: Outbox, now: float) -> Page[Delivery]:
        """Change them, and return them."""
        every: tuple[DeliveryState, ...] = ("pending", "dead")
        states = tuple(s for s in every if s in (self.selection.states or every))

        def decide(page: Page[Delivery], known: _Known, rows: Rows) -> Page[Delivery]:
            return replace(
                page,
                found=[
                    one
                    for one in page.found
                    if _discard(outbox, one, known.records[one.id], now, rows)
                ],
            )

        selected = replace(self.selection, states=states)
        return await _change(outbox, Find(selection=selected, at=self.at), decide)


class _Known(Struct, frozen=True):
    """What else was read of deliveries that are about to be changed.

    Attributes:
        records: the records, by the ids of the deliveries.
        delivered: the newest delivered id of each sink and key, above these.
    """

    records: dict[int, Waiting]
    delivered: dict[tuple[str, str | None], int]


async def _change(
    outbox: Outbox,
    asked: Find,
    decide: Callable[[Page[Delivery], _Known, Rows], T],
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

    def read(db: sqlite3.Connection) -> tuple[Page[Delivery], _Known]:
        page = asked.read(db)
        records = reads.waiting(db, [one.id for one in page.found])
        known = {record.id: record for record in records}
        return page, _Known(known, last_delivered(db, page.found))

    def then(
        found: tuple[Page[Delivery], _Known],
    ) -> tuple[T, "asyncio.Future[bool]"]:
        rows: Rows = {}
        result = decide(*found, rows)
        outbox.wakeups.wake_all()
        return result, state.write(rows)

    result, written = await database.read(read, then)
    if not await asyncio.shield(written):
        text = f"the state file cannot be written yet: {database.fault}"
        raise OutboxUnavailableError(text)
    return result


def _revive(
    outbox: Outbox, found: Iterable[Delivery], read: _Known, now: float, rows: Rows
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
        one = known or read.records[delivery.id]
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
    return outbox.database.journal.has(("deliveries", (delivery.id,)))

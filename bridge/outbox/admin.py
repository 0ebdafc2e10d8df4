"""The ledger: whole answers to what commands ask, and the changes that they make.

A change is a commit of the loop, also where a command has opened the state file:

    read the rows ─▶ ONE step: image, and rows to the journal ─▶ on disk

A retry keeps the order: the dead letters of one EventId are sent oldest first. A dead
letter is not sent if a later step of its EventId was already delivered: it would be out
of date.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.cloudevent import rfc3339
from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox import reads
from bridge.outbox.image import Image, put
from bridge.outbox.line import Waiting
from bridge.outbox.questions import (
    MANY,
    EventIds,
    Find,
    Named,
    Newest,
    Number,
    Observation,
    Observed,
    Page,
    Published,
    Question,
    Selection,
    Wanted,
    last_delivered,
)
from bridge.outbox.records import REPLIES, Delivery, DeliveryState
from bridge.outbox.storage.journal import Rows
from bridge.outbox.store import Outbox

T = TypeVar("T")
# The statuses of a forwarder that does not answer a question.
NOT_OPEN = 503  # it starts or ends, and has done nothing
NOT_NOW = 507  # its state file does not answer, or cannot be written


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

        def decide(
            page: Page[Delivery], records: Records, delivered: Delivered, rows: Rows
        ) -> Retried:
            sent, late = list[Delivery](), list[Delivery]()
            for one in page.found:
                is_late = delivered.get((one.sink, one.key), 0) > one.id
                (late if is_late and not self.force else sent).append(one)
            sent = _revive(outbox, sent, records, now, rows)
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

        def decide(
            page: Page[Delivery], records: Records, _: Delivered, rows: Rows
        ) -> Page[Delivery]:
            return replace(
                page,
                found=[
                    one
                    for one in page.found
                    if _discard(outbox, one, records[one.id], now, rows)
                ],
            )

        selected = replace(self.selection, states=states)
        return await _change(outbox, Find(selection=selected, at=self.at), decide)


Records = dict[int, Waiting]  # by the ids of the deliveries
Delivered = dict[tuple[str, str | None], int]  # the newest id by sink and key


async def _change(
    outbox: Outbox,
    asked: Find,
    decide: Callable[[Page[Delivery], Records, Delivered, Rows], T],
) -> T:
    """Read deliveries and change them; nothing can change them in between.

    Raises:
        OutboxUnavailableError: the disk fails. What was decided already is in memory of
            a running forwarder.
    """
    state, database = outbox.state, outbox.database
    if database.fault is not None:
        text = f"the state file cannot be written: {database.fault}"
        raise OutboxUnavailableError(text)

    def read(db: sqlite3.Connection) -> tuple[Page[Delivery], Records, Delivered]:
        page = asked.read(db)
        found = reads.records(db, "id", [one.id for one in page.found])
        records = {record.id: record for record, _ in found}
        return page, records, last_delivered(db, page.found)

    def then(
        found: tuple[Page[Delivery], Records, Delivered],
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
    outbox: Outbox, found: Iterable[Delivery], records: Records, now: float, rows: Rows
) -> list[Delivery]:
    """Let deliveries wait as if they were new; return those that do."""
    image = outbox.image
    sent, revived = list[Delivery](), list[tuple[Waiting, Delivery]]()
    for delivery in found:
        known = image.find(delivery)
        if (known is None) == (delivery.state == "pending"):
            continue  # it has changed meanwhile
        if known is None and _is_changing(outbox, delivery):
            continue
        one = known or records[delivery.id]
        one.due, one.attempts, one.waits_for_sink = now, 0, False
        one.born = outbox.ages.at(one.sink, rows)
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


# -- Whole answers, whoever has the state file open ------------------------------------


AnyQuestion = Find | Newest | Published | EventIds | Observed | Named | Retry | Discard


def type_of_answer(question: Question[Any]) -> Any:
    """Return the type of the answer to a question."""
    (base,) = type(question).__orig_bases__  # type: ignore[attr-defined]  # of each class
    return get_args(base)[0]


class Ask(Protocol):
    """Answers questions: a running forwarder, or this process."""

    async def __call__(self, question: Question[T]) -> T:
        """Return the answer.

        Raises:
            OutboxError: there is none.
        """
        ...


class Here(Struct, frozen=True):
    """Answers questions in this process.

    Attributes:
        now: returns the time, in seconds since the epoch.
    """

    outbox: Outbox
    now: Callable[[], float]

    async def __call__(self, question: Question[T]) -> T:
        """Return the answer."""
        return await question.answer(self.outbox, self.now())


class Ledger(Struct, frozen=True):
    """The deliveries and events of a state file."""

    ask: Ask

    async def find(self, selection: Selection, limit: int = MANY) -> list[Delivery]:
        """Return the selected deliveries, oldest first."""
        return await self._all(Find(selection=selection, most=limit), limit)

    async def published(
        self, *, after: int = 0, newest: int, wanted: Wanted | None = None
    ) -> list[Observation]:
        """Return the events that were published after ``after``, oldest first.

        Args:
            after: the number of the last event that was returned before.
            newest: the most events to return; older ones are left out.
            wanted: selects events; None = all.
        """
        most = min(newest, MANY)
        asked = Published(wanted=wanted or Wanted(), newest=most, after=after)
        return (await self._all(asked, most))[::-1]

    async def observed(self, start: str) -> list[str]:
        """Return the EventIds of documents that begin with ``start``, sorted."""
        found = {one.upper(): one for one in await self._all(Observed(start=start))}
        return [found[key] for key in sorted(found)]

    async def discard(self, selection: Selection) -> list[Delivery]:
        """Discard the selected deliveries; see ``Discard``."""
        return await self._all(Discard(selection=selection))

    async def _all(self, question: Question[Page[T]], most: int = MANY) -> list[T]:
        """Ask for one page after the other; return the first ``most`` rows."""
        found = list[T]()
        while len(found) < most:
            page = await self.ask(question)
            found += page.found
            if page.next is None:
                break
            question = replace(question, at=page.next)
        return found[:most]

    async def retry(self, selection: Selection, *, force: bool) -> Retried:
        """Send the selected deliveries again; see ``Retry``."""
        whole, at = Retried(sent=[], late=[]), 0
        while True:
            page = await self.ask(Retry(selection=selection, force=force, at=at))
            whole.sent.extend(page.sent)
            whole.late.extend(page.late)
            whole = replace(whole, hastened=whole.hastened + page.hastened)
            if page.next is None:
                return whole
            at = page.next


def as_json(delivery: Delivery) -> dict[str, object]:
    """Return a delivery as ``sebridge outbox list --json`` shows it."""
    is_pending = delivery.state == "pending"
    due = datetime.fromtimestamp(delivery.due, UTC)
    return {
        "id": delivery.id,
        "sink": delivery.sink,
        "state": delivery.state,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "type": delivery.type,
        "attempts": delivery.attempts,
        "nextAttempt": rfc3339(due) if is_pending else None,
        "lastError": delivery.last_error,
    }

"""What commands ask of the outbox, and change in it.

A question is a value, so a command can send it to the running forwarder, or answer it
itself if none runs. It says what is wanted next, and gets a page of it: a forwarder
never reads for long.
"""

import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.build import rfc3339
from bridge.outbox import changes, ledger
from bridge.outbox.records import Delivery, DeliveryState
from bridge.outbox.storage.meta import load
from bridge.outbox.store import Outbox

T = TypeVar("T")
_MANY = 2**62  # more than there are


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
    id: int | None = None

    @property
    def condition(self) -> ledger.Condition:
        """The same for SQL."""
        return ledger.Condition(
            self.sink, self.states, self.event_id and self.event_id.upper(), self.id
        )


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


class Observation(Struct, frozen=True):
    """A CloudEvent that was published, and its deliveries.

    Attributes:
        number: the id of its item, which grows with time.
        body: the CloudEvent as JSON.
        deliveries: one for each sink, in order of the sinks' names, without their body.
    """

    number: int
    body: bytes
    deliveries: tuple[Delivery, ...]


class Page(Struct, Generic[T], frozen=True):
    """A part of an answer.

    Attributes:
        next: from where the next page is asked; None = this was the last.
    """

    found: list[T]
    next: int | None = None


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


class Find(Query[Page[Delivery]], frozen=True, kw_only=True, tag=True):
    """Deliveries with an id above ``at``, oldest first, ``most`` at most."""

    selection: Selection
    at: int = 0
    most: int = ledger.PAGE

    def read(self, db: sqlite3.Connection) -> Page[Delivery]:
        """Read them."""
        most = min(self.most, ledger.PAGE)
        return Page(*ledger.find(db, self.selection.condition, self.at, most))


class Newest(Query[list[Delivery]], frozen=True, kw_only=True, tag=True):
    """The ``count`` newest deliveries, oldest first.

    Attributes:
        also: ids of deliveries that count as selected, too.
    """

    selection: Selection
    count: int
    also: tuple[int, ...] = ()

    def read(self, db: sqlite3.Connection) -> list[Delivery]:
        """Read them."""
        count = min(self.count, ledger.PAGE)
        return ledger.newest(db, self.selection.condition, count, self.also)


class Published(Query[Page[Observation]], frozen=True, kw_only=True, tag=True):
    """The ``newest`` events with numbers between ``after`` and ``at``, newest first."""

    wanted: Wanted = Wanted()
    newest: int = 1
    after: int = 0
    at: int = _MANY

    def read(self, db: sqlite3.Connection) -> Page[Observation]:
        """Read them."""
        asked = self.wanted
        found, at = ledger.published(
            db,
            ledger.event_condition(
                event_id=asked.event_id,
                since=asked.since,
                state=asked.state,
                is_step=asked.is_step,
            ),
            after=self.after,
            before=self.at,
            newest=self.newest,
            kinds=asked.kinds,
        )
        return Page(
            [Observation(n, body, ledger.of_item(db, n)) for n, body in found], at
        )


class EventIds(Query[list[str]], frozen=True, kw_only=True, tag=True):
    """The EventIds of the last events, newest first, ``newest`` at most."""

    newest: int

    def read(self, db: sqlite3.Connection) -> list[str]:
        """Read them."""
        return ledger.event_ids(db, self.newest)


class Observed(Query[Page[str]], frozen=True, kw_only=True, tag=True):
    """The EventIds of documents that begin with ``start``, of the events after ``at``.

    An EventId that only an approval message contains may be wrong: it is left out.
    """

    start: str
    at: int = 0

    def read(self, db: sqlite3.Connection) -> Page[str]:
        """Read them."""
        return Page(*ledger.observed(db, self.start, self.at))


class Named(Query[bytes | None], frozen=True, kw_only=True, tag=True):
    """The value that is stored under ``name``; b"" = it is damaged."""

    name: str

    def read(self, db: sqlite3.Connection) -> bytes | None:
        """Read it."""
        return load(db, self.name)


class Retry(Question[Retried], frozen=True, kw_only=True, tag=True):
    """Make deliveries with an id above ``at`` pending and due now; wake the relays.

    If the selection has no ``id``, the pending deliveries of the same sink and EventId
    become due now, too.

    Attributes:
        force: whether to send deliveries whose later step was already delivered.
    """

    selection: Selection
    force: bool = False
    at: int = 0

    async def answer(self, outbox: Outbox, now: float) -> Retried:
        """Change them, and return them."""
        asked, is_one = self.selection.condition, self.selection.id is not None
        sent, late, hastened, at = await changes.retry(
            outbox, asked, now, at=self.at, force=self.force, only=is_one
        )
        return Retried(sent=sent, late=late, hastened=hastened, next=at)


class Discard(Question[Page[Delivery]], frozen=True, kw_only=True, tag=True):
    """Discard deliveries with an id above ``at`` that are pending or dead.

    They can be listed until they are pruned.
    """

    selection: Selection
    at: int = 0

    async def answer(self, outbox: Outbox, now: float) -> Page[Delivery]:
        """Change them, and return them."""
        every: tuple[DeliveryState, ...] = ("pending", "dead")
        named = self.selection.states or every
        states = tuple(state for state in every if state in named)
        asked = replace(self.selection, states=states).condition
        return Page(*await changes.discard(outbox, asked, now, at=self.at))


# -- answers in whole ------------------------------------------------------------------


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
    """The deliveries of a state file, whoever has it open."""

    ask: Ask

    async def find(self, selection: Selection, limit: int = _MANY) -> list[Delivery]:
        """Return the selected deliveries, oldest first."""
        found, at = list[Delivery](), 0
        while (most := limit - len(found)) > 0:
            page = await self.ask(
                Find(selection=selection, at=at, most=min(most, ledger.PAGE))
            )
            found += page.found
            if page.next is None:
                break
            at = page.next
        return found

    async def published(
        self, *, after: int = 0, newest: int, wanted: Wanted | None = None
    ) -> list[Observation]:
        """Return the events that were published after ``after``, oldest first.

        Args:
            after: the number of the last event that was returned before.
            newest: the most events to return; older ones are left out.
            wanted: selects events; None = all.
        """
        found, at = list[Observation](), _MANY
        while (most := newest - len(found)) > 0:
            page = await self.ask(
                Published(wanted=wanted or Wanted(), newest=most, after=after, at=at)
            )
            found += page.found
            if page.next is None:
                break
            at = page.next
        return found[::-1]

    async def observed(self, start: str) -> list[str]:
        """Return the EventIds of documents that begin with ``start``, sorted."""
        found, at = dict[str, str](), 0
        while True:
            page = await self.ask(Observed(start=start, at=at))
            found |= {one.upper(): one for one in page.found}
            if page.next is None:
                return [found[key] for key in sorted(found)]
            at = page.next

    async def retry(self, selection: Selection, *, force: bool) -> Retried:
        """Send the selected deliveries again; see ``Retry``."""
        whole = Retried(sent=[], late=[])
        at: int | None = 0
        while at is not None:
            page = await self.ask(Retry(selection=selection, force=force, at=at))
            whole.sent.extend(page.sent)
            whole.late.extend(page.late)
            whole = replace(whole, hastened=whole.hastened + page.hastened)
            at = page.next
        return whole

    async def discard(self, selection: Selection) -> list[Delivery]:
        """Discard the selected deliveries; see ``Discard``."""
        found = list[Delivery]()
        at: int | None = 0
        while at is not None:
            page = await self.ask(Discard(selection=selection, at=at))
            found += page.found
            at = page.next
        return found


# What the question of a class is answered with.
ANSWERS: Mapping[type[Question[Any]], Any] = {
    Find: Page[Delivery],
    Newest: list[Delivery],
    Published: Page[Observation],
    EventIds: list[str],
    Observed: Page[str],
    Named: bytes | None,
    Retry: Retried,
    Discard: Page[Delivery],
}
AnyQuestion = Find | Newest | Published | EventIds | Observed | Named | Retry | Discard


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

"""The ledger: whole answers to what commands ask, whoever has the state file open."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.cloudevent import rfc3339
from bridge.outbox.changes import Discard, Retried, Retry
from bridge.outbox.questions import (
    MANY,
    EventIds,
    Find,
    Named,
    Newest,
    Observation,
    Observed,
    Page,
    Published,
    Question,
    Selection,
    Wanted,
)
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox

T = TypeVar("T")
# The statuses of a forwarder that does not answer a question.
NOT_OPEN = 503  # it starts or ends, and has done nothing
NOT_NOW = 507  # its state file does not answer, or cannot be written
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

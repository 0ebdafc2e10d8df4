"""What stands in for the disk: the mirror, and a journal of what the disk has to learn.

    the disk fails ─▶ jobs are done on the mirror; the journal keeps them
    the disk works ─▶ the journal is done on it, in order, a part at a time

A part that is with the disk is in doubt until the disk has answered. What it says then
decides: what was committed is never done again, since that would raise how often
something was told; what was not is done again, in its place before all later ones.
"""

from dataclasses import dataclass, field
from typing import Any

from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.mirror import Mirror, numbers_of
from bridge.outbox.storage.transactions import Job, Result, Ticket, look, transact

_PART = 256
_URGENT_PART = 10  # a tenth more is taken if it is urgent


@dataclass(frozen=True, slots=True)
class Limits:
    """How much memory takes.

    Attributes:
        events: so many may wait to be delivered, and a tenth more that are urgent.
        jobs: so many may wait to be done on the disk; likewise.
    """

    events: int = 10_000
    jobs: int = 100_000


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that was done in memory.

    Attributes:
        numbers: the last id of each table before it: on the disk it goes on there, so
            that what it appends gets the ids that were given in memory.
    """

    job: Job[Any]
    numbers: list[tuple[str, int]]


@dataclass(slots=True)
class StandIn:
    """Takes jobs while the disk does not.

    Attributes:
        with_disk: how many entries of the journal, from its first, the disk has been
            given and not answered; None = it has been given nothing.
    """

    mirror: Mirror
    limits: Limits
    with_disk: int | None = None
    journal: list[Entry] = field(default_factory=list)
    _left: int = 0  # so many events fit before it is counted anew
    _since: int = 0  # the last item that the disk has

    def __post_init__(self) -> None:
        self._since = dict(numbers_of(self.twin)).get("items", 0)
        self.twin.is_durable = False
        self.twin.room = self

    @property
    def twin(self) -> Connection:
        """What jobs are done on."""
        return self.mirror.connection

    def take_over(self, group: list[Ticket]) -> list[Result]:
        """Do what the disk has been given and has not answered."""
        self.twin.room = None  # what the disk may have taken was not refused
        results = self.do(group)
        self.twin.room = self
        self.with_disk = len(self.journal)
        return results

    def do(self, group: list[Ticket]) -> list[Result]:
        """Do jobs, and keep those that the disk has to learn.

        Raises:
            sqlite3.Error: nothing of it was done.
        """
        jobs = [ticket.job for ticket in group]
        if all(ticket.is_read for ticket in group):
            return look(self.twin, jobs)
        numbers = list[list[tuple[str, int]]]()
        results = transact(
            self.twin, jobs, before=lambda _: numbers.append(numbers_of(self.twin))
        )
        self.journal += [
            Entry(ticket.job, before)
            for ticket, before, (_, error) in zip(group, numbers, results, strict=True)
            if ticket.is_kept and error is None
        ]
        return results

    def part(self) -> list[Entry]:
        """Return the next part for the disk, which has it from now on."""
        part = self.journal[:_PART]
        self.with_disk = len(part)
        return part

    def answered(self, *, is_done: bool) -> None:
        """Note what became of what the disk was given."""
        if is_done:
            del self.journal[: self.with_disk or 0]
        self.with_disk = None

    def takes(self, *, is_urgent: bool) -> bool:
        """Whether there is room for another event; then it is used up.

        What was delivered has left, and makes room.
        """
        if self._left <= 0:
            self._left = self.limits.events - self._waiting()
        self._left -= 1
        least = -(self.limits.events // _URGENT_PART) if is_urgent else 0
        most = self.limits.jobs + is_urgent * (self.limits.jobs // _URGENT_PART)
        return self._left >= least and len(self.journal) < most

    def _waiting(self) -> int:
        query = "SELECT count(DISTINCT item) FROM deliveries WHERE item > ?"
        count: int = self.twin.execute(query, (self._since,)).fetchone()[0]
        return count

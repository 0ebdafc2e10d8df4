"""The stand-in for a failed disk: the mirror, and a journal of the jobs for the disk.

    the disk fails ─▶ jobs are done on the mirror; the journal keeps them
    the disk works ─▶ the journal is done on it, in order, a part at a time

While a part of the journal is being written, it is unknown whether it is committed. The
disk's answer decides. Committed jobs are not repeated, because publish counts would be
too high. Other jobs are repeated, before all later ones.
"""

from typing import Any

from msgspec import Struct, field

from bridge.outbox.storage.connection import (
    Connection,
    Job,
    Result,
    Ticket,
    look,
    only_reads,
    transact,
)
from bridge.outbox.storage.mirror import Mirror, numbers_of

_PART = 256
_URGENT_PART = 10  # urgent events may exceed each limit by a tenth


class Limits(Struct, frozen=True):
    """How much is kept in memory while the disk fails.

    Attributes:
        events: how many events may wait for their delivery; urgent ones may exceed this
            by a tenth.
        jobs: how many jobs may wait for the disk; again a tenth more for urgent events.
    """

    events: int = 10_000
    jobs: int = 100_000


LIMITS = Limits()


class Entry(Struct, frozen=True):
    """A job that was done in memory.

    Attributes:
        job: the job.
        numbers: the last id used in each table before the job. On the disk the job
            starts from these ids, so that its rows get the same ids as in memory.
    """

    job: Job[Any]
    numbers: list[tuple[str, int]]


class StandIn(Struct):
    """Does jobs while the disk fails.

    Attributes:
        mirror: where jobs are done.
        limits: how much is kept in memory.
        with_disk: how many entries at the start of the journal the disk was given and
            has not answered; None = it was given none.
        journal: the jobs that the disk must still do.
    """

    mirror: Mirror
    limits: Limits
    with_disk: int | None = None
    journal: list[Entry] = field(default_factory=list)
    _left: int = 0  # room for so many more events; counted again when used up
    _since: int = 0  # the id of the last item on the disk

    def __post_init__(self) -> None:
        self._since = dict(numbers_of(self.twin)).get("items", 0)
        self.twin.is_durable = False
        self.twin.unsaved = set()
        self.twin.room = self

    @property
    def twin(self) -> Connection:
        """The connection to the mirror, where jobs run."""
        return self.mirror.connection

    def take_over(self, group: list[Ticket]) -> list[Result]:
        """Do jobs that were given to the disk, which has not answered."""
        self.twin.room = None  # the disk may have done these jobs: refuse none
        results = self.do(group)
        self.twin.room = self
        self.with_disk = len(self.journal)
        return results

    def do(self, group: list[Ticket]) -> list[Result]:
        """Do jobs, and add those that the disk must do later to the journal.

        Raises:
            sqlite3.Error: nothing was done.
        """
        jobs = [ticket.job for ticket in group]
        if only_reads(group):
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
        """Return the next part of the journal, and mark it as given to the disk."""
        part = self.journal[:_PART]
        self.with_disk = len(part)
        return part

    def answered(self, *, is_done: bool) -> None:
        """Record whether the disk has committed the part that it was given."""
        if is_done:
            del self.journal[: self.with_disk or 0]
        self.with_disk = None

    def takes(self, *, is_urgent: bool) -> bool:
        """Reserve room for another event; return whether there was room.

        Delivered events are deleted from memory, which makes room.
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

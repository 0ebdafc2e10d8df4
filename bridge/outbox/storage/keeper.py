"""The state file as its thread uses it: on the disk, or in memory if the disk fails.

Nothing here deals with threads. All work that may hang is done through ``on_disk``,
which raises an error in a thread that was replaced meanwhile.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from bridge.foundation.errors import (
    OutboxCorruptError,
    OutboxError,
    OutboxUnavailableError,
)
from bridge.outbox.storage.connection import (
    SHORT_BUSY_SECONDS,
    Connect,
    Connection,
    Result,
    Ticket,
    as_outbox_error,
    connect,
    is_unwritable,
    look,
    only_reads,
    transact,
    translated,
)
from bridge.outbox.storage.mirror import (
    EXTENT,
    Changes,
    Extent,
    Mirror,
    changes_of,
    number_from,
)
from bridge.outbox.storage.standin import LIMITS, Entry, Limits, StandIn

# -- Protocols of the keeper: the place of the file, and work on its disk --------------


T = TypeVar("T")


class Place(Protocol):
    """Checks that the file is still there, and belongs to this process alone."""

    @property
    def is_examined(self) -> bool:
        """Whether the file was checked; until then it must not be written."""
        ...

    def accepts(self, db: sqlite3.Connection) -> bool:
        """Whether what a file holds may be used, if it was not checked yet."""
        ...

    def opened(self) -> None:
        """Remember the file that was opened."""
        ...

    def fault(self) -> str | None:
        """Return why the file must not be used; None = it may be used."""
        ...

    def regain(self, file: Connection | None) -> bool:
        """Make the file usable again.

        Args:
            file: the connection to the file; None = it is not open.

        Returns:
            Whether the file must be opened again.

        Raises:
            OutboxError: it cannot be made usable now.
        """
        ...


class OnDisk(Protocol):
    """Does work on the disk, which may hang."""

    def __call__(self, work: Callable[[], T], group: list[Ticket], /) -> T:
        """Do the work; ``group`` holds the jobs that need it."""
        ...


# -- The state file as its thread uses it: on the disk, or in memory if the disk
#    fails


log = logging.getLogger(__name__)

_HEAL_BUSY_SECONDS = 0.1  # jobs must not wait long for another process's lock


# With these errors the connection itself is useless: it was opened while the file
# system was read-only, or the file system is gone. Opening the file again may help.
_STALE = ("SQLITE_READONLY", "SQLITE_IOERR")


class _Done(Struct, frozen=True):
    """The results of jobs on the disk.

    Attributes:
        results: one for each job.
        changes: what the transaction has changed, for the mirror.
        version: SQLite's ``data_version``, which changes if another process writes.
    """

    results: list[Result]
    changes: Changes | None = None
    version: int = -1


class Keeper(Struct):
    """The state file, its mirror, and the stand-in for the disk.

    Attributes:
        path: the path of the file.
        may_degrade: whether to go on in memory when the disk fails.
        connect: opens the file.
        limits: how much to keep in memory while the disk fails.
        extent: how much the mirror holds.
        fault: why the disk cannot be written now; None = it can be written.
        mirrors: whether to keep a mirror all the time; False = load it only when it is
            needed, from a disk that can still be read.
        file: the connection; None = the file is not open.
        mirror: the copy in memory; None = there is none.
        memory: the stand-in for the disk; None = the disk works.
        place: checks whether the file is still there; None = no such check.
        busy: seconds to wait for another process's lock once the file is open, if
            ``may_degrade``.
    """

    path: Path
    may_degrade: bool = False
    connect: Connect = connect
    limits: Limits = LIMITS
    extent: Extent = EXTENT
    fault: str | None = None
    mirrors: bool = True
    file: Connection | None = None
    mirror: Mirror | None = None
    memory: StandIn | None = None
    place: Place | None = None
    busy: float = SHORT_BUSY_SECONDS
    _version: int = -1  # ``data_version`` when the mirror was loaded
    _noted: _Done | None = None  # changes that the mirror does not have yet

    @property
    def connection(self) -> Connection:
        """The connection for jobs: to the file, or to its mirror."""
        connection = self.memory.twin if self.memory else self.file
        assert connection is not None, "the state file is open"  # noqa: S101 - for mypy  # nosec B101
        return connection

    def open(self) -> None:
        """Open the file, and load the mirror.

        Raises:
            OutboxError: it cannot be used.
        """
        try:
            self._demand_place()
            self.file = self._connected()
        except OutboxUnavailableError as error:
            if not self.may_degrade:
                raise
            self.degrade(str(error))
            return
        if not (self.may_degrade and self.mirrors):
            return
        try:
            self.mirror, self._version = self._loaded()
        except sqlite3.Error as error:
            self.file.close()
            text = f"the state file {self.path} cannot be read"
            raise translated(error, text) from error

    def serve(self, group: list[Ticket], on_disk: OnDisk) -> list[Result]:
        """Run jobs; return the result of each."""
        try:
            if self.memory is None:
                return self._do_on_disk(group, on_disk)
            return self.memory.do(group)
        except (sqlite3.Error, OutboxError) as error:
            if not only_reads(group):
                self.fault = str(error)
            return [(None, as_outbox_error(error))] * len(group)

    def relieve(self, group: list[Ticket], fault: str) -> list[Result]:
        """Go on in memory, beginning with the jobs that the disk has not answered.

        Args:
            group: the jobs that were given to the disk.
            fault: what is wrong with the disk.
        """
        try:
            return self.degrade(fault).take_over(group)
        except (sqlite3.Error, OutboxError) as error:
            return [(None, as_outbox_error(error))] * len(group)

    def degrade(self, fault: str) -> StandIn:
        """Go on in memory."""
        if self.mirror is None:
            self.mirror = self._read_only()
        self._catch_up()
        self.memory, self.fault = StandIn(self.mirror, self.limits), fault
        log.error(
            "state file cannot be written: going on in memory", extra={"fault": fault}
        )
        return self.memory

    def _read_only(self) -> Mirror:
        """Return what can be read of the file, without a change of it.

        Of a file that was not examined, damage and the state of another VM count as
        nothing: it is moved aside as soon as it may be.

        Raises:
            OutboxCorruptError: the file is damaged.
        """
        place = self.place
        try:
            found = Mirror.load_if_possible(self.path, self.extent)
        except OutboxCorruptError:
            if place is None or place.is_examined:
                raise
            return Mirror.blank(self.path, self.extent)
        if place is None or place.accepts(found.connection):
            return found
        found.close()
        return Mirror.blank(self.path, self.extent)

    # -- on the disk ---------------------------------------------------------

    def _do_on_disk(self, group: list[Ticket], on_disk: OnDisk) -> list[Result]:
        is_read = only_reads(group)
        try:
            # This work must not change the object: it may still run in a replaced
            # thread while another thread uses the object.
            done = on_disk(lambda: self._done(group, is_read=is_read), group)
        except (sqlite3.Error, OutboxUnavailableError) as error:
            if not self.may_degrade or not is_unwritable(error):
                raise
            return self.degrade(str(error)).do(group)
        if not is_read:
            self.fault = None
        if self.mirror is not None:
            self._note(done)
        return done.results

    def _note(self, done: _Done) -> None:
        """Note the changes of ``done`` for the mirror, beside those noted before."""
        changes = done.changes
        if changes is None and self._noted is not None:
            changes = self._noted.changes
        if changes is not None or done.version != self._version:
            self._noted = _Done([], changes, done.version)

    def _done(self, group: list[Ticket], *, is_read: bool) -> _Done:
        self._demand_place()
        file, jobs = self.connection, [ticket.job for ticket in group]
        if self.mirror is None:
            return _Done((look if is_read else transact)(file, jobs))
        if is_read:
            return _Done(look(file, jobs), version=_version_of(file))
        found = list[Changes]()
        file.changes = []
        try:
            results = transact(file, jobs, last=lambda: found.append(changes_of(file)))
        finally:
            file.changes = None
        return _Done(results, found[0], _version_of(file))

    def _demand_place(self) -> None:
        """Check that the file may be used.

        Raises:
            OutboxUnavailableError: it may not.
        """
        if self.place is not None and (fault := self.place.fault()) is not None:
            raise OutboxUnavailableError(fault)

    @property
    def is_behind(self) -> bool:
        """Whether the mirror lacks changes that were made on the disk.

        In this state only jobs that read may run.
        """
        return self._noted is not None

    def follow(self, on_disk: OnDisk) -> None:
        """Bring the changes on the disk, by any process, into the mirror."""
        version = self._noted.version if self._noted else self._version
        if not self._catch_up() or version != self._version:
            self.reload(on_disk)

    def _catch_up(self) -> bool:
        """Repeat this process's changes; return whether the mirror is still usable."""
        noted, self._noted = self._noted, None
        if self.mirror is None or noted is None or noted.changes is None:
            return True
        return self.mirror.apply(noted.changes)

    def reload(self, on_disk: OnDisk) -> None:
        """Load the mirror again; if the file cannot be read, keep the old one."""
        old = self.mirror
        self._version = -1  # if loading fails, it is tried again after the next job
        with suppress(sqlite3.Error, OutboxError):
            if self.mirrors:
                self.mirror, self._version = on_disk(self._loaded, [])
                self.mirror.replaces = old is not None
            else:
                self.mirror = None
            if old is not None:
                old.close()

    def _loaded(self) -> tuple[Mirror, int]:
        version = _version_of(self.connection)
        return Mirror.load(self.path, self.extent), version

    def tidy(self) -> None:
        """Write SQLite's log back to the file, so that no commit must do it."""
        if self.file is not None and self.memory is None:
            with suppress(sqlite3.Error):
                self.file.execute("PRAGMA wal_checkpoint(PASSIVE)")

    # -- back to the disk ----------------------------------------------------

    def write(self, part: list[Entry]) -> bool:
        """Repeat jobs of the memory on the disk; return whether they are committed."""
        try:
            file = self._regained()
            with self._healing(file):
                self._replay(file, part)
        except (sqlite3.Error, OutboxError) as error:
            if getattr(error, "sqlite_errorname", "").startswith(_STALE):
                self._let_go()
            return False  # logged once, by ``degrade``
        return True

    def _regained(self) -> Connection:
        """Return the connection to the file; open it again if needed."""
        if self.place is not None and self.place.regain(self.file):
            self._let_go()
        if self.file is None:
            self.file = self._connected()
        return self.file

    def _connected(self) -> Connection:
        file = self.connect(self.path)
        if self.may_degrade:
            _wait_for_locks(file, self.busy)
        if self.place is not None:
            self.place.opened()
        return file

    def _let_go(self) -> None:
        """Close the connection, so that the next attempt opens the file again."""
        file, self.file = self.file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    @contextmanager
    def _healing(self, file: Connection) -> Iterator[None]:
        """Wait for locks only briefly, and mark events as not durable."""
        file.is_durable = False
        _wait_for_locks(file, _HEAL_BUSY_SECONDS)
        try:
            yield
        finally:
            file.is_durable = True
            _wait_for_locks(file, self.busy)

    def _replay(self, file: Connection, part: list[Entry]) -> None:
        def number(place: int) -> None:
            if place:
                number_from(file, part[place - 1].numbers)

        jobs = [_touch, *(entry.job for entry in part)]
        for _, error in transact(file, jobs, before=number):
            if error is not None:
                fault = {"fault": str(error)}
                log.error("change lost on its way to disk", extra=fault)

    def answered(self, *, is_done: bool) -> bool:
        """Record the answer of the disk; return whether more must be written."""
        if self.memory is None:
            return False
        self.memory.answered(is_done=is_done)
        return is_done and bool(self.memory.journal)

    def return_to_disk(self) -> None:
        """Use the disk again, which has all changes; then ``reload`` is needed."""
        self.memory, self.fault = None, None
        log.info("state file can be written again")

    def close(self) -> None:
        """Close what is open, but not a file on which a thread hangs."""
        if self.memory is not None:
            log.error(
                "state file still cannot be written: the next start publishes the "
                "changes again",
                extra={"changes": len(self.memory.journal)},
            )
        is_held = self.memory is not None and self.memory.with_disk is not None
        if self.mirror is not None:
            self.mirror.close()
        if self.file is not None and not is_held:
            self.file.close()


def _version_of(file: Connection) -> int:
    version: int = file.execute("PRAGMA data_version").fetchone()[0]
    return version


def _wait_for_locks(file: Connection, seconds: float) -> None:
    file.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _touch(db: Connection) -> None:
    """Write something: nothing else proves that the disk can be written."""
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('healed', 1)")

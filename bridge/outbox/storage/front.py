"""The work of the state file's thread: groups of jobs, and the return to the disk.

One thread at a time works here. The messages and the state of the work belong to no
thread: when a thread is replaced, the next one goes on where it stopped.
"""

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.foundation.errors import OutboxFullError, OutboxUnavailableError
from bridge.outbox.storage.connection import Result, Ticket, only_reads
from bridge.outbox.storage.keeper import Keeper
from bridge.outbox.storage.standin import Entry

# -- Time limits of the state file -----------------------------------------------------


class Timings(Struct, frozen=True):
    """Limits of the state file's thread, in seconds.

    Attributes:
        patience: a disk that has not answered for this time counts as failed; infinite
            = wait for it without a limit.
        silence: a thread that has answered no job for this time counts as stuck.
        standstill: if the check of the thread is late by more than this, the whole
            machine was paused, and the time of the disk begins again.
        closing: how much longer than ``patience`` closing may take.
        quiet: after this time without a job, SQLite's log is written back.
    """

    patience: float = 3.0
    silence: float = 10.0
    standstill: float = 1.0
    closing: float = 2.0
    quiet: float = 0.1

    def without_patience(self) -> "Timings":
        """Return the same limits, but wait for a hanging disk without a limit."""
        return replace(self, patience=math.inf)


# -- The time in which one thread works on the state file: until the disk hangs --------


T = TypeVar("T")


class RelievedError(Exception):
    """Another thread has taken over while this one waited for the disk.

    Attributes:
        error: the error that the disk has reported in the end; None = no error.
    """

    def __init__(self, error: Exception | None) -> None:
        super().__init__("another thread has taken over")
        self.error = error


class Shift(Struct):
    """The turn of one thread.

    Attributes:
        group: the jobs that this thread is doing, or did last, on the disk.
    """

    group: list[Ticket] = field(default_factory=list)
    _since: float | None = None  # when the present work on the disk began; monotonic
    _is_relieved: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_disk(self, work: Callable[[], T], group: list[Ticket], /) -> T:
        """Do work that may hang.

        Raises:
            RelievedError: the work took too long, and another thread has taken over.
        """
        with self._lock:
            self.group, self._since = group, time.monotonic()
        try:
            result = work()
        except Exception as error:
            if self._is_over():
                raise RelievedError(error) from error
            raise
        if self._is_over():
            raise RelievedError(None)
        return result

    def waits_for(self) -> float | None:
        """Return for how many seconds the disk has not answered; None = it is idle."""
        since = self._since
        return None if since is None else time.monotonic() - since

    def relieve(self, patience: float) -> bool:
        """End the turn if the disk is silent for ``patience``; return if it ended."""
        with self._lock:
            waits = self.waits_for()
            self._is_relieved = waits is not None and waits >= patience
            return self._is_relieved

    def _is_over(self) -> bool:
        with self._lock:
            self._since = None
            return self._is_relieved


# -- The work of the state file's thread: groups of jobs, and the return to the disk ---


_GROUP = 256
_TRANSIENT = (OutboxUnavailableError, OutboxFullError)  # no sign of damage
_FOLLOW_AFTER = 0.002  # seconds without a job; mostly the next one comes in 1 ms
_TIDY_AFTER = 10  # commits: well before SQLite would tidy up during a commit
_LAST_WAIT = 1.0  # seconds, for a write-back that runs already at the stop
_LONGEST_LAST_WAIT = 3.0  # seconds, for a write-back that begins at the stop


class Heal(Struct, frozen=True):
    """A request to use the disk again.

    Attributes:
        future: is set when the attempt has ended, or if none can begin now.
    """

    future: asyncio.Future[None]


class Answer(Struct, frozen=True):
    """The disk has answered a replaced thread, or a thread that writes back.

    Attributes:
        is_done: whether the transaction was committed.
        goes_on: whether to write the rest of the journal at once.
    """

    is_done: bool
    goes_on: bool


class End(Struct, frozen=True):
    """The last message."""


OnTrouble = Callable[[str], None]
Message = Ticket | Heal | Answer | End


class Front(Struct):
    """The messages to the state file, and the work on them.

    Attributes:
        keeper: does the jobs.
        timings: limits of the thread.
        on_trouble: called in the thread with the fault of each failed job, if an intact
            file would not cause this fault.
        loop: the event loop in which the next three functions are called.
        settle: called with jobs and their results.
        died: called with the error that has ended a thread.
        ended: called when everything is closed.
        messages: the messages to the thread, in order.
    """

    keeper: Keeper
    timings: Timings
    on_trouble: OnTrouble
    loop: asyncio.AbstractEventLoop
    settle: Callable[[list[Ticket], list[Result]], None]
    died: Callable[[BaseException], None]
    ended: Callable[[], None]
    messages: "queue.SimpleQueue[Message]" = field(default_factory=queue.SimpleQueue)
    _held: Message | None = None  # it arrived while a group was collected
    _heals: list[Heal] = field(default_factory=list)
    _is_writing_back: bool = False  # in another thread
    _untidied: int = 0  # commits since SQLite's log was written back

    def call_in_loop(self, what: Callable[..., object], *values: object) -> None:
        """Call a function in the event loop, unless the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *values)

    def run(self, shift: Shift, group: list[Ticket] | None) -> None:
        """Work until the last message, or until another thread takes over.

        Args:
            shift: this thread's turn.
            group: the jobs of the replaced thread that the disk has not answered; None
                = no thread was replaced.
        """
        try:
            if group is not None:
                seconds = self.timings.patience
                fault = f"the disk has not answered for {seconds:g} s"
                self.call_in_loop(self.settle, group, self.keeper.relieve(group, fault))
            self._work(shift)
        except RelievedError as relieved:
            self.messages.put(Answer(relieved.error is None, goes_on=False))
        except BaseException as error:  # noqa: BLE001 - nothing else would report it
            self.call_in_loop(self.died, error)
        else:
            self.call_in_loop(self.ended)

    def _work(self, shift: Shift) -> None:
        while not isinstance(message := self._next(shift), End):
            if isinstance(message, Ticket):
                self._serve(self._group(message), shift)
            else:
                self._handle(message, shift)
        self._finish(shift)

    def _serve(self, group: list[Ticket], shift: Shift) -> None:
        """Run jobs, and update the mirror: before the next change or after a read.

        The mirror is not updated directly after a change: mostly the next job reads the
        new rows to send them, and must not wait for the mirror.
        """
        is_read = only_reads(group)
        if not is_read:
            self.keeper.follow(shift.on_disk)
        results = self.keeper.serve(group, shift.on_disk)
        for _, error in results:
            if error is not None and not isinstance(error, _TRANSIENT):
                shift.on_disk(partial(self.on_trouble, str(error)), [])
        self.call_in_loop(self.settle, group, results)
        self._untidied += not is_read
        if is_read:
            self.keeper.follow(shift.on_disk)

    def _next(self, shift: Shift) -> Message:
        """Return the next message; if none comes soon, update mirror and log first."""
        if (held := self._held) is not None:
            self._held = None
            return held
        if self.keeper.is_behind:
            try:
                return self.messages.get(timeout=_FOLLOW_AFTER)
            except queue.Empty:
                self.keeper.follow(shift.on_disk)
        if self._untidied >= (1 if self._has_part else _TIDY_AFTER):
            try:
                return self.messages.get(timeout=self.timings.quiet)
            except queue.Empty:
                self._untidied = 0
                shift.on_disk(self.keeper.tidy, [])
                self._shrink(shift)
        return self.messages.get()

    @property
    def _has_part(self) -> bool:
        """Whether the mirror holds only a part of a backlog, which may be gone now."""
        mirror = self.keeper.mirror
        return mirror is not None and not mirror.is_whole

    def _shrink(self, shift: Shift) -> None:
        """Give the memory that a backlog has taken back to the system."""
        keeper = self.keeper
        is_spent = keeper.mirror is not None and keeper.mirror.is_spent
        if is_spent and keeper.memory is None:
            keeper.reload(shift.on_disk)
        if keeper.mirror is not None and keeper.mirror.shrink():
            give_back()

    def _group(self, first: Ticket) -> list[Ticket]:
        """Return all jobs that wait now; keep any other message for the next turn."""
        group = [first]
        while len(group) < _GROUP and not self.messages.empty():
            message = self.messages.get()
            if not isinstance(message, Ticket):
                self._held = message
                break
            group.append(message)
        return group

    def _handle(self, message: Heal | Answer, shift: Shift) -> None:
        """Begin or continue the return to the disk, and end it when all is written."""
        keeper = self.keeper
        if isinstance(message, Heal):
            waiting = (heal for heal in self._heals if not heal.future.done())
            self._heals = [*waiting, message]
            if self._is_writing_back:
                return  # its end is the end of this attempt, too
            if keeper.memory is not None and keeper.memory.with_disk is None:
                self._write_back(keeper.memory.part())
                return
        else:
            self._is_writing_back = False
            if keeper.answered(is_done=message.is_done) and message.goes_on:
                assert keeper.memory is not None  # noqa: S101 - for mypy  # nosec B101
                self._write_back(keeper.memory.part())
                return
        is_healed = isinstance(message, Answer) and message.is_done and message.goes_on
        if is_healed:
            keeper.return_to_disk()
        for heal in self._heals:
            self.call_in_loop(_set_done, heal.future)
        self._heals.clear()
        if is_healed:
            keeper.reload(shift.on_disk)

    def _write_back(self, part: list[Entry]) -> None:
        """Write a part of the journal in another thread, so that jobs do not wait."""

        def work() -> None:
            try:
                is_done = self.keeper.write(part)
            except BaseException as error:  # noqa: BLE001 - nothing else would report it
                self.call_in_loop(self.died, error)
            else:
                self.messages.put(Answer(is_done, goes_on=True))

        self._is_writing_back = True
        threading.Thread(target=work, name="outbox-heal", daemon=True).start()

    def _finish(self, shift: Shift) -> None:
        """Write the changes in memory to the disk, if it answers soon; then close."""
        memory = self.keeper.memory
        wait = _LAST_WAIT
        if memory is not None and memory.with_disk is None:
            self._write_back(memory.part())
            wait = min(self.timings.patience, _LONGEST_LAST_WAIT)
        end = time.monotonic() + wait
        with suppress(queue.Empty):
            while self.keeper.memory is not None:
                left = max(end - time.monotonic(), 0.0)
                message = self.messages.get(timeout=left)
                if isinstance(message, Heal | Answer):
                    self._handle(message, shift)
                    if self._is_idle():
                        break
        self.keeper.close()

    def _is_idle(self) -> bool:
        memory = self.keeper.memory
        return memory is not None and memory.with_disk is None


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# -- Gives free memory back to the system ----------------------------------------------


def give_back() -> None:
    """Give back the memory that was freed, if the C library keeps it.

    By itself, glibc gives back only memory at the end of a heap: a process stays nearly
    as large as it ever was. Other threads that need memory during this call wait for
    some milliseconds. With another C library, nothing is done.
    """
    # Without ctypes, or where it may not make code at run time, memory stays as it is.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - costs memory, and most never need it

        ctypes.CDLL("libc.so.6").malloc_trim(0)

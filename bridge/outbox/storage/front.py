"""The work of the state file's thread: groups of jobs, and the way back to the disk.

One thread at a time works here. The messages, and the state of the work on them, are
not the thread's own: another thread goes on where a replaced one stopped.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct, field

from bridge.foundation.errors import OutboxFullError, OutboxUnavailableError
from bridge.foundation.heap import give_back
from bridge.outbox.storage.keeper import Keeper
from bridge.outbox.storage.shift import RelievedError, Shift
from bridge.outbox.storage.standin import Entry
from bridge.outbox.storage.timings import Timings
from bridge.outbox.storage.transactions import Result, Ticket, only_reads

_GROUP = 256
_PASSING = (OutboxUnavailableError, OutboxFullError)  # no sign of damage
_FOLLOW_AFTER = 0.002  # seconds without a job; the loop asks within 1 ms
_TIDY_AFTER = 10  # commits: well before SQLite would do it in the middle of one
_LAST_WAIT = 1.0  # at the stop, for a write-back that has begun before
_LONGEST_LAST_WAIT = 3.0  # likewise, for one that begins then


class Heal(Struct, frozen=True):
    """A request to go back to the disk; ``future`` is set after the attempt."""

    future: asyncio.Future[None]


class Answer(Struct, frozen=True):
    """The disk has answered a thread that was replaced, or that writes back.

    Attributes:
        is_done: whether the transaction was committed.
        goes_on: whether the rest of the journal is written at once.
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
        on_trouble: called in the thread with the fault of each job that failed in a way
            that a sound file does not.
        loop: where the next three are called.
        settle: called with jobs and their results.
        died: called with the error that has ended a thread.
        ended: called when everything is closed.
        messages: to the thread, in order.
    """

    keeper: Keeper
    timings: Timings
    on_trouble: OnTrouble
    loop: asyncio.AbstractEventLoop
    settle: Callable[[list[Ticket], list[Result]], None]
    died: Callable[[BaseException], None]
    ended: Callable[[], None]
    messages: "queue.SimpleQueue[Message]" = field(default_factory=queue.SimpleQueue)
    _held: Message | None = None  # arrived while a group was gathered
    _heals: list[Heal] = field(default_factory=list)
    _untidied: int = 0  # commits since the log was written back

    def call_in_loop(self, what: Callable[..., object], *values: object) -> None:
        """Call something in the loop, unless the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *values)

    def live(self, shift: Shift, group: list[Ticket] | None) -> None:
        """Work until the last message, or until another thread takes over.

        Args:
            shift: this thread's turn.
            group: the jobs that the disk has not answered to the thread before; None =
                there was none.
        """
        try:
            if group is not None:
                seconds = self.timings.patience
                fault = f"the disk has not answered for {seconds:g} s"
                self.call_in_loop(self.settle, group, self.keeper.relieve(group, fault))
            self._work(shift)
        except RelievedError as relieved:
            self.messages.put(Answer(relieved.error is None, goes_on=False))
        except BaseException as error:  # noqa: BLE001 - nobody else would report it
            self.call_in_loop(self.died, error)
        else:
            self.call_in_loop(self.ended)

    def _work(self, shift: Shift) -> None:
        while not isinstance(message := self._next(shift), End):
            if isinstance(message, Ticket):
                self._serve(self._group(message), shift)
            else:
                self._take(message, shift)
        self._finish(shift)

    def _serve(self, group: list[Ticket], shift: Shift) -> None:
        """Do jobs; the mirror follows before the next change, or after the next read.

        What was committed is mostly read next, to be sent: it must not wait for the
        mirror.
        """
        is_read = only_reads(group)
        if not is_read:
            self.keeper.follow(shift.on_disk)
        results = self.keeper.serve(group, shift.on_disk)
        for _, error in results:
            if error is not None and not isinstance(error, _PASSING):
                shift.on_disk(partial(self.on_trouble, str(error)), [])
        self.call_in_loop(self.settle, group, results)
        self._untidied += not is_read
        if is_read:
            self.keeper.follow(shift.on_disk)

    def _next(self, shift: Shift) -> Message:
        """Return the next message; in a quiet moment, see to the mirror and the log."""
        if (held := self._held) is not None:
            self._held = None
            return held
        if self.keeper.is_behind:
            try:
                return self.messages.get(timeout=_FOLLOW_AFTER)
            except queue.Empty:
                self.keeper.follow(shift.on_disk)
        if self._untidied >= _TIDY_AFTER:
            try:
                return self.messages.get(timeout=self.timings.quiet)
            except queue.Empty:
                self._untidied = 0
                shift.on_disk(self.keeper.tidy, [])
                self._shrink(shift)
        return self.messages.get()

    def _shrink(self, shift: Shift) -> None:
        """Give memory back to the system that a backlog has taken."""
        keeper = self.keeper
        is_spent = keeper.mirror is not None and keeper.mirror.is_spent
        if is_spent and keeper.memory is None:
            keeper.reload(shift.on_disk)
        if keeper.mirror is not None and keeper.mirror.shrink():
            give_back()

    def _group(self, first: Ticket) -> list[Ticket]:
        """Return all jobs that wait now; another message is held for the next turn."""
        group = [first]
        while len(group) < _GROUP and not self.messages.empty():
            message = self.messages.get()
            if not isinstance(message, Ticket):
                self._held = message
                break
            group.append(message)
        return group

    def _take(self, message: Heal | Answer, shift: Shift) -> None:
        keeper = self.keeper
        if isinstance(message, Heal):
            self._heals.append(message)
            if keeper.memory is not None and keeper.memory.with_disk is None:
                self._write_back(keeper.memory.part())
                return
        elif keeper.answered(is_done=message.is_done) and message.goes_on:
            assert keeper.memory is not None  # noqa: S101 - for mypy  # nosec B101
            self._write_back(keeper.memory.part())
            return
        is_healed = isinstance(message, Answer) and message.is_done and message.goes_on
        if is_healed:
            keeper.return_to_disk()
        for heal in self._heals:
            self.call_in_loop(_end, heal.future)
        self._heals.clear()
        if is_healed:
            keeper.reload(shift.on_disk)

    def _write_back(self, part: list[Entry]) -> None:
        """Write a part of the journal in another thread, so that jobs do not wait."""

        def live() -> None:
            try:
                is_done = self.keeper.write(part)
            except BaseException as error:  # noqa: BLE001 - nobody else would report it
                self.call_in_loop(self.died, error)
            else:
                self.messages.put(Answer(is_done, goes_on=True))

        threading.Thread(target=live, name="outbox-heal", daemon=True).start()

    def _finish(self, shift: Shift) -> None:
        """Write what is in memory only, if the disk answers soon, and close."""
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
                    self._take(message, shift)
                    if self._is_idle():
                        break
        self.keeper.close()

    def _is_idle(self) -> bool:
        memory = self.keeper.memory
        return memory is not None and memory.with_disk is None


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

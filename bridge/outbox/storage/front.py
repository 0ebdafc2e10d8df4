"""What a thread does at the state file: groups of jobs, and the way back to the disk.

One thread at a time is at it; the messages, and what they have led to so far, outlive
the thread, so that another one goes on where a relieved one stood.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from bridge.foundation.errors import OutboxFullError, OutboxUnavailableError
from bridge.outbox.storage.keeper import Keeper
from bridge.outbox.storage.shift import RelievedError, Shift
from bridge.outbox.storage.standin import Entry
from bridge.outbox.storage.transactions import Result, Ticket

_GROUP = 256
_PASSING = (OutboxUnavailableError, OutboxFullError)  # no fault of the file
_TIDY_AFTER = 10  # commits: well before SQLite does it in the middle of one
_QUIET_SECONDS = 0.1
_LAST_WAIT = 1.0  # for what is being written back at the stop
_LONGEST_LAST_WAIT = 3.0  # for what begins to be


@dataclass(frozen=True, slots=True)
class Heal:
    """That somebody wants to go back to the disk, and waits for the attempt."""

    future: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the disk has answered, to a thread that was relieved or that writes back."""

    is_done: bool
    goes_on: bool  # whether what is left is to be written at once


@dataclass(frozen=True, slots=True)
class End:
    """That nothing more will come."""


OnTrouble = Callable[[str], None]
Message = Ticket | Heal | Answer | End


@dataclass(slots=True)
class Front:
    """The messages to the state file, and the work on them.

    Attributes:
        patience: after how many seconds a disk that does not answer counts as failed.
        on_trouble: told, in the thread, of each job that failed as none does on a
            sound file.
        loop: where the others are called.
        settle: told what came of jobs.
        died: told what a thread has died of.
        ended: called when everything is closed.
    """

    keeper: Keeper
    patience: float
    on_trouble: OnTrouble
    loop: asyncio.AbstractEventLoop
    settle: Callable[[list[Ticket], list[Result]], None]
    died: Callable[[BaseException], None]
    ended: Callable[[], None]
    messages: "queue.SimpleQueue[Message]" = field(default_factory=queue.SimpleQueue)
    _held: Message | None = None  # came while a group was gathered
    _heals: list[Heal] = field(default_factory=list)
    _untidied: int = 0  # commits since the log was written back

    def tell(self, what: Callable[..., object], *values: object) -> None:
        """Have something done in the loop, if there is one left."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *values)

    def live(self, shift: Shift, group: list[Ticket] | None) -> None:
        """Work until the end, or until relieved; ``group`` is to be taken over."""
        try:
            if group is not None:
                fault = f"the disk has not answered for {self.patience:g} s"
                self.tell(self.settle, group, self.keeper.relieve(group, fault))
            self._work(shift)
        except RelievedError as relieved:
            self.messages.put(Answer(relieved.error is None, goes_on=False))
        except BaseException as error:  # noqa: BLE001 - nobody else would tell of it
            self.tell(self.died, error)
        else:
            self.tell(self.ended)

    def _work(self, shift: Shift) -> None:
        while not isinstance(message := self._next(shift), End):
            if isinstance(message, Ticket):
                self._serve(self._group(message), shift)
            else:
                self._take(message, shift)
        self._finish(shift)

    def _serve(self, group: list[Ticket], shift: Shift) -> None:
        results = self.keeper.serve(group, shift.on_disk)
        for _, error in results:
            if error is not None and not isinstance(error, _PASSING):
                shift.on_disk(partial(self.on_trouble, str(error)), [])
        self.tell(self.settle, group, results)
        self._untidied += not all(ticket.is_read for ticket in group)
        self.keeper.follow(shift.on_disk)

    def _next(self, shift: Shift) -> Message:
        """Return the next message; quiet moments are for what would hold one up."""
        if (held := self._held) is not None:
            self._held = None
            return held
        if self._untidied >= _TIDY_AFTER:
            try:
                return self.messages.get(timeout=_QUIET_SECONDS)
            except queue.Empty:
                self._untidied = 0
                shift.on_disk(self.keeper.tidy, [])
        return self.messages.get()

    def _group(self, first: Ticket) -> list[Ticket]:
        """Return all that wait now; what is no ticket is held for the next turn."""
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
            self.tell(_end, heal.future)
        self._heals.clear()
        if is_healed:
            keeper.reload(shift.on_disk)

    def _write_back(self, part: list[Entry]) -> None:
        """Let a thread of its own do it: whoever asks meanwhile is answered."""

        def live() -> None:
            try:
                is_done = self.keeper.write(part)
            except BaseException as error:  # noqa: BLE001 - nobody else would tell of it
                self.tell(self.died, error)
            else:
                self.messages.put(Answer(is_done, goes_on=True))

        threading.Thread(target=live, name="outbox-heal", daemon=True).start()

    def _finish(self, shift: Shift) -> None:
        """Write what is in memory only, if the disk answers now, and close."""
        memory = self.keeper.memory
        wait = _LAST_WAIT
        if memory is not None and memory.with_disk is None:
            self._write_back(memory.part())
            wait = min(self.patience, _LONGEST_LAST_WAIT)
        end = time.monotonic() + wait
        with suppress(queue.Empty):
            while self.keeper.memory is not None:
                left = max(end - time.monotonic(), 0.0)
                message = self.messages.get(timeout=left)
                if isinstance(message, Heal | Answer):
                    self._take(message, shift)
                    if self._is_nobody_writing():
                        break
        self.keeper.close()

    def _is_nobody_writing(self) -> bool:
        memory = self.keeper.memory
        return memory is not None and memory.with_disk is None


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""The way of a command to the outbox: the running forwarder, or else the state file.

the forwarder answers at its socket         → it is asked
nobody has the lock of the state file       → this process opens the file; with the
lock if it changes something
a forwarder has it, but does not answer     → asked again; an error after some seconds
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from bridge.events.identity import Identity
from bridge.events.routing import Router
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    OutboxClosedError,
    OutboxCorruptError,
    OutboxError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.foundation.sqlite_files import passed_over
from bridge.health.report import StatusReport
from bridge.net import local_socket
from bridge.outbox.admin import NOT_NOW, NOT_OPEN, Ask, Here, Ledger, type_of_answer
from bridge.outbox.questions import Question
from bridge.outbox.statefile import is_there, locked
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.store import Outbox

T = TypeVar("T")
_KINDS = {NOT_OPEN: OutboxClosedError, NOT_NOW: OutboxUnavailableError}

_PATIENCE = 10.0  # seconds; the state file answers in 3 s, or says that it does not
_STATUS_PATIENCE = 4.0
_STARTS_WITHIN = 5.0  # seconds from the lock to the socket
_PAUSE = 0.1
_OK = 200


class Forwarder(Struct, frozen=True):
    """A forwarder that runs on this machine, and answers questions.

    Attributes:
        path: of its state file.
    """

    path: Path

    async def __call__(self, question: Question[T]) -> T:
        """Return its answer.

        Raises:
            OutboxError: it does not answer, or its state file does not.
        """
        asked = msgspec.msgpack.encode(question)
        body = await self._body("POST", "/outbox", asked, _PATIENCE)
        try:
            found: T = msgspec.msgpack.decode(body, type=type_of_answer(question))
        except msgspec.DecodeError as error:
            raise self._foreign(error) from error
        return found

    async def status(self) -> StatusReport:
        """Return its status.

        Raises:
            OutboxError: it does not answer.
        """
        body = await self._body("GET", "/status", b"", _STATUS_PATIENCE)
        try:
            return msgspec.json.decode(body, type=StatusReport)
        except msgspec.DecodeError as error:
            raise self._foreign(error) from error

    async def _body(
        self, verb: str, target: str, body: bytes, patience: float
    ) -> bytes:
        try:
            status, found = await local_socket.ask(
                self.path, verb, target, body, patience
            )
        except TimeoutError as error:
            text = f"{self._who} has not answered for {patience:g} s: is it stopped?"
            raise OutboxError(text) from error
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise OutboxClosedError(f"{self._who} has ended: try again") from error
        except PermissionError as error:  # Windows lets others look, but not ask
            raise _not_allowed(self.path) from error
        except OSError as error:
            text = f"{self._who} has ended meanwhile, or is ending: try again"
            raise OutboxUnavailableError(text) from error
        except ValueError as error:
            raise self._foreign(error) from error
        if status != _OK:
            raise _KINDS.get(status, OutboxError)(
                found.decode(errors="replace").strip()
            )
        return found

    @property
    def _who(self) -> str:
        return f"the forwarder that runs on the state file {self.path}"

    def _foreign(self, error: Exception) -> OutboxError:
        return OutboxError(f"{self._who} answers as another version does: {error}")


def forwarder_of(path: Path) -> Forwarder | None:
    """Return the forwarder that runs on a state file; None = none answers.

    Raises:
        OutboxError: this user may not ask it.
    """
    try:
        return Forwarder(path) if local_socket.is_answered(path) else None
    except PermissionError as error:
        raise _not_allowed(path) from error


def _not_allowed(path: Path) -> OutboxError:
    who = "as an administrator" if sys.platform == "win32" else "as root"
    text = f"this user may not read the state file {path}, nor ask its forwarder"
    return OutboxError(f"{text}: run this as the user of the service, or {who}")


def demand_file(path: Path) -> None:
    """Make sure that there is a state file.

    Raises:
        OutboxError: there is none.
    """
    if not is_there(path):
        text = f"there is no state file {path}: no forwarder has run with it yet"
        raise OutboxError(text)


@asynccontextmanager
async def outbox_of(
    path: Path, *, changes: bool = False, loads: bool = False
) -> AsyncIterator[Outbox]:
    """Open a state file that no forwarder uses.

    Args:
        path: the state file.
        changes: whether it will be changed: then no forwarder can start meanwhile.
        loads: whether more is asked than a ``Question`` that changes nothing.

    Raises:
        OutboxLockedError: a forwarder uses it.
        OutboxError: there is no such file, or it cannot be used.
    """
    await asyncio.to_thread(demand_file, path)
    async with AsyncExitStack() as stack:
        if changes:
            if (fault := stack.enter_context(locked(path)).fault()) is not None:
                raise OutboxUnavailableError(fault)
        else:
            with locked(path):
                pass  # a forwarder may start while the file is read
        if (odd := await asyncio.to_thread(passed_over, path)) is not None:
            text = f"the state file {path} is not whole: {odd}; see 'check --connect'"
            raise OutboxCorruptError(text)
        database = await stack.enter_async_context(Database.open(File(path)))
        router = Router(routes={}, scope="all", identity=Identity())
        if loads or changes:
            yield await Outbox.of(database, router)
        else:
            yield Outbox(database, router)  # a question reads what it needs


@asynccontextmanager
async def access(
    path: Path,
    clock: Clock,
    *,
    changes: bool = False,
    patience: float = _STARTS_WITHIN,
) -> AsyncIterator[Ledger]:
    """Yield the ledger of a state file, whoever has it open.

    Args:
        path: the state file.
        clock: the clock of this machine.
        changes: whether something will be changed.
        patience: seconds for which a forwarder may start, end, or hold the lock without
            answering: each question is asked again meanwhile, unless it may have
            changed something.

    Raises:
        OutboxError: there is none, or nobody answers.
    """
    async with AsyncExitStack() as stack:
        asking = _Asking(path, clock, stack, patience, changes)
        await asking.find()
        yield Ledger(asking)


class _Asking(Struct):
    """Asks who has the state file open; if that one ends, who has it then."""

    path: Path
    clock: Clock
    stack: AsyncExitStack
    patience: float
    changes: bool
    _found: Ask | None = None

    async def __call__(self, question: Question[T]) -> T:
        """Return the answer.

        Raises:
            OutboxError: nobody answers.
        """
        until, never = self.clock.monotonic() + self.patience, asyncio.Event()
        while True:
            ask = self._found or await self.find()
            try:
                return await ask(question)
            except (OutboxClosedError, OutboxUnavailableError) as error:
                is_done = self.changes and not isinstance(error, OutboxClosedError)
                if is_done or self.clock.monotonic() >= until:
                    raise
            if isinstance(ask, Forwarder):
                self._found = None
            await self.clock.wait(never, _PAUSE)

    async def find(self) -> Ask:
        """Return who is asked: the forwarder, or this process, which opens the file.

        Raises:
            OutboxError: there is no file, or nobody answers.
        """
        until, never = self.clock.monotonic() + self.patience, asyncio.Event()
        opening = partial(outbox_of, self.path, changes=self.changes)
        while (forwarder := forwarder_of(self.path)) is None:
            try:
                outbox = await self.stack.enter_async_context(opening())
            except OutboxLockedError as error:
                if self.clock.monotonic() >= until:
                    place = local_socket.address_of(self.path)
                    why = local_socket.obstacle(self.path) or f"see its log ({place})"
                    text = f"{error}, but it does not answer: {why}"
                    raise OutboxError(text) from error
            else:
                self._found = Here(outbox, lambda: self.clock.now().timestamp())
                return self._found
            await self.clock.wait(never, _PAUSE)
        self._found = forwarder
        return forwarder


class AskAnew(Struct, frozen=True):
    """Finds for each question who answers it: a forwarder may start or end meanwhile.

    Attributes:
        path: the state file.
        patience: as of ``access``.
    """

    path: Path
    clock: Clock
    patience: float = _STARTS_WITHIN

    async def __call__(self, question: Question[T]) -> T:
        """Return the answer.

        Raises:
            OutboxError: nobody answers.
        """
        async with access(self.path, self.clock, patience=self.patience) as ledger:
            return await ledger.ask(question)

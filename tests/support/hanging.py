"""A disk that hangs for as long as a test says, and then answers as it says."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import Connection, connect

LONGEST = 60.0  # a test that forgot to thaw it


class Hanging:
    """Opens connections that hang at one kind of statement while it is frozen.

    Attributes:
        hung: set once a thread hangs.
        on_change: told whether the disk is frozen from now on.
    """

    def __init__(self) -> None:
        self.hung = threading.Event()
        self.on_change: Callable[[bool], object] = bool
        self._thawed = threading.Event()
        self._thawed.set()
        self._at, self._is_after, self._fails = "", False, False

    def freeze(self, at: str = "COMMIT", *, is_after: bool = False) -> None:
        """Let statements that begin with ``at`` hang, before or after they are done."""
        self._at, self._is_after = at, is_after
        self._fails = False
        self.hung.clear()
        self._thawed.clear()
        self.on_change(True)  # noqa: FBT003 - told of one thing

    def thaw(self, *, fails: bool = False) -> None:
        """Let all go on; what hung before it was done is done now, or ``fails``."""
        self._fails = fails
        self._thawed.set()
        self.on_change(False)  # noqa: FBT003 - told of one thing

    def follow(self, database: Database, patience: float, within: float) -> None:
        """Wait for ``patience`` while it is frozen, and else for ``within``.

        Args:
            database: opened with ``open``.
            patience: seconds.
            within: seconds, which no busy machine reaches.
        """

        def changed(is_frozen: bool) -> None:  # noqa: FBT001 - the one thing told
            seconds = patience if is_frozen else within
            database.timings = replace(database.timings, patience=seconds)
            if database._timer is not None:  # it was set by the limit before
                database._timer.cancel()
                database._look_in(seconds)

        self.on_change = changed

    def open(self, path: Path) -> Connection:
        """Open a connection: the keeper's ``connect``."""
        disk = self

        class Held(Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                with disk.waiting(sql):
                    return super().execute(sql, parameters)

        return connect(path, Held)

    @contextmanager
    def waiting(self, sql: str) -> Iterator[None]:
        """Wait while it is frozen."""
        hangs = not self._thawed.is_set() and sql.startswith(self._at)
        if hangs and not self._is_after:
            self._wait()
            if self._fails:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_WRITE"
                raise error
        yield
        if hangs and self._is_after:
            self._wait()

    def _wait(self) -> None:
        self.hung.set()
        assert self._thawed.wait(LONGEST), "nobody has thawed the disk"

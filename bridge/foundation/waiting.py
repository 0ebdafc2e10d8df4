"""Records what the program is waiting for, so that a command can show it.

The record is kept in a context variable, so that it need not be passed to every
function. If no command has asked for a record, nothing is recorded.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct, field

from bridge.foundation.clock import Clock


class Waits(Struct, frozen=True):
    """What the program is waiting for, and since when."""

    clock: Clock
    _since: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Record a wait for ``what`` while the context is open."""
        self._since.setdefault(what, self.clock.monotonic())
        try:
            yield
        finally:
            self._since.pop(what, None)

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each wait by its name, the longest first."""
        now = self.clock.monotonic()
        return {what: now - since for what, since in self._since.items()}


_record: ContextVar[Waits | None] = ContextVar("record", default=None)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Record a wait for ``what``, if ``looking_on`` has asked for a record."""
    waits = _record.get()
    if waits is None:
        yield
        return
    with waits.of(what):
        yield


@contextmanager
def looking_on(waits: Waits) -> Iterator[None]:
    """Record the waits of all work that begins in this context."""
    token = _record.set(waits)
    try:
        yield
    finally:
        _record.reset(token)

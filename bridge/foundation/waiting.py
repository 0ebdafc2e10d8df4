"""What is being waited for now, for whoever would tell a person.

It is kept in the context of the task, so that what waits need not be told who looks on,
and where nobody does, nothing is kept.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from bridge.foundation.clock import Clock


@dataclass(frozen=True, slots=True)
class Waits:
    """What is waited for, by its name, and since when."""

    clock: Clock
    _since: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Note that ``what`` is waited for as long as the context is open."""
        self._since.setdefault(what, self.clock.monotonic())
        try:
            yield
        finally:
            self._since.pop(what, None)

    def seconds(self) -> Mapping[str, float]:
        """Return how long each has been waited for, the longest first."""
        now = self.clock.monotonic()
        return {what: now - since for what, since in self._since.items()}


_looked_on: ContextVar[Waits | None] = ContextVar("looked_on", default=None)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Note that ``what`` is waited for, where somebody looks on."""
    waits = _looked_on.get()
    if waits is None:
        yield
        return
    with waits.of(what):
        yield


@contextmanager
def looking_on(waits: Waits) -> Iterator[None]:
    """Have all that begins in this context note what it waits for."""
    token = _looked_on.set(waits)
    try:
        yield
    finally:
        _looked_on.reset(token)

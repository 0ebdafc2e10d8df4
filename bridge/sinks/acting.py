"""The contract of a sink that acts on this machine instead of sending the event.

It decides when a step may begin, and may be stopped while it acts. The final result of
a step is reported once. ``bridge.pipeline.acting`` calls it.
"""

import asyncio
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.routing import Route
from bridge.events.watch import Watch


class Action(StrEnum):
    """The action for a step."""

    PREPARE = "prepare"
    RESTORE = "restore"


class Fate(StrEnum):
    """The result of a step; a closed set, because it labels a metric."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outlook(Protocol):
    """The current knowledge about this VM and the document."""

    @property
    def identity(self) -> Identity:
        """The identity of this VM, as far as it is known."""
        ...

    @property
    def document(self) -> Document | None:
        """The last good document since the process started; None before the first."""
        ...

    @property
    def watch(self) -> Watch:
        """The state of all events after that document."""
        ...


class Step(Struct, frozen=True, kw_only=True):
    """A step that is to be acted on.

    Attributes:
        event: the CloudEvent of the step.
        key: the key of its EventId.
        attempts: the number of attempts so far.
        newer: the newest later step of the same EventId; None if there is none.
        asked: monotonic seconds of the step's first verdict since the process started.
        done: the CloudEvent of the last success that still counts; empty if it was not
            stored; None: there is no such success.
        older: the step of the same EventId before it; None if none is kept.
    """

    event: CloudEvent
    key: str
    attempts: int
    newer: CloudEvent | None
    asked: float
    done: bytes | None = None
    older: bytes | None = None


class Begin(Struct, frozen=True):
    """The step may begin now."""


class Wait(Struct, frozen=True):
    """The step may not begin yet; ask again after at most this many seconds.

    ``is_early``: its time has not come, and nothing else is in its way.
    """

    seconds: float = 1.0
    is_early: bool = False


class Skip(Struct, frozen=True):
    """The step will not begin any more; this is final."""

    reason: str
    fate: Fate = Fate.SKIPPED


Verdict = Begin | Wait | Skip


class Ending(Struct, frozen=True, kw_only=True):
    """The end of one attempt.

    Attributes:
        fate: the result of the step; final unless ``is_transient``.
        reason: why it did not succeed, as text.
        is_transient: whether the step is tried again.
        exit_code: of the process; None if it was killed or never ran.
        signal: the signal that killed the process.
        timed_out: whether the attempt was ended because it took too long.
        seconds: how long the attempt took.
        output: the part of the output that is kept.
    """

    fate: Fate
    reason: str | None = None
    is_transient: bool = False
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    seconds: float = 0.0
    output: str = ""


class Actor(Protocol):
    """Acts on steps: one at a time, except urgent ones."""

    @property
    def route(self) -> Route:
        """The route that the configuration asks for."""
        ...

    @property
    def limit(self) -> float:
        """Seconds after which an attempt is abandoned, even if it hangs."""
        ...

    @property
    def most_attempts(self) -> int:
        """The number of attempts after which a step has failed for good."""
        ...

    @property
    def keeps_output(self) -> frozenset[Fate]:
        """The results for which the output is published."""
        ...

    @property
    def obstacle(self) -> str | None:
        """Why no step can begin at all; None if steps can begin."""
        ...

    @property
    def unclear(self) -> str | None:
        """Why an event of the document is not acted on; None if no such event exists.

        Its machines are not known, so nobody can say whether it affects this VM.
        """
        ...

    def restores_at_start(self) -> bool | None:
        """Whether to run a restore after this start; None while it is not known."""
        ...

    def action(self, event: CloudEvent) -> Action:
        """Return the action for a step."""
        ...

    def verdict(self, step: Step) -> Verdict:
        """Decide whether a step may begin now."""
        ...

    def void(self, step: Step) -> str | None:
        """Return why a running step must be stopped; None: it continues."""
        ...

    def counts(self, step: Step) -> bool:
        """Whether other parts may rely on a success now."""
        ...

    def may_join(self, step: Step, other: Step, seconds: float) -> bool:
        """Whether a step may begin beside another, which may need ``seconds`` more."""
        ...

    async def act(self, step: Step, stop: asyncio.Event) -> Ending:
        """Act once, until ``stop`` is set; when cancelled, leave nothing running."""
        ...

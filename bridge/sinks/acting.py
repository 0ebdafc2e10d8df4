"""The contract of a sink that acts on a step where others are told of it.

It is asked before it begins, may be stopped while it acts, and what became of a step is
told once that is final. Who asks is ``bridge.pipeline.acting``.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.routing import Route
from bridge.events.watch import Watch


class Action(StrEnum):
    """What is done for a step."""

    PREPARE = "prepare"
    RESTORE = "restore"


class Fate(StrEnum):
    """What became of a step; a closed set, since it labels a metric."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outlook(Protocol):
    """What is known now of this VM and of the document."""

    @property
    def identity(self) -> Identity:
        """Who this VM is, as far as that is known."""
        ...

    @property
    def document(self) -> Document | None:
        """The last good document of this life; None before the first."""
        ...

    @property
    def watch(self) -> Watch:
        """What is known after it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that is to be acted on.

    Attributes:
        event: that tells it.
        key: of its EventId.
        attempts: how many were made before.
        newer: the newest later step of the same EventId; None where this one is.
        asked: monotonic seconds, when it was first asked about in this life.
        done: the event as it was at the last success for it that still counts.
    """

    event: CloudEvent
    key: str
    attempts: int
    newer: CloudEvent | None
    asked: float
    done: bytes | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """It may begin now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may not begin yet; it is asked about again after so many seconds at most."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Skip:
    """It is not begun any more, and that is final."""

    reason: str
    fate: Fate = Fate.SKIPPED


Verdict = Begin | Wait | Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one attempt ended.

    Attributes:
        fate: what became of it; it is final unless ``is_transient``.
        reason: why it did not succeed, in words.
        is_transient: whether it is tried again.
        exit_code: of the process; None where it was killed, or never ran.
        signal: that killed it.
        timed_out: whether it was ended because it took too long.
        seconds: how long it took.
        output: what it wrote, as much as is kept.
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
    """Acts on steps, one at a time but for what cannot wait."""

    @property
    def route(self) -> Route:
        """What is asked for by the configuration."""
        ...

    @property
    def limit(self) -> float:
        """Seconds after which an attempt is given up, whatever it does."""
        ...

    @property
    def most_attempts(self) -> int:
        """After so many a step has failed for good."""
        ...

    @property
    def keeps_output(self) -> frozenset[Fate]:
        """Of which fates the output is told."""
        ...

    @property
    def obstacle(self) -> str | None:
        """Why nothing at all can be begun; None where something can."""
        ...

    def restores_at_start(self) -> bool | None:
        """Whether this life begins with a restore; None while that cannot be said."""
        ...

    def action(self, event: CloudEvent) -> Action:
        """Return what is to be done for a step."""
        ...

    def verdict(self, step: Step) -> Verdict:
        """Say whether a step may begin now."""
        ...

    def void(self, step: Step) -> str | None:
        """Return why a step that is acted on is to be stopped; None: it goes on."""
        ...

    def counts(self, step: Step) -> bool:
        """Whether a success now is one that others may rely on."""
        ...

    def may_join(self, step: Step, other: Step, seconds: float) -> bool:
        """Whether a step may begin beside another, which may take ``seconds`` more."""
        ...

    async def act(self, step: Step, stop: asyncio.Event) -> Ending:
        """Act once, until ``stop`` is set; when cancelled it leaves nothing running."""
        ...

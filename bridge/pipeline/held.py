"""Holds transitions back while the identity of this VM is not known. Pure.

An event contains its source and whether it affects this VM. So a transition waits for
the identity if it can. A transition that cannot wait is published with what is known.
The checkpoint does not contain the held transitions: after a restart, they are
observed again.

    seen ──may not wait──▶ published with what is known
      └────may wait──────▶ held ──becomes urgent, or identity is known──▶ published

Invariant: the transitions of one EventId are published in the order of observation.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.document import Document, ScheduledEvent
from bridge.events.transitions import Transition
from bridge.events.vocabulary import EventStatus
from bridge.events.watch import Known, Watch

_MAY_WAIT = timedelta(minutes=2)  # a transition with more notice left may wait


class Observation(Struct, frozen=True, kw_only=True):
    """What is new in one document.

    Attributes:
        at: when the document was read.
        document: the document.
        steps: the transitions since the document before.
        is_changed: whether to publish a document.changed event.
        previous_incarnation: the incarnation of the document before.
        paused: how long this VM stood still before, in seconds; 0 = not at all, or an
            earlier event tells of it.
    """

    at: datetime
    document: Document
    steps: tuple[Transition, ...] = ()
    is_changed: bool = False
    previous_incarnation: int | None = None
    paused: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether the document contains nothing to publish."""
        return not (self.steps or self.is_changed)


class Held(Struct, frozen=True, kw_only=True):
    """Observations that wait, in order.

    Attributes:
        before: for each EventId with a held transition, what was known before that
            transition; None if nothing was known.
        incarnation: that of the last document before the first held observation.
    """

    observations: tuple[Observation, ...] = ()
    before: Mapping[str, Known | None] = field(default_factory=dict)
    incarnation: int | None = None

    def plus(self, seen: Observation, before: Watch) -> "Held":
        """Return the held observations with one more.

        Args:
            seen: the new observation.
            before: the watch before the new observation.
        """
        if seen.is_empty:
            return self
        keys = (step.event.key for step in seen.steps)
        return Held(
            observations=(*self.observations, seen),
            before={key: before.known.get(key) for key in keys} | {**self.before},
            incarnation=self.incarnation if self.observations else before.incarnation,
        )

    def split(self, now: datetime) -> "tuple[tuple[Observation, ...], Held]":
        """Return the observations to publish now, and the rest.

        If one transition of an EventId is urgent, all transitions of this EventId are
        published, so that their order is kept.
        """
        urgent, ready, rest = self._urgent(now), list[Observation](), []
        for one in self.observations:
            pressing = tuple(step for step in one.steps if step.event.key in urgent)
            others = tuple(step for step in one.steps if step.event.key not in urgent)
            ready.append(replace(one, steps=pressing, is_changed=False))
            rest.append(replace(one, steps=others))
        held = Held(
            observations=tuple(one for one in rest if not one.is_empty),
            before={k: v for k, v in self.before.items() if k not in urgent},
            incarnation=self.incarnation,
        )
        return tuple(one for one in ready if not one.is_empty), held

    def published_part(self, watch: Watch) -> Watch:
        """Return the watch for the checkpoint: without the held transitions.

        It is marked as incomplete, so that after a restart nothing is concluded from an
        event that is missing.
        """
        if not self.observations:
            return watch
        known = {k: v for k, v in watch.known.items() if k not in self.before}
        known |= {k: v for k, v in self.before.items() if v is not None}
        return replace(
            watch, known=known, incarnation=self.incarnation, was_complete=False
        )

    def _urgent(self, now: datetime) -> frozenset[str]:
        last = {step.event.key: step for one in self.observations for step in one.steps}
        return frozenset(
            key
            for key, step in last.items()
            if not step.is_gone and _may_not_wait(step.event, now)
        )


def _may_not_wait(event: ScheduledEvent, now: datetime) -> bool:
    """Return whether an event's impact has begun, or may begin within two minutes."""
    if event.status == EventStatus.STARTED or event.not_before is None:
        return True
    return event.not_before - now < _MAY_WAIT

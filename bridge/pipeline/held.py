"""What was observed and is not told yet, because it is not known who this VM is. Pure.

An event names its source and whether it concerns this VM, so what can wait for the
answer waits; what cannot is told with what is known by then. Nothing of what waits is
in the checkpoint: a later life, which knows nothing of it, finds it again.

    seen ──may not wait──▶ told with what is known
      └────may wait──────▶ held ──becomes urgent, or the identity is settled──▶ told

Invariant: the steps of one EventId are told in the order in which they were seen.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bridge.events.build import (
    EventContext,
    OutgoingEvent,
    cause_of,
    cause_of_document,
    from_document,
    from_transition,
)
from bridge.events.document import STARTED, Document, ScheduledEvent
from bridge.events.transitions import Transition
from bridge.events.watch import Known, Watch
from bridge.foundation.hashing import hash32

_MAY_WAIT = timedelta(minutes=2)  # of notice that is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one look at the document has brought.

    Attributes:
        at: when.
        document: what was looked at.
        steps: how it differs from what was known before.
        is_changed: whether its incarnation differs, too.
        previous_incarnation: of the document before it.
    """

    at: datetime
    document: Document
    steps: tuple[Transition, ...] = ()
    is_changed: bool = False
    previous_incarnation: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell of it."""
        return not (self.steps or self.is_changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Observations that wait, in order.

    Attributes:
        before: what was known of each EventId with a step that waits, before that step;
            None where nothing was.
        incarnation: of the last document before the first of them.
    """

    observations: tuple[Observation, ...] = ()
    before: Mapping[str, Known | None] = field(default_factory=dict)
    incarnation: int | None = None

    def plus(self, seen: Observation, before: Watch) -> "Held":
        """Return it with one more observation.

        Args:
            seen: what was observed.
            before: what was known before that.
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
        """Return what may not wait any longer, and what may.

        An EventId goes with all that waits of it: its steps are told in order.
        """
        urgent = self._urgent(now)
        rest = tuple(
            replace(one, steps=_without(one, urgent)) for one in self.observations
        )
        ready = tuple(
            replace(one, steps=_within(one, urgent), is_changed=False)
            for one in self.observations
        )
        held = Held(
            observations=tuple(one for one in rest if not one.is_empty),
            before={k: v for k, v in self.before.items() if k not in urgent},
            incarnation=self.incarnation,
        )
        return tuple(one for one in ready if not one.is_empty), held

    def told_of(self, watch: Watch) -> Watch:
        """Return what a checkpoint holds: what is known without what is not told yet.

        Whoever goes on from there has not seen everything, and must not conclude from
        what is missing.
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
    """Whether its impact has begun, may begin within two minutes, or at any time."""
    if event.status == STARTED or event.not_before is None:
        return True
    return event.not_before - now < _MAY_WAIT


def _within(one: Observation, keys: AbstractSet[str]) -> tuple[Transition, ...]:
    return tuple(step for step in one.steps if step.event.key in keys)


def _without(one: Observation, keys: AbstractSet[str]) -> tuple[Transition, ...]:
    return tuple(step for step in one.steps if step.event.key not in keys)


def causes_of(
    event_context: EventContext, observations: Sequence[Observation]
) -> Iterator[str]:
    """Yield the hash of each cause of what is told of observations, in order."""
    for one in observations:
        yield from (hash32(cause_of(step)) for step in one.steps)
        if one.is_changed:
            yield hash32(cause_of_document(event_context, one.document))


def told_of(
    event_context: EventContext,
    observations: Sequence[Observation],
    times: Mapping[str, int],
) -> list[OutgoingEvent]:
    """Return what is told of observations, in order.

    Args:
        event_context: who tells.
        observations: what was seen.
        times: how often each cause was told before; one that is absent never was.
    """
    causes, counts = causes_of(event_context, observations), Counter(times)

    def again() -> int:
        """Return how often the next cause was told, also just now."""
        cause = next(causes)
        counts[cause] += 1
        return counts[cause] - 1

    told = []
    for one in observations:
        told += [
            from_transition(
                event_context,
                step,
                incarnation=one.document.incarnation,
                observed_at=one.at,
                told=again(),
            )
            for step in one.steps
        ]
        if one.is_changed:
            told.append(
                from_document(
                    event_context,
                    one.document,
                    previous_incarnation=one.previous_incarnation,
                    observed_at=one.at,
                    told=again(),
                )
            )
    return told

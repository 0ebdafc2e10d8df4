"""Decides which events a sink receives: ``[sinks.when]``. Pure.

A sink receives an event if there is no obstacle. Each obstacle is a reason in words.
``sebridge route`` prints the same obstacles that the forwarder decides by.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.document import ScheduledEvent, bare
from bridge.events.identity import Identity
from bridge.foundation.sections import Section

_MOST_NAMES = 10

Scope = Literal["all", "own", "first"]
Transition = Literal[
    "scheduled", "started", "updated", "completed", "cancelled", "ended"
]


class When(Section, frozen=True, kw_only=True):
    """``[sinks.when]``: which events the sink receives.

    An event must meet every condition that is given. A condition that is left out does
    not limit anything. The defaults of ``scope`` and ``lifecycle`` depend on the type
    of the sink.

    Attributes:
        transitions: the transitions that the sink receives. Left out: all. Example:
            ``["scheduled", "started"]``.
        event_types: the EventTypes that the sink receives. Left out: all. Example:
            ``["Reboot", "Redeploy", "Preempt", "Terminate"]``.
        event_sources: the EventSources that the sink receives: Platform or User. Left
            out: both. Example: ``["Platform"]``.
        resources: patterns for names of VMs; case does not matter. One resource that
            matches is enough. Example: ``["web-*"]``.
        scope: "all": every event of the document; "own": events that name this VM;
            "first": events whose first resource is this VM. Left out: "all" for
            servicebus, "own" for every other type.
        lifecycle: whether the sink receives bridge.* and document.* events. Left out:
            false for command, email and slack, true for every other type.
    """

    transitions: tuple[Transition, ...] | None = None
    event_types: tuple[str, ...] | None = None
    event_sources: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    scope: Scope | None = None
    lifecycle: bool | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse an empty list: the sink would receive nothing."""
        for key in ("transitions", "event_types", "event_sources", "resources"):
            if getattr(self, key) == ():
                yield key, "must not be empty; leave it out for no limit"


class Subject(Struct, frozen=True, kw_only=True):
    """The values of one outgoing event that routing decides by.

    Attributes:
        transition: that of a scheduledevent.* event; None for all other events.
        events: the scheduled event as it is, and as it was before. It is enough if one
            of the two meets the conditions.
        is_lifecycle: whether this is a bridge.* or document.* event.
    """

    transition: str | None = None
    events: tuple[ScheduledEvent, ...] = ()
    is_lifecycle: bool = False


class Obstacle(Struct, frozen=True, kw_only=True):
    """A condition because of which a sink does not receive an event.

    Attributes:
        key: the configuration key, such as ``when.event_types``.
        wants: what the key asks for, in words.
        has: what the event has instead, in words.
        is_previous: whether ``has`` describes the event as it was before an update.
    """

    key: str
    wants: str
    has: str
    is_previous: bool = False

    def __str__(self) -> str:
        before = "before the change, " if self.is_previous else ""
        return f"{self.key} wants {self.wants}; {before}{self.has}"


class Route(Struct, frozen=True, kw_only=True):
    """A ``When`` with the defaults of its sink filled in.

    Attributes:
        scope: ``when.scope``, or the default for this type of sink.
        lifecycle: ``when.lifecycle``, or the default for this type of sink.
        is_for_steps: whether the sink receives transitions of scheduled events only.
    """

    when: When
    scope: Scope
    lifecycle: bool
    is_for_steps: bool = False

    def unwanted(self, subject: Subject) -> Iterator[Obstacle]:
        """Yield why the sink does not want this kind of event at all."""
        wanted, step = self.when.transitions, subject.transition
        if self.is_for_steps and step is None:
            wants = "transitions of scheduled events only"
            yield Obstacle(key="type", wants=wants, has="this is none")
        elif subject.is_lifecycle:
            if not self.lifecycle:
                default = "" if self.when.lifecycle is False else " by default"
                yield Obstacle(
                    key="when.lifecycle",
                    wants=f"no bridge.* and document.* events{default}",
                    has="this is one",
                )
        elif wanted and step and step not in wanted:
            yield Obstacle(
                key="when.transitions", wants=_either(wanted), has=f"this is {step}"
            )

    def unfit(self, event: ScheduledEvent, identity: Identity) -> Iterator[Obstacle]:
        """Yield the conditions that a scheduled event does not meet."""
        names, when = event.resources, self.when
        for key, field, allowed in (
            ("event_types", "EventType", when.event_types),
            ("event_sources", "EventSource", when.event_sources),
        ):
            value = event.raw.get(field)
            if allowed is not None and not _among(value, allowed):
                yield Obstacle(
                    key=f"when.{key}",
                    wants=_either(allowed),
                    has=f"{field} is {_shown(value)}",
                )
        if when.resources is not None and not _any_glob(names, when.resources):
            yield Obstacle(
                key="when.resources", wants=_either(when.resources), has=_listed(names)
            )
        default = "" if when.scope else " by default"
        yield from _out_of_scope("when.scope", self.scope, names, identity, default)


class Router(Struct, frozen=True, kw_only=True):
    """Decides which sinks receive an event.

    Attributes:
        routes: by name of the sink.
        scope: ``events.scope``, which holds for all sinks.
        identity: this VM.
    """

    routes: Mapping[str, Route]
    scope: Scope
    identity: Identity

    def sinks(self, subject: Subject, following: AbstractSet[str]) -> tuple[str, ...]:
        """Return the names of the sinks that receive an event.

        Args:
            subject: the values of the event.
            following: the sinks that received an earlier event with the same EventId.
                They receive all later ones, too, even if an update does not meet the
                conditions any more.
        """
        return tuple(
            name
            for name in self.routes
            if not self.obstacles(name, subject, follows=name in following)
        )

    def obstacles(
        self, sink: str, subject: Subject, *, follows: bool
    ) -> tuple[Obstacle, ...]:
        """Return why a sink does not receive an event; empty if it does.

        Args:
            sink: the name of the sink.
            subject: the values of the event.
            follows: whether the sink received an earlier event with the same EventId.
        """
        route, me = self.routes[sink], self.identity
        kind = self._start_as_update(route, subject) if route.is_for_steps else subject
        found = list(route.unwanted(kind))
        if not follows:
            states = [
                (
                    *route.unfit(event, me),
                    *_out_of_scope("events.scope", self.scope, event.resources, me),
                )
                for event in subject.events
            ]
            if all(states):  # also true for an event without a scheduled event
                found += _merged(states)
        return tuple(found)

    def _start_as_update(self, route: Route, subject: Subject) -> Subject:
        """Treat a start as an update if a sink that acts must undo its action.

        It must if the event met the conditions before and does not meet them now, and
        the sink does not want starts.
        """
        wanted = route.when.transitions or ()
        if subject.transition != "started":
            return subject
        is_unfit = [any(route.unfit(one, self.identity)) for one in subject.events]
        no_longer_fits = is_unfit == [True, False]  # now, and before
        if "started" in wanted or not no_longer_fits:
            return subject
        return replace(subject, transition="updated")


def _merged(states: Iterable[tuple[Obstacle, ...]]) -> Iterator[Obstacle]:
    """Yield the obstacles of the present state, then those of the previous one only."""
    seen: set[Obstacle] = set()
    for found in states:
        yield from (
            replace(one, is_previous=bool(seen)) for one in found if one not in seen
        )
        seen.update(found)


def _among(value: object, allowed: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value.casefold() in {
        name.casefold() for name in allowed
    }


def _any_glob(names: tuple[str, ...], globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(bare(n), bare(glob)) for n in names for glob in globs)


def _out_of_scope(
    key: str,
    scope: Scope,
    names: tuple[str, ...],
    identity: Identity,
    default: str = "",
) -> Iterator[Obstacle]:
    me = identity.vm_name
    if scope == "all" or me is None:
        return  # without this VM's name, every scope lets the event through
    if scope == "own" and not identity.is_named_in(names):
        wants = f"this VM, {me}, in Resources{default}"
        yield Obstacle(key=key, wants=wants, has=_listed(names))
    if scope == "first" and not (names and min(map(bare, names)) == bare(me)):
        wants = f"this VM, {me}, as the first of Resources{default}"
        yield Obstacle(key=key, wants=wants, has=_listed(names))


def _either(names: Iterable[str]) -> str:
    return " or ".join(names)


def _shown(value: object) -> str:
    return value or '""' if isinstance(value, str) else "not given"


def _listed(names: tuple[str, ...]) -> str:
    if not names:
        return "Resources is empty"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"Resources: {', '.join(names[:_MOST_NAMES])}{more}"

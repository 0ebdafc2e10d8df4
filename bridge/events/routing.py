"""Which events a sink is told of: ``[sinks.when]``. Pure.

There is one predicate, and it gives reasons: a sink is told of an event when there is
no obstacle. So what ``sebridge route`` says is what the forwarder does.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from bridge.events.identity import Identity, bare
from bridge.foundation.sections import Section

_MOST_NAMES = 10

Scope = Literal["all", "own", "first"]
Transition = Literal[
    "scheduled", "started", "updated", "completed", "cancelled", "ended"
]


class When(Section, frozen=True, kw_only=True):
    """``[sinks.when]``: all that is given must hold; None is no limit.

    ``scope`` and ``lifecycle`` have defaults that depend on the type of the sink.

    Attributes:
        transitions: the steps that the sink is told of. Left out: all. Example:
            ``["scheduled", "started"]``.
        event_types: the types of events that it is told of. Left out: all. Example:
            ``["Reboot", "Redeploy", "Preempt", "Terminate"]``.
        event_sources: who made the event: Platform or User. Left out: either. Example:
            ``["Platform"]``.
        resources: patterns for names of VMs, without case; one resource that matches is
            enough. Example: ``["web-*"]``.
        scope: "all" events of the document, "own" are those that name this VM, "first"
            those whose first resource is this VM. Left out: "all" for servicebus, "own"
            for all others.
        lifecycle: whether the sink is told of the bridge itself, and of documents. Left
            out: not for slack, but for all others.
    """

    transitions: tuple[Transition, ...] | None = None
    event_types: tuple[str, ...] | None = None
    event_sources: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    scope: Scope | None = None
    lifecycle: bool | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Refuse an empty list: it would silence the sink without a word."""
        for key in ("transitions", "event_types", "event_sources", "resources"):
            if getattr(self, key) == ():
                yield key, "must not be empty; leave it out for no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What routing looks at in one event on its way out.

    Attributes:
        transition: of a scheduled event; None for startrequest.* and lifecycle.
        events: the IMDS objects it concerns, before and after; either may fit.
        is_lifecycle: whether it is a bridge.* or document.* event.
    """

    transition: str | None = None
    events: tuple[Mapping[str, object], ...] = ()
    is_lifecycle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A condition that keeps a sink from being told of an event.

    Attributes:
        key: of the configuration, such as ``when.event_types``.
        wants: what is asked for there.
        has: what there is instead.
        is_previous: whether that is of the event as it was before an update.
    """

    key: str
    wants: str
    has: str
    is_previous: bool = False

    def __str__(self) -> str:
        before = "before the change, " if self.is_previous else ""
        return f"{self.key} wants {self.wants}; {before}{self.has}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A ``When`` with the defaults of its sink filled in.

    Attributes:
        is_for_steps: whether only steps of scheduled events go there.
    """

    when: When
    scope: Scope
    lifecycle: bool
    is_for_steps: bool = False

    def unwanted(self, subject: Subject) -> Iterator[Obstacle]:
        """Yield why this kind of step is not asked for at all."""
        wanted, step = self.when.transitions, subject.transition
        if self.is_for_steps and step is None:
            wants = "steps of scheduled events alone"
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

    def unfit(
        self, event: Mapping[str, object], identity: Identity
    ) -> Iterator[Obstacle]:
        """Yield why an event, as it is or was, is not of the kind asked for."""
        names, when = resources_of(event), self.when
        for key, field, allowed in (
            ("event_types", "EventType", when.event_types),
            ("event_sources", "EventSource", when.event_sources),
        ):
            if not _among(value := event.get(field), allowed):
                yield Obstacle(
                    key=f"when.{key}",
                    wants=_either(allowed or ()),
                    has=f"{field} is {_shown(value)}",
                )
        if when.resources is not None and not _any_glob(names, when.resources):
            yield Obstacle(
                key="when.resources", wants=_either(when.resources), has=_listed(names)
            )
        default = "" if when.scope else " by default"
        yield from _out_of_scope("when.scope", self.scope, names, identity, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Says which sinks are told of an event.

    Attributes:
        routes: by name of the sink.
        scope: ``events.scope``: what is told to anybody at all.
    """

    routes: Mapping[str, Route]
    scope: Scope
    identity: Identity

    def sinks(self, subject: Subject, following: AbstractSet[str]) -> tuple[str, ...]:
        """Return the names of the sinks that are told of ``subject``.

        Args:
            subject: what is to be told.
            following: sinks that were told of the same EventId before: they are
                told to its end, even when an update no longer fits.
        """
        return tuple(
            name
            for name in self.routes
            if not self.obstacles(name, subject, follows=name in following)
        )

    def obstacles(
        self, sink: str, subject: Subject, *, follows: bool
    ) -> tuple[Obstacle, ...]:
        """Return what keeps a sink from being told of ``subject``; empty if nothing.

        Args:
            sink: its name.
            subject: what is to be told.
            follows: whether it was told of the same EventId before.
        """
        route = self.routes[sink]
        found = list(route.unwanted(subject))
        if not follows:
            looks = [tuple(self._unfit(route, event)) for event in subject.events]
            if all(looks):  # of no event: all who want this kind of step
                found += _over(looks)
        return tuple(found)

    def _unfit(self, route: Route, event: Mapping[str, object]) -> Iterator[Obstacle]:
        yield from route.unfit(event, self.identity)
        names = resources_of(event)
        yield from _out_of_scope("events.scope", self.scope, names, self.identity)


def _over(looks: Iterable[tuple[Obstacle, ...]]) -> Iterator[Obstacle]:
    """Yield the obstacles of an event as it is, then what differs as it was."""
    seen: set[Obstacle] = set()
    for look in looks:
        yield from (
            replace(one, is_previous=bool(seen)) for one in look if one not in seen
        )
        seen.update(look)


def resources_of(event: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names in ``Resources``; anything that is no string is absent."""
    names = event.get("Resources")
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names if isinstance(name, str))


def _among(value: object, allowed: tuple[str, ...] | None) -> bool:
    if allowed is None:
        return True
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
        return  # who does not know his own name must not stay silent
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
        return "Resources names nobody"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"Resources: {', '.join(names[:_MOST_NAMES])}{more}"

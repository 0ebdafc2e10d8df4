"""Which events a sink is told of: ``[sinks.when]``. Pure."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from bridge.identity import Identity, bare
from bridge.options import Section

Scope = Literal["all", "own", "first"]
Transition = Literal[
    "scheduled", "started", "updated", "completed", "cancelled", "ended"
]


class When(Section, frozen=True, kw_only=True):
    """``[sinks.when]``: all that is given must hold; None is no limit.

    ``scope`` and ``lifecycle`` have defaults that depend on the type of the sink.
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
class Route:
    """A ``When`` with the defaults of its sink filled in."""

    when: When
    scope: Scope
    lifecycle: bool

    def wants(self, subject: "Subject") -> bool:
        """Whether this kind of step is asked for at all."""
        wanted = self.when.transitions
        if subject.is_lifecycle:
            return self.lifecycle
        return not wanted or not subject.transition or subject.transition in wanted

    def fits(self, event: Mapping[str, object], identity: Identity) -> bool:
        """Whether an event, as it is or was, is of the kind asked for."""
        names = resources_of(event)
        when = self.when
        return (
            _among(event.get("EventType"), when.event_types)
            and _among(event.get("EventSource"), when.event_sources)
            and (when.resources is None or _any_glob(names, when.resources))
            and _in_scope(self.scope, names, identity)
        )


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
            for name, route in self.routes.items()
            if route.wants(subject)
            and (name in following or self._fits(route, subject))
        )

    def _fits(self, route: Route, subject: Subject) -> bool:
        if not subject.events:
            return True  # of no event: all who want this kind of step
        return any(
            route.fits(event, self.identity)
            and _in_scope(self.scope, resources_of(event), self.identity)
            for event in subject.events
        )


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


def _in_scope(scope: Scope, names: tuple[str, ...], identity: Identity) -> bool:
    if scope == "all" or identity.vm_name is None:
        return True  # who does not know his own name must not stay silent
    if scope == "own":
        return bool(identity.is_named_in(names))
    return bool(names) and min(map(bare, names)) == bare(identity.vm_name)

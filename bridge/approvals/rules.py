"""``[[approvals.rules]]``: which events may be approved, and which unasked. Pure.

The first rule that fits an event decides:

    deny           it is not approved, whoever asks
    allow          it is approved when it is asked for; before ``delay`` is over the
                   question waits
    auto-approve   it is approved unasked once ``delay`` is over; who asks before is
                   not kept waiting

Where none fits: denied if there is any rule that allows, else allowed; never
approved unasked. The delay is counted from the first sight of the event as it is
now: when anything about the event changes, it begins anew.

What an event does not tell, or tells in a form that cannot be read, fits every deny.

A rule with ``after`` fits events of this VM alone, and holds each of them until the
commands that it names have succeeded: no later rule is asked. Who asks for it is not
kept waiting.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal

from bridge.approvals.evidence import (
    NO_EVIDENCE,
    Evidences,
    Lack,
    names_others,
    reason_to_hold,
)
from bridge.events.document import (
    EVENT_SOURCES,
    EVENT_TYPES,
    ScheduledEvent,
    misspelt,
)
from bridge.events.identity import Identity, bare
from bridge.foundation.hashing import hash32
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration

Action = Literal["allow", "deny", "auto-approve"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")


class Rule(Section, frozen=True, kw_only=True):
    """One of ``[[approvals.rules]]``: all that is given must hold; None is no limit.

    A duration that Azure does not know counts as longer than any. What is missing or
    cannot be read fits every ``deny``; for the others, such a duration is longer than
    any, and such a NotBefore is never near.

    Attributes:
        name: what the rule is called in reasons and in approvedBy; "" is the place of
            the rule, such as rules[0]. Example: ``"short-web"``.
        event_types: the types of events that the rule fits. Left out: all. Example:
            ``["Freeze", "Reboot"]``.
        event_sources: who made the event: Platform or User. Left out: either. Example:
            ``["Platform"]``.
        resources: patterns for names of VMs, without case: all resources of the event
            must match, with "deny" any one. Example: ``["web-*"]``.
        min_duration: the shortest impact that the rule fits. An unknown one is longer
            than any.
        max_duration: the longest impact that the rule fits.
        notice_below: the rule fits when less time than this is left before NotBefore.
        action: what the rule does: let an approval pass, deny it whoever asks, or
            approve the event unasked.
        delay: how long to wait, from when the event was first seen as it is now, or
            with after from the last success; not with "deny".
        after: command sinks, all of which must have succeeded for the event; such a
            rule fits only events that name this VM. With "auto-approve" only. Example:
            ``["drain"]``.
        others: what is done with an event that names other machines as well, which an
            approval frees, too: it waits for a person, or they are ignored. With
            after only.
    """

    name: str = ""
    event_types: tuple[str, ...] | None = None
    event_sources: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    min_duration: Duration | None = None
    max_duration: Duration | None = None
    notice_below: Duration | None = None
    action: Action
    delay: Duration = Duration(0)
    after: tuple[str, ...] | None = None
    others: Literal["withhold", "ignore"] = "withhold"

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Refuse what could never fit, and a delay of what is never done."""
        if self.name and not _NAME.fullmatch(self.name):
            allowed = "letters, digits, hyphens and underscores, no hyphen first"
            yield "name", f"must be 1 to 63 {allowed}"
        for key in ("event_types", "event_sources", "resources", "after"):
            if getattr(self, key) == ():
                yield key, "must not be empty; leave it out for no limit"
        least, most = self.min_duration, self.max_duration
        if least is not None and most is not None and least > most:
            yield "min_duration", "must not be more than max_duration", "max_duration"
        if self.notice_below is not None and not self.notice_below:
            yield "notice_below", "must be more than 0; leave it out for no limit"
        if self.action == "deny" and self.delay:
            what = 'goes with "allow" and "auto-approve" only: a denial does not wait'
            yield "delay", what, "action"
        yield from self._faults_of_after()
        if self.action == "deny":
            yield from self._misspelt()

    def _faults_of_after(self) -> Iterator[tuple[str, ...]]:
        """Refuse what nobody would wait for, and what is said of no command."""
        if self.after and self.action != "auto-approve":
            what = 'goes with "auto-approve" only: who asks is not kept waiting'
            yield "after", what, "action"
        if self.after is None and self.others != "withhold":
            yield "others", "goes with after only", "after"

    def _misspelt(self) -> Iterator[tuple[str, str, str]]:
        """Refuse words that no event has: such a rule would deny nothing."""
        words = {"event_types": EVENT_TYPES, "event_sources": EVENT_SOURCES}
        for key, known in words.items():
            for word in getattr(self, key) or ():
                if what := misspelt(word, known):
                    yield key, f"names what no event has: {what}", "action"

    @property
    def is_unlimited(self) -> bool:
        """Whether it fits every event."""
        if self.after is not None:
            return False  # it fits those of this VM
        limits = (
            *(self.event_types, self.event_sources, self.resources),
            *(self.min_duration, self.max_duration, self.notice_below),
        )
        return all(limit is None for limit in limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What the rules say of an event at some moment.

    Attributes:
        rule: which of them decided; None where none fits.
        left: seconds of its delay that are not over yet.
        hold: why the rule does not approve it yet; None = nothing holds it.
    """

    action: Action
    rule: str | None = None
    left: float = 0.0
    hold: str | None = None


NOBODY = Identity()


def judge(  # noqa: PLR0913 - what a ruling depends on
    rules: Sequence[Rule],
    event: ScheduledEvent,
    *,
    age: float,
    now: datetime,
    me: Identity = NOBODY,
    found: Evidences = NO_EVIDENCE,
) -> Ruling:
    """Say what the first rule that fits makes of an event.

    Args:
        rules: in their order.
        event: as it is now.
        age: seconds for which it has surely been so.
        now: what the notice is counted from.
        me: who this VM is.
        found: what commands have done for the event, by name.
    """
    for index, rule in enumerate(rules):
        if _fits(rule, event, now, me):
            label, hold = label_of(index, rule), _hold(rule, event, me, found)
            if hold is None and rule.after is not None:
                age = min(found[name].age for name in rule.after)
            left = max(rule.delay - age, 0.0)
            return Ruling(action=rule.action, rule=label, left=left, hold=hold)
    is_strict = any(rule.action == "allow" for rule in rules)
    return Ruling(action="deny" if is_strict else "allow")


def catch_all(rules: Sequence[Rule]) -> int:
    """Return the place of the first rule that fits every event, else their number.

    No rule behind it is ever reached.
    """
    places = (index for index, rule in enumerate(rules) if rule.is_unlimited)
    return next(places, len(rules))


def label_of(index: int, rule: Rule) -> str:
    """Return what a rule is called in reasons: its name, else its place."""
    return rule.name or f"rules[{index}]"


def content_of(event: ScheduledEvent) -> str:
    """Return what an event, as it is now, is known by: another once it changes."""
    return hash32(["rule", event.canonical])


def _hold(
    rule: Rule, event: ScheduledEvent, me: Identity, found: Evidences
) -> str | None:
    """Return why a rule that fits does not approve yet."""
    if rule.after is None:
        return None
    if rule.others == "withhold" and names_others(event, me):
        return Lack.OTHER_RESOURCES.value
    return reason_to_hold(rule.after, found)


def _fits(rule: Rule, event: ScheduledEvent, now: datetime, me: Identity) -> bool:
    return (
        not (rule.after is not None and _is_elsewhere(event, me))
        and _is_among(rule, event.event_type, rule.event_types)
        and _is_among(rule, event.event_source, rule.event_sources)
        and _concerns(rule, event)
        and _lasts(rule, event.duration)
        and _is_near(rule, event.not_before, now)
    )


def _is_elsewhere(event: ScheduledEvent, me: Identity) -> bool:
    """Whether an event names other machines alone; not while this one's is unknown."""
    return me.is_named_in(event.resources) is False


def _is_among(rule: Rule, value: str | None, names: tuple[str, ...] | None) -> bool:
    if names is None:
        return True
    if value is None:
        return rule.action == "deny"
    return value.casefold() in {name.casefold() for name in names}


def _concerns(rule: Rule, event: ScheduledEvent) -> bool:
    """Whether one of the resources matches; all of them, to be approved."""
    globs = rule.resources
    if globs is None:
        return True
    if not event.tells_resources:
        return rule.action == "deny"
    names = [bare(name) for name in event.resources]
    found = [any(fnmatchcase(name, bare(glob)) for glob in globs) for name in names]
    return any(found) if rule.action == "deny" else bool(found) and all(found)


def _lasts(rule: Rule, duration: int | None) -> bool:
    if duration is None and rule.action == "deny":
        return True
    seconds = math.inf if duration is None or duration < 0 else duration
    return (rule.min_duration is None or seconds >= rule.min_duration) and (
        rule.max_duration is None or seconds <= rule.max_duration
    )


def _is_near(rule: Rule, not_before: datetime | None, now: datetime) -> bool:
    if rule.notice_below is None:
        return True
    if not_before is None:
        return rule.action == "deny"
    return not_before - now < timedelta(seconds=rule.notice_below)

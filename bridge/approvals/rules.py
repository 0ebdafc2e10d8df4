"""Which events may be approved (``[[approvals.rules]]``), where replies may go. Pure.

The first rule that fits an event decides:

    deny           the event is never approved
    allow          a message may approve the event; until ``delay`` has passed, the
                   message waits
    auto-approve   the bridge approves the event when ``delay`` has passed; a message
                   may approve it earlier

If no rule fits: the event is denied if there is any "allow" rule, else allowed. It is
never approved automatically. The delay is counted from the time at which the event was
first seen with its present content. Any change of the event starts the delay again.

A field that the event lacks, or that is invalid, fits every "deny" rule.

A rule with ``after`` fits only events of this VM. It holds an event until the commands
that it names have succeeded; later rules are not considered. A message may approve the
event without waiting for the commands.

The sender of an approval names the entity for the reply, in the same namespace. So only
entities that the configuration allows are accepted. Never allowed are the approval
entity, the entities of sinks, and everything below them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal, Self
from urllib.parse import urlsplit

from msgspec import Struct

from bridge.approvals.evidence import (
    NO_EVIDENCE,
    Evidences,
    Lack,
    names_others,
    reason_to_hold,
)
from bridge.events.cloudevent import hash32
from bridge.events.document import (
    EVENT_SOURCES,
    ScheduledEvent,
    bare,
    misspelt,
)
from bridge.events.identity import Identity
from bridge.events.vocabulary import EVENT_TYPES
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration

Action = Literal["allow", "deny", "auto-approve"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
# Valid names of entities; not "$DeadLetterQueue", "..", "%2D" or similar tricks.
_ENTITY = "[A-Za-z0-9][A-Za-z0-9._~-]*"
_PATH = re.compile(f"{_ENTITY}(/{_ENTITY})*")
_GLOB = frozenset("*?[")


class Rule(Section, frozen=True, kw_only=True):
    """One of ``[[approvals.rules]]``.

    A rule fits an event that meets all conditions of the rule. A condition that is left
    out does not limit anything. A duration that Azure does not know counts as longer
    than any limit. A field that is missing or invalid fits every "deny" rule. For the
    other actions, a missing duration counts as longer than any limit, and a missing
    NotBefore is never near.

    Attributes:
        name: the name of the rule in reasons and in approvedBy. If it is "", they show
            the place of the rule, such as rules[0]. Example: ``"short-web"``.
        event_types: the EventTypes that the rule fits. Left out: all. Example:
            ``["Freeze", "Reboot"]``.
        event_sources: the EventSources that the rule fits: Platform or User. Left out:
            both. Example: ``["Platform"]``.
        resources: patterns for names of VMs; case does not matter. All resources of the
            event must match; with "deny", one is enough. Example: ``["web-*"]``.
        min_duration: the shortest impact that the rule fits. An unknown duration counts
            as longer than any limit.
        max_duration: the longest impact that the rule fits.
        notice_below: the rule fits if less time than this is left before NotBefore.
        action: "allow": an approval message may approve the event; "deny": the event is
            never approved; "auto-approve": the bridge approves the event without a
            message.
        delay: how long to wait after the event was first seen with its present content;
            with after: after the last success. Not with "deny".
        after: command sinks that all must have succeeded for the event. Such a rule
            fits only events that name this VM. Only with "auto-approve". Example:
            ``["drain"]``.
        others: what to do if the event also names other VMs, because an approval
            applies to them, too. "withhold": wait for an approval message; "ignore":
            approve nevertheless. Only with after.
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
        """Refuse conditions that no event can meet, and keys against the action."""
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
        """Check that ``after`` and ``others`` fit the action."""
        if self.after and self.action != "auto-approve":
            what = 'goes with "auto-approve" only: a message does not wait for commands'
            yield "after", what, "action"
        if self.after is None and self.others != "withhold":
            yield "others", "goes with after only", "after"

    def _misspelt(self) -> Iterator[tuple[str, str, str]]:
        """Refuse words that Azure does not use: such a rule would deny nothing."""
        words = {"event_types": EVENT_TYPES, "event_sources": EVENT_SOURCES}
        for key, known in words.items():
            for word in getattr(self, key) or ():
                if what := misspelt(word, known):
                    yield key, f"fits no event: {what}", "action"

    @property
    def is_unlimited(self) -> bool:
        """Whether the rule fits every event."""
        if self.after is not None:
            return False  # it fits only events of this VM
        limits = (
            *(self.event_types, self.event_sources, self.resources),
            *(self.min_duration, self.max_duration, self.notice_below),
        )
        return all(limit is None for limit in limits)


class Ruling(Struct, frozen=True, kw_only=True):
    """What the rules decide about an event at one moment.

    Attributes:
        action: the action of the rule that fits.
        rule: the label of this rule; None if no rule fits.
        left: how many seconds of the delay are left.
        hold: why the rule does not approve the event yet; None = nothing holds it.
    """

    action: Action
    rule: str | None = None
    left: float = 0.0
    hold: str | None = None


UNKNOWN_VM = Identity()


def judge(  # noqa: PLR0913 - a ruling depends on each of them
    rules: Sequence[Rule],
    event: ScheduledEvent,
    *,
    age: float,
    now: datetime,
    me: Identity = UNKNOWN_VM,
    found: Evidences = NO_EVIDENCE,
) -> Ruling:
    """Return the decision of the first rule that fits an event.

    Args:
        rules: in order.
        event: as it is now.
        age: for how many seconds, at least, the event has had its present content.
        now: the present time, for the time left until NotBefore.
        me: the identity of this VM.
        found: the results of commands for the event, by name.
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
    """Return the index of the first rule that fits every event, else their number."""
    places = (index for index, rule in enumerate(rules) if rule.is_unlimited)
    return next(places, len(rules))


def label_of(index: int, rule: Rule) -> str:
    """Return the label of a rule in reasons: its name, else its place."""
    return rule.name or f"rules[{index}]"


def content_of(event: ScheduledEvent) -> str:
    """Return a hash of the event's content; it changes whenever the event changes."""
    return hash32(["rule", event.canonical])


def _hold(
    rule: Rule, event: ScheduledEvent, me: Identity, found: Evidences
) -> str | None:
    """Return why a rule that fits does not approve yet; None = it does."""
    if rule.after is None:
        return None
    if rule.others == "withhold" and names_others(event, me):
        return Lack.OTHER_RESOURCES.value
    return reason_to_hold(rule.after, found)


def _fits(rule: Rule, event: ScheduledEvent, now: datetime, me: Identity) -> bool:
    return (
        not (rule.after is not None and me.is_named_in(event.resources) is False)
        and _is_among(rule, event.event_type, rule.event_types)
        and _is_among(rule, event.event_source, rule.event_sources)
        and _concerns(rule, event)
        and _lasts(rule, event.duration)
        and _is_near(rule, event.not_before, now)
    )


def _is_among(rule: Rule, value: str | None, names: tuple[str, ...] | None) -> bool:
    if names is None:
        return True
    if value is None:
        return rule.action == "deny"
    return value.casefold() in {name.casefold() for name in names}


def _concerns(rule: Rule, event: ScheduledEvent) -> bool:
    """Return whether the resources match: all of them, or one for "deny"."""
    globs = rule.resources
    if globs is None:
        return True
    if not event.has_resources:
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


# -- Where replies may be sent ---------------------------------------------------------


class ReplyRules(Struct, frozen=True, kw_only=True):
    """The entities to which replies may be sent; case does not matter.

    Attributes:
        allowed: patterns (globs) for names.
        forbidden: the names of the approval entity and of the sinks' entities in the
            same namespace; never allowed, even if a pattern fits.
    """

    allowed: tuple[str, ...]
    forbidden: frozenset[str]

    @classmethod
    def of(cls, allowed: Iterable[str], forbidden: Iterable[str]) -> Self:
        """Make rules from names; case does not matter."""
        return cls(
            allowed=tuple(glob.casefold() for glob in allowed),
            forbidden=frozenset(_plain(name) for name in forbidden),
        )

    def entity(self, reply_to: str) -> str | None:
        """Return the entity that a ReplyTo names; None if no reply may go there."""
        entity = _entity(reply_to)
        name = _plain(entity)
        is_below = any(f"{name}/".startswith(f"{own}/") for own in self.forbidden)
        if is_below or not _PATH.fullmatch(entity):
            return None
        return entity if any(fnmatchcase(name, glob) for glob in self.allowed) else None

    def named(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return the names that are no patterns, each with its ``entity``."""
        return {name: self.entity(name) for name in names if _GLOB.isdisjoint(name)}


def _plain(entity: str) -> str:
    """Return a name for comparisons: no outer slashes, lower case."""
    return entity.strip("/").casefold()


def _entity(reply_to: str) -> str:
    """Return the entity from a name, a path or a URL; "" if the URL is invalid."""
    try:
        path = urlsplit(reply_to).path if "://" in reply_to else reply_to
    except ValueError:
        return ""
    host, _, rest = path.strip("/").partition("/")
    return rest if ".servicebus." in host.casefold() else path.strip("/")

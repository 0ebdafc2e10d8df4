"""How many people must approve an event, and whether it can be decided on. Pure.

``vote_rules`` has the rules that the Functions app uses as well. This module applies
``[[hub.access.rules]]`` to the current state of an event.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import EVENT_TYPES, EventStatus, TransitionKind
from bridge.hub.access import AccessConfig, AccessRule
from bridge.hub.facts import Machine, Reporter
from bridge.hub.fold import Voice
from bridge.hub.vote_rules import voids

BRIDGE, ARM = "bridge", "arm"
APPROVE, REFUSE = "approve", "refuse"
SET_ASIDE, DROP_OFFER = "set-aside", "drop-offer"
ACTIONS = (APPROVE, REFUSE, SET_ASIDE, DROP_OFFER)
CHANNELS = (BRIDGE, ARM)
_TYPES = {name.casefold() for name in EVENT_TYPES}
_MOST_NAMED = 3


class CurrentEvent(Struct, frozen=True, kw_only=True):
    """The current state of an event, with what a decision depends on.

    Attributes:
        key: the EventId in capitals.
        life: the number of its occurrence, from 1.
        content: the fingerprint of the event, see ``vote_rules.digest``.
        event: the IMDS object; None = no message contained one.
        is_whole: False = not all names in its Resources are known.
        since: the time of the latest message with its content. It may have had this
            content for longer.
        prefix: the prefix of the types of the bridges' events.
        source: the source of these events; a signed approval names it.
        resource: the resource id of the event at ARM; "" = Azure has not reported it.
        named: the machines whose word counts as that of one in Resources.
        voices: who has reported the occurrence.
        homes: the resource groups of the bridges of each name in Resources.
        aside: the vmIds of the reporters that people have set aside.
        is_by_others: whether the content is by the word of others alone: its changes
            make no vote void.
        is_pinned: whether only the words of pinned bridges count.
        azure: the latest IMDS object from Azure; None = Azure has not reported it.
        azure_seen: when the latest message of Azure was enqueued.
    """

    key: str
    event_id: str
    life: int
    is_open: bool
    status: str
    content: str
    event: Mapping[str, object] | None
    is_whole: bool
    since: datetime
    prefix: str
    source: str
    resource: str
    machines: tuple[Machine, ...]
    named: tuple[Machine, ...] = ()
    voices: tuple[Voice, ...] = ()
    homes: Mapping[str, Collection[str]] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    is_by_others: bool = False
    is_pinned: bool = False
    azure: Mapping[str, object] | None = None
    azure_seen: datetime | None = None

    @property
    def scheduled(self) -> ScheduledEvent:
        """The IMDS object as a ScheduledEvent; empty if it is not known."""
        return ScheduledEvent(event_id=self.event_id, raw=self.event or {})

    @property
    def spoken(self) -> list[Voice]:
        """The reporters whose words count for the number of people."""
        return [v for v in self.voices if v.reporter.vm_id not in self.aside]

    def voids(self, seen: Mapping[str, object], via: str) -> bool:
        """Whether a vote or a decision on the event as it was seen is void now.

        A change that others alone tell of makes nothing void: a bridge compares the
        approval with its own document, and for ARM the word of Azure counts.

        Args:
            seen: the IMDS object as it was seen.
            via: the channel of the vote.
        """
        if not self.is_by_others:
            return is_void(seen, self.event or {})
        return via == ARM and is_void(seen, self.azure or {})

    def lacks(self) -> str | None:
        """Return why nobody can decide on the event; None = people can."""
        if not self.is_open:
            return "the event is over"
        is_started = self.scheduled.status == EventStatus.STARTED
        if is_started or self.status == TransitionKind.STARTED:
            return "the event has started: nothing can be asked of it"
        if self.event is None:
            return "what the event is about is not known"
        return None


class Persons(Struct, frozen=True, kw_only=True):
    """How many people must approve an event, by which rule, and by whose word.

    Attributes:
        raised_by: the reporters by whose word it is more than for the event as it
            stands, in the groups of the bridges of its machines.
    """

    wanted: int
    rule: str
    raised_by: tuple[Reporter, ...] = ()

    @property
    def words(self) -> str:
        """The rule, and whose word raised the number."""
        names = ", ".join(dict.fromkeys(r.name or "a VM" for r in self.raised_by))
        return f"{self.rule}, by the word of {names}" if names else self.rule


def persons_for(access: AccessConfig, current: CurrentEvent) -> tuple[int, str]:
    """Return how many people must approve an event, and by which rule."""
    found = persons_of(
        access, current.scheduled.event_type or "", current.homes, current.spoken
    )
    return found.wanted, found.words


def persons_of(
    access: AccessConfig,
    event_type: str,
    homes: Mapping[str, Collection[str]],
    voices: Sequence[Voice],
) -> Persons:
    """Return how many people must approve an event.

    That is the largest number for any EventType and resource group that was told in
    this occurrence. So no message can make it smaller.

    Args:
        access: the rules.
        event_type: the EventType of the event as it stands.
        homes: the resource groups of the bridges of each name in Resources; empty = no
            bridge of that name is known.
        voices: who has reported the occurrence, without those who were set aside.
    """
    groups = {group for found in homes.values() for group in found or ("",)}
    base = persons_wanted(access, event_type, groups)
    every = _largest(access, event_type, groups, voices)
    if every[0] == base[0]:
        return Persons(wanted=base[0], rule=base[1])
    alone = [v for v in voices if _largest(access, event_type, groups, [v]) > base]
    raised = alone or [v for v in voices if _differs(v, event_type, groups)]
    return Persons(
        wanted=every[0],
        rule=every[1],
        raised_by=tuple(v.reporter for v in raised[:_MOST_NAMED]),
    )


def _largest(
    access: AccessConfig, event_type: str, groups: set[str], voices: Sequence[Voice]
) -> tuple[int, str]:
    """Return the largest number for any type and group of the event or of voices."""
    types = {_known_type(event_type)}
    types |= {_known_type(kind) for voice in voices for kind in voice.event_types}
    told = {group for voice in voices for _, group in voice.groups if group}
    named = {name.lower() for rule in access.rules for name in rule.resource_groups}
    places = [groups, *({group} for group in groups | (told & named))]
    if told - named:
        places.append({next(iter(told - named))})
    return max(
        (persons_wanted(access, kind, place) for kind in types for place in places),
        key=lambda found: (found[0], found[1]),
    )


def _known_type(kind: str) -> str:
    return kind.casefold() if kind.casefold() in _TYPES else ""


def _differs(voice: Voice, event_type: str, groups: set[str]) -> bool:
    types = {kind.casefold() for kind in voice.event_types}
    told = {group for _, group in voice.groups if group}
    return not (types <= {event_type.casefold()} and told <= groups)


def persons_wanted(
    access: AccessConfig, event_type: str, groups: set[str]
) -> tuple[int, str]:
    """Return how many people must approve, and by which rule.

    If the type is not documented, or a resource group is not known, the largest number
    of all rules is required.

    Args:
        access: the rules.
        event_type: the EventType, as received.
        groups: the resource groups of its machines; "" stands for an unknown one.
    """
    kind = event_type.casefold()
    is_known = kind in _TYPES
    by_group = any(rule.resource_groups for rule in access.rules)
    if not is_known or (by_group and (not groups or "" in groups)):
        return access.most_persons, "the largest number of all rules"
    for index, rule in enumerate(access.rules):
        if _fits(rule, kind, groups):
            return rule.persons, f"rules[{index}]"
    return 1, "no rule fits: one person"


def _fits(rule: AccessRule, kind: str, groups: set[str]) -> bool:
    kinds = {name.casefold() for name in rule.event_types}
    places = {name.lower() for name in rule.resource_groups}
    return (not kinds or kind in kinds) and (not places or groups <= places)


def is_void(seen: Mapping[str, object], event: Mapping[str, object]) -> bool:
    """Whether a vote for an event as it was seen is void for the event as it is now."""
    return voids(seen, event, is_earlier=is_earlier(seen, event))


def is_earlier(seen: Mapping[str, object], event: Mapping[str, object]) -> bool:
    """Whether the NotBefore of an event is earlier than it was, or not known now."""
    before = ScheduledEvent(event_id="", raw=seen).not_before
    after = ScheduledEvent(event_id="", raw=event).not_before
    return before is not None and (after is None or after < before)

"""How many people must approve an event, and whether it can be decided on. Pure.

``vote_rules`` has the rules that the Functions app uses as well. This module applies
``[[hub.access.rules]]`` to the current state of an event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bridge.events.document import EVENT_TYPES, ScheduledEvent
from bridge.events.vocabulary import EventStatus, TransitionKind
from bridge.hub.access_config import AccessConfig, AccessRule
from bridge.hub.fold import Machine, Voice
from bridge.hub.vote_rules import voids

BRIDGE, ARM = "bridge", "arm"
CHANNELS = (BRIDGE, ARM)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentEvent:
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
        resource: the resource id of the event at ARM; "" = Azure has not reported it.
        named: the machines whose word counts as that of one in Resources; ask by
            ``fold.is_named``.
        voices: who has reported the occurrence.
        is_by_others: whether the content is by the word of others alone: its changes
            make no vote void.
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
    resource: str
    machines: tuple[Machine, ...]
    named: tuple[Machine, ...] = ()
    voices: tuple[Voice, ...] = ()
    is_by_others: bool = False
    azure: Mapping[str, object] | None = None
    azure_seen: datetime | None = None

    @property
    def scheduled(self) -> ScheduledEvent:
        """The IMDS object as a ScheduledEvent; empty if it is not known."""
        return ScheduledEvent(event_id=self.event_id, raw=self.event or {})

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


def persons_for(access: AccessConfig, current: CurrentEvent) -> tuple[int, str]:
    """Return how many people must approve an event, and by which rule."""
    groups = {machine.group for machine in current.machines}
    return persons_wanted(access, current.scheduled.event_type or "", groups)


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
    is_known = kind in {name.casefold() for name in EVENT_TYPES}
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

"""How many people an event takes, and what can be decided about it at all. Pure.

ballot     whose votes count, and what makes them void
here       the rules of ``[[hub.access.rules]]``, and the event as it stands
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bridge.events.document import EVENT_TYPES, ScheduledEvent
from bridge.events.vocabulary import EventStatus, TransitionKind
from bridge.hub.access_config import AccessConfig, AccessRule
from bridge.hub.ballot import voids
from bridge.hub.fold import Machine

BRIDGE, ARM = "bridge", "arm"
WAYS = (BRIDGE, ARM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An event as it stands, for whoever decides.

    Attributes:
        key: the EventId as it is compared.
        life: the number of its occurrence.
        content: the fingerprint of the event, see ``ballot.digest``.
        event: the IMDS object; None where only ends were told.
        is_whole: False where names of its Resources are not known.
        since: it has had its present content since then, at the latest.
        prefix: what the types of the bridges' events begin with.
        resource: the id that ARM knows it by; "" where Azure said nothing.
        azure: the IMDS object as Azure told it last; None where it told nothing.
        azure_seen: when Azure told of it last.
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
    azure: Mapping[str, object] | None = None
    azure_seen: datetime | None = None

    @property
    def scheduled(self) -> ScheduledEvent:
        """The IMDS object as a value; an empty one where it is not known."""
        return ScheduledEvent(event_id=self.event_id, raw=self.event or {})

    def lacks(self) -> str | None:
        """Return why nothing can be decided about it; None = something can be."""
        if not self.is_open:
            return "the event is over"
        is_started = self.scheduled.status == EventStatus.STARTED
        if is_started or self.status == TransitionKind.STARTED:
            return "the event has started: nothing can be asked of it"
        if self.event is None:
            return "what the event is about is not known"
        return None


def persons_for(access: AccessConfig, standing: Standing) -> tuple[int, str]:
    """Return how many people must agree on an event, and by which rule."""
    groups = {machine.group for machine in standing.machines}
    return persons_wanted(access, standing.scheduled.event_type or "", groups)


def persons_wanted(
    access: AccessConfig, event_type: str, groups: set[str]
) -> tuple[int, str]:
    """Return how many people must agree, and by which rule.

    A type that is not documented, or a resource group that is not known, takes the
    largest number of all rules.

    Args:
        access: who may decide.
        event_type: as received.
        groups: the resource groups of its machines; "" = one is not known.
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
    """Whether a vote for what was seen no longer counts for the event as it is."""
    return voids(seen, event, is_earlier=is_earlier(seen, event))


def is_earlier(seen: Mapping[str, object], event: Mapping[str, object]) -> bool:
    """Whether an event now begins earlier than the one that was seen."""
    before = ScheduledEvent(event_id="", raw=seen).not_before
    after = ScheduledEvent(event_id="", raw=event).not_before
    return before is not None and (after is None or after < before)

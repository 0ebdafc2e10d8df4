"""Decides whether an event may be approved through ARM, and under which path. Pure.

It may, if all of these are true:

    no bridge answers for the event, and none of its machines was heard in the last
    three intervals, at most 5 minutes, whatever it said
    every machine in Resources has a bridge whose known rules allow it now: those of all
    its offers of the last day, unless a person has dropped one
    Azure published the same content a short time ago

Source: learn.microsoft.com/azure/virtual-machines/scheduled-events-overview
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import orjson

from bridge.hub.bridges import MOST_OFFERS, Offer
from bridge.hub.config import ArmConfig
from bridge.hub.decisions import CurrentEvent, is_void
from bridge.hub.targets import NOT_KNOWN, ExpectedAnswer, Verdict, expected_answer
from bridge.hub.view_rows import BridgeRow

_DAY = timedelta(days=1)
_NEW = timedelta(minutes=15)
_INTERVALS = 3
_LONGEST = 300.0  # seconds of silence that are enough for any bridge
_SEGMENT = r"[A-Za-z0-9](?:[A-Za-z0-9._()-]*[A-Za-z0-9_()-])?"
_RESOURCE = re.compile(
    rf"/subscriptions/[0-9a-f-]{{36}}/resourcegroups/(?:{_SEGMENT}|_{_SEGMENT})"
    rf"/providers/microsoft\.compute"
    rf"/(?:virtualmachines|virtualmachinescalesets|availabilitysets)/{_SEGMENT}",
    re.IGNORECASE,
)
_EVENT = re.compile(
    r"/providers/microsoft\.maintenance/scheduledevents/([A-Za-z0-9-]{1,128})",
    re.IGNORECASE,
)
_EVENT_ID = re.compile(r"[A-Za-z0-9-]{1,128}")


def path_of(current: CurrentEvent) -> str | None:
    """Return the path that acknowledges an event; None = Azure has named none.

    The resource id in Azure's message is untrusted: only the id of a machine, a scale
    set or an availability set becomes part of the path.
    """
    return path_to(current.resource, current.event_id)


def arm_message(decision: str, current: CurrentEvent) -> bytes:
    """Return the id and the path of a request to ARM, as JSON for the store."""
    return orjson.dumps({"id": decision, "path": path_of(current)})


def path_to(resource: str, event_id: str) -> str | None:
    """Return the path that acknowledges an event; None = an argument is invalid.

    Args:
        resource: the resource id of a machine, a scale set or an availability set, or
            the resource id of the event below one.
        event_id: the EventId.
    """
    found = _RESOURCE.match(resource)
    if found is None or not _EVENT_ID.fullmatch(event_id):
        return None
    rest = resource[found.end() :]
    event = _EVENT.fullmatch(rest)
    if rest and (event is None or event[1].upper() != event_id.upper()):
        return None
    events = "providers/Microsoft.Maintenance/scheduledevents"
    return f"{found[0]}/{events}/{event_id}/acknowledge"


def forbids(
    config: ArmConfig, current: CurrentEvent, fleet: Iterable[BridgeRow], now: datetime
) -> str | None:
    """Return why rules of bridges forbid an approval through ARM; None = none does."""
    if not current.machines:
        return "the event names no machine"
    if not current.is_whole:
        return "not all machines of the event are known"
    known = {bridge.machine: bridge for bridge in fleet}
    for machine in current.machines:
        bridge = known.get(machine)
        if bridge is not None and len(bridge.offers) >= MOST_OFFERS:
            return f"too many offers were heard in the name of {machine.name}"
        for found in _answers(bridge, current, now):
            if found.verdict is Verdict.UNKNOWN and config.unknown_rules == "allow":
                continue
            if found.verdict is not Verdict.ALLOWS:
                return f"the bridge of {machine.name} does not allow it: {found.why}"
    return None


def _answers(
    bridge: BridgeRow | None, current: CurrentEvent, now: datetime
) -> list[ExpectedAnswer]:
    """Return what a bridge would answer by its rules, and by all its recent offers."""
    if bridge is None:
        return [NOT_KNOWN]
    rules = [bridge.approvals, *(one.data for one in recent_offers(bridge, now))]
    return [expected_answer(one, current, bridge.name, now) for one in rules]


def recent_offers(bridge: BridgeRow, now: datetime) -> list[Offer]:
    """Return the offers of a machine in the last day that no person has dropped."""
    return [
        one for one in bridge.offers if not one.is_dropped and now - one.heard <= _DAY
    ]


def more_persons(fleet: Iterable[BridgeRow], now: datetime) -> int:
    """Return how many people more are wanted: 1 a short time after something new.

    New are the word of a bridge of its machines that it stops, another offer, and
    another vmId: whoever forges one of them wants an approval soon.
    """
    moments = [
        moment
        for bridge in fleet
        for moment in (
            bridge.first_heard,
            bridge.stopped,
            *(one.first_heard for one in bridge.offers if not one.is_dropped),
        )
        if moment is not None
    ]
    return int(any(now - moment < _NEW for moment in moments))


def still_heard(fleet: Iterable[BridgeRow], now: datetime) -> str | None:
    """Return which bridge was heard a short time ago, whatever it said; None = none."""
    for bridge in fleet:
        longest = min(_INTERVALS * (bridge.interval_seconds or _LONGEST), _LONGEST)
        age = (now - bridge.heard).total_seconds()
        if age <= longest:
            return f"the bridge of {bridge.name} was heard in the last {longest:g} s"
    return None


def not_shown(config: ArmConfig, current: CurrentEvent, now: datetime) -> str | None:
    """Return why Azure's message cannot confirm the event now; None = it does."""
    if current.azure is None or current.azure_seen is None:
        return "Azure has not published the event"
    if path_of(current) is None:
        return "Azure's message has no resource id that can be acknowledged"
    if now - current.azure_seen > timedelta(seconds=config.seen_within):
        return "Azure published the event too long ago"
    mine, azures = current.event or {}, current.azure
    if is_void(mine, azures) or is_void(azures, mine):
        return "Azure and the bridges describe the event differently"
    return None


def objection(
    config: ArmConfig | None,
    current: CurrentEvent,
    fleet: Sequence[BridgeRow],
    now: datetime,
    *,
    is_answered: bool,
) -> str | None:
    """Return why an event cannot be approved through ARM; None = it can."""
    if config is None:
        return "approving through ARM is off: there is no [hub.arm]"
    if is_answered:
        return "a bridge answers for the event: approve it there"
    return (
        not_shown(config, current, now)
        or still_heard(fleet, now)
        or forbids(config, current, fleet, now)
    )

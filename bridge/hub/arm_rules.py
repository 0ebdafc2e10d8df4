"""When an event may be approved through ARM, and under which path. Pure.

    no bridge answers for the event
    every machine in Resources has a bridge whose known rules allow it now
    Azure showed the same content a short time ago

Source: learn.microsoft.com/azure/virtual-machines/scheduled-events-overview
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from bridge.hub.arm_config import ArmConfig
from bridge.hub.fold import kept_name
from bridge.hub.offers import NOT_KNOWN, Word, opinion
from bridge.hub.view_rows import BridgeRow
from bridge.hub.voting import Standing, is_void

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


def path_of(standing: Standing) -> str | None:
    """Return the path that acknowledges an event; None where Azure told none.

    What Azure's message names is data: nothing but the id of a machine, a scale set or
    an availability set becomes part of a path.
    """
    return path_to(standing.resource, standing.event_id)


def path_to(resource: str, event_id: str) -> str | None:
    """Return the path that acknowledges an event; None where a part of it is none.

    Args:
        resource: the id of a machine, a scale set or an availability set, or that of
            the event below it.
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
    config: ArmConfig, standing: Standing, fleet: Iterable[BridgeRow], now: datetime
) -> str | None:
    """Return why the rules of bridges forbid it; None = they do not.

    Args:
        config: what to do where rules are not known.
        standing: the event.
        fleet: the bridges of its machines.
        now: the present moment.
    """
    if not standing.machines:
        return "the event names no machine"
    if not standing.is_whole:
        return "not all machines of the event are known"
    known = {(b.subscription, b.group, kept_name(b.name)): b for b in fleet}
    for machine in standing.machines:
        bridge = known.get((machine.subscription, machine.group, machine.name))
        found = (
            opinion(bridge.approvals, standing, bridge.name, now)
            if bridge is not None
            else NOT_KNOWN
        )
        if found.word is Word.UNKNOWN and config.unknown_rules == "allow":
            continue
        if found.word is not Word.ALLOWS:
            return f"the bridge of {machine.name} does not allow it: {found.why}"
    return None


def is_shown(config: ArmConfig, standing: Standing, now: datetime) -> str | None:
    """Return why Azure does not show this event now; None = it does."""
    if standing.azure is None or standing.azure_seen is None:
        return "Azure has not told of the event"
    if path_of(standing) is None:
        return "Azure told no id that an event can be acknowledged by"
    if now - standing.azure_seen > timedelta(seconds=config.seen_within):
        return "Azure told of the event too long ago"
    mine, azures = standing.event or {}, standing.azure
    if is_void(mine, azures) or is_void(azures, mine):
        return "Azure shows the event otherwise than bridges do"
    return None


def objection(
    config: ArmConfig | None,
    standing: Standing,
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
    return is_shown(config, standing, now) or forbids(config, standing, fleet, now)

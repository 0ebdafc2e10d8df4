"""Builds CloudEvents from alarms; alarms of one kind share an event. Pure.

hub.bridge-silent, hub.bridge-back, hub.unreported,
hub.message-slow, hub.key-unknown                    one event for all waiting alarms
hub.approval.*, hub.report                           one event for each alarm
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from bridge.events.alarm import (
    BACK,
    CLOCK,
    KEY,
    REPORT,
    SILENT,
    SLOW,
    UNREPORTED,
    Alarm,
    HubContext,
    from_alarm,
)
from bridge.events.build import OutgoingEvent
from bridge.foundation.hashing import hash32
from bridge.hub.store.alarms import AlarmRow

_MOST_NAMES = 50
_IN_HEADLINE = 3
_FAMILY = "hub."
_ALONE = (_APPROVAL := "hub.approval.", f"hub.{REPORT}")
_SEVERITIES = {
    UNREPORTED: "ERROR",
    SILENT: "WARN",
    BACK: "INFO",
    SLOW: "ERROR",
    CLOCK: "ERROR",
    KEY: "WARN",
}
_LISTS = {
    UNREPORTED: "events",
    SILENT: "bridges",
    BACK: "bridges",
    SLOW: "messages",
    CLOCK: "clocks",
    KEY: "keys",
}
_REASONS = {
    UNREPORTED: "Azure announced it; not reported by a bridge in time: nobody is asked",
    SILENT: "nothing was heard for three heartbeats: its events may go unseen",
    BACK: "",
    KEY: "if the machine was made anew, accept the key, or put it into hub.keys; if "
    "not, somebody else speaks in its name: what they say counts for nothing",
    CLOCK: "nothing can be approved through ARM until the clock is right",
    SLOW: "it took over 5 s of work twice: it is put aside and tried again every hour",
}
_WORDS = {
    "decided": "An event was approved",
    "refused": "An event was refused",
    "done": "An approval was carried out",
    "failed": "An approval was not carried out",
    "void": "An approval holds no longer",
}
_BAD = {"failed", "void"}


class AlarmContext(Struct, frozen=True, kw_only=True):
    """The values besides an alarm's own that its event needs.

    Attributes:
        context: the prefix, source and version in all events of this hub.
        public_url: the start of links; "" = without links.
        silent: how many bridges are silent now.
    """

    context: HubContext
    public_url: str
    silent: int


def events_of(
    rows: Sequence[AlarmRow], shared: AlarmContext, now: datetime
) -> list[OutgoingEvent]:
    """Return the events for alarms."""
    groups: dict[str, list[AlarmRow]] = {}
    for row in rows:
        name = row.id if row.kind.startswith(_ALONE) else row.kind
        groups.setdefault(name, []).append(row)
    return [
        from_alarm(shared.context, _alarm(group, shared), now)
        for group in groups.values()
    ]


def _alarm(group: Sequence[AlarmRow], shared: AlarmContext) -> Alarm:
    what = group[0].kind.removeprefix(_FAMILY)
    if group[0].kind.startswith(_APPROVAL):
        return _of_approval(what, group[0], shared)
    if what == REPORT:
        return _of_report(group[0], shared)
    shown = [row.data for row in group[:_MOST_NAMES]]
    page = "/bridges" if what in {SILENT, BACK, KEY} else "/"
    more: dict[str, object] = {"count": len(group), _LISTS[what]: shown}
    if what in {SILENT, BACK}:
        more["stillSilent"] = shared.silent
    return Alarm(
        what=what,
        id=hash32(sorted(row.id for row in group)),
        severity=_SEVERITIES[what],
        headline=_headline(what, len(group), shown),
        reason=_REASONS[what],
        more={**more, **_link(shared, page)},
    )


def _headline(what: str, count: int, shown: Sequence[Mapping[str, Any]]) -> str:
    names = [_name(what, one) for one in shown[:_IN_HEADLINE]]
    rest = count - len(names)
    named = ", ".join(names) + (f" and {rest} more" if rest else "")
    if what == UNREPORTED:
        events = "event" if count == 1 else "events"
        return f"{count} {events} of Azure not reported by a bridge: {named}"
    if what == SLOW:
        messages = "message takes" if count == 1 else "messages take"
        return f"{count} {messages} too long to be stored: {named}"
    if what == CLOCK:
        return f"The clock of a hub is wrong: {named}"
    if what == KEY:
        return (
            f"{count} unknown {'key speaks' if count == 1 else 'keys speak'}: {named}"
        )
    are = "bridge is" if count == 1 else "bridges are"
    state = "silent" if what == SILENT else "no longer silent"
    return f"{count} {are} {state}: {named}"


def _name(what: str, one: Mapping[str, Any]) -> str:
    if what == UNREPORTED:
        machines = ", ".join(one["machines"][:_IN_HEADLINE]) or "unnamed machines"
        return f"{one['eventType'] or 'unknown type'} of {machines}"
    if what == SLOW:
        return f"from source {one['source']}"
    if what == CLOCK:
        return f"{one.get('host') or 'one'}: {one['fault']}"
    name = str(one["vmName"] or one["vmId"])
    if what == KEY:
        return f"for {name}"
    return name if one["state"] in {"silent", "alive"} else f"{name} ({one['state']})"


def _of_approval(what: str, row: AlarmRow, shared: AlarmContext) -> Alarm:
    word, event_id = what.rpartition(".")[2], str(row.data["eventId"])
    page = f"/events/{quote(event_id, safe='')}"
    return Alarm(
        what=what,
        id=row.id,
        severity="WARN" if word in _BAD else "INFO",
        headline=f"{_WORDS.get(word, f'Approval {word}')}: {event_id}",
        reason=str(row.data["detail"] or ""),
        subject=event_id,
        more={**row.data, **_link(shared, page)},
    )


def _of_report(row: AlarmRow, shared: AlarmContext) -> Alarm:
    data = row.data
    page = f"/report?from={quote(str(data['from']))}&to={quote(str(data['to']))}"
    return Alarm(
        what=REPORT,
        id=row.id,
        severity="INFO",
        headline=str(data["headline"]),
        more={"lines": data["lines"], **_link(shared, page)},
    )


def _link(shared: AlarmContext, page: str) -> dict[str, object]:
    return {"link": f"{shared.public_url}{page}"} if shared.public_url else {}

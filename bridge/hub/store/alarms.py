"""The alarms of a hub: rows of the store, from which events are made.

An alarm is added in the same transaction as the change that it is about. Its id is a
hash of its content, so several hubs on one store add it only once. One of these hubs
publishes the alarms; those of one kind share an event:

hub.bridge-silent, hub.bridge-back, hub.unreported,
hub.message-slow, hub.key-unknown                    one event for all waiting alarms
hub.approval.*, hub.report                           one event for each alarm
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import orjson
from msgspec import UNSET, Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, func, select, update

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
from bridge.events.cloudevent import hash32, rfc3339
from bridge.events.data import HubData
from bridge.hub.answers import EventRow
from bridge.hub.bridges import Liveness
from bridge.hub.store.bridge_intake import end_silence, keep_silence
from bridge.hub.store.current import bridge_rows
from bridge.hub.store.engine import Values, insert, lock
from bridge.hub.store.rows import add_alarms, alarm_id, alarm_of, micros, moment_of
from bridge.hub.store.tables import alarms, bridges, meta
from bridge.hub.view_rows import BridgeRow, Situation

_MOST = 20_000
_AT_ONCE = 500
_LEASE = "alarms-handed-by"
_OVER = {Liveness.ALIVE, Liveness.STOPPED, Liveness.GONE}


class AlarmRow(Struct, frozen=True, kw_only=True):
    """One stored alarm.

    Attributes:
        kind: hub.bridge-silent, hub.bridge-back, hub.unreported, hub.message-slow,
            hub.clock-wrong, hub.key-unknown, hub.report, hub.approval.STATE.
        data: the fields of the event about it.
    """

    id: str
    kind: str
    time: datetime
    data: dict[str, object]


def news_of(bridge: BridgeRow) -> str | None:
    """Return the alarm that a bridge needs: silent, or back; None = none.

    An unknown state causes no alarm: the hub does not receive its messages now.
    """
    if bridge.liveness is Liveness.SILENT:
        return None if bridge.was_silent else SILENT
    return BACK if bridge.was_silent and bridge.liveness in _OVER else None


def note_silence(
    connection: Connection, vm_ids: Sequence[str], situation: Situation
) -> int:
    """Add alarms about bridges that still need one; returns how many."""
    count = 0
    for start in range(0, len(vm_ids), _AT_ONCE):
        names = sorted(vm_ids[start : start + _AT_ONCE])
        lock(connection, names, "bridges")
        query = select(bridges).where(bridges.c.vm_id.in_(names))
        found = connection.execute(query).all()
        rows = bridge_rows(connection, found, situation)
        news = [(row, what) for row in rows if (what := news_of(row))]
        for what in (SILENT, BACK):
            mine = [row.vm_id for row, one in news if one == what]
            change = update(bridges).where(bridges.c.vm_id.in_(mine))
            connection.execute(change.values(was_silent=what == SILENT))
        add_alarms(
            connection, [_of_bridge(row, what, situation.now) for row, what in news]
        )
        for row, what in news:
            place = astuple(row.machine)
            if what == SILENT:
                keep_silence(connection, row.vm_id, place, row.heard)
            else:
                end_silence(connection, place, situation.now)
        count += len(news)
    return count


def _of_bridge(row: BridgeRow, what: str, now: datetime) -> Values:
    heard, state = rfc3339(row.heard), row.liveness.value
    data = {
        "vmId": row.vm_id,
        "vmName": row.name,
        "resourceId": row.resource_id or "",
        "heard": heard,
        "state": state,
    }
    return alarm_of(what, [what, row.vm_id, heard, state], now, data)


def note_unreported(
    connection: Connection, found: Sequence[EventRow], now: datetime
) -> None:
    """Add alarms about events that no bridge has reported."""
    add_alarms(connection, [_of_event(row, now) for row in found])


def _of_event(row: EventRow, now: datetime) -> Values:
    same = [f"hub.{UNREPORTED}", row.key, row.occurrence]
    data = {
        "eventId": row.event_id,
        "eventType": row.event_type or "",
        "notBefore": rfc3339(row.not_before) if row.not_before else None,
        "machines": list(row.machines),
        "resourceGroup": row.resource_group or "",
    }
    return alarm_of(UNREPORTED, same, now, data)


def note_slow(
    connection: Connection, source: str, heard: datetime, digest: str
) -> None:
    """Add an alarm about a message that took too long to be stored."""
    data = {"source": source, "heard": rfc3339(heard)}
    same = [SLOW, source, rfc3339(heard), digest]
    add_alarms(connection, [alarm_of(SLOW, same, heard, data)])


def note_clock(connection: Connection, host: str, fault: str, now: datetime) -> None:
    """Add an alarm about the clock of a hub's machine; at most one a day for each."""
    same, data = [CLOCK, host, rfc3339(now)[:10]], {"host": host, "fault": fault}
    add_alarms(connection, [alarm_of(CLOCK, same, now, data)])


def has_report(connection: Connection, until: datetime) -> bool:
    """Whether there is an alarm with the report of the week before a time."""
    query = select(alarms.c.id).where(alarms.c.id == alarm_id([REPORT, rfc3339(until)]))
    return connection.scalar(query) is not None


def note_report(
    connection: Connection, since: datetime, until: datetime, lines: Sequence[str]
) -> None:
    """Add the report of a week, to be sent as the alarms are; once for all hubs.

    Args:
        connection: a connection within a transaction.
        since: the begin of the week.
        until: its end.
        lines: the report as text: the headline, and the lines below.
    """
    headline, *rest = lines
    period = {"from": rfc3339(since), "to": rfc3339(until)}
    data = {"headline": headline, "lines": rest, **period}
    same = [REPORT, rfc3339(until)]
    add_alarms(connection, [alarm_of(REPORT, same, until, data)])


def waiting(connection: Connection) -> list[AlarmRow]:
    """Return the alarms that are not published yet, the oldest first."""
    query = select(alarms).where(alarms.c.handed.is_(None))
    ordered = query.order_by(alarms.c.time, alarms.c.id).limit(_MOST)
    return [
        AlarmRow(
            id=row.id,
            kind=row.kind,
            time=moment_of(row.time),
            data=orjson.loads(row.data),
        )
        for row in connection.execute(ordered)
    ]


def mark_published(connection: Connection, ids: Sequence[str], now: datetime) -> None:
    """Mark alarms as published."""
    for start in range(0, len(ids), _AT_ONCE):
        portion = ids[start : start + _AT_ONCE]
        change = update(alarms).where(alarms.c.id.in_(portion))
        connection.execute(change.values(handed=micros(now)))


def count_silent(connection: Connection) -> int:
    """Return how many bridges are silent according to the alarms so far."""
    query = select(func.count()).where(bridges.c.was_silent.is_(True))
    return connection.scalar(query) or 0


def take_lease(
    connection: Connection, holder: str, now: datetime, seconds: float
) -> bool:
    """Take or renew the lease for publishing alarms; False = another hub has it.

    The lease expires, so another hub continues after a crash. If the clocks of two hubs
    differ by more than a lease, both publish: an alarm comes twice, with the same id. A
    clock that was set back does no harm: a lease that ends more than two durations from
    now counts as expired.
    """
    fresh = f"{micros(now + timedelta(seconds=seconds))} {holder}"
    made = insert(meta).values(name=_LEASE, value=fresh).on_conflict_do_nothing()
    if connection.execute(made).rowcount == 1:
        return True
    query = select(meta.c.value).where(meta.c.name == _LEASE).with_for_update()
    until, _, who = str(connection.scalar(query)).partition(" ")
    left = int(until) - micros(now)
    if who != holder and 0 < left <= 2 * seconds * 1e6:
        return False
    connection.execute(update(meta).where(meta.c.name == _LEASE).values(value=fresh))
    return True


# -- the events of alarms --------------------------------------------------------------


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
        now: the present time.
    """

    context: HubContext
    public_url: str
    silent: int
    now: datetime

    def data(self, headline: str, reason: str, page: str, **members: Any) -> HubData:
        """Return the data of an event.

        Args:
            headline: see ``HubData``.
            reason: why, or what to do; "" = nothing to add.
            page: the path of the page that its link leads to.
            members: further members of ``HubData``.
        """
        return HubData(
            observed_at=rfc3339(self.now),
            headline=headline,
            reason=reason or None,
            reporter=self.context.reporter,
            link=f"{self.public_url}{page}" if self.public_url else UNSET,
            **members,
        )


def events_of(rows: Sequence[AlarmRow], shared: AlarmContext) -> list[OutgoingEvent]:
    """Return the events for alarms."""
    groups: dict[str, list[AlarmRow]] = {}
    for row in rows:
        name = row.id if row.kind.startswith(_ALONE) else row.kind
        groups.setdefault(name, []).append(row)
    return [from_alarm(shared.context, _alarm(one, shared)) for one in groups.values()]


def _alarm(group: Sequence[AlarmRow], shared: AlarmContext) -> Alarm:
    what = group[0].kind.removeprefix(_FAMILY)
    if group[0].kind.startswith(_APPROVAL):
        return _of_approval(what, group[0], shared)
    if what == REPORT:
        return _of_report(group[0], shared)
    shown, count = [row.data for row in group[:_MOST_NAMES]], len(group)
    of_bridges = what in {SILENT, BACK}
    return Alarm(
        what=what,
        id=hash32(sorted(row.id for row in group)),
        severity=_SEVERITIES[what],
        data=shared.data(
            _headline(what, count, shown),
            _REASONS[what],
            "/bridges" if of_bridges or what == KEY else "/",
            count=count,
            still_silent=shared.silent if of_bridges else UNSET,
            **{_LISTS[what]: shown},
        ),
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
    word, data = what.rpartition(".")[2], row.data
    event_id, detail = str(data["eventId"]), str(data["detail"])
    return Alarm(
        what=what,
        id=row.id,
        severity="WARN" if word in _BAD else "INFO",
        subject=event_id,
        data=shared.data(
            f"{_WORDS.get(word, f'Approval {word}')}: {event_id}",
            detail,
            f"/events/{quote(event_id, safe='')}",
            event_id=event_id,
            decision=data["decision"],
            via=data["via"],
            detail=detail,
            by=data["by"],
        ),
    )


def _of_report(row: AlarmRow, shared: AlarmContext) -> Alarm:
    data = row.data
    page = f"/report?from={quote(str(data['from']))}&to={quote(str(data['to']))}"
    return Alarm(
        what=REPORT,
        id=row.id,
        severity="INFO",
        data=shared.data(str(data["headline"]), "", page, lines=data["lines"]),
    )

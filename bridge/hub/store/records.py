"""Adds entries to the record of an event, and alarms about decisions."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Connection

from bridge.foundation.hashing import hash32
from bridge.hub.store.rows import dumped, micros
from bridge.hub.store.statements import insert
from bridge.hub.store.tables import alarms, trail
from bridge.hub.voting import CurrentEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the record.

    Attributes:
        decision: the id of the decision; "" = a vote, before there is a decision.
        what: voted, decided, refused, sent, done, failed, void and so on.
        person: who did it; "" = the hub.
        content: the fingerprint of the event at that time.
    """

    time: datetime
    event_key: str
    event_id: str
    life: int
    decision: str = ""
    what: str = ""
    via: str = ""
    person: str = ""
    detail: str = ""
    content: str = ""

    @classmethod
    def of(cls, row: Any, time: datetime, *, what: str, detail: str = "") -> Self:
        """Return an entry about a decision."""
        return cls(
            time=time,
            event_key=row.event_key,
            event_id=row.event_id,
            life=row.life,
            decision=row.id,
            what=what,
            via=row.via,
            detail=detail,
            content=row.content,
        )

    @classmethod
    def on(cls, current: CurrentEvent, time: datetime, *, what: str, via: str) -> Self:
        """Return an entry about an event."""
        return cls(
            time=time,
            event_key=current.key,
            event_id=current.event_id,
            life=current.life,
            what=what,
            via=via,
            content=current.content,
        )

    def by(self, person: str, detail: str = "", decision: str = "") -> Self:
        """Return a copy with the person, the detail and the id of the decision."""
        return replace(self, person=person, detail=detail, decision=decision)


def record(connection: Connection, entry: Entry) -> None:
    """Add an entry to the record; entries are never changed."""
    values = {name: getattr(entry, name) for name in entry.__slots__}
    connection.execute(trail.insert(), {**values, "time": micros(entry.time)})


def alarm(connection: Connection, entry: Entry) -> None:
    """Add an alarm ``hub.approval.*``, unless the same alarm exists."""
    kind = f"hub.approval.{entry.what}"
    data = {
        "eventId": entry.event_id,
        "decision": entry.decision,
        "via": entry.via,
        "detail": entry.detail,
        "by": entry.person or None,
    }
    statement = insert(alarms).values(
        id=hash32([kind, entry.decision, entry.detail]),
        kind=kind,
        time=micros(entry.time),
        data=dumped(data),
        handed=None,
    )
    connection.execute(statement.on_conflict_do_nothing())

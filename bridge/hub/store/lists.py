"""What pages, the API and ``check`` ask: bridges, machines, decisions, options."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, func, select, true, tuple_

from bridge.events.cloudevent import clean
from bridge.events.document import ScheduledEvent
from bridge.hub import arm_rules
from bridge.hub.answers import NAMES, BridgesAsked, DecisionRow
from bridge.hub.bridges import Liveness, bridge_in
from bridge.hub.choices import (
    NO_OPTIONS,
    AddressRow,
    ArmOptions,
    BridgeOptions,
    OfferRow,
    Options,
)
from bridge.hub.config import HubConfig
from bridge.hub.decisions import CurrentEvent, DecisionState
from bridge.hub.facts import Kind, Machine, kept_name, object_in, table, text
from bridge.hub.store.current import bridge_rows, current_event, event_bridges, is_at
from bridge.hub.store.deciding import arm_objection
from bridge.hub.store.rows import made, micros, moment_of
from bridge.hub.store.tables import bridges, decisions, machines, messages, unreadable
from bridge.hub.targets import EventBridges, Target, Wishes, expected_answer, refusal_of
from bridge.hub.view_rows import PAGE, BridgeRow, Situation

_SCANNED = 1000
_UNREAD = timedelta(days=1)


def fleet(
    connection: Connection, situation: Situation, asked: BridgesAsked
) -> tuple[list[BridgeRow], str]:
    """Return bridges in the order of their vmIds, and the cursor of the next ones.

    The state of a bridge depends on the time, so the bridges are looked at one by one
    until there are enough.
    """
    query, after = select(bridges).where(_is_named(asked.text)), asked.cursor
    found, at_once = list[BridgeRow](), _SCANNED if asked.state else asked.limit
    while True:
        chunk = query.where(bridges.c.vm_id > after).order_by(bridges.c.vm_id)
        rows = connection.execute(chunk.limit(at_once)).all()
        for row in bridge_rows(connection, rows, situation):
            after = row.vm_id
            if asked.state in {None, row.liveness}:
                found.append(row)
            if len(found) == asked.limit:
                return found, after
        if len(rows) < at_once:
            return found, ""


def count_bridges(connection: Connection, text: str = "") -> int:
    """Return how many bridges there are, of names that begin with a text."""
    query = select(func.count()).select_from(bridges).where(_is_named(text))
    return connection.scalar(query) or 0


def _is_named(text: str) -> ColumnElement[bool]:
    name = bridges.c.name
    return name.startswith(kept_name(text), autoescape=True) if text else true()


def silent(connection: Connection, situation: Situation) -> list[BridgeRow]:
    """Return the bridges that are silent, as far as the last check of all has found."""
    query = select(bridges).where(bridges.c.was_silent.is_(True))
    found = connection.execute(query.order_by(bridges.c.name).limit(PAGE)).all()
    rows = bridge_rows(connection, found, situation)
    return [row for row in rows if row.liveness is Liveness.SILENT]


def count_unread(connection: Connection, now: datetime) -> int:
    """Return how many messages of the last day could not be read; at most 1,000."""
    since = micros(now - _UNREAD)
    query = select(func.count()).select_from(unreadable)
    return connection.scalar(query.where(unreadable.c.heard >= since)) or 0


def has_bridges(connection: Connection) -> bool:
    """Whether any bridge is known."""
    return connection.scalar(select(bridges.c.vm_id).limit(1)) is not None


def count_running(
    connection: Connection, situation: Situation, *wanted: ColumnElement[bool]
) -> int:
    """Return how many bridges may run; at most 200, the last heard.

    They have not stopped, and are not gone.

    Args:
        connection: a connection within a transaction.
        situation: the current Situation.
        wanted: further conditions.
    """
    of = bridges.c
    is_on = [func.coalesce(end, 0) < of.heard for end in (of.stopped, of.forgotten)]
    last = select(bridges).where(*is_on, *wanted).order_by(of.heard.desc()).limit(PAGE)
    rows = bridge_rows(connection, connection.execute(last).all(), situation)
    return sum(row.liveness is not Liveness.GONE for row in rows)


def count_unwatched(connection: Connection, situation: Situation) -> int:
    """Return how many of them send no heartbeats: their silence says nothing."""
    return count_running(connection, situation, bridges.c.has_beats.is_(False))


def bridges_like(
    connection: Connection, text: str, limit: int
) -> list[tuple[str, Machine]]:
    """Return bridges' machines whose names begin with a text, as they are spelt."""
    query = select(bridges).where(_is_named(text))
    query = query.order_by(bridges.c.name, bridges.c.vm_id).limit(limit)
    found: dict[Machine, str] = {}
    for row in connection.execute(query):
        place = {"subscription": row.subscription, "group": row.group}
        found[Machine(**place, name=row.name)] = bridge_in(row.reported).reporter.name
    return [(name, machine) for machine, name in found.items()]


def machines_named(connection: Connection, name: str) -> list[Machine]:
    """Return all machines with a name, from events and from bridges."""
    found = set[tuple[str, str]]()
    for of in (machines.c, bridges.c):
        query = select(of.subscription, of.group).distinct()
        rows = connection.execute(query.where(of.name == name).limit(PAGE))
        found |= {(row.subscription, row.group) for row in rows}
    return [
        Machine(subscription=subscription, group=group, name=name)
        for subscription, group in sorted(found)
    ]


def bridges_of(
    connection: Connection, machine: Machine, situation: Situation
) -> list[BridgeRow]:
    """Return the bridges of a machine, the last heard first.

    There are several if the machine was created again and its resource id is not known.
    """
    of = bridges.c
    query = select(bridges).where(is_at(of, machine))
    found = connection.execute(query.order_by(of.heard.desc()).limit(PAGE)).all()
    return bridge_rows(connection, found, situation)


def forget_bridge(connection: Connection, vm_id: str, now: datetime) -> bool:
    """Declare a bridge gone, for a person; returns whether the bridge is known."""
    change = bridges.update().where(bridges.c.vm_id == vm_id)
    done = connection.execute(change.values(forgotten=micros(now)))
    return bool(done.rowcount)


# -- decisions -------------------------------------------------------------------------


def list_decisions(
    connection: Connection, *, before: tuple[int, str] | None = None, limit: int = PAGE
) -> list[DecisionRow]:
    """Return decisions, the newest first.

    Args:
        connection: a connection within a transaction.
        before: the place of the last decision that was shown; None = from the newest.
        limit: how many decisions at most.
    """
    place = tuple_(decisions.c.time, decisions.c.id)
    query = select(decisions)
    if before is not None:
        query = query.where(place < before)
    order = (decisions.c.time.desc(), decisions.c.id.desc())
    found = connection.execute(query.order_by(*order).limit(limit))
    return [decision_row(row) for row in found]


def decision_row(row: Any) -> DecisionRow:
    """Convert a row of the table into a DecisionRow."""
    persons: Any = orjson.loads(row.persons)
    seen = ScheduledEvent(event_id=row.event_id, raw=table(persons.get("seen")))
    names = tuple(name.removeprefix("_") for name in seen.resources)
    return made(
        DecisionRow,
        row,
        state=DecisionState(row.state),
        by=tuple(persons["by"]),
        reason=row.reason or None,
        time=moment_of(row.time),
        outcome=row.outcome or None,
        outcome_reason=row.outcome_reason or None,
        address=f"{row.entity} {row.session}".strip() or None,
        overridden=row.is_overridden,
        about=row.about or None,
        event_type=text(seen.event_type) or None,
        machines=names[:NAMES],
        machine_count=len(names),
    )


def cursor_of(row: DecisionRow) -> str:
    """Return the cursor of the list after a row."""
    return f"{micros(row.time)}-{row.id}"


def place_of(cursor: str) -> tuple[int, str] | None:
    """Parse a cursor; None = it is invalid."""
    number, _, name = cursor.partition("-")
    is_place = number.isascii() and number.isdigit() and len(number) < 18 and name
    return (int(number), name) if is_place and "\0" not in name else None


# -- Finds people who approve without this hub, by outcomes of approvals it did not
#    send
#
# A Functions app on the same approval entity would count votes of its own, for example.


_MOST = 500  # the newest outcomes are enough to see whether somebody else approves
_LONGEST = 100


class OtherApprover(Struct, frozen=True, kw_only=True):
    """A person who has approved an event without this hub.

    Attributes:
        name: the name in the approval, not verified; "" = it had none.
        heard: when the latest outcome of such an approval was enqueued.
        event_id: the EventId of that outcome.
    """

    name: str
    heard: datetime
    event_id: str


def other_approvers(connection: Connection) -> list[OtherApprover]:
    """Return the people who have approved without this hub, the latest first.

    Approvals by the rules of bridges have no MessageId, and do not count.
    """
    of = messages.c
    query = select(of.body, of.heard, of.event_key)
    outcomes = query.where(of.kind == Kind.OUTCOME.value).order_by(of.seq.desc())
    rows = connection.execute(outcomes.limit(_MOST)).all()
    asked = [(row, _request(row.body)) for row in rows]
    ids = {message_id for _, (message_id, _) in asked if message_id}
    known = select(decisions.c.id).where(decisions.c.id.in_(ids))
    ours = set(connection.scalars(known))
    found: dict[str, OtherApprover] = {}
    for row, (message_id, name) in asked:
        if message_id and message_id not in ours:
            heard = moment_of(row.heard)
            one = OtherApprover(name=name, heard=heard, event_id=row.event_key)
            found.setdefault(name, one)
    return list(found.values())


def _request(body: bytes) -> tuple[str, str]:
    """Return the MessageId of an approval, and the name of the approver in it."""
    asked = table(table(object_in(body).get("data")).get("request"))
    name = clean(text(asked.get("approvedBy"))[:_LONGEST])
    return text(asked.get("messageId")), name


# -- Reads which decisions are possible for an event, and why others are not -----------


def options(
    connection: Connection, key: str, config: HubConfig, situation: Situation
) -> Options | None:
    """Return which decisions are possible for an event; None = it is not known."""
    current = current_event(connection, key)
    if current is None:
        return None
    if what := current.lacks():
        return replace(NO_OPTIONS, closed=f"Nothing can be decided: {what}.")
    bridges = event_bridges(connection, current, situation)
    found = bridges.choose_target(config, current, situation)
    objection = arm_objection(config, current, bridges, situation)
    is_local = config.access.mode == "loopback"
    more = 0 if is_local else arm_rules.more_persons(bridges.fleet, situation.now)
    return Options(
        closed=None,
        bridge=BridgeOptions(
            why=None if found.is_open else found.why or None,
            contested=found.is_contested,
            refused=found.is_denied,
        ),
        addresses=_addresses(config, current, bridges, situation),
        arm=ArmOptions(
            why=objection,
            more_persons=more,
            offers=_offers(current, bridges.fleet, situation.now) if config.arm else (),
        ),
    )


def _addresses(
    config: HubConfig,
    current: CurrentEvent,
    bridges: EventBridges,
    situation: Situation,
) -> tuple[AddressRow, ...]:
    wishes = Wishes(is_overridden=True)
    best = bridges.choose_target(config, current, situation, wishes).best
    return tuple(
        _address(target, current, situation.now, is_best=target.address == best)
        for target in bridges.allowed(config)
    )


def _address(
    target: Target, current: CurrentEvent, now: datetime, *, is_best: bool
) -> AddressRow:
    return AddressRow(
        id=target.address.id,
        entity=target.address.entity,
        session=target.address.session or None,
        prefix=target.address.prefix,
        machines=tuple(sorted(bridge.name for bridge in target.bridges)),
        answers=target.answers,
        in_resources=target.rank == 0,
        older=target.is_older,
        contested=target.contested or None,
        refusal=refusal_of(target, current, now),
        best=is_best,
    )


def _offers(
    current: CurrentEvent, fleet: Sequence[BridgeRow], now: datetime
) -> tuple[OfferRow, ...]:
    found = []
    for bridge in fleet:
        for offer in arm_rules.recent_offers(bridge, now):
            answer = expected_answer(offer.data, current, bridge.name, now)
            found.append(
                OfferRow(
                    id=offer.id,
                    vm_name=bridge.name,
                    vm_id=offer.vm_id,
                    first_heard=offer.first_heard,
                    last_heard=offer.heard,
                    answer=answer.verdict,
                    why=answer.why or None,
                )
            )
    return tuple(found)

"""Queries for decisions: which were made, which are possible, and who else approves."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, select, tuple_

from bridge.events.build import clean
from bridge.events.document import ScheduledEvent
from bridge.hub import arm_rules
from bridge.hub.answers import (
    NAMES,
    NO_OPTIONS,
    AddressRow,
    ArmOptions,
    BridgeOptions,
    DecisionRow,
    OfferRow,
    Options,
    RecordEntry,
)
from bridge.hub.config import HubConfig
from bridge.hub.decisions import DecisionState
from bridge.hub.facts import Kind, table, text
from bridge.hub.store.current_event import EventBridges, current_event, event_bridges
from bridge.hub.store.deciding import arm_objection
from bridge.hub.store.rows import micros, moment_of
from bridge.hub.store.tables import decisions, messages, trail
from bridge.hub.targets import Target, Wishes, expected_answer, is_allowed, refusal_of
from bridge.hub.view_rows import PAGE, BridgeRow, Situation
from bridge.hub.voting import CurrentEvent

_ENTRIES = 100


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
    return DecisionRow(
        id=row.id,
        event_id=row.event_id,
        action=row.action,
        via=row.via,
        state=DecisionState(row.state),
        by=tuple(persons["by"]),
        rule=row.rule,
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


def record_of(
    connection: Connection,
    key: str,
    *,
    after: int | None = None,
    before: int | None = None,
) -> list[RecordEntry]:
    """Return the latest entries of the record of an event, the oldest first.

    Args:
        connection: a connection within a transaction.
        key: the EventId in capitals.
        after: only entries since this time, in microseconds since 1970.
        before: only entries before this time.
    """
    query = select(trail).where(trail.c.event_key == key)
    if after is not None:
        query = query.where(trail.c.time >= after)
    if before is not None:
        query = query.where(trail.c.time < before)
    newest = query.order_by(trail.c.seq.desc()).limit(_ENTRIES)
    return [
        RecordEntry(
            time=moment_of(row.time),
            what=row.what,
            via=row.via,
            person=row.person or None,
            detail=row.detail or None,
            decision=row.decision or None,
        )
        for row in reversed(connection.execute(newest).all())
    ]


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
    best = bridges.choose_target(
        config, current, situation, Wishes(is_overridden=True)
    ).best
    return tuple(
        _address(target, current, situation.now, is_best=target.address == best)
        for target in bridges.targets
        if is_allowed(config.bridge_sources, target.address)
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


# -- Finds people who approve without this hub, by outcomes of approvals it did not
#    send
#
# A Functions app on the same approval entity would count votes of its own, for example.


_MOST = 500  # the newest outcomes are enough to see whether somebody else approves
_LONGEST = 100
_BOM = b"\xef\xbb\xbf"


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
    data = table(orjson.loads(body.removeprefix(_BOM)).get("data"))
    asked = table(data.get("request"))
    name = clean(text(asked.get("approvedBy"))[:_LONGEST])
    return text(asked.get("messageId")), name

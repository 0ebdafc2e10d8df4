"""Sends decisions to the bridges of an event, or to ARM.

claim, check all rules again ──▶ send ──▶ store that it was accepted ──▶ outcome
└─ after a crash anywhere: the claim expires, and the same bytes are sent again
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import orjson
from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import Connection, select, update

from bridge.events.cloudevent import STRUCTURED_TYPE
from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, HubStoreError
from bridge.hub import arm_rules
from bridge.hub.config import BridgesSource, HubConfig
from bridge.hub.decisions import (
    ARM,
    LIVE,
    MAYBE_SENT,
    WAIT,
    Claimed,
    CurrentEvent,
    DecisionState,
    End,
    Result,
    persons_for,
    persons_left,
)
from bridge.hub.facts import Address
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.current import (
    EVENT_OVER,
    change,
    close,
    current_event,
    event_bridges,
    settle_one,
    tried_of,
    void,
)
from bridge.hub.store.engine import lock
from bridge.hub.store.rows import (
    Entry,
    mark_changed,
    micros,
    moment_of,
    record,
    state_in,
)
from bridge.hub.store.store import Store
from bridge.hub.store.tables import decisions, events
from bridge.hub.targets import Wishes
from bridge.hub.view_rows import Situation
from bridge.servicebus.sender import Message, Senders, short_id

log = logging.getLogger(__name__)

_EVERY = 0.5
_AT_ONCE = 64
_PAUSE = 5.0
_SECONDS = 40.0
_RENEW_EVERY = 5.0  # a third of the duration of a claim
_MOST_SENDERS = 32


class Transport(Protocol):
    """Makes one attempt to send a decision."""

    async def send(self, claimed: Claimed) -> Result:
        """Make the attempt; expected failures are part of the result."""
        ...


class Dispatcher(Struct):
    """Sends decisions until asked to stop.

    Attributes:
        transports: by the ``via`` of decisions: bridge, arm.
    """

    store: Store
    config: HubConfig
    clock: Clock
    metrics: HubMetrics
    situation: Callable[[], Situation]
    transports: Mapping[str, Transport]
    name: str = "dispatcher"
    _under_way: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Send due decisions, each in a task of its own, so a slow one delays no other.

        Returns after the attempts in progress have ended.
        """
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                pause = _EVERY
                try:
                    await self._begin(group)
                except HubStoreError as error:
                    log.warning("decisions cannot be read", extra={"fault": str(error)})
                    pause = _PAUSE
                await self.clock.wait(stop, pause)

    async def step(self) -> int:
        """Make one attempt for each due decision; returns how many were claimed.

        Raises:
            HubStoreError: the store cannot be used now.
        """
        async with asyncio.TaskGroup() as group:
            tasks = await self._begin(group)
        return sum(task.result() for task in tasks)

    async def _begin(self, group: asyncio.TaskGroup) -> list[asyncio.Task[bool]]:
        """Start attempts for due decisions, within the limit; returns their tasks."""
        now, busy = self.clock.now(), set(self._under_way)
        found = await self.store.read(lambda c: due_ones(c, now, _AT_ONCE + len(busy)))
        fresh = [one for one in found if one not in busy][: _AT_ONCE - len(busy)]
        for one in fresh:
            task = group.create_task(self._send_safely(one))
            self._under_way[one] = task
            task.add_done_callback(partial(self._ended, one))
        return [self._under_way[one] for one in fresh]

    def _ended(self, decision: str, _: "asyncio.Task[bool]") -> None:
        del self._under_way[decision]

    async def _send_safely(self, decision: str) -> bool:
        """Send a decision. If the store is away, log it: it is sent again later."""
        try:
            return await self._send(decision)
        except HubStoreError as error:
            extra = {"decision": decision, "fault": str(error)}
            log.warning("decision cannot be carried", extra=extra)
            return False

    async def _send(self, decision: str) -> bool:
        situation = self.situation()
        claimed = await self.store.write(
            lambda c: claim(c, decision, self.config, situation)
        )
        if claimed is None:
            return False
        async with asyncio.TaskGroup() as group:
            holding = group.create_task(self._renew_until_cancelled(claimed))
            result = await self._attempt(claimed)
            holding.cancel()
        now = self.clock.now()
        await self.store.write(lambda c: keep_result(c, claimed, result, now))
        self._report(claimed, result)
        return True

    async def _renew_until_cancelled(self, claimed: Claimed) -> None:
        """Renew a claim until cancelled, or until the claim is lost."""
        held: Claimed | None = claimed
        while held is not None:
            await self.clock.wait(asyncio.Event(), _RENEW_EVERY)
            try:
                held = await self._renewed(held)
            except HubStoreError:  # the claim expires; sending the same bytes twice is
                return  # harmless

    async def _renewed(self, held: Claimed) -> Claimed | None:
        now = self.clock.now()
        return await self.store.write(lambda c: renew(c, held, now))

    async def _attempt(self, claimed: Claimed) -> Result:
        transport = self.transports.get(claimed.via)
        if transport is None:
            return Result(fault=f"decisions cannot be sent via {claimed.via}")
        try:
            async with asyncio.timeout(_SECONDS):
                return await transport.send(claimed)
        except TimeoutError:
            return Result(fault="no answer in time")

    def _report(self, claimed: Claimed, result: Result) -> None:
        state = "sent" if result.is_accepted else "not-sent"
        if result.end is not None:
            state = result.end.state.value
        self.metrics.decisions.labels(claimed.via, state).inc()
        log.info(
            "decision carried",
            extra={
                "decision": claimed.id,
                "eventId": claimed.event_id,
                "via": claimed.via,
                "state": state,
                "reason": result.fault or None,
            },
        )


class BridgeTransport(Struct):
    """Sends decisions to approval entities.

    Attributes:
        sources: the sources of bridges, by name. The namespace of an address is the
            namespace of its source.
        senders: to the entities.
    """

    sources: Mapping[str, BridgesSource]
    clock: Clock
    senders: Senders = field(default_factory=lambda: Senders(_MOST_SENDERS))

    async def send(self, claimed: Claimed) -> Result:
        """Make one attempt; it is accepted when the broker has stored the message."""
        address = claimed.address
        if address is None or address.source not in self.sources:
            return Result(fault="the source of this address is not configured")
        message = message_of(claimed, self.clock.now())
        try:
            await self.senders.send(
                self.sources[address.source], address.entity, message
            )
        except DeliveryError as error:
            return Result(fault=str(error))
        return Result(is_accepted=True)


def message_of(claimed: Claimed, now: datetime) -> Message:
    """Return the Service Bus message of a decision; body and id never change."""
    session = claimed.address.session if claimed.address else ""
    return Message(
        body=claimed.message,
        content_type=STRUCTURED_TYPE,
        message_id=claimed.id,
        subject=str(orjson.loads(claimed.message)["type"]),
        correlation_id=short_id(claimed.event_id),
        session_id=short_id(session) if session else None,
        time_to_live=max(claimed.expires - now, timedelta(seconds=1)),
    )


# -- claims, and what came of attempts, each in one transaction ------------------------
#
# A claim checks all rules again, and stores the state ``sending``: so it is on disk
# before the message is sent. It expires if it is not renewed: then another hub, or the
# same hub after a crash, sends the decision again.


LEASE = timedelta(seconds=15)  # the duration of a claim; renewed during an attempt
_AGAIN = 30.0  # seconds without an outcome until it is sent again; doubles each time
_MOST_AGAIN = 480.0
_KIND = ".startrequest.v1"
_GRACE = timedelta(minutes=2)  # an outcome may still arrive so long after the expiry


def due_ones(connection: Connection, now: datetime, limit: int) -> list[str]:
    """Return the ids of decisions that are due, the longest due first."""
    query = (
        select(decisions.c.id)
        .where(decisions.c.due <= micros(now), decisions.c.state.in_(LIVE))
        .order_by(decisions.c.due, decisions.c.id)
        .limit(limit)
    )
    return list(connection.scalars(query))


def claim(
    connection: Connection, decision: str, config: HubConfig, situation: Situation
) -> Claimed | None:
    """Claim a decision; None = it must not be sent now, or somebody else has it."""
    row = _locked(connection, decision, situation.now)
    if row is None or _has_outcome(connection, row, situation.now):
        return None
    if situation.now > moment_of(row.expires):
        _expire(connection, row, situation.now)
        return None
    found = _verdict(connection, row, config, situation)
    if not found.why:
        return _claimed(connection, row, found.address, situation.now)
    if found.may_wait:
        _postpone(connection, row, situation.now, found.why)
    else:
        _hold_back(connection, row, situation, found.why)
    return None


def _has_outcome(connection: Connection, row: Any, now: datetime) -> bool:
    """Close a decision by an outcome that did not count when it came; return whether.

    The offer of the bridge may have come after its outcome.
    """
    if row.via == ARM or row.state not in MAYBE_SENT:
        return False
    query = select(events.c.state).where(events.c.event_key == row.event_key)
    state = connection.scalar(query)
    outcomes = state_in(state).outcomes if state else ()
    if not settle_one(connection, row, outcomes, now):
        return False
    mark_changed(connection, row.event_key)
    return True


class _Verdict(Struct, frozen=True, kw_only=True):
    """Whether a decision may be sent now.

    Attributes:
        address: the address to send to; None for ARM.
        why: why it may not be sent; "" = it may.
        may_wait: whether it may become possible later without a person.
    """

    address: Address | None = None
    why: str = ""
    may_wait: bool = False


def _locked(connection: Connection, decision: str, now: datetime) -> Any:
    """Lock a decision and return its row; None = it is not due any more."""
    mine = decisions.c.id == decision
    key = connection.scalar(select(decisions.c.event_key).where(mine))
    if key is None:
        return None
    lock(connection, [key], "events")
    is_due = (decisions.c.due <= micros(now)) & decisions.c.state.in_(LIVE)
    return connection.execute(select(decisions).where(mine, is_due)).one_or_none()


def _verdict(
    connection: Connection, row: Any, config: HubConfig, situation: Situation
) -> _Verdict:
    """Check all rules again, for the current state of the event."""
    current = current_event(connection, row.event_key)
    if current is None:
        return _Verdict(why="the event is not known any more")
    what = _forbids(row, current, config, situation.now)
    said = current.lacks()  # if nothing forbids it: a start that others alone tell of
    if what or said:
        return _Verdict(why=what or said or "", may_wait=not what)
    bridges = event_bridges(connection, current, situation)
    if row.via != ARM:
        found = bridges.choose_target(config, current, situation, _wishes(row))
        is_waiting = found.best is None and not (found.is_denied or found.is_contested)
        return _Verdict(address=found.best, why=found.why, may_wait=is_waiting)
    if config.arm is None:
        return _Verdict(why="approving through ARM is off")
    if situation.clock_fault:
        return _Verdict(why=situation.clock_fault, may_wait=True)
    what = arm_rules.forbids(config.arm, current, bridges.fleet, situation.now)
    if row.state == DecisionState.DECIDED:
        what = what or arm_rules.still_heard(bridges.fleet, situation.now)
    return _Verdict(why=what or "")


def _wishes(row: Any) -> Wishes:
    """Return what the people have wished, with the prefix that the message has."""
    kind = str(orjson.loads(row.message)["type"])
    return Wishes(
        address=row.chosen,
        is_overridden=row.is_overridden,
        prefix=kind.removesuffix(_KIND),
    )


def _forbids(
    row: Any, current: CurrentEvent, config: HubConfig, now: datetime
) -> str | None:
    """Return why a decision is no longer valid; None = it is."""
    persons: Any = orjson.loads(row.persons)
    if row.life != current.life:
        return "the event is over, and another one has come"
    is_said = current.is_open and current.is_by_others
    if not is_said and (what := current.lacks()):
        return what
    if current.voids(persons["seen"], row.via):
        return "the event has changed"
    wanted, _ = persons_for(config.access, current)
    if len(set(persons["by"])) < wanted:
        return f"the rule wants {wanted} people by now"
    if len(set(persons_left(persons, config.access, now))) < wanted:
        return "not all who decided may decide now"
    return None


def _hold_back(
    connection: Connection, row: Any, situation: Situation, why: str
) -> None:
    """Stop sending a decision: void it, or if it was sent, wait for its outcome."""
    if row.state in MAYBE_SENT:
        _wait_until(connection, row, moment_of(row.expires) + _GRACE)
        return
    void(connection, row, situation, why)
    mark_changed(connection, row.event_key)


def _wait_until(connection: Connection, row: Any, due: datetime) -> None:
    change(connection, row, due=micros(due) + 1)


def _expire(connection: Connection, row: Any, now: datetime) -> None:
    """End a decision after its expiry; if it was sent, wait for an outcome first."""
    late = moment_of(row.expires) + _GRACE
    if row.state in MAYBE_SENT and now <= late:
        _wait_until(connection, row, late)
        return
    words = "no outcome came in time" if row.state in MAYBE_SENT else row.outcome_reason
    outcome = "no-answer" if row.state in MAYBE_SENT else "not-sent"
    end = End(state=DecisionState.FAILED, outcome=outcome, reason=words)
    close(connection, row, end, now)
    mark_changed(connection, row.event_key)


def _postpone(connection: Connection, row: Any, now: datetime, why: str) -> None:
    due = min(now + timedelta(seconds=WAIT), moment_of(row.expires))
    said = {"outcome_reason": why} if row.state == DecisionState.DECIDED else {}
    change(connection, row, due=_after(due, now), **said)


def _after(due: datetime, now: datetime) -> int:
    return micros(max(due, now)) + 1


def _claimed(
    connection: Connection, row: Any, address: Address | None, now: datetime
) -> Claimed:
    is_accepted, until = row.state == DecisionState.SENT, now + LEASE
    values: dict[str, object] = {
        "due": micros(until),
        "attempts": row.attempts + 1,
        "outcome_reason": "",
        "state": (DecisionState.SENT if is_accepted else DecisionState.SENDING).value,
    }
    if address is not None:
        values |= {
            "origin": address.source,
            "entity": address.entity,
            "session": address.session,
            "tried": orjson.dumps(sorted({*tried_of(row), address.place})),
        }
    change(connection, row, **values)
    place = f"{address.entity} {address.session}".strip() if address else "ARM"
    detail = f"attempt {row.attempts + 1}: {place}"
    record(connection, Entry.of(row, now, what="sending", detail=detail))
    return Claimed(
        id=row.id,
        event_key=row.event_key,
        event_id=row.event_id,
        via=row.via,
        address=address,
        message=row.message,
        expires=moment_of(row.expires),
        attempt=row.attempts + 1,
        until=until,
    )


def renew(connection: Connection, claimed: Claimed, now: datetime) -> Claimed | None:
    """Renew a claim; None = the claim is lost."""
    until = max(now + LEASE, claimed.until)
    mine = (decisions.c.id == claimed.id) & (decisions.c.due == micros(claimed.until))
    held = update(decisions).where(mine, decisions.c.state.in_(MAYBE_SENT))
    done = connection.execute(held.values(due=micros(until)))
    return replace(claimed, until=until) if done.rowcount else None


def keep_result(
    connection: Connection, claimed: Claimed, result: Result, now: datetime
) -> None:
    """Store the result of an attempt, unless an outcome has arrived before it."""
    lock(connection, [claimed.event_key], "events")
    mine = decisions.c.id == claimed.id
    row = connection.execute(select(decisions).where(mine)).one_or_none()
    if row is None or not _is_awaited(row, result):
        return
    if result.end is not None:
        close(connection, row, result.end, now)
    elif result.is_accepted:
        _sent(connection, row, now)
    else:
        due = min(now + timedelta(seconds=result.retry_after), claimed.expires + _GRACE)
        change(connection, row, due=_after(due, now), outcome_reason=result.fault)
        record(connection, Entry.of(row, now, what="not taken", detail=result.fault))
    mark_changed(connection, claimed.event_key)


def _is_awaited(row: Any, result: Result) -> bool:
    """Whether the result of an attempt still matters for a decision."""
    was_over = row.state == DecisionState.FAILED and row.outcome == EVENT_OVER
    return row.state in MAYBE_SENT or (was_over and result.end is not None)


def _sent(connection: Connection, row: Any, now: datetime) -> None:
    wait = min(_AGAIN * 2.0 ** max(row.attempts - 1, 0), _MOST_AGAIN)
    change(
        connection,
        row,
        state=DecisionState.SENT.value,
        sent=row.sent or micros(now),
        outcome_reason="",
        due=micros(now + timedelta(seconds=wait)),
    )
    record(connection, Entry.of(row, now, what="sent"))

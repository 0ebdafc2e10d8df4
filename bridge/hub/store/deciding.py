"""Counts votes and commits decisions, each in one transaction with its record entry."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, delete, select, update

from bridge.hub import arm_rules
from bridge.hub.choices import Approval, VoteRequest, VoteResult
from bridge.hub.config import HubConfig
from bridge.hub.decisions import (
    APPROVE,
    ARM,
    BRIDGE,
    DROP_OFFER,
    LIVE,
    MAYBE_SENT,
    REFUSE,
    SET_ASIDE,
    CurrentEvent,
    DecisionState,
    Vote,
    expiry,
    fits,
    is_void,
    message,
    persons_for,
    persons_json,
    reason_of,
)
from bridge.hub.store.current import current_event, event_bridges, void
from bridge.hub.store.engine import lock, upsert
from bridge.hub.store.rows import Entry, alarm, mark_changed, micros, moment_of, record
from bridge.hub.store.tables import decisions, offers, votes
from bridge.hub.targets import EventBridges, TargetChoice, Wishes
from bridge.hub.view_rows import Situation
from bridge.hub.vote_rules import missing_votes
from bridge.signing.approval import signers as signing_keys


class _Case(Struct):
    """What a person asks, with everything that its transaction needs.

    Attributes:
        via: of the votes: bridge or arm; those to set a reporter aside have their own.
    """

    connection: Connection
    config: HubConfig
    situation: Situation
    request: VoteRequest
    asked: Approval
    via: str
    current: CurrentEvent
    bridges: EventBridges

    def record(self, what: str, by: str, detail: str, decision: str = "") -> Entry:
        """Add an entry to the record, and return it."""
        now, via = self.situation.now, self.asked.via
        entry = Entry.on(self.current, now, what=what, via=via)
        entry = entry.by(by, detail, decision)
        record(self.connection, entry)
        return entry


def handle_vote(
    connection: Connection,
    request: VoteRequest,
    config: HubConfig,
    situation: Situation,
) -> VoteResult:
    """Count a vote or a refusal, within the transaction of the connection."""
    lock(connection, [request.key], "events")
    current = current_event(connection, request.key)
    if current is None:
        return VoteResult(status=404, words="nothing is known of this event")
    asked = request.asked
    if asked.content != current.content:
        words = "the event has changed since it was shown"
        return VoteResult(status=409, words=words, is_changed=True)
    if what := current.lacks():
        return VoteResult(status=409, words=what)
    bridges = event_bridges(connection, current, situation)
    case = _Case(
        connection, config, situation, request, asked, asked.via, current, bridges
    )
    found = _ACTIONS[asked.decision](case)
    if found.status in {200, 202}:
        mark_changed(connection, request.key)
    return found


def _approve(case: _Case) -> VoteResult:
    if (live := _live(case)) is not None:
        return VoteResult(status=200, id=live)
    wanted, rule = _wanted(case)
    own = _own_vote(case)
    if what := _bars(case, own, wanted):
        return VoteResult(status=403, words=what)
    if objection := _objection(case):
        return objection
    if case.via != ARM and not fits(case.current, own, case.situation.now):
        return VoteResult(status=409, words="the event does not fit into a message")
    _keep_vote(case, own)
    found = votes_of(case)
    if case.current.is_by_others:
        found = _agreed(case, found, own)
    missing = missing_votes([vote.person for vote in found], wanted)
    if missing:
        return VoteResult(status=202, missing=missing)
    return _decide(case, found, rule)


def _agreed(case: _Case, votes_: Sequence[Vote], own: Vote) -> list[Vote]:
    """Return the votes that agree to one content of an event that others tell of.

    Their changes make no vote void, so people may have seen different contents. What
    is decided is the content that one of them saw and that makes none of these votes
    void, the person's who votes now among them.
    """
    found = [(own.seen, [own])]
    found += [
        (one.seen, [vote for vote in votes_ if not is_void(vote.seen, one.seen)])
        for one in votes_
        if not is_void(own.seen, one.seen)
    ]
    seen, agreed = max(found, key=lambda pair: len(pair[1]))
    case.current = replace(case.current, event=seen)
    return agreed


def _bars(case: _Case, own: Vote, wanted: int) -> str | None:
    """Return why somebody has no vote; None = they have one."""
    if wanted > 1 and case.request.person.is_application:
        return "an application has no vote where more than one person is wanted"
    return None if own.entry else "you may look, but not decide"


def _own_vote(case: _Case) -> Vote:
    person = case.request.person
    return Vote(
        person=person.id,
        reason=case.asked.reason,
        seen=case.current.event or {},
        entry=case.config.access.entry_of(person.id, person.roles),
        time=case.situation.now,
    )


def _live(case: _Case) -> str | None:
    """Return the id of a decision that is under way or done; None = there is none.

    Decisions for an earlier occurrence or content of the event become void.
    """
    for row in _approvals(case, decisions.c.via == case.via):
        if _is_valid(row, case.current):
            return str(row.id)
        if row.state != DecisionState.DONE:
            void(case.connection, row, case.situation, "the event has changed")
    return None


def _approvals(case: _Case, which: ColumnElement[bool]) -> Sequence[Any]:
    """Return the approvals of an event that are under way or done."""
    query = select(decisions).where(
        decisions.c.event_key == case.current.key,
        decisions.c.action == APPROVE,
        decisions.c.state.in_((*LIVE, DecisionState.DONE)),
    )
    return case.connection.execute(query.where(which)).all()


def _is_valid(row: Any, current: CurrentEvent) -> bool:
    """Whether a decision is on the present occurrence and content of an event."""
    seen: Any = orjson.loads(row.persons)["seen"]
    return row.life == current.life and not current.voids(seen, row.via)


def _wanted(case: _Case) -> tuple[int, str]:
    """Return how many people must approve, and by which rule.

    In loopback mode there is only one person, so ARM does not ask for one more.
    """
    access = case.config.access
    wanted, rule = persons_for(access, case.current)
    if case.via != ARM or access.mode == "loopback":
        return wanted, rule
    more = arm_rules.more_persons(case.bridges.fleet, case.situation.now)
    words = f"{rule}; one person more: a bridge has changed in the last 15 min"
    return wanted + more, words if more else rule


def _objection(case: _Case) -> VoteResult | None:
    """Return why the event cannot be approved via the channel; None = it can."""
    if not case.current.is_whole:
        words = "not all Resources of the event are known: approve it on a VM"
        return VoteResult(status=409, words=words)
    if case.via == ARM:
        what = arm_objection(case.config, case.current, case.bridges, case.situation)
        return None if what is None else VoteResult(status=409, words=what)
    if case.config.sign_key is not None and not case.current.source:
        words = "no bridge has reported the event, whose source a signature must name"
        return VoteResult(status=409, words=words)
    found = _choice(case)
    if found.is_open:
        return None
    needs = "override" if found.is_denied else "address" if found.is_contested else ""
    return VoteResult(status=409, words=found.why, needs=needs)


def arm_objection(
    config: HubConfig,
    current: CurrentEvent,
    bridges: EventBridges,
    situation: Situation,
) -> str | None:
    """Return why an event cannot be approved through ARM now; None = it can."""
    if situation.clock_fault:
        return f"approving through ARM is off: {situation.clock_fault}"
    return arm_rules.objection(
        config.arm,
        current,
        bridges.fleet,
        situation.now,
        is_answered=bridges.is_answered(config),
    )


def _choice(case: _Case) -> TargetChoice:
    wishes = Wishes(address=case.asked.address, is_overridden=case.asked.override)
    return case.bridges.choose_target(case.config, case.current, case.situation, wishes)


def _keep_vote(case: _Case, vote: Vote) -> None:
    case.connection.execute(
        upsert(votes, "time", "reason", "entry", "seen"),
        {
            "event_key": case.current.key,
            "life": case.current.life,
            "via": case.via,
            "person": vote.person,
            "time": micros(vote.time),
            "reason": vote.reason,
            "entry": vote.entry,
            "seen": orjson.dumps(vote.seen),
        },
    )
    is_plain = case.via == case.asked.via
    words = vote.reason if is_plain else f"{case.via}: {vote.reason}"
    case.record("voted", vote.person, words)


def votes_of(case: _Case) -> list[Vote]:
    """Return the votes via a channel that count for the event as it is now.

    Those of people who may not vote any more stay in the store: they count again once
    their entry is back.
    """
    current, access = case.current, case.config.access
    query = select(votes).where(
        votes.c.event_key == current.key,
        votes.c.life == current.life,
        votes.c.via == case.via,
    )
    order = (votes.c.time, votes.c.person)
    found = [_vote(row) for row in case.connection.execute(query.order_by(*order))]
    return [
        vote
        for vote in found
        if not current.voids(vote.seen, case.via)
        and not access.lapse(
            vote.entry, (case.situation.now - vote.time).total_seconds()
        )
    ]


def _vote(row: Any) -> Vote:
    return Vote(
        person=row.person,
        reason=row.reason,
        seen=orjson.loads(row.seen),
        entry=row.entry,
        time=moment_of(row.time),
    )


def _decide(case: _Case, found: Sequence[Vote], rule: str) -> VoteResult:
    """Store the decision, with the bytes that each attempt will send."""
    name, current, now = case.request.id, case.current, case.situation.now
    if case.via == ARM:
        body: bytes | None = arm_rules.arm_message(name, current)
    else:
        key, prefix = case.config.sign_key, _choice(case).prefix
        try:
            signers = () if key is None else signing_keys(key)
        except ValueError as error:
            return VoteResult(status=503, words=f"hub.sign_key: {error}")
        body = message(name, current, found, now, prefix, signers=signers)
    assert body is not None, "see fits()"  # noqa: S101  # nosec B101
    _insert(case, found, rule, body)
    _forget_votes(case.connection, current, case.via)
    detail = "; ".join([rule, *_wishes_in_words(case)])
    alarm(case.connection, case.record("decided", _names(found), detail, name))
    return VoteResult(status=200, id=name)


def _names(found: Sequence[Vote]) -> str:
    return ", ".join(vote.person for vote in found)


def _wishes_in_words(case: _Case) -> list[str]:
    """Return what the last voter has chosen and overridden, for the record."""
    found = []
    if case.asked.address:
        found.append(f"to the chosen address {case.asked.address}")
    if case.asked.override:
        found.append("although a bridge would refuse it")
    return found


def _insert(
    case: _Case, found: Sequence[Vote], rule: str, body: bytes | None = None
) -> None:
    """Store a decision; what is sent, if anything is, has a body."""
    asked, current, now = case.asked, case.current, micros(case.situation.now)
    is_signed = case.config.sign_key is not None and asked.via != ARM
    expires = micros(expiry(current, case.situation.now, is_signed=is_signed))
    state = _STATES.get(asked.decision, DecisionState.DONE)
    is_sent = body is not None
    case.connection.execute(
        decisions.insert(),
        {
            "id": case.request.id,
            "event_key": current.key,
            "event_id": current.event_id,
            "life": current.life,
            "action": asked.decision,
            "via": asked.via,
            "content": current.content,
            "rule": rule,
            "reason": reason_of(found),
            "persons": orjson.dumps(persons_json(found, current)),
            "time": now,
            "about": asked.about,
            "chosen": asked.address,
            "is_overridden": asked.override,
            "tried": b"[]",
            "message": body or b"",
            "state": state.value,
            "attempts": 0,
            **dict.fromkeys(_NOT_YET, ""),
            **({"expires": expires, "due": now} if is_sent else {"closed": now}),
        },
    )


def _forget_votes(
    connection: Connection, current: CurrentEvent, via: str | None = None
) -> None:
    change = delete(votes).where(votes.c.event_key == current.key)
    if via is not None:
        change = change.where(votes.c.via == via)
    connection.execute(change)


def _refuse(case: _Case) -> VoteResult:
    """Delete all votes, and make decisions that are not sent yet void."""
    found = _approvals(case, decisions.c.life == case.current.life)
    is_done = any(
        row.state == DecisionState.DONE and _is_valid(row, case.current)
        for row in found
    )
    live = [row for row in found if row.state != DecisionState.DONE]
    if is_done or any(row.state in MAYBE_SENT for row in live):
        words = "an approval has been sent already: a refusal does not take it back"
        return VoteResult(status=409, words=words)
    for row in live:
        void(case.connection, row, case.situation, "refused")
    own, name = _own_vote(case), case.request.id
    _insert(case, [own], "one person refuses")
    _forget_votes(case.connection, case.current)
    alarm(case.connection, case.record("refused", own.person, own.reason, name))
    return VoteResult(status=200, id=name)


def _set_aside(case: _Case) -> VoteResult:
    """Count a vote to set a reporter aside: its words raise the number no more.

    It takes as many people as an approval of the event, by its words too.
    """
    about, current = case.asked.about, case.current
    if about not in {one.reporter.vm_id for one in current.spoken}:
        words = "no such reporter has told of this event, or it is set aside already"
        return VoteResult(status=404, words=words)
    case.asked = replace(case.asked, via=BRIDGE)
    case.via = f"{SET_ASIDE} {about}"
    wanted, rule = persons_for(case.config.access, current)
    own = _own_vote(case)
    if what := _bars(case, own, wanted):
        return VoteResult(status=403, words=what)
    _keep_vote(case, own)
    found = votes_of(case)
    if missing := missing_votes([vote.person for vote in found], wanted):
        return VoteResult(status=202, missing=missing)
    _forget_votes(case.connection, current, case.via)
    return _note(case, found, rule)


def _drop_offer(case: _Case) -> VoteResult:
    """Let an offer count no more for ARM, unless its bridge repeats it."""
    known = {one.id for b in case.bridges.fleet for one in b.offers}
    if case.asked.about not in known:
        return VoteResult(status=404, words="no machine of this event has this offer")
    own = _own_vote(case)
    if what := _bars(case, own, 1):
        return VoteResult(status=403, words=what)
    change = update(offers).where(offers.c.id == case.asked.about)
    case.connection.execute(change.values(dropped=micros(case.situation.now)))
    return _note(case, [own], "one person drops an offer")


def _note(case: _Case, found: Sequence[Vote], rule: str) -> VoteResult:
    """Store what people have decided about a reporter or an offer."""
    name = case.request.id
    _insert(case, found, rule)
    case.record(case.asked.decision, _names(found), case.asked.about, name)
    return VoteResult(status=200, id=name)


_NOT_YET = ("origin", "entity", "session", "outcome", "outcome_reason")
_STATES = {APPROVE: DecisionState.DECIDED, REFUSE: DecisionState.REFUSED}
_ACTIONS: Mapping[str, Callable[[_Case], VoteResult]] = {
    APPROVE: _approve,
    REFUSE: _refuse,
    SET_ASIDE: _set_aside,
    DROP_OFFER: _drop_offer,
}

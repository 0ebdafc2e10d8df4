"""The decision table, row by row, with the cases in which several rows apply."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.approvals.evidence import Evidence, Lack
from bridge.approvals.message import Approval
from bridge.approvals.message_flow import settlement_of
from bridge.approvals.policy import (
    Conclusion,
    Post,
    Request,
    Standing,
    Terms,
    Wait,
    deadline,
    decide,
    is_absent,
)
from bridge.approvals.rules import Rule, content_of
from bridge.events.document import Document, ScheduledEvent
from bridge.events.look import Look
from bridge.events.vocabulary import APPROVED, NOTHING_TO_APPROVE, OutcomeKind
from bridge.events.watch import Fall, Known, Moment, Watch
from tests.support.builders import EVENT_ID, ME, document, imds_event, started
from tests.support.fakes import START

TERMS = Terms(unknown_grace=15.0, max_age=86400.0)
NOW = Moment(at=START, monotonic=1000.0)
NEW, TRIED = Standing(), Standing(may_have_worked=True)
GONE = Standing(was_seen=True)
TRIED_AND_GONE = Standing(may_have_worked=True, was_seen=True)
PATIENT = Standing(absent_for=15.0)


def request(
    event_id: str = EVENT_ID, enqueued_at: datetime = START, **approval: object
) -> Request:
    asked = Approval(event_ids=(event_id,))
    asked = replace(asked, **approval)
    return Request(approval=asked, event_id=event_id, enqueued_at=enqueued_at)


def look(
    *events: object, held: bool = False, fall: bool = False, now: datetime = START
) -> Look:
    """Return a look; ``held`` keeps an event whose absence does not count yet."""
    return look_at(document(*events), held=held, fall=fall, now=now)


def look_at(
    found: Document, *, held: bool = False, fall: bool = False, now: datetime = START
) -> Look:
    kept = [*document(imds_event()).events.values()] if held else []
    known = {
        event.key: Known(event=event, announced=True, incarnation=2, seen=NOW)
        for event in [*found.events.values(), *kept]
    }
    watch = Watch(known=known, seen=NOW, fall=Fall(to=1, seen=NOW) if fall else None)
    read = Moment(at=now, monotonic=0.0)
    return Look(document=found, watch=watch, now=now, began=0.0, read=read)


def kind_of(step: Conclusion | Post | Wait) -> str:
    return step.kind.value if isinstance(step, Conclusion) else type(step).__name__


LATE = START + timedelta(days=1, seconds=61)


@pytest.mark.parametrize(
    ("seen", "standing", "expected"),
    [
        # An earlier try, by the present state of the event.
        (look(started()), TRIED, "relayed"),
        (look(), TRIED_AND_GONE, "relayed"),
        (look(started(), now=LATE), TRIED, "relayed"),
        (look(now=LATE), TRIED_AND_GONE, "relayed"),
        (look(imds_event()), TRIED, "Post"),
        (look(imds_event(), now=LATE), TRIED, "expired"),
        (look(held=True), TRIED_AND_GONE, "Wait"),
        (look(), replace(TRIED, absent_for=15.0), "unknown-event"),
        # Too late, whatever the document says.
        (look(imds_event(), now=LATE), NEW, "expired"),
        (look(started(), now=LATE), NEW, "expired"),
        (look(now=LATE), PATIENT, "expired"),
        (look(now=LATE), GONE, "expired"),
        # Not in the document.
        (look(), NEW, "Wait"),
        (look(), Standing(absent_for=14.9), "Wait"),
        (look(), PATIENT, "unknown-event"),
        (look(), GONE, "event-ended"),
        (look(held=True), GONE, "Wait"),
        (look(held=True), PATIENT, "Wait"),
        (look(fall=True), PATIENT, "Wait"),
        (look(5), PATIENT, "Wait"),  # an unreadable element may be the event
        (look(5), GONE, "event-ended"),
        # In the document.
        (look(started()), NEW, "already-started"),
        (look(imds_event()), NEW, "Post"),
        (look(imds_event(EVENT_ID.lower())), NEW, "Post"),
        (look(imds_event(EventStatus="Acknowledged")), NEW, "Post"),
        (look(imds_event(EventStatus=None)), NEW, "Post"),
    ],
)
def test_first_row_that_applies_decides(
    seen: Look, standing: Standing, expected: str
) -> None:
    assert kind_of(decide(request(), seen, standing, TERMS)) == expected


@pytest.mark.parametrize("standing", [TRIED, TRIED_AND_GONE])
def test_post_that_may_have_worked_is_relayed_unconfirmed(standing: Standing) -> None:
    step = decide(request(), look(started()), standing, TERMS)

    assert isinstance(step, Conclusion)
    assert step.confirmed is False
    assert step.event is not None


def test_other_outcomes_have_no_confirmation() -> None:
    step = decide(request(), look(started()), NEW, TERMS)

    assert isinstance(step, Conclusion)
    assert step.confirmed is None


def test_event_to_be_posted_is_the_documents_own() -> None:
    step = decide(request(EVENT_ID.lower()), look(imds_event()), NEW, TERMS)

    assert isinstance(step, Post)
    assert step.event.event_id == EVENT_ID


# -- expiry --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "expected"), [(60.0, "Post"), (60.1, "expired"), (-10.0, "Post")]
)
def test_expiry_counts_a_minute_late(seconds: float, expected: str) -> None:
    """The clocks of the sender, the broker and IMDS differ."""
    asked = request(expires_at=START - timedelta(seconds=seconds))

    assert kind_of(decide(asked, look(imds_event()), NEW, TERMS)) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, "Post"), (60.1, "expired")])
def test_age_counts_from_the_broker_and_a_minute_late(
    seconds: float, expected: str
) -> None:
    asked = request(enqueued_at=START - timedelta(days=1, seconds=seconds))

    assert kind_of(decide(asked, look(imds_event()), NEW, TERMS)) == expected


def test_request_enqueued_in_the_future_is_not_too_old() -> None:
    asked = request(enqueued_at=START + timedelta(hours=2))

    assert kind_of(decide(asked, look(imds_event()), NEW, TERMS)) == "Post"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(expires_at=START - timedelta(hours=1)), "ExpiresAt"),
        (request(enqueued_at=START - timedelta(days=2)), "MaxAge"),
    ],
)
def test_expired_request_has_a_reason(asked: Request, reason: str) -> None:
    step = decide(asked, look(imds_event()), NEW, TERMS)

    assert isinstance(step, Conclusion)
    assert step.reason == reason


def test_deadline_is_the_earliest_of_three() -> None:
    hour = timedelta(hours=1)
    asked = request(expires_at=START + 2 * hour)

    assert deadline(asked, START + hour, TERMS) == START + hour
    assert deadline(asked, START + 3 * hour, TERMS) == START + 2 * hour
    assert deadline(request(), None, TERMS) == START + 24 * hour


def test_deadline_beyond_the_calendar_is_its_end() -> None:
    forever = replace(TERMS, max_age=1e15)

    assert deadline(request(), None, forever).year == 9999


# -- denied events -------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "event_type", "expected"),
    [
        ((), "Freeze", "Post"),
        (("freeze", "Reboot"), "Freeze", "Post"),
        (("Reboot",), "Freeze", "denied"),
        (("Reboot",), None, "denied"),
    ],
)
def test_only_allowed_types_are_approved(
    allowed: tuple[str, ...], event_type: object, expected: str
) -> None:
    terms = replace(TERMS, allow_event_types=allowed)
    seen = look(imds_event(EventType=event_type))

    assert kind_of(decide(request(), seen, NEW, terms)) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, "Post"),
        ({"EventType": "Freeze"}, {"EventType": "Reboot"}, "denied"),
        ({"EventType": "Reboot"}, {"EventType": "Freeze"}, "denied"),
        ({"EventType": None}, {"EventType": "Freeze"}, "denied"),
        ({"EventType": "freeze"}, {"EventType": "Freeze"}, "Post"),
        ({"DurationInSeconds": 5}, {"DurationInSeconds": 6}, "denied"),
        ({"DurationInSeconds": 5}, {"DurationInSeconds": 4}, "Post"),
        ({"DurationInSeconds": 0}, {"DurationInSeconds": -1}, "denied"),
        ({"DurationInSeconds": 5}, {"DurationInSeconds": None}, "denied"),
        ({"DurationInSeconds": -1}, {"DurationInSeconds": 600}, "Post"),
        ({"DurationInSeconds": -1}, {"DurationInSeconds": -1}, "Post"),
        ({"DurationInSeconds": None}, {"DurationInSeconds": -1}, "Post"),
        ({"Resources": ["a"]}, {"Resources": ["a", "b"]}, "denied"),
        ({"Resources": ["a", "b"]}, {"Resources": ["a"]}, "Post"),
        ({"Resources": ["_A", "b"]}, {"Resources": ["a", "_B"]}, "Post"),
        ({"Resources": None}, {"Resources": ["a"]}, "denied"),
        ({"NotBefore": ""}, {"Description": "another"}, "Post"),
    ],
)
def test_event_worse_than_the_approver_saw_is_denied(
    before: dict[str, object], after: dict[str, object], expected: str
) -> None:
    asked = request(approved_event=imds_event(EVENT_ID, **before))

    step = decide(asked, look(imds_event(EVENT_ID, **after)), NEW, TERMS)

    assert kind_of(step) == expected
    if isinstance(step, Conclusion):
        assert step.reason == "EventChanged"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (EVENT_ID.lower(), "Post"),
        (EVENT_ID.upper(), "Post"),
        ("another", "denied"),
        (7, "denied"),
        (None, "Post"),
    ],
)
def test_approved_event_is_compared_with_this_event(
    named: object, expected: str
) -> None:
    seen = imds_event(EVENT_ID) | {"EventId": named}
    if named is None:
        del seen["EventId"]

    step = decide(request(approved_event=seen), look(imds_event()), NEW, TERMS)

    assert kind_of(step) == expected


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, ["denied", "denied"]),
        ({"EventId": "a"}, ["denied", "Post"]),
        ({"EventId": "B"}, ["Post", "denied"]),
        ({"EventId": "c"}, ["Post", "Post"]),
    ],
)
def test_approved_event_is_compared_only_with_its_own_event_id(
    named: dict[str, object], expected: list[str]
) -> None:
    seen = {"EventType": "Freeze", **named}
    asked = request("A", event_ids=("A", "b"), approved_event=seen)
    there = look(imds_event("A", EventType="Reboot"), imds_event("b", EventType="X"))

    steps = [
        decide(replace(asked, event_id=event_id), there, NEW, TERMS)
        for event_id in asked.approval.event_ids
    ]

    assert [kind_of(step) for step in steps] == expected


def test_started_event_is_not_denied_any_more() -> None:
    asked = request(approved_event=imds_event(EventType="Freeze"))

    seen = look(started(EventType="Redeploy"))

    assert kind_of(decide(asked, seen, NEW, TERMS)) == "already-started"


# -- absence -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(), True),
        (look(imds_event()), False),
        (look(held=True), False),
        (look(fall=True), False),
        (look("no object"), False),
    ],
)
def test_absence_counts_only_where_a_look_can_tell(
    seen: Look, *, expected: bool
) -> None:
    assert is_absent(EVENT_ID, seen) is expected


# -- settlement ----------------------------------------------------------------

# The outcomes of a message: only a rule's request can be withheld.
KINDS = [kind for kind in OutcomeKind if kind is not OutcomeKind.WITHHELD]


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (["relayed"], None),
        (["already-started"], None),
        (["event-ended"], None),
        (["invalid"], "InvalidMessage"),
        (["expired"], "Expired"),
        (["unknown-event"], "UnknownEvent"),
        (["denied"], "Denied"),
        (["rejected"], "RejectedByImds"),
        (["failed"], "ImdsUnavailable"),
        (["denied", "relayed"], None),
        (["failed", "denied"], "ImdsUnavailable"),
        (["event-ended", "denied"], "Denied"),
    ],
)
def test_message_is_settled_by_its_outcomes(
    kinds: list[str], reason: str | None
) -> None:
    settlement = settlement_of([Conclusion(kind=OutcomeKind(kind)) for kind in kinds])

    verdict = "complete" if reason is None else "dead-letter"
    assert (settlement.verdict, settlement.reason) == (verdict, reason or "")


@given(st.lists(st.sampled_from(KINDS), min_size=1))
def test_message_with_a_good_outcome_is_never_dead_lettered(
    kinds: list[OutcomeKind],
) -> None:
    ends = [Conclusion(kind=kind) for kind in kinds]
    is_dead = settlement_of(ends).verdict == "dead-letter"

    assert not (is_dead and not APPROVED.isdisjoint(kinds))
    assert is_dead or not NOTHING_TO_APPROVE.isdisjoint(kinds)


# -- rules with after ------------------------------------------------------------------

AFTER = Rule(name="drained", action="auto-approve", after=("drain",))
OWN = imds_event(EventType="Reboot", Resources=["WestNO_0"])
TERMS_AFTER = replace(TERMS, rules=(AFTER,), me=ME)
DONE, WAITS = Evidence(lack=None), Evidence(lack=Lack.WAITS)


def asked_by_rule() -> Request:
    content = content_of(ScheduledEvent(event_id=EVENT_ID, raw=OWN))
    return replace(request(), rule="drained", content=content)


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (Standing(found={"drain": DONE}), "Post"),
        (Standing(found={"drain": WAITS}), "withheld"),
        (Standing(), "withheld"),
        # The outcome of a POST that was begun must still be published.
        (Standing(found={"drain": WAITS}, was_posted=True), "Wait"),
        (Standing(found={"drain": DONE}, was_posted=True), "Post"),
    ],
)
def test_rule_can_be_held_in_the_turn_of_its_post(
    standing: Standing, expected: str
) -> None:
    step = decide(asked_by_rule(), look(OWN), standing, TERMS_AFTER)

    assert kind_of(step) == expected


def test_approval_message_is_not_held() -> None:
    assert kind_of(decide(request(), look(OWN), NEW, TERMS_AFTER)) == "Post"

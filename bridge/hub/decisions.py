"""What a decision is, from the votes to the message that carries it. Pure.

    decided ──▶ sending ──▶ sent ──▶ done
       │           └──────────┴────▶ failed      a bad outcome, or none in time
       └──▶ void      a change, a rule or a refusal came before it was sent
    refused           one person said no: nothing is sent

A decision in ``sending`` may have gone out or not: whoever finds it sends the very same
bytes again, and the bridge answers from its memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import orjson

from bridge.approvals.message import parse
from bridge.events.build import clean, rfc3339
from bridge.events.cloudevent import CloudEvent
from bridge.events.vocabulary import NOTHING_TO_APPROVE
from bridge.foundation.errors import MalformedApprovalError
from bridge.hub.arm_rules import path_of
from bridge.hub.voting import ARM, Standing

_PREFIX = "sebridge"  # of bridges whose own is not known
_LEAST = timedelta(minutes=1)
_NO_TIME = timedelta(hours=1)  # where NotBefore is not known
_MOST = timedelta(days=30)  # a TimeToLive has 49 at most, and a date ends with 9999
_MOST_BYTES = 56 * 1024  # so that more names and reasons have room
_LONGEST_NAMES = 256
_LONGEST_REASON = 1024
SOURCE = "urn:sebridge:hub"

GOOD = NOTHING_TO_APPROVE | {"acknowledged"}  # the last is the answer of ARM


class DecisionState(StrEnum):
    """How far a decision has come."""

    DECIDED = "decided"
    SENDING = "sending"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"
    VOID = "void"
    REFUSED = "refused"


LIVE = (DecisionState.DECIDED, DecisionState.SENDING, DecisionState.SENT)
OUT = (DecisionState.SENDING, DecisionState.SENT)  # it may have gone out


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One person's approval."""

    person: str
    reason: str
    seen: Mapping[str, object]


def expiry(standing: Standing, now: datetime) -> datetime:
    """Return until when an approval is of use: NotBefore, in a minute to 30 days."""
    not_before = standing.scheduled.not_before or now + _NO_TIME
    return min(max(not_before, now + _LEAST), now + _MOST)


def reason_of(votes: Sequence[Vote]) -> str:
    """Return what the voters gave as their reasons, as one text."""
    found = dict.fromkeys(vote.reason for vote in votes if vote.reason)
    return "; ".join(found)[:_LONGEST_REASON]


def message(
    decision: str, standing: Standing, votes: Sequence[Vote], now: datetime
) -> bytes | None:
    """Return the message that asks a bridge for a StartRequest; None: none can be made.

    Args:
        decision: its id, which is the MessageId too.
        standing: the event, as the voters saw it.
        votes: the approvals.
        now: the present moment.
    """
    prefix = standing.prefix or _PREFIX
    by = ", ".join(vote.person for vote in votes)[:_LONGEST_NAMES]
    data: dict[str, object] = {
        "StartRequests": [{"EventId": standing.event_id}],
        "approvedBy": by,
        "expiresAt": rfc3339(expiry(standing, now)),
        "approvedEvent": standing.event,
    }
    if reason := reason_of(votes):
        data["reason"] = reason
    event = CloudEvent(
        id=decision,
        source=SOURCE,
        type=f"{prefix}.startrequest.v1",
        subject=standing.event_id,
        time=rfc3339(now),
        dataschema="urn:sebridge:schema:approval:v1",
        data=data,
    )
    return _checked(event.to_json(), prefix)


def _checked(body: bytes, prefix: str) -> bytes | None:
    """Return a message that a bridge takes; None where it would not."""
    try:
        parse(body, {}, prefix=prefix)
    except MalformedApprovalError:
        return None
    return body


def arm_message(decision: str, standing: Standing) -> bytes:
    """Return what is asked of ARM, as it is kept."""
    return orjson.dumps({"id": decision, "path": path_of(standing)})


def fits(standing: Standing, vote: Vote, via: str, now: datetime) -> bool:
    """Whether a decision on an event can be carried at all, whoever joins in."""
    if via == ARM:
        return path_of(standing) is not None
    body = message("0" * 32, standing, [vote], now)
    return body is not None and len(body) <= _MOST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What became of a decision."""

    state: DecisionState
    outcome: str
    reason: str


def end_of(outcomes: Sequence[Mapping[str, object]], decision: str) -> End | None:
    """Return what bridges tell of a decision; None = nothing yet.

    Any good outcome holds; of several bad ones the last by time does, so that the order
    in which they come makes no difference.

    Args:
        outcomes: of the event, as they are kept.
        decision: its id.
    """
    mine = [one for one in outcomes if one.get("message_id") == decision]
    if not mine:
        return None
    good = [one for one in mine if one.get("outcome") in GOOD]
    last = max(good or mine, key=lambda one: (str(one["time"]), str(one["outcome"])))
    return End(
        state=DecisionState.DONE if good else DecisionState.FAILED,
        outcome=clean(str(last["outcome"])),
        reason=clean(str(last.get("reason") or "")),
    )

"""The states of a decision, and the message that is sent for it. Pure.

    decided ──▶ sending ──▶ sent ──▶ done
       │           └──────────┴────▶ failed      a bad outcome, or none in time
       └──▶ void      cancelled before it was sent: by a change, a rule or a refusal
    refused           one person has refused: nothing is sent

A decision in the state ``sending`` may have been sent or not. After a crash the same
bytes are sent again: the bridge recognizes the MessageId and repeats its answer.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson
from msgspec import Struct

from bridge.approvals.message import parse
from bridge.events.cloudevent import CloudEvent, clean, rfc3339
from bridge.events.vocabulary import NOTHING_TO_APPROVE
from bridge.foundation.errors import MalformedApprovalError
from bridge.hub.access import AccessConfig
from bridge.hub.arm_rules import path_of
from bridge.hub.facts import Address
from bridge.hub.view_rows import StoredOutcome
from bridge.hub.voting import ARM, CurrentEvent
from bridge.signing import approval
from bridge.signing.dsse import Signer

_PREFIX = "sebridge"  # if the bridge's own prefix is not known
_LEAST = timedelta(minutes=1)
_NO_TIME = timedelta(hours=1)  # if NotBefore is not known
_MOST = timedelta(days=30)  # a TimeToLive can be 49 days; a date ends with year 9999
_MOST_BYTES = 56 * 1024  # leaves room for the names and reasons of more voters
_LONGEST_NAMES = 256
_LONGEST_REASON = 1024
SOURCE = "urn:sebridge:hub"

GOOD = NOTHING_TO_APPROVE | {"acknowledged"}  # the last is the answer of ARM


class DecisionState(StrEnum):
    """The state of a decision."""

    DECIDED = "decided"
    SENDING = "sending"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"
    VOID = "void"
    REFUSED = "refused"


LIVE = (DecisionState.DECIDED, DecisionState.SENDING, DecisionState.SENT)
MAYBE_SENT = (DecisionState.SENDING, DecisionState.SENT)


class Vote(Struct, frozen=True, kw_only=True):
    """The approval of one person, with the IMDS object that the person saw.

    Attributes:
        entry: the entry of ``approvers`` that it counts by.
        time: when the person voted; their roles are those of then.
    """

    person: str
    reason: str
    seen: Mapping[str, object]
    entry: str
    time: datetime


def persons_json(votes: Sequence[Vote], current: CurrentEvent) -> dict[str, object]:
    """Return who has decided, by which entries and when, as JSON for the store."""
    return {
        "by": [vote.person for vote in votes],
        "entries": [[vote.entry, vote.time.isoformat()] for vote in votes],
        "seen": current.event,
    }


def persons_left(
    persons: Mapping[str, Any], access: AccessConfig, now: datetime
) -> list[str]:
    """Return those who have decided and whose votes still count.

    Args:
        persons: the JSON of ``persons_json``.
        access: who may decide now.
        now: the present moment.
    """
    return [
        person
        for person, (entry, time) in zip(persons["by"], persons["entries"], strict=True)
        if not access.lapse(entry, (now - datetime.fromisoformat(time)).total_seconds())
    ]


def expiry(
    current: CurrentEvent, now: datetime, *, is_signed: bool = False
) -> datetime:
    """Return when an approval expires: at NotBefore, but in 1 minute to 30 days.

    A signed one expires in 24 h at most.
    """
    if is_signed:
        return approval.expiry(current.scheduled.not_before, now)
    not_before = current.scheduled.not_before or now + _NO_TIME
    return min(max(not_before, now + _LEAST), now + _MOST)


def reason_of(votes: Sequence[Vote]) -> str:
    """Join the reasons of the voters into one text, without duplicates."""
    found = dict.fromkeys(vote.reason for vote in votes if vote.reason)
    return "; ".join(found)[:_LONGEST_REASON]


def message(  # noqa: PLR0913 - each is a part of the message
    decision: str,
    current: CurrentEvent,
    votes: Sequence[Vote],
    now: datetime,
    prefix: str | None = None,
    *,
    signers: Sequence[Signer] = (),
) -> bytes | None:
    """Return the approval message for a bridge; None = a bridge would not accept it.

    Args:
        decision: the id of the decision; it is also the MessageId.
        current: the event.
        votes: the approvals.
        now: the present moment.
        prefix: that of the events of the bridge; None = that of the event's.
        signers: the keys that sign it; () = it is not signed.
    """
    prefix = prefix or current.prefix or _PREFIX
    by = ", ".join(vote.person for vote in votes)[:_LONGEST_NAMES]
    data: dict[str, object] = {
        "StartRequests": [{"EventId": current.event_id}],
        "approvedBy": by,
        "expiresAt": rfc3339(expiry(current, now, is_signed=bool(signers))),
        "approvedEvent": current.event,
    }
    if signers:
        data["audience"] = current.source
    if reason := reason_of(votes):
        data["reason"] = reason
    event = CloudEvent(
        id=decision,
        source=SOURCE,
        type=f"{prefix}.startrequest.v1",
        subject=current.event_id,
        time=rfc3339(now),
        dataschema="urn:sebridge:schema:approval:v1",
        data=data,
    )
    body = event.to_json()
    return _checked(approval.signed(body, signers) if signers else body, prefix)


def _checked(body: bytes, prefix: str) -> bytes | None:
    """Return a message if a bridge can parse it; otherwise None."""
    try:
        parse(body, {}, prefix=prefix)
    except MalformedApprovalError:
        return None
    return body


def arm_message(decision: str, current: CurrentEvent) -> bytes:
    """Return the id and the path of a request to ARM, as JSON for the store."""
    return orjson.dumps({"id": decision, "path": path_of(current)})


def fits(current: CurrentEvent, vote: Vote, via: str, now: datetime) -> bool:
    """Whether a decision can be sent, even if more voters add names and reasons."""
    if via == ARM:
        return path_of(current) is not None
    body = message("0" * 32, current, [vote], now)
    return body is not None and len(body) <= _MOST_BYTES


class End(Struct, frozen=True, kw_only=True):
    """The end of a decision: its final state and its outcome."""

    state: DecisionState
    outcome: str
    reason: str


def end_of(outcomes: Sequence[StoredOutcome], decision: str) -> End | None:
    """Derive the end of a decision from outcomes of bridges; None = no outcome yet.

    A good outcome wins over bad ones. Of several good or bad ones the latest by time
    wins, so the order in which they arrive makes no difference.
    """
    mine = [one for one in outcomes if one.message_id == decision]
    if not mine:
        return None
    good = [one for one in mine if one.outcome in GOOD]
    last = max(good or mine, key=lambda one: (one.time, one.outcome))
    return End(
        state=DecisionState.DONE if good else DecisionState.FAILED,
        outcome=clean(last.outcome),
        reason=clean(last.reason or ""),
    )


# -- One attempt to send a decision: what is sent, and the result. Pure ----------------


WAIT = 5.0  # seconds until the next attempt


class Claimed(Struct, frozen=True, kw_only=True):
    """A decision that one hub has claimed, in order to send it now.

    Attributes:
        address: the address to send to; None for ARM.
        message: the stored bytes, the same for each attempt.
        attempt: the number of the attempt, from 1.
        until: when the claim expires, unless it is renewed.
    """

    id: str
    event_key: str
    event_id: str
    via: str
    address: Address | None
    message: bytes
    expires: datetime
    attempt: int
    until: datetime


class Result(Struct, frozen=True, kw_only=True):
    """The result of an attempt.

    Attributes:
        end: the end of the decision; None = not known yet.
        is_accepted: whether the receiver has accepted the message.
        fault: why it was not accepted.
        retry_after: seconds until the next attempt.
    """

    end: End | None = None
    is_accepted: bool = False
    fault: str = ""
    retry_after: float = WAIT

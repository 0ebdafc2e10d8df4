"""One attempt to send a decision: what is sent, and the result. Pure."""

from dataclasses import dataclass
from datetime import datetime

from bridge.hub.decisions import End
from bridge.hub.facts import Address

WAIT = 5.0  # seconds until the next attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
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

"""One attempt to carry a decision: what is carried, and how it ended. Pure."""

from dataclasses import dataclass
from datetime import datetime

from bridge.hub.decisions import End
from bridge.hub.facts import Address

WAIT = 5.0  # seconds until somebody answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A decision that is to be carried now.

    Attributes:
        address: where to; None of ARM.
        message: the very bytes.
        attempt: its number, from 1.
        until: when the claim ends, unless it is renewed.
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
    """How an attempt ended.

    Attributes:
        end: what became of it; None = it is not known yet.
        is_out: whether it was taken.
        words: why not.
        again: seconds after which it is tried again.
    """

    end: End | None = None
    is_accepted: bool = False
    fault: str = ""
    retry_after: float = WAIT

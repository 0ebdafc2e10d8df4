"""How IMDS answered a StartRequest. Pure.

No decision after this point depends on the HTTP status.
"""

from enum import StrEnum

from msgspec import Struct


class StartResult(StrEnum):
    """The result of one POST."""

    ACCEPTED = "accepted"  # IMDS accepted the request
    REFUSED = "refused"  # IMDS says that the request is wrong: no retry
    UNAVAILABLE = "unavailable"  # IMDS says that it cannot accept the request now
    IN_DOUBT = "in-doubt"  # no usable answer: the POST may or may not have worked


class StartAnswer(Struct, frozen=True, kw_only=True):
    """The answer to one POST.

    Attributes:
        result: what the answer means.
        status: the HTTP status, for reports only: nothing is decided by it. None
            if there was no answer.
        text: what happened, in words.
        retry_after: the seconds that IMDS asks to wait; None if it does not ask.
    """

    result: StartResult
    status: int | None = None
    text: str = ""
    retry_after: float | None = None

"""What IMDS made of a StartRequest. Pure: no HTTP status is looked at beyond here."""

from dataclasses import dataclass
from enum import StrEnum


class StartResult(StrEnum):
    """What became of one POST."""

    ACCEPTED = "accepted"  # IMDS has taken it
    REFUSED = "refused"  # IMDS says that the request as such is wrong
    UNAVAILABLE = "unavailable"  # IMDS did not take it now, and said so
    IN_DOUBT = "in-doubt"  # no answer that says no: it may have worked


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswer:
    """The answer to one POST.

    Attributes:
        status: the number that IMDS answered with; only ever told, nothing is
            decided by it. None without an answer.
        text: what happened, in words.
        retry_after: the seconds that IMDS asks for; None where it does not.
    """

    result: StartResult
    status: int | None = None
    text: str = ""
    retry_after: float | None = None

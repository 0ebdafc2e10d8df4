"""Decides by the recent answers of IMDS when to send the next request, and how."""

import logging

from msgspec import Struct

from bridge.foundation.errors import (
    MalformedDocumentError,
    MetadataError,
    MetadataRefusedError,
)

_PATIENT_AFTER_TIMEOUTS = 3
_LONGEST_BACKOFF = 2.0  # a Spot eviction is announced only 30 s before
_LIMITED_BACKOFF = 10.0  # after a 429: there were too many requests
_REFUSED_BACKOFF = 60.0
_LONGEST_WISH = 300.0  # a longer Retry-After is shortened, so as not to miss events


class Patience(Struct):
    """The recent answers of IMDS, and when and how to send the next request.

    Attributes:
        started: when the process started, in monotonic seconds.
        is_first: whether no read has succeeded yet.
        failures: failed reads in a row; ``refusals`` and ``timeouts`` are among them.
        reminded: when a failure was logged last, in monotonic seconds.
        loudest: the highest level at which these failures were logged.
        outcome: ``ok``, ``starting``, or the label of the last failure. It is any text
            and not an enumeration, because a label may be any HTTP status.
        wait: seconds until the next request.
        is_asked_for: whether IMDS asked for this wait. Then it is never shortened.
    """

    started: float
    is_first: bool = True
    failures: int = 0
    refusals: int = 0
    timeouts: int = 0
    reminded: float = float("-inf")
    loudest: int = logging.NOTSET
    outcome: str = "starting"
    wait: float = 0.0
    is_asked_for: bool = False

    def good(self) -> None:
        """Note a read that has succeeded."""
        self.is_first, self.failures, self.timeouts = False, 0, 0
        self.outcome, self.wait, self.refusals = "ok", 0.0, 0
        self.reminded, self.loudest = float("-inf"), logging.NOTSET

    def bad(self, error: MetadataError, least: float) -> None:
        """Note a read that has failed.

        Args:
            error: the failure.
            least: the shortest wait, in seconds.
        """
        self.failures += 1
        self.timeouts = self.timeouts + 1 if error.outcome == "timeout" else 0
        self.outcome = error.outcome
        is_limited = error.outcome == "429"
        count = self.failures
        longest = _LIMITED_BACKOFF if is_limited else _LONGEST_BACKOFF
        if isinstance(error, MetadataRefusedError):
            self.refusals += 1
            count, longest = self.refusals, _REFUSED_BACKOFF
        doubled = least * 2.0 ** min(count - 1, 10)
        self.wait = max(least, min(doubled, longest))
        if isinstance(error, MalformedDocumentError):
            self.wait = least
        wish = getattr(error, "retry_after", None)
        self.is_asked_for = bool(wish)
        if wish:
            self.wait = max(self.wait, min(wish, _LONGEST_WISH))

    def is_patient(self) -> bool:
        """Return whether the next request may take two minutes."""
        return self.is_first or self.timeouts >= _PATIENT_AFTER_TIMEOUTS

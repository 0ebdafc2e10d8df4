"""The error tree: every fault the bridge raises on purpose.

    BridgeError
    ├─ ConfigError(faults)                    exit 2, before anything starts
    ├─ MissingExtraError                      an optional part is not installed
    ├─ MetadataError                          IMDS did not give what was asked
    │  ├─ MetadataUnavailableError            try again, after retry_after at least
    │  ├─ MetadataRefusedError                400 or 403: loud, and slowly again
    │  └─ MalformedDocumentError              an answer that says nothing
    ├─ MalformedApprovalError                 the message is dead-lettered
    ├─ ApprovalQueueError                     the receiver is opened anew
    ├─ DeliveryError(reason)                  one attempt at a delivery failed
    │  ├─ TransientDeliveryError              postponed
    │  ├─ RefusedDeliveryError                the sink as a whole refuses: park
    │  └─ PermanentDeliveryError              this delivery becomes a dead letter
    ├─ UnprovenError                          a look without sending shows nothing
    ├─ OutboxError                            fatal: the process ends non-zero
    │  ├─ OutboxUnavailableError              no room, no right, or held by another
    │  ├─ OutboxFullError                     no room in memory either: told later
    │  ├─ OutboxCorruptError                  moved aside, a fresh start
    │  ├─ OutboxThreadDiedError               nobody works on the state file any more
    │  ├─ OutboxLockedError                   a second instance on one state file
    │  ├─ NewerSchemaError                    written by a newer version
    │  └─ ForeignDatabaseError                a database of another program
    └─ WorkerExitedError                      a worker returned unasked: a bug

Expected outcomes (refused, already started, nothing changed) are values, not
errors. No text here ever holds a secret, a token, a full URL or a message body.
"""

from collections.abc import Sequence
from enum import StrEnum


class BridgeError(Exception):
    """Whatever the bridge raises on purpose."""


class ConfigError(BridgeError):
    """The configuration has faults; all of them are in ``faults``, one a line."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class MissingExtraError(BridgeError):
    """A part that only some users need is configured but not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra [{extra}]: "
            f"pip install 'scheduled-events-bridge[{extra}]'"
        )
        self.extra = extra


class MetadataError(BridgeError):
    """IMDS did not give what was asked for.

    ``outcome`` is a short label for the metric: a status such as ``"429"``,
    ``"timeout"``, ``"reset"`` or ``"malformed"``.
    """

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class MetadataUnavailableError(MetadataError):
    """IMDS is not answering now; ``retry_after`` is its own wish in seconds."""

    def __init__(
        self, message: str, *, outcome: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message, outcome=outcome)
        self.retry_after = retry_after


class MetadataRefusedError(MetadataError):
    """IMDS refuses the request as such (400, 403): waiting will hardly help."""


class MalformedDocumentError(MetadataError):
    """The body is no JSON object with an ``Events`` array, so it says nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, outcome="malformed")


class MalformedApprovalError(BridgeError):
    """A message on the approval entity cannot be read as an approval."""


class ApprovalQueueError(BridgeError):
    """The approval entity cannot be received from or settled with now.

    Attributes:
        is_refusal: whether it is refused, and so until a person does something.
    """

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class Reason(StrEnum):
    """Why an attempt failed: a closed set, so that it can label a metric."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    THROTTLED = "throttled"
    SERVER = "server"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not-found"
    REJECTED = "rejected"
    REDIRECTED = "redirected"
    TOO_LARGE = "too-large"
    EXPIRED = "expired"
    DAMAGED = "damaged"
    COMMAND = "command"
    UNFORESEEN = "unforeseen"


class DeliveryError(BridgeError):
    """One attempt at a delivery failed for ``reason``."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class TransientDeliveryError(DeliveryError):
    """It may work later; ``retry_after`` is the sink's own wish in seconds."""

    def __init__(
        self, message: str, reason: Reason, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message, reason)
        self.retry_after = retry_after


class RefusedDeliveryError(DeliveryError):
    """The sink refuses whatever is sent: credentials or address are wrong."""


class PermanentDeliveryError(DeliveryError):
    """This delivery will never be taken; others may."""


class UnprovenError(BridgeError):
    """The other side is there, but did not show whether it takes events.

    ``advice`` says what may be wrong, as the beginning of a sentence; "" = nothing is
    known to be.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class OutboxError(BridgeError):
    """The state file cannot be used."""


class OutboxUnavailableError(OutboxError):
    """The state file cannot be written now: no room, no right, or a lock."""


class OutboxFullError(OutboxError):
    """Neither disk nor memory has room for another event."""


class OutboxCorruptError(OutboxError):
    """The state file is no database, or a damaged one."""


class OutboxThreadDiedError(OutboxError):
    """The thread of the state file has died: nothing can be kept any more."""


class OutboxLockedError(OutboxError):
    """Another forwarder runs on the same state file."""


class NewerSchemaError(OutboxError):
    """The state file was written by a newer version of the bridge."""


class ForeignDatabaseError(OutboxError):
    """What stands in the place of the state file belongs to another program."""


class WorkerExitedError(BridgeError):
    """A worker returned although nobody asked it to stop."""

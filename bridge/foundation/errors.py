"""The error tree: all errors that the bridge itself raises.

    BridgeError
    ├─ ConfigError(faults)                    exit 2, before anything starts
    ├─ MissingExtraError                      an optional part is not installed
    ├─ MetadataError                          a request to IMDS failed
    │  ├─ MetadataUnavailableError            retried, after retry_after at least
    │  ├─ MetadataRefusedError                400 or 403: logged as error, retried late
    │  └─ MalformedDocumentError              the body is not a valid document
    ├─ MalformedApprovalError                 the message is dead-lettered
    ├─ ApprovalQueueError                     the receiver is opened again
    ├─ UnreadableMessageError                 the hub stores it as unreadable
    ├─ HubStoreError                          the hub's store
    │  ├─ HubSchemaError                      it is of a version before 0.1.0
    │  ├─ HubStoreSlowError                   this work takes too long: in smaller parts
    │  └─ HubStoreAwayError                   it cannot be used now: tried again
    │     └─ HubStoreDamagedError             the SQLite file, until the next start
    ├─ DeliveryError(reason)                  one attempt at a delivery failed
    │  ├─ TransientDeliveryError              the delivery is tried again later
    │  ├─ RefusedDeliveryError                the sink refuses everything: it is parked
    │  └─ PermanentDeliveryError              this delivery becomes a dead letter
    │     └─ RefusedEventError                a batch was refused because of one event
    ├─ NotSentError                           the attempt ended before it sent anything
    ├─ UnprovenError                          a check without sending proved nothing
    ├─ OutboxError                            fatal: the process ends non-zero
    │  ├─ OutboxUnavailableError              disk full, no permission, or locked
    │  │  └─ ForeignFolderError               root must not open files there
    │  ├─ OutboxClosedError                   its forwarder starts or ends: ask again
    │  ├─ OutboxFullError                     memory is full, too: published later
    │  ├─ OutboxCorruptError                  moved aside, and a new file is begun
    │  ├─ OutboxThreadDiedError               the thread of the state file has died
    │  ├─ OutboxLockedError                   a second instance on one state file
    │  ├─ NewerSchemaError                    written by a newer version
    │  ├─ OlderSchemaError                    moved aside, and a new file is begun
    │  └─ ForeignDatabaseError                a database of another program
    └─ WorkerExitedError                      a worker returned before the stop: a bug

Expected outcomes (refused, already started, nothing changed) are values, not
errors. No error text contains a secret, a token, a full URL or a message body; that of
a webhook has the beginning of the receiver's answer.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from bridge import __version__


class BridgeError(Exception):
    """The base class of all errors that the bridge itself raises."""


class ConfigError(BridgeError):
    """The configuration has faults: ``faults`` has one text for each of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class MissingExtraError(BridgeError):
    """The configuration needs an optional package that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra, self.advice = extra, install_command(extra)
        self.need = f"{what} needs the extra [{extra}]"
        super().__init__(f"{self.need}: {self.advice}")


class MetadataError(BridgeError):
    """A request to IMDS failed.

    ``outcome`` is a short label for the metric: a status such as ``"429"``,
    ``"timeout"``, ``"reset"`` or ``"malformed"``.
    """

    def __init__(self, message: str, *, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class MetadataUnavailableError(MetadataError):
    """IMDS cannot answer now; it asks for a retry after ``retry_after`` seconds."""

    def __init__(
        self, message: str, *, outcome: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message, outcome=outcome)
        self.retry_after = retry_after


class MetadataRefusedError(MetadataError):
    """IMDS refuses the request itself (400, 403): a retry is unlikely to help."""


class MalformedDocumentError(MetadataError):
    """The body is not a JSON object with an ``Events`` array."""

    def __init__(self, message: str) -> None:
        super().__init__(message, outcome="malformed")


class MalformedApprovalError(BridgeError):
    """A message of the approval entity is not a valid approval."""


class ApprovalQueueError(BridgeError):
    """Messages of the approval entity cannot be received or settled now.

    Attributes:
        is_refusal: whether Service Bus refuses access, until a person changes that.
    """

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class UnreadableMessageError(BridgeError):
    """The hub has received a message that it cannot decode."""


class HubStoreError(BridgeError):
    """The hub's store cannot be used as it is."""


class HubSchemaError(HubStoreError):
    """The hub's store has a schema of a version before the first release.

    Args:
        held: how many events, decisions and votes it has.
    """

    def __init__(self, held: Mapping[str, int]) -> None:
        what = ", ".join(f"{count} {name}" for name, count in held.items())
        super().__init__(
            "hub.store: the database has the tables of a version before 0.1.0 "
            f"({what or 'no events'}), which this version cannot read: create an empty "
            "database, and name it there; the old one is left as it is"
        )
        self.held = held


class HubStoreSlowError(HubStoreError):
    """The hub's store works, but this work takes too long: nothing was stored."""


class HubStoreAwayError(HubStoreError):
    """The hub's store cannot be used now: nothing was stored."""


class HubStoreDamagedError(HubStoreAwayError):
    """The hub's SQLite file is damaged."""


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
    BACKLOG = "backlog"
    UNFORESEEN = "unforeseen"


class DeliveryError(BridgeError):
    """One attempt at a delivery failed for ``reason``."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class TransientDeliveryError(DeliveryError):
    """A later attempt may succeed; the sink asks to wait ``retry_after`` seconds.

    ``is_shared``: all sinks of the same Service Bus namespace would fail now.
    """

    def __init__(
        self,
        message: str,
        reason: Reason,
        *,
        retry_after: float | None = None,
        is_shared: bool = False,
    ) -> None:
        super().__init__(message, reason)
        self.retry_after = retry_after
        self.is_shared = is_shared


class RefusedDeliveryError(DeliveryError):
    """The sink refuses every delivery: credentials or address are wrong."""


class PermanentDeliveryError(DeliveryError):
    """The sink will never accept this delivery, but may accept others."""


class RefusedEventError(PermanentDeliveryError):
    """A request with several events is refused because of the one at ``place``."""

    def __init__(self, message: str, reason: Reason, place: int) -> None:
        super().__init__(message, reason)
        self.place = place


class NotSentError(BridgeError):
    """Nothing was sent: the sink has asked for a pause since the attempt began.

    The attempt does not count, and the delivery is due as before.
    """


class UnprovenError(BridgeError):
    """The receiver answers, but a check could not show whether it accepts events.

    ``advice`` says what may be wrong; "" = no advice.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class OutboxError(BridgeError):
    """The state file cannot be used."""


class OutboxUnavailableError(OutboxError):
    """The state file cannot be written now: disk full, no permission, or locked."""


class ForeignFolderError(OutboxUnavailableError):
    """Root must not open the file: somebody else could have put it there."""


class OutboxClosedError(OutboxError):
    """Who has the state file starts or ends, and has done nothing: ask again."""


class OutboxFullError(OutboxError):
    """Neither disk nor memory has room for another event."""


class OutboxCorruptError(OutboxError):
    """The state file is not a database, or is damaged."""


class OutboxThreadDiedError(OutboxError):
    """The thread of the state file has died: nothing can be stored any more."""


class OutboxLockedError(OutboxError):
    """Another forwarder or hub runs on the same state file."""


class NewerSchemaError(OutboxError):
    """The state file was written by a newer version of the bridge."""


class OlderSchemaError(OutboxError):
    """The state file was written by an older version of the bridge."""


class ForeignDatabaseError(OutboxError):
    """The file at the path of the state file belongs to another program."""


class WorkerExitedError(BridgeError):
    """A worker returned before it was asked to stop."""


# -- Finds out where this program was installed from, for messages about missing
#    extras
#
# A .deb, a .rpm, the offline archive or an image says in a file of its environment that
# it made it. Else pip did; a package index may not have this package, so the note that
# pip made (PEP 610, ``direct_url.json``) names the wheel, checkout or address.


NAME = "scheduled-events-bridge"


INSTALLED = "installed"
"""The file of an environment that names the maker: package, archive or image."""


def install_command(extra: str, prefix: Path | None = None) -> str:
    """Return the command that adds an extra to this installation.

    Args:
        extra: the extra, such as ``slack``.
        prefix: the folder of the environment; None: that of this Python.
    """
    prefix = prefix or Path(sys.prefix)
    try:
        maker = (prefix / INSTALLED).read_text().strip()
    except OSError:
        return _by_pip(extra)
    if maker == "image":
        return (
            f"docker build -f infra/container/Dockerfile --build-arg EXTRAS={extra} ."
        )
    if maker == "package" and extra == "hub":
        return (
            "apt-get install ./sebridge-hub_*.deb, or dnf install ./sebridge-hub-*.rpm"
        )
    wheel = f"./scheduled_events_bridge-{__version__}-py3-none-any.whl"
    return f"python3 -m venv more && more/bin/pip install '{wheel}[{extra}]'"


def _by_pip(extra: str) -> str:
    from importlib.metadata import (  # noqa: PLC0415 - only messages need it
        PackageNotFoundError,
        distribution,
    )

    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # it runs from a checkout
        command = _of_file(Path(__file__).parents[2], extra)
    else:
        command = command_of(record, extra)
    if sys.prefix == sys.base_prefix:
        return command
    # Another pip than this environment's would install it elsewhere.
    return command.replace("pip", f"{sys.executable} -m pip", 1)


def command_of(record: str | None, extra: str) -> str:
    """Return the install command for the note of pip.

    Args:
        record: the text of ``direct_url.json``; None = installed from an index.
        extra: the extra to install, such as ``slack``.
    """
    if record is None:
        return f"pip install '{NAME}[{extra}]'"
    origin = json.loads(record)
    address = origin["url"]
    if address.startswith("file:"):
        from urllib.request import url2pathname  # noqa: PLC0415 - 12 ms of loading

        return _of_file(Path(url2pathname(urlsplit(address).path)), extra)
    if "vcs_info" in origin:
        source = origin["vcs_info"]
        address = f"{source['vcs']}+{address}@{source['commit_id']}"
    return f"pip install '{NAME}[{extra}] @ {address}'"


def _of_file(path: Path, extra: str) -> str:
    """Return the command for a wheel or a checkout, which may be deleted."""
    lost = "" if path.exists() else f", once {path.name} is there again"
    return f"pip install '{path}[{extra}]'{lost}"

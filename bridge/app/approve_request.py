"""Makes the approval that ``sebridge approve`` sends, and finds out where to send it.

A CloudEvent does not contain the ReplyToSessionId of its message. But that session
follows from ``approvals.sessions`` and the event's reporter. So this module computes
the session in the same way as the bridge does.

Source: config/approvals.md.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Self
from urllib.parse import quote

import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.message import parse
from bridge.configuration.config import Config
from bridge.events.cloudevent import DEEPEST, CloudEvent, rfc3339
from bridge.events.document import ScheduledEvent, is_deep
from bridge.events.identity import Identity
from bridge.events.vocabulary import GONE, EventStatus
from bridge.events.wording import table
from bridge.foundation.errors import ConfigError, MalformedApprovalError
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import Entity
from bridge.signing import approval as signing
from bridge.sinks.base import ApprovalAddress

_LONGEST_SESSION = 128
_GUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_EXAMPLE = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
_SHORTEST = 4  # characters of the beginning of an EventId
_MOST = 5  # EventIds in an error
_CUT = frozenset({"event", "Resources"})  # if in data.truncated, the event is not whole


class SeenEvent(Struct, frozen=True, kw_only=True):
    """An event of the bridge, as an approver received it.

    Attributes:
        event: the scheduled event, as in IMDS.
        event_id: its EventId, spelled as in IMDS.
        reporter: the VM that published the event.
        source: the source of the CloudEvent.
    """

    event: Mapping[str, object]
    event_id: str
    reporter: Identity
    source: str = ""

    @property
    def has_started(self) -> bool:
        """Whether the scheduled event has started: then it needs no approval."""
        return self.event.get("EventStatus") == EventStatus.STARTED

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse a structured CloudEvent: the body of a webhook or Service Bus message.

        A line of ``sebridge events --json`` is accepted, too: it holds the CloudEvent.

        Raises:
            ValueError: the body is not a CloudEvent, or has no scheduled event, or only
                a part of it.
        """
        try:
            found = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
        except orjson.JSONDecodeError as error:
            raise ValueError("is no JSON") from error
        found = _unwrapped(found)
        if not isinstance(found, dict) or "specversion" not in found:
            raise ValueError("is no structured CloudEvent")
        if is_deep(found, DEEPEST):
            raise ValueError(f"is nested more than {DEEPEST} levels deep")
        data = table(found.get("data"))
        event = table(data.get("event"))
        event_id = event.get("EventId")
        if not (isinstance(event_id, str) and event_id):
            raise ValueError("has no scheduled event: data.event.EventId is missing")
        transition = data.get("transition")
        if isinstance(transition, str) and transition in GONE:
            raise ValueError(
                f"says that the event is over ({transition}): there is nothing to "
                "approve"
            )
        if data.get("test") is True:
            raise ValueError("is a test event: there is nothing to approve")
        cut = data.get("truncated")
        if isinstance(cut, list) and not _CUT.isdisjoint(map(str, cut)):
            raise ValueError(
                "was cut to fit a message (data.truncated) and does not hold the whole "
                "event: approve it by EVENT_ID and --session"
            )
        reporter = Identity.from_reporter(table(data.get("reporter")))
        source = str(found.get("source") or "")
        return cls(event=event, event_id=event_id, reporter=reporter, source=source)

    @property
    def not_before(self) -> datetime | None:
        """NotBefore of the scheduled event; None if it is not known."""
        return ScheduledEvent(event_id=self.event_id, raw=self.event).not_before


def _unwrapped(found: object) -> object:
    """Return the CloudEvent in an entry of ``sebridge events --json``."""
    is_entry = isinstance(found, dict) and found.keys() >= {"event", "deliveries"}
    return found["event"] if is_entry else found  # type: ignore[index]  # it is a dict


def signed_limits(seen: SeenEvent | None, now: datetime) -> dict[str, str]:
    """Return ``expires_at`` and ``audience``, which a signed approval must have.

    Raises:
        ValueError: the event, or its source, is not known.
    """
    if seen is None or not seen.source:
        raise ValueError(
            "--sign-key needs --from-event, except where the state file has the event: "
            "what is signed is that event"
        )
    ends = signing.expiry(seen.not_before, now)
    return {"expires_at": rfc3339(ends), "audience": seen.source}


def signed_body(event: CloudEvent, key: str | None) -> bytes:
    """Return an approval as it is sent, with a signature if there is a file of keys.

    Raises:
        ValueError: the file cannot be read, or has no private key.
    """
    if key is None:
        return event.to_json()
    try:
        return signing.signed(
            event.to_json(), signing.signers(Secret(f"file:{key}", {}))
        )
    except ValueError as error:
        raise ValueError(f"--sign-key: {error}") from error


def event_id_of(
    given: str | None,
    seen: SeenEvent | None,
    *,
    known: Callable[[str], Sequence[str]] = lambda _start: (),
    force: bool = False,
) -> str:
    """Return the EventId to approve.

    Args:
        given: the argument: an EventId, or the beginning of one.
        seen: the event of --from-event; None if not given.
        known: returns the observed EventIds that begin with a text.
        force: whether to accept any text as an EventId.

    Raises:
        ValueError: nothing is given; or ``given`` is not the EventId of ``seen``; or
            ``given`` is neither an EventId nor the beginning of exactly one.
    """
    if seen is None:
        if given is None:
            raise ValueError("EVENT_ID or --from-event must be given")
        return given if force or _GUID.fullmatch(given) else _meant(given, known(given))
    if given is not None and given.upper() != seen.event_id.upper():
        raise ValueError(f"EVENT_ID is not that of --from-event, {seen.event_id}")
    return seen.event_id


def _meant(given: str, found: Sequence[str]) -> str:
    """Return the EventId that begins with a text.

    Raises:
        ValueError: there is none, or there are several.
    """
    whole = [one for one in found if one.upper() == given.upper()]
    if whole or (len(found) == 1 and len(given) >= _SHORTEST):
        return (whole or found)[0]
    if len(found) > 1:
        several = ", ".join(found[:_MOST]) + (", …" if len(found) > _MOST else "")
        raise ValueError(
            f"EVENT_ID {given!r} is the beginning of several EventIds: {several}"
        )
    raise ValueError(
        f"EVENT_ID {given!r} is no EventId such as {_EXAMPLE}, and is not the "
        f"beginning ({_SHORTEST} or more characters) of an EventId that was observed "
        "here; --force sends it unchanged"
    )


def address(
    config: Config, *, session: str | None, seen: SeenEvent | None
) -> tuple[ApprovalsConfig, ApprovalAddress]:
    """Return the approval entity, and the session that the event's bridge accepts.

    Args:
        config: the configuration, read by ``load_for_approver``.
        session: --session; takes precedence.
        seen: the event of --from-event; None if not given.

    Raises:
        ConfigError: no entity is configured, or its name has an unknown placeholder.
        ValueError: the session cannot be computed from these values.
    """
    who = seen.reporter if seen else Identity().overridden(config.identity)
    approvals = config.filled_in(who.expand).approval_entity
    if approvals is None:
        raise ConfigError(["approvals: is missing: it says where approvals are sent"])
    if session is not None:
        if not 0 < len(session) <= _LONGEST_SESSION:
            raise ValueError(f"--session must have 1 to {_LONGEST_SESSION} characters")
        found = approvals.address(lambda _: session)
        return approvals, replace(found, session=session)
    if seen is None and any("{" in one for one in approvals.sessions):
        named = ", ".join(f'"{one}"' for one in approvals.sessions)
        raise ValueError(
            f"approvals.sessions has placeholders ({named}), and the event is not in a "
            "state file on this machine: choose the session with --session or "
            "--from-event"
        )
    try:
        return approvals, approvals.address(who.expand)
    except ValueError as error:
        raise ValueError(
            f"approvals.sessions: {error}: the event's reporter does not contain it; "
            "name the session with --session"
        ) from error


def reply_entity(config: ApprovalsConfig, targets: Iterable[Entity]) -> str:
    """Return the queue for the reply: the first one in ``reply_to`` without wildcards.

    Args:
        config: ``[approvals]``.
        targets: the entities that the sinks of the same file send to.

    Raises:
        ValueError: ``reply_to`` has no queue to which the bridge would reply.
    """
    for entity in config.reply_rules(targets).named(config.reply_to).values():
        if entity is not None:
            return entity
    raise ValueError(
        "--wait needs a queue for the reply: set approvals.reply_to = "
        '["replies"] in this file and in that of the bridge; a name without * ? [, '
        "neither the approval entity nor the entity of a sink. Without --wait, "
        "'sebridge events --event EVENT_ID' on a machine of the event shows the outcome"
    )


class Approval(Struct, frozen=True, kw_only=True):
    """The approval of one event.

    Attributes:
        id: the id of the CloudEvent and of the message; unique.
        approved_by: the name that the approver gives; not checked.
        approved_event: the scheduled event as the approver saw it.
        expires_at: the time after which it has no effect; RFC 3339.
        audience: the source of the event; a signed approval names it.
    """

    id: str
    event_id: str
    approved_by: str | None = None
    reason: str | None = None
    approved_event: Mapping[str, object] | None = None
    expires_at: str | None = None
    audience: str | None = None

    def as_event(self, *, prefix: str, host: str, now: datetime) -> CloudEvent:
        """Return the CloudEvent that asks the bridge to send a StartRequest.

        Args:
            prefix: ``events.type_prefix``.
            host: the name of the approver's machine.
            now: the present time.

        Raises:
            ValueError: the bridge would reject the event as invalid.
        """
        optional = {
            "approvedBy": self.approved_by,
            "reason": self.reason,
            "approvedEvent": self.approved_event,
            "expiresAt": self.expires_at,
            "audience": self.audience,
        }
        event = CloudEvent(
            id=self.id,
            source=f"urn:sebridge:approve:{quote(host, safe='')}",
            type=f"{prefix}.startrequest.v1",
            subject=self.event_id,
            time=rfc3339(now),
            dataschema="urn:sebridge:schema:approval:v1",
            data={
                "StartRequests": [{"EventId": self.event_id}],
                **{key: value for key, value in optional.items() if value is not None},
            },
        )
        try:
            parse(event.to_json(), {}, prefix=prefix)
        except MalformedApprovalError as error:
            raise ValueError(f"the bridge would not take it: {error}") from error
        return event

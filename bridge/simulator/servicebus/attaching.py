"""What the attach of a receiving link asks for, and what the broker answers.

Source: azure-servicebus 7.15, which sends these filters and properties and reads these.
"""

from datetime import timedelta
from uuid import UUID

from msgspec import Struct

from bridge.simulator.servicebus.endpoints import Link
from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.sessions import SessionLock, check_session_id
from bridge.simulator.wire.values import Described, Symbol

_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_TIMEOUT = Symbol("com.microsoft:timeout")
_DEFAULT_TIMEOUT = timedelta(seconds=65)
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_SECOND = 10_000_000


class SessionRequest(Struct, frozen=True, kw_only=True):
    """A receiver's request for a session.

    Attributes:
        session_id: the wanted session; None: the next available.
        timeout: how long it waits for the next available one.
    """

    session_id: str | None
    timeout: timedelta


def check_attach(link: Link) -> None:
    """Return if a link's own end names an entity or a control node.

    Raises:
        RefusedError: it names none, or something that is not there.
    """
    if link.is_coordinator:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this broker does not support transactions"
        )
    if link.is_dynamic:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this broker makes no entities for a link"
        )
    if not (link.source if link.is_sender else link.target):
        raise RefusedError(
            Condition.NOT_ALLOWED,
            "an anonymous link is not supported: its address has to name a queue, "
            "topic or subscription",
        )


def session_request(link: Link) -> SessionRequest | None:
    """Return the session that a receiver asks for; None: it wants no session.

    Raises:
        RefusedError: its session id is no text, or is too long.
    """
    if _SESSION_FILTER not in link.filters:
        return None
    wanted = link.filters[_SESSION_FILTER]
    milliseconds = link.properties.get(_TIMEOUT)
    timeout = (
        timedelta(milliseconds=milliseconds)
        if isinstance(milliseconds, int)
        else _DEFAULT_TIMEOUT
    )
    if isinstance(wanted, Described):  # as AMQP wants a filter to be
        wanted = wanted.value
    if not isinstance(wanted, str | None):
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "a session filter is a text, or null for any"
        )
    check_session_id(wanted)
    return SessionRequest(session_id=wanted, timeout=timeout)


def accept_session(link: Link, lock: SessionLock) -> None:
    """Accept an attach with the session it got."""
    ticks = _TICKS_AT_EPOCH + round(lock.until * 1000) * (_TICKS_PER_SECOND // 1000)
    link.accept(
        filters={_SESSION_FILTER: lock.session_id}, properties={_LOCKED_UNTIL: ticks}
    )


def tag_of(token: UUID) -> bytes:
    """Return the delivery tag of a lock token."""
    return token.bytes_le

"""Check the attach of a link, and read its request for a session.

Source: azure-servicebus 7.15, which sends these filters and properties and reads these.
"""

from datetime import timedelta
from uuid import UUID

from msgspec import Struct

from bridge.simulator.servicebus.endpoints import Link
from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.sessions import SessionLock, check_session_id
from bridge.simulator.wire.values import Described, Symbol, ULong

_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_SESSION_FILTER_CODE = ULong(0x137000000C)
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_SELECTOR = "jms-selector"
_SELECTOR_TYPES = (0x468C00000004, "apache.org:selector-filter:string")
_TIMEOUT = Symbol("com.microsoft:timeout")
_DEFAULT_TIMEOUT = timedelta(seconds=65)
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_SECOND = 10_000_000


class SessionRequest(Struct, frozen=True, kw_only=True):
    """A receiver's request for a session.

    Attributes:
        session_id: the wanted session; None: the next available one.
        timeout: how long the receiver waits for the next available session.
    """

    session_id: str | None
    timeout: timedelta


def check_attach(link: Link) -> None:
    """Check that the attach has an address, and no unsupported source or target.

    Raises:
        RefusedError: the address is missing, or the link asks for a new entity, wants
            copies or has a selector; or the engine knows no transactions.
    """
    if link.is_coordinator and not link.can_transact:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this engine does not support transactions"
        )
    if link.is_sender:
        _check_selection(link)
    if link.is_dynamic:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this broker makes no entities for a link"
        )
    if link.is_coordinator:
        return
    if not (link.source if link.is_sender else link.target):
        raise RefusedError(
            Condition.NOT_ALLOWED,
            "an anonymous link is not supported: its address has to name a queue, "
            "topic or subscription",
        )


def _check_selection(link: Link) -> None:
    """Refuse what would not be obeyed: a browser would delete messages."""
    if link.is_browser:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED,
            "the distribution-mode 'copy' is not supported: peek instead of browsing",
        )
    for name, given in link.filters.items():
        descriptor = given.descriptor if isinstance(given, Described) else None
        if name == _SELECTOR or descriptor in _SELECTOR_TYPES:
            raise RefusedError(
                Condition.NOT_IMPLEMENTED,
                f"the filter {name!r} is not supported: use a rule of a subscription",
            )


def session_request(link: Link) -> SessionRequest | None:
    """Return the receiver's request for a session; None: it requests no session.

    Raises:
        RefusedError: the session id is not a text, or is too long.
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
    if isinstance(wanted, Described):  # AMQP requires it; plain values are accepted
        if wanted.descriptor not in {_SESSION_FILTER_CODE, _SESSION_FILTER}:
            raise RefusedError(
                Condition.NOT_IMPLEMENTED,
                f"a session filter of the unknown type {wanted.descriptor!r}",
            )
        wanted = wanted.value
    if not isinstance(wanted, str | None):
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "a session filter is a text, or null for any"
        )
    check_session_id(wanted)
    return SessionRequest(session_id=wanted, timeout=timeout)


def accept_session(link: Link, lock: SessionLock) -> None:
    """Accept an attach, with the id of its session and the end of the lock.

    The filter has the form of the client's. AMQP 1.0, 3.5.8 requires a described value,
    and the client of Go drops its whole connection at a plain one. The clients of .NET,
    Java and JavaScript send a plain one, and take a described one for another session.
    """
    is_described = isinstance(link.filters[_SESSION_FILTER], Described)
    session: object = lock.session_id
    if is_described:
        session = Described(_SESSION_FILTER_CODE, lock.session_id)
    ticks = _TICKS_AT_EPOCH + round(lock.until * 1000) * (_TICKS_PER_SECOND // 1000)
    link.accept(filters={_SESSION_FILTER: session}, properties={_LOCKED_UNTIL: ticks})


def tag_of(token: UUID) -> bytes:
    """Return the delivery tag of a lock token."""
    return token.bytes_le

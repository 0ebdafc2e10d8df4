"""Everything this broker does to Proton's links and deliveries.

It handles these traps, each of which breaks a real client:
* An error needs all of its three fields: clients read the third, and Proton drops
  trailing nulls. So the info map is never empty.
* A client recognises its reply by the source address of its own attach, byte for byte.
* A refused link is attached first, without source and target, and then closed.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from proton import Condition as AmqpCondition
from proton import Delivery, Described, Endpoint, Link, Sender, Terminus, symbol

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.sessions import SessionLock, check_session_id

_SESSION_FILTER = symbol("com.microsoft:session-filter")
_LOCKED_UNTIL = symbol("com.microsoft:locked-until-utc")
_TIMEOUT = symbol("com.microsoft:timeout")
_DEFAULT_TIMEOUT = timedelta(seconds=65)
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_SECOND = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """A receiver's request for a session.

    Attributes:
        session_id: the wanted session; None: the next available.
        timeout: how long it waits for the next available one.
    """

    session_id: str | None
    timeout: timedelta


def check_terminus(terminus: Terminus) -> None:
    """Return if a link's own end names an entity or a control node.

    Raises:
        RefusedError: it names none, or something that is not there.
    """
    if terminus.type == Terminus.COORDINATOR:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this broker does not support transactions"
        )
    if terminus.dynamic:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this broker makes no entities for a link"
        )
    if not terminus.address:
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
    data = link.remote_source.filter
    data.rewind()
    filters = data.get_object() if data.next() else None
    if not isinstance(filters, dict) or _SESSION_FILTER not in filters:
        return None
    wanted = filters[_SESSION_FILTER]
    milliseconds = (link.remote_properties or {}).get(_TIMEOUT)
    timeout = (
        timedelta(milliseconds=milliseconds)
        if isinstance(milliseconds, int)
        else _DEFAULT_TIMEOUT
    )
    if isinstance(wanted, Described):
        wanted = wanted.value
    if not isinstance(wanted, str | None):
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "a session filter is a text, or null for any"
        )
    check_session_id(wanted)
    return SessionRequest(session_id=wanted, timeout=timeout)


def accept_link(link: Link, lock: SessionLock | None = None) -> None:
    """Accept an attach with its own terms, and with the session it got."""
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    if lock is not None:
        filters = link.source.filter
        filters.clear()
        filters.put_dict({_SESSION_FILTER: lock.session_id})
        ticks = _TICKS_AT_EPOCH + round(lock.until * 1000) * (_TICKS_PER_SECOND // 1000)
        link.properties = {_LOCKED_UNTIL: ticks}
    link.open()


def refuse_link(link: Link, error: RefusedError) -> None:
    """Refuse an attach."""
    link.source.type = link.target.type = Terminus.UNSPECIFIED
    link.open()
    close_link(link, error)


def close_link(link: Link, error: RefusedError | None = None) -> None:
    """Close a link, with the reason if there is one."""
    if error is not None:
        link.condition = amqp_condition(error)
    link.close()


def is_open(link: Link) -> bool:
    """Return whether both sides have the link open."""
    return bool(link.state == Endpoint.LOCAL_ACTIVE | Endpoint.REMOTE_ACTIVE)


def amqp_condition(error: RefusedError) -> AmqpCondition:
    """Return an error in AMQP's form, with all three fields."""
    info: dict[Any, Any] = {symbol("com.microsoft:tracking-id"): "local"}
    return AmqpCondition(str(error.condition), error.description, info)


def send_bytes(link: Sender, tag: bytes, encoded: bytes, *, settled: bool) -> Delivery:
    """Send one message."""
    # Proton's type hints require text for a tag, which is bytes in AMQP.
    delivery = link.delivery(cast("Any", tag))
    link.stream(encoded)
    link.advance()
    if settled:
        delivery.settle()
    return delivery


def settle(
    delivery: Delivery, state: int | None, error: RefusedError | None = None
) -> None:
    """Settle a delivery with an outcome, or with none."""
    if state is not None:
        if error is not None:
            delivery.local.condition = amqp_condition(error)
        delivery.local.failed = delivery.remote.failed
        delivery.local.undeliverable = delivery.remote.undeliverable
        delivery.update(state)
    delivery.settle()


def note_format(delivery: Delivery, message_format: int) -> None:
    """Store the message-format of a delivery that has begun to arrive."""
    delivery.message_format = message_format


def format_of(delivery: Delivery) -> int:
    """Return the message-format of a delivery."""
    noted = getattr(delivery, "message_format", 0)
    return noted if isinstance(noted, int) else 0


def tag_of(token: UUID) -> bytes:
    """Return the delivery tag of a lock token."""
    return token.bytes_le

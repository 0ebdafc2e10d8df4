"""The operations of <entity>/$management.

Each operation takes the decoded map of a request and returns the map of the reply. No
I/O.

Source: Azure Service Bus, AMQP request-response operations. If azure-servicebus 7.15
        differs from that page, this module does what that client expects.
"""

from collections.abc import Callable, Mapping
from typing import TypeGuard
from uuid import UUID

from msgspec import Struct

from bridge.simulator.servicebus.access import Right
from bridge.simulator.servicebus.intake import check_size
from bridge.simulator.servicebus.message import Delivery
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.rules.ruleset import (
    RuleSet,
    add_rule,
    list_rules,
    remove_rule,
)
from bridge.simulator.servicebus.settings import SubscriptionSettings
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.values import (
    Condition,
    RefusedError,
    elements,
    integers,
    long_array,
    string_array,
    timestamp_array,
    to_timestamp,
    uuids,
)
from bridge.simulator.servicebus.wire import encode_delivery, parse_message
from bridge.simulator.wire.values import Int32

Body = Mapping[object, object]

SCHEDULE = "com.microsoft:schedule-message"

# The year 10000: a client that wants all sessions sends it as last-updated-time.
_ALL_SESSIONS_SECONDS = 253_402_300_800.0
_PEEK_LOCK = 1
_OK = 200
_NO_CONTENT = 204
_BAD_REQUEST = 400
_STATUS = {
    Condition.UNAUTHORIZED: 401,
    Condition.NOT_ALLOWED: 403,
    Condition.RESOURCE_LIMIT_EXCEEDED: 403,
    Condition.ENTITY_ALREADY_EXISTS: 409,
    Condition.MESSAGE_NOT_FOUND: 404,
    Condition.NOT_FOUND: 404,
    Condition.MESSAGE_LOCK_LOST: 410,
    Condition.SESSION_LOCK_LOST: 410,
    Condition.NOT_IMPLEMENTED: 501,
    Condition.SERVER_BUSY: 503,
}


class Reply(Struct, frozen=True, kw_only=True):
    """The reply to one request."""

    status: int = _OK
    description: str = "OK"
    condition: Condition | None = None
    body: Body | None = None

    @classmethod
    def refusal(cls, error: RefusedError) -> "Reply":
        """Return the reply to a refused request."""
        return cls(
            status=_STATUS.get(error.condition, _BAD_REQUEST),
            description=error.description,
            condition=error.condition,
        )


def right_of(operation: str) -> Right:
    """Return the right that an operation needs."""
    if operation in _SENDING:
        return Right.SEND
    return Right.LISTEN if operation in _RECEIVING else Right.MANAGE


def answer(operation: str, entity: Queue | Topic, body: object, owner: object) -> Reply:
    """Execute a request.

    Args:
        operation: the name of the operation, with the vendor's prefix.
        entity: the entity that the request was sent to.
        body: the decoded body of the request.
        owner: the connection of the request. It has to hold the lock on the session
            that the request names.
    """
    fields = body if isinstance(body, dict) else {}
    entity.use.touch()
    try:
        if operation in _RULES and _is_subscription(entity):
            return Reply(body=_RULES[operation](entity.rules, fields))
        if isinstance(entity, Queue) and operation in _RECEIVING:
            return _RECEIVING[operation](_Request(entity, fields, owner))
        if operation in _SENDING:
            return _SENDING[operation](entity, fields)
    except RefusedError as error:
        return Reply.refusal(error)
    return Reply.refusal(
        RefusedError(Condition.NOT_IMPLEMENTED, f"{operation} is not supported here")
    )


def _is_subscription(entity: Queue | Topic) -> TypeGuard[Queue]:
    return isinstance(entity, Queue) and isinstance(
        entity.settings, SubscriptionSettings
    )


class _Request(Struct, frozen=True):
    queue: Queue
    body: Body
    owner: object


def _schedule(entity: Queue | Topic, body: Body) -> Reply:
    entries = elements(body.get("messages"))
    numbers = entity.send([parse_message(_encoded(entry)) for entry in entries])
    # A duplicate is dropped, but the reply is a success: its sequence number is 0.
    found = long_array(number or 0 for number in numbers)
    return Reply(body={"sequence-numbers": found})


def _encoded(entry: object) -> bytes:
    found = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(found, bytes):
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "each of messages is a map with message, a binary"
        )
    check_size(found)
    return found


def _cancel(entity: Queue | Topic, body: Body) -> Reply:
    entity.cancel_scheduled(integers(body.get("sequence-numbers")))
    return Reply()


def _renew_lock(request: _Request) -> Reply:
    tokens = uuids(request.body.get("lock-tokens"))
    until = timestamp_array([request.queue.renew_lock(token) for token in tokens])
    return Reply(body={"expirations": until})


def _renew_session_lock(request: _Request) -> Reply:
    lock = request.queue.sessions.renew(_session(request.body), request.owner)
    return Reply(body={"expiration": to_timestamp(lock.until)})


def _get_session_state(request: _Request) -> Reply:
    state = request.queue.sessions.state(_session(request.body), request.owner)
    return Reply(body={"session-state": state})


def _set_session_state(request: _Request) -> Reply:
    state = request.body.get("session-state")
    # The client of Go sends null as an empty value.
    value = bytes(state) if isinstance(state, bytes) and state else None
    request.queue.sessions.set_state(_session(request.body), request.owner, value)
    return Reply(body={})


def _sessions(request: _Request) -> Reply:
    since = _number(request.body, "last-updated-time") / 1000
    updated_after = None if since >= _ALL_SESSIONS_SECONDS else since
    skip, top = _number(request.body, "skip"), _number(request.body, "top")
    page = request.queue.session_ids(updated_after)[skip : skip + top]
    if not page:
        return Reply(status=_NO_CONTENT, condition=Condition.SESSION_NOT_FOUND)
    return Reply(body={"skip": Int32(skip), "sessions-ids": string_array(page)})


def _peek(request: _Request) -> Reply:
    found = request.queue.peek(
        _number(request.body, "from-sequence-number"),
        _number(request.body, "message-count"),
        _optional_session(request.body),
    )
    if not found:
        return Reply(status=_NO_CONTENT, condition=Condition.MESSAGE_NOT_FOUND)
    return Reply(body={"messages": [_packed(delivery) for delivery in found]})


def _receive_deferred(request: _Request) -> Reply:
    session_id = _optional_session(request.body)
    if session_id is not None:
        request.queue.sessions.check_held(session_id, request.owner)
    found = request.queue.receive_deferred(
        integers(request.body.get("sequence-numbers")),
        session_id,
        delete=_number(request.body, "receiver-settle-mode") != _PEEK_LOCK,
    )
    return Reply(body={"messages": [_packed(delivery) for delivery in found]})


def _delete_batch(request: _Request) -> Reply:
    count = _number(request.body, "message-count")
    before = request.body.get("enqueued-time-utc")
    if not isinstance(before, int):
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "enqueued-time-utc is not a timestamp"
        )
    session_id = _optional_session(request.body)
    deleted = request.queue.storage.delete_batch(count, before / 1000, session_id)
    if not deleted:
        return Reply(status=_NO_CONTENT, condition=Condition.MESSAGE_NOT_FOUND)
    return Reply(body={"message-count": Int32(deleted)})


def _update_disposition(request: _Request) -> Reply:
    status = str(request.body.get("disposition-status"))
    for token in uuids(request.body.get("lock-tokens")):
        _settle(request, status, token)
    return Reply()


def _settle(request: _Request, status: str, token: UUID) -> None:
    modified = request.body.get("properties-to-modify")
    named = modified if isinstance(modified, dict) else {}
    changes = {str(name): value for name, value in named.items()}
    match status:
        case "completed":
            request.queue.complete(token)
        case "abandoned":
            request.queue.abandon(token, changes)
        case "defered":  # the protocol spells it with one r
            request.queue.defer(token, changes)
        case "suspended":
            reason = _text(request.body.get("deadletter-reason"))
            description = _text(request.body.get("deadletter-description"))
            request.queue.dead_letter(token, reason, description, changes)
        case _:
            raise RefusedError(Condition.ARGUMENT_ERROR, f"no disposition {status!r}")


def _packed(delivery: Delivery) -> Body:
    packed: dict[object, object] = {"message": encode_delivery(delivery)}
    if delivery.lock_token is not None:
        packed["lock-token"] = delivery.lock_token
    return packed


def _session(body: Body) -> str:
    session_id = _optional_session(body)
    if session_id is None:
        raise RefusedError(Condition.ARGUMENT_ERROR, "the session id is missing")
    return session_id


def _optional_session(body: Body) -> str | None:
    return _text(body.get("session-id"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(body: Body, name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int):
        raise RefusedError(Condition.ARGUMENT_ERROR, f"{name} is not a number")
    return value


_SENDING: Mapping[str, Callable[[Queue | Topic, Body], Reply]] = {
    SCHEDULE: _schedule,
    "com.microsoft:cancel-scheduled-message": _cancel,
}
_RULES: Mapping[str, Callable[[RuleSet, Body], Body]] = {
    "com.microsoft:add-rule": add_rule,
    "com.microsoft:remove-rule": remove_rule,
    "com.microsoft:enumerate-rules": list_rules,
}
_RECEIVING: Mapping[str, Callable[[_Request], Reply]] = {
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:renew-session-lock": _renew_session_lock,
    "com.microsoft:get-session-state": _get_session_state,
    "com.microsoft:set-session-state": _set_session_state,
    "com.microsoft:get-message-sessions": _sessions,
    "com.microsoft:peek-message": _peek,
    "com.microsoft:receive-by-sequence-number": _receive_deferred,
    "com.microsoft:update-disposition": _update_disposition,
    "com.microsoft:batch-delete-messages": _delete_batch,
}

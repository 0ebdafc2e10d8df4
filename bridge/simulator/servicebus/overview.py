"""Collect what the page shows: all entities, and the content of one of them. Pure.

This changes nothing: messages are peeked, not received.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeGuard
from uuid import UUID

from msgspec import Struct, field

from bridge.simulator.servicebus.backlog import Counts, Entry
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.message import Delivery, Message, State
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.rules.row import from_value, to_value
from bridge.simulator.servicebus.settings import SubscriptionSettings
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.values import Condition, RefusedError, encode_section
from bridge.simulator.servicebus.wire import SESSION_FIELD, SUBJECT_FIELD, body_text
from bridge.simulator.sql.operators import EvaluationError, Value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.message import APPLICATION_PROPERTIES, DATA, PROPERTIES
from bridge.simulator.wire.values import EncodeError

MOST_ROWS = 100
_MOST_CHARACTERS = 500


class EntityRow(Struct, frozen=True, kw_only=True):
    """A queue, topic or subscription, with its counts."""

    path: str
    kind: str
    counts: Counts


class MessageRow(Struct, frozen=True, kw_only=True):
    """A message of a queue.

    Attributes:
        number: the sequence number.
        state: active, locked, deferred or scheduled.
        delivery_count: how many deliveries have failed.
        enqueued_at: seconds since the epoch.
        body: the beginning of the body, as text.
        reason: the reason and description of a dead letter; empty: there is none.
        application_properties: the sender's properties, with Python types.
    """

    number: int
    message_id: str
    subject: str
    session_id: str
    state: str
    delivery_count: int
    enqueued_at: float
    body: str
    reason: str = ""
    application_properties: Mapping[str, object] = field(default_factory=dict)


class SessionRow(Struct, frozen=True, kw_only=True):
    """A session of a queue.

    Attributes:
        holder: the client that has locked the session; empty: none.
        locked_until: seconds since the epoch; None: the session is not locked.
        messages: how many messages the session has.
        has_state: whether a state is stored.
    """

    session_id: str
    holder: str
    locked_until: float | None
    messages: int
    has_state: bool


class Detail(Struct, frozen=True, kw_only=True):
    """The content of one entity: the first ``MOST_ROWS`` rows of each kind."""

    path: str
    is_queue: bool
    messages: tuple[MessageRow, ...] = ()
    dead: tuple[MessageRow, ...] = ()
    sessions: tuple[SessionRow, ...] = ()


class Overview(Struct, frozen=True, kw_only=True):
    """All entities, and the content of the chosen one."""

    entities: tuple[EntityRow, ...]
    detail: Detail | None


def overview(namespace: Namespace, chosen: str | None) -> Overview:
    """Return all entities, and the content of the chosen one.

    Args:
        namespace: the entities.
        chosen: the path of the entity whose content is returned; None, or an unknown
            path: no content.
    """
    return Overview(
        entities=tuple(_entities(namespace)),
        detail=None if chosen is None else _detail(namespace, chosen),
    )


def _entities(namespace: Namespace) -> Iterator[EntityRow]:
    for path, counts in sorted(namespace.snapshot().items()):
        yield EntityRow(path=path, kind=_kind(namespace, path), counts=counts)


def _kind(namespace: Namespace, path: str) -> str:
    entity = namespace.find(path)
    if isinstance(entity, Topic):
        return "topic"
    is_inner = isinstance(entity.settings, SubscriptionSettings)
    return "subscription" if is_inner else "queue"


def _detail(namespace: Namespace, path: str) -> Detail | None:
    try:
        entity = namespace.find(path)
    except RefusedError:
        return None
    if not isinstance(entity, Queue):
        return Detail(path=entity.name, is_queue=False)
    dead = entity.dead_letters
    return Detail(
        path=entity.name,
        is_queue=True,
        messages=_messages(entity),
        dead=() if dead is None else _messages(dead),
        sessions=tuple(_sessions(entity)),
    )


def _messages(queue: Queue) -> tuple[MessageRow, ...]:
    return tuple(map(_message, queue.peek(0, MOST_ROWS)))


def _message(delivery: Delivery) -> MessageRow:
    message, letter = delivery.message, delivery.dead_letter
    reasons = () if letter is None else (letter.reason, letter.description)
    is_locked = delivery.lock_token is not None
    return MessageRow(
        number=delivery.sequence_number,
        message_id=message.message_id,
        subject=message.properties.get("Label", ""),
        session_id=message.session_id or "",
        state="locked" if is_locked else State(delivery.state).name.lower(),
        delivery_count=delivery.delivery_count,
        enqueued_at=delivery.enqueued_at,
        body=body_text(message.content, _MOST_CHARACTERS),
        reason=": ".join(text for text in reasons if text),
        application_properties=plain_properties(message),
    )


def _sessions(queue: Queue) -> Iterator[SessionRow]:
    if not queue.settings.requires_session:
        return
    counts = _by_session(list(queue.storage.backlog))
    states = set(queue.sessions.with_state())
    held = queue.sessions.locks()
    for name in sorted({*counts, *states, *held})[:MOST_ROWS]:
        lock = held.get(name)
        yield SessionRow(
            session_id=name,
            holder="" if lock is None else str(lock.owner),
            locked_until=None if lock is None else lock.until,
            messages=counts.get(name, 0),
            has_state=name in states,
        )


def _by_session(entries: Sequence[Entry]) -> Mapping[str, int]:
    counts = dict[str, int]()
    for entry in entries:
        name = entry.message.session_id or ""
        counts[name] = counts.get(name, 0) + 1
    return counts


# -- Encode messages that a test or a person writes, and show properties of messages ---


_KINDS = (bool, int, float, str, bytes, UUID, timedelta)


def compose(
    body: bytes,
    *,
    subject: str | None,
    session_id: str | None,
    application_properties: Mapping[str, object],
) -> bytes:
    """Return a message as a sender encodes it.

    Args:
        body: the bytes of the body, sent as one data section.
        subject: the subject; None: the message has none.
        session_id: the session id; None: the message has none.
        application_properties: texts, numbers, booleans, bytes, UUIDs, times with a
            zone, durations or None by name.

    Raises:
        RefusedError: AMQP cannot represent a property.
        TypeError: the body is a str; the caller has to encode it.
    """
    fields: list[object] = [None] * (SESSION_FIELD + 1)
    fields[SUBJECT_FIELD], fields[SESSION_FIELD] = subject, session_id
    own = {name: _sent(name, each) for name, each in application_properties.items()}
    return (
        encode_section(PROPERTIES, fields)
        + (encode_section(APPLICATION_PROPERTIES, own) if own else b"")
        + encode_section(DATA, bytes(memoryview(body)))
    )


def plain_properties(message: Message) -> Mapping[str, object]:
    """Return the application properties of a message with Python types.

    A time becomes a datetime, and a duration a timedelta. A value without an equivalent
    in Python becomes bytes that describe it.
    """
    return {
        name: _plain(value) for name, value in message.application_properties.items()
    }


def _sent(name: str, value: object) -> object:
    if not _is_value(value):
        raise _refused(name, f"a message cannot have a {type(value).__name__} there")
    try:
        sent = from_value(value, None)
        encode_value(sent)
    except (EncodeError, EvaluationError) as error:
        raise _refused(name, str(error)) from error
    return sent


def _refused(name: str, why: str) -> RefusedError:
    return RefusedError(
        Condition.ARGUMENT_ERROR, f"the application property {name!r}: {why}"
    )


def _is_value(value: object) -> TypeGuard[Value]:
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return value is None or isinstance(value, _KINDS)


def _plain(value: object) -> object:
    try:
        return to_value(value)
    except EvaluationError:
        return repr(value).encode()

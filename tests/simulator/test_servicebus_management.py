"""The operations behind $management, without a connection."""

from uuid import UUID, uuid4

import pytest

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.management import Reply, answer
from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import Condition
from tests.simulator.servicebus_fixtures import START, Rig, locked, message, one_queue

OWNER = object()


def ask(entity: Queue, operation: str, **fields: object) -> Reply:
    body = {name.replace("_", "-"): value for name, value in fields.items()}
    return answer(f"com.microsoft:{operation}", entity, body, OWNER)


def held_session() -> Queue:
    queue = one_queue(QueueSettings(name="q", requires_session=True)).queue()
    queue.send([message(session_id="s1")])
    queue.accept_session("s1", OWNER, lambda: None)
    return queue


def locked_message(
    *messages: Message, settings: QueueSettings | None = None
) -> tuple[Rig, UUID]:
    rig = one_queue(settings)
    rig.queue().send(messages or [message()])
    return rig, locked(rig.queue())[1]


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        ("completed", Counts()),
        ("abandoned", Counts(active=1)),
        ("defered", Counts(deferred=1)),
        ("suspended", Counts(dead=1)),
    ],
)
def test_message_is_settled_by_its_token(status: str, counts: Counts) -> None:
    rig, token = locked_message()

    reply = ask(
        rig.queue(),
        "update-disposition",
        disposition_status=status,
        lock_tokens=[token],
    )

    assert reply.status == 200
    assert rig.queue().counts() == counts


def test_dead_letter_by_token_tells_why() -> None:
    rig, token = locked_message()

    ask(
        rig.queue(),
        "update-disposition",
        disposition_status="suspended",
        lock_tokens=[token],
        deadletter_reason="Unreadable",
        deadletter_description="no JSON",
    )

    dead, _ = locked(rig.dead_letters())
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason == "Unreadable"
    assert dead.dead_letter.description == "no JSON"


@pytest.mark.parametrize("operation", ["update-disposition", "renew-lock"])
def test_lost_lock_is_gone(operation: str) -> None:
    queue = one_queue().queue()

    reply = ask(queue, operation, disposition_status="completed", lock_tokens=[uuid4()])

    assert reply.status == 410
    assert reply.condition == Condition.MESSAGE_LOCK_LOST


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("update-disposition", {"disposition_status": "thrown-away"}),
        ("update-disposition", {"lock_tokens": ["no uuid"]}),
        ("renew-lock", {"lock_tokens": None}),
        ("peek-message", {}),
        ("cancel-scheduled-message", {"sequence_numbers": ["one"]}),
        ("get-session-state", {}),
        ("schedule-message", {"messages": [{"message-id": "m1"}]}),
        ("schedule-message", {"messages": ["m1"]}),
    ],
)
def test_request_that_makes_no_sense_is_refused(
    operation: str, fields: dict[str, object]
) -> None:
    rig, token = locked_message()

    reply = ask(rig.queue(), operation, **{"lock_tokens": [token], **fields})

    assert reply.status == 400
    assert reply.condition == Condition.ARGUMENT_ERROR


def test_message_that_is_too_large_is_not_scheduled() -> None:
    queue = one_queue().queue()

    reply = ask(
        queue, "schedule-message", messages=[{"message": bytes(256 * 1024 + 1)}]
    )

    assert reply.condition == Condition.MESSAGE_SIZE_EXCEEDED
    assert queue.counts() == Counts()


def test_unknown_operation_is_not_implemented() -> None:
    reply = ask(one_queue().queue(), "add-rule")

    assert reply.status == 501


def test_topic_answers_to_senders_only() -> None:
    topic = TopicSettings(name="t", subscriptions=(SubscriptionSettings(name="s"),))
    found = Rig(Entities(topics=(topic,))).namespace.find("t")

    reply = answer("com.microsoft:peek-message", found, {}, OWNER)

    assert reply.condition == Condition.NOT_IMPLEMENTED


@pytest.mark.parametrize(
    "operation", ["renew-session-lock", "get-session-state", "set-session-state"]
)
def test_session_answers_to_the_connection_that_holds_it(operation: str) -> None:
    queue = held_session()

    mine = ask(queue, operation, session_id="s1")
    other = answer(f"com.microsoft:{operation}", queue, {"session-id": "s1"}, object())

    assert mine.status == 200
    assert other.condition == Condition.SESSION_LOCK_LOST


def test_renewed_session_tells_until_when() -> None:
    reply = ask(held_session(), "renew-session-lock", session_id="s1")

    assert reply.body == {"expiration": round((START + 60) * 1000)}


def test_deferred_message_of_a_session_is_for_its_holder() -> None:
    queue = held_session()
    delivery, token = locked(queue, "s1")
    queue.defer(token)
    wanted = {
        "session-id": "s1",
        "sequence-numbers": [delivery.sequence_number],
        "receiver-settle-mode": 1,
    }
    operation = "com.microsoft:receive-by-sequence-number"

    refused = answer(operation, queue, wanted, object())
    found = answer(operation, queue, wanted, OWNER)

    assert refused.condition == Condition.SESSION_LOCK_LOST
    assert found.status == 200


def test_deferred_message_can_be_received_and_deleted() -> None:
    rig, token = locked_message()
    rig.queue().defer(token)

    ask(
        rig.queue(),
        "receive-by-sequence-number",
        sequence_numbers=[1],
        receiver_settle_mode=0,
    )

    assert rig.queue().counts() == Counts()


def test_no_sessions_are_no_content() -> None:
    reply = ask(
        one_queue().queue(),
        "get-message-sessions",
        last_updated_time=253_402_300_800_000,
        skip=0,
        top=100,
    )

    assert reply.status == 204

"""Sending replies to any entity of the namespace over few connections."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from bridge.approvals.reply import ReplyEnvelope, ReplySender
from bridge.events.cloudevent import hash32
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.outbox.questions import Selection
from bridge.outbox.records import REPLIES, Delivery, Reply
from bridge.outbox.store import Outbox
from bridge.servicebus.namespace import NamespaceConfig
from bridge.simulator.servicebus.broker import Broker
from tests.support.book import Book
from tests.support.sink_fixtures import drained


async def reply(
    replies: ReplySender, entity: str, message_id: str = "r-1", session: str = ""
) -> None:
    envelope = ReplyEnvelope(
        entity=entity,
        message_id=message_id,
        correlation_id="m-1",
        session_id=session or None,
        body='{"messageId":"m-1","outcomes":[]}',
    )
    await replies.send(envelope)


async def test_reply_has_the_message_id_of_the_approval(
    namespace: NamespaceConfig, broker: Broker
) -> None:
    replies = ReplySender(namespace)
    await reply(replies, "vm-approvals-sessions", session="them")
    await replies.close()

    (message,) = await drained(broker, "vm-approvals-sessions", session="them")
    assert b"".join(message.body) == b'{"messageId":"m-1","outcomes":[]}'
    assert message.content_type == "application/json"
    assert (message.message_id, message.correlation_id) == ("r-1", "m-1")
    assert message.time_to_live == timedelta(hours=1)  # it may never be received


async def test_missing_entity_is_refused(namespace: NamespaceConfig) -> None:
    replies = ReplySender(namespace)
    with pytest.raises(RefusedDeliveryError, match="no-such: does not exist"):
        await reply(replies, "no-such")
    await replies.close()


async def test_id_that_is_too_long_is_hashed(
    namespace: NamespaceConfig, broker: Broker
) -> None:
    replies = ReplySender(namespace)
    await reply(replies, "replies", message_id="x" * 200)
    await replies.close()

    (message,) = await drained(broker, "replies")
    assert message.message_id == hash32("x" * 200)


async def test_only_the_senders_used_last_are_kept(
    namespace: NamespaceConfig, broker: Broker
) -> None:
    """Each sender is a connection, and approvals may name many entities."""
    replies = ReplySender(namespace, most=2)
    for entity in ("replies", "vm-approvals", "scheduled-events", "vm-approvals"):
        await reply(replies, entity)

    assert replies._senders.entities == ["scheduled-events", "vm-approvals"]
    await replies.close()


async def test_replies_to_several_entities_at_once_all_arrive(
    namespace: NamespaceConfig, broker: Broker
) -> None:
    replies = ReplySender(namespace, most=1)
    await asyncio.gather(
        *(reply(replies, entity) for entity in ("replies", "vm-approvals"))
    )
    await replies.close()

    stored = broker.snapshot()
    assert (stored["replies"].active, stored["vm-approvals"].active) == (1, 1)


def stored_reply(entity: str, attempts: int = 0) -> Delivery:
    envelope = ReplyEnvelope(
        entity=entity, message_id="r", correlation_id="m", session_id=None, body="{}"
    )
    return Delivery(
        id=1,
        sink=REPLIES,
        kind="reply",
        state="pending",
        key=None,
        event_id=None,
        cloud_event_id=None,
        type="reply",
        body=msgspec.json.encode(envelope),
        attempts=attempts,
        due=0.0,
        created=0.0,
        not_before=None,
        urgent_from=None,
        urgent_until=None,
        last_error=None,
    )


@pytest.mark.parametrize(
    ("attempts", "error"),
    [
        (0, TransientDeliveryError),
        (1, TransientDeliveryError),
        (2, PermanentDeliveryError),
    ],
)
async def test_missing_entity_affects_only_its_own_reply(
    namespace: NamespaceConfig, attempts: int, error: type[DeliveryError]
) -> None:
    """The error must not park the relay, because other replies are pending."""
    replies = ReplySender(namespace)
    with pytest.raises(error, match="no-such: does not exist"):
        await replies.deliver(stored_reply("no-such", attempts))
    await replies.close()


async def test_dead_reply_can_be_listed_and_retried(
    outbox: Outbox,
) -> None:
    await outbox.commit([], now=0, reply=Reply(key="n", body=b"{}"))
    ((dead,), _) = await outbox.deliveries.due(REPLIES, now=0, limit=1)
    await outbox.deliveries.dead_letter(
        dead, now=0, error="no", reason=Reason.NOT_FOUND
    )
    ledger = Book(outbox)

    assert await ledger.find(Selection(states=("dead",))) == []
    (found,) = await ledger.find(Selection(sink=REPLIES, states=("dead",)))
    assert found.id == dead.id
    await ledger.retry(Selection(sink=REPLIES), now=1, force=False)

    ((again,), _) = await outbox.deliveries.due(REPLIES, now=1, limit=1)
    assert again.id == dead.id

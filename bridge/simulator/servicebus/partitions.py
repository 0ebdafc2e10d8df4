"""Refuse batches that no single partition of a partitioned entity could take. Pure.

This broker has only one partition, so its order is stricter than the cloud's. It could
take such batches, but refuses them as the cloud does.

Source: Azure Service Bus, partitioned queues and topics: use of partition keys.
"""

from collections.abc import Sequence

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.message import Message
from bridge.simulator.wire.values import Symbol

_PARTITION_KEY = Symbol("x-opt-partition-key")


def check_partition(path: str, messages: Sequence[Message]) -> None:
    """Check that one partition can take all messages of a batch.

    Args:
        path: the path of the partitioned entity.
        messages: the messages of one batch.

    Raises:
        RefusedError: a session id differs from its partition key, or two messages have
            different keys.
    """
    keys = {_key(path, message) for message in messages} - {None}
    if len(keys) > 1:
        raise RefusedError(
            Condition.NOT_ALLOWED,
            f"{path} is partitioned: all messages of a batch need the same partition "
            "key or session id",
        )


def _key(path: str, message: Message) -> str | None:
    key, session_id = message.annotations.get(_PARTITION_KEY), message.session_id
    if key is None or session_id is None:
        return session_id if key is None else str(key)
    if str(key) != session_id:
        raise RefusedError(
            Condition.NOT_ALLOWED,
            f"{path} is partitioned: the partition key of a message with a session id "
            "has to equal this session id",
        )
    return session_id

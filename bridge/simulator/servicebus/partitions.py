"""What a partitioned entity refuses: messages that belong into several partitions.

This broker keeps one partition only, so that its order is stricter than the cloud's.
But a client that sends what no single partition could take is told so here, too. Pure.

Source: Azure Service Bus, partitioned queues and topics: use of partition keys.
"""

from collections.abc import Sequence

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.message import Message
from bridge.simulator.wire.values import Symbol

_PARTITION_KEY = Symbol("x-opt-partition-key")


def check_partition(path: str, messages: Sequence[Message]) -> None:
    """Return if one partition can take all of the messages.

    Args:
        path: of the partitioned entity.
        messages: of one batch.

    Raises:
        RefusedError: a session id differs from its partition key, or two messages have
            different keys.
    """
    keys = {_key(path, message) for message in messages} - {None}
    if len(keys) > 1:
        raise RefusedError(
            Condition.NOT_ALLOWED,
            f"{path} is partitioned: all messages of a batch have the same partition "
            "key, or session id",
        )


def _key(path: str, message: Message) -> str | None:
    key, session_id = message.annotations.get(_PARTITION_KEY), message.session_id
    if key is None or session_id is None:
        return session_id if key is None else str(key)
    if str(key) != session_id:
        raise RefusedError(
            Condition.NOT_ALLOWED,
            f"{path} is partitioned: the partition key of a message is its session id "
            "if it has both",
        )
    return session_id

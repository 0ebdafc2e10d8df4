"""Sends replies to whoever asked for one: the ReplyTo of an approval."""

from collections import OrderedDict

from bridge.namespace import NamespaceConfig
from bridge.sender import Message, Sender, short_id

_MOST_SENDERS = 8


class ReplySender:
    """Sends replies within one namespace, with a sender per entity.

    Args:
        config: how the namespace is reached.
        most: how many senders are kept open; each is a connection.
    """

    def __init__(self, config: NamespaceConfig, most: int = _MOST_SENDERS) -> None:
        self._config = config
        self._most = most
        self._senders: OrderedDict[str, Sender] = OrderedDict()

    async def send(
        self,
        *,
        entity: str,
        body: bytes,
        message_id: str,
        correlation_id: str | None,
        session_id: str | None,
    ) -> None:
        """Return when the broker has stored the reply.

        Args:
            entity: the queue or topic of ReplyTo.
            body: JSON.
            message_id: the same at each attempt, so that repeats can be told.
            correlation_id: the MessageId of the approval.
            session_id: its ReplyToSessionId.

        Raises:
            DeliveryError: as the sink's.
        """
        message = Message(
            body=body,
            content_type="application/json",
            message_id=short_id(message_id),
            correlation_id=correlation_id,
            session_id=short_id(session_id) if session_id else None,
        )
        sender = self._senders.setdefault(entity, Sender(self._config, entity))
        self._senders.move_to_end(entity)
        await sender.send(message)
        await self._close_surplus()

    async def close(self) -> None:
        """Close all senders, after what is under way."""
        while self._senders:
            _, sender = self._senders.popitem()
            await sender.close()

    async def _close_surplus(self) -> None:
        """Close those that were used longest ago, but none that is in use."""
        surplus = len(self._senders) - self._most
        idle = [entity for entity, sender in self._senders.items() if sender.is_idle]
        for entity in idle[: max(surplus, 0)]:
            await self._senders.pop(entity).close()

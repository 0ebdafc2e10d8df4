"""Sends replies to whoever asked for one: the ReplyTo of an approval.

A message may name any entity that ``approvals.reply_to`` allows, also one that is not
there. So what an entity refuses is that reply's trouble, and never holds up another's.
"""

from collections import OrderedDict
from datetime import timedelta

from bridge.approvals.reply import ReplyEnvelope
from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.outbox.delivery import Delivery
from bridge.servicebus.namespace import NamespaceConfig
from bridge.servicebus.sender import Message, Sender, short_id

_MOST_SENDERS = 8
_MOST_ATTEMPTS = 3  # at an entity that is not there
_TIME_TO_LIVE = timedelta(hours=1)  # whoever asked has given up by then


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

    async def deliver(self, delivery: Delivery) -> None:
        """Send the reply that the outbox holds.

        Raises:
            PermanentDeliveryError: its entity is still not there.
            TransientDeliveryError: it cannot be sent now.
        """
        envelope = ReplyEnvelope.from_json(delivery.body)
        try:
            await self.send(
                entity=envelope.entity,
                body=envelope.body.encode(),
                message_id=envelope.message_id,
                correlation_id=envelope.correlation_id,
                session_id=envelope.session_id,
            )
        except RefusedDeliveryError as error:
            is_missing = error.reason is Reason.NOT_FOUND
            if is_missing and delivery.attempts + 1 >= _MOST_ATTEMPTS:
                raise PermanentDeliveryError(str(error), error.reason) from error
            raise TransientDeliveryError(str(error), error.reason) from error

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
            time_to_live=_TIME_TO_LIVE,
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

"""Sends replies to the entity that an approval names in ReplyTo.

A message may name any entity that ``approvals.reply_to`` allows, even one that does not
exist. So if an entity refuses a reply, the replies to other entities do not wait.
"""

from datetime import timedelta

import msgspec
from msgspec import Struct

from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.outbox.records import Delivery
from bridge.servicebus.namespace import TIMINGS, NamespaceConfig, Timings
from bridge.servicebus.sender import Message, Senders, short_id

_MOST_SENDERS = 8
_MOST_ATTEMPTS = 3  # if the entity does not exist
_TIME_TO_LIVE = timedelta(hours=1)  # then the approver no longer waits for the reply


class ReplyEnvelope(Struct, frozen=True, kw_only=True, rename="camel"):
    """A reply with its address: as JSON, the body of a delivery of kind ``reply``.

    Attributes:
        entity: the queue or topic for the reply.
        message_id: a hash of the cause: the same at each attempt, so that repeats can
            be recognised.
        correlation_id: the MessageId of the approval.
        session_id: the ReplyToSessionId of the approval.
        body: JSON, as text.
    """

    entity: str
    message_id: str
    correlation_id: str | None
    session_id: str | None
    body: str


class ReplySender:
    """Sends replies within one namespace, with a sender for each entity.

    Args:
        most: how many senders are kept open; each is a connection.
    """

    def __init__(
        self,
        config: NamespaceConfig,
        most: int = _MOST_SENDERS,
        timings: Timings = TIMINGS,
    ) -> None:
        self._config = config
        self._senders = Senders(most, timings)

    async def deliver(self, delivery: Delivery) -> None:
        """Send a reply of the outbox.

        Raises:
            PermanentDeliveryError: the entity does not exist, after three attempts.
            TransientDeliveryError: the reply cannot be sent now.
        """
        envelope = msgspec.json.decode(delivery.body, type=ReplyEnvelope)
        try:
            await self.send(envelope)
        except RefusedDeliveryError as error:
            is_missing = error.reason is Reason.NOT_FOUND
            if is_missing and delivery.attempts + 1 >= _MOST_ATTEMPTS:
                raise PermanentDeliveryError(str(error), error.reason) from error
            raise TransientDeliveryError(str(error), error.reason) from error

    async def send(self, envelope: ReplyEnvelope) -> None:
        """Send a reply; return when the broker has stored it.

        Raises:
            DeliveryError: as ``Sender.send``.
        """
        entity, session = envelope.entity, envelope.session_id
        message = Message(
            body=envelope.body.encode(),
            content_type="application/json",
            message_id=short_id(envelope.message_id),
            correlation_id=envelope.correlation_id,
            session_id=short_id(session) if session else None,
            time_to_live=_TIME_TO_LIVE,
        )
        await self._senders.send(self._config, entity, message)

    async def close(self) -> None:
        """Close all senders, after the messages in flight."""
        await self._senders.close()

"""Act on entities without a connection: view, put, resubmit, purge."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from bridge.simulator.servicebus.clearing import purge, resubmit
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.handmade import compose
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.overview import Overview, overview
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.wire import parse_message

_NONE: Mapping[str, object] = MappingProxyType({})


class EntityActions:
    """The actions on the entities of one broker.

    Args:
        hub: connects the entities to the clients; after each action it runs a turn.
        clock: returns seconds since the epoch.
    """

    def __init__(self, hub: Hub, clock: Callable[[], float]) -> None:
        self._hub = hub
        self.now = clock

    @property
    def _namespace(self) -> Namespace:
        return self._hub.namespace

    def overview(self, entity: str | None = None) -> Overview:
        """Return all entities, and the content of one of them."""
        self._namespace.run_due()
        return overview(self._namespace, entity)

    def turn(self) -> None:
        """Do everything that is due; call this after the clock was set ahead."""
        self._hub.turn()

    def put(
        self,
        entity: str,
        body: bytes,
        *,
        subject: str | None = None,
        session_id: str | None = None,
        application_properties: Mapping[str, object] = _NONE,
    ) -> None:
        """Send a message to a queue or topic.

        Args:
            entity: the path of the queue or topic.
            body: the bytes of the body, sent as one data section.
            subject: the subject; None: the message has none.
            session_id: the session id; None: the message has none.
            application_properties: see ``handmade.compose``.

        Raises:
            RefusedError: the entity does not exist, or refuses the message; or AMQP
                cannot represent a property.
            TypeError: the body is a str; the caller has to encode it.
        """
        encoded = compose(
            body,
            subject=subject,
            session_id=session_id,
            application_properties=application_properties,
        )
        self._namespace.find_target(entity).send([parse_message(encoded)])
        self._hub.turn()

    def resubmit(self, entity: str, number: int | None = None) -> int:
        """Move dead letters back into the queue or subscription that they come from.

        Each becomes a new message, with a new number and no failed deliveries.

        Args:
            entity: the path of the queue or subscription.
            number: the sequence number of one dead letter; None: all of them.

        Returns:
            How many were moved. Locked dead letters are not moved.

        Raises:
            RefusedError: the entity does not exist or has no dead letters, or no dead
                letter has the number.
        """
        moved = resubmit(self._queue(entity), number)
        self._hub.turn()
        return moved

    def purge(self, entity: str, *, dead_letters: bool = False) -> int:
        """Delete all unlocked messages of a queue or subscription.

        Args:
            entity: the path of the queue or subscription.
            dead_letters: whether to delete its dead letters instead.

        Returns:
            How many were deleted.

        Raises:
            RefusedError: the entity does not exist, or is a topic.
        """
        queue = self._queue(entity)
        if dead_letters and queue.dead_letters is not None:
            queue = queue.dead_letters
        deleted = purge(queue)
        self._hub.turn()
        return deleted

    def _queue(self, entity: str) -> Queue:
        found = self._namespace.find(entity)
        if not isinstance(found, Queue):
            raise RefusedError(
                Condition.NOT_ALLOWED, f"{entity!r} is a topic, and keeps no messages"
            )
        found.use.touch()
        return found

"""Act on entities without a connection: view, fill, purge, change, delete."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.overview import Overview, compose, overview
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    QueueSettings,
    Status,
    TopicSettings,
)
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.values import Condition, RefusedError
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


# -- Purge a queue, or resubmit its dead letters. Pure ---------------------------------


def resubmit(queue: Queue, number: int | None = None) -> int:
    """Move dead letters back into their queue as new messages; return how many.

    Args:
        queue: the queue or subscription that the dead letters come from.
        number: the sequence number of one dead letter; None: all unlocked dead letters.

    Raises:
        RefusedError: this is a dead-letter queue, or no unlocked dead letter has this
            number.
    """
    if queue.dead_letters is None:
        raise RefusedError(
            Condition.NOT_ALLOWED, "a dead-letter queue has no dead letters of its own"
        )
    dead = queue.dead_letters.storage
    moved = [
        entry
        for entry in dead.backlog
        if entry.lock_token is None and number in {None, entry.sequence_number}
    ]
    if number is not None and not moved:
        raise RefusedError(Condition.MESSAGE_NOT_FOUND, f"no free dead letter {number}")
    for entry in moved:
        dead.remove(entry)
        queue.intake.take_in(entry.message)
    return len(moved)


def purge(queue: Queue) -> int:
    """Delete all unlocked messages, and the scheduled ones; return how many."""
    free = [each for each in queue.storage.backlog if each.lock_token is None]
    for entry in free:
        queue.storage.remove(entry)
    return len(free) + queue.intake.clear()


# -- Change and delete entities of a running broker, and detach their links ------------


class Changes:
    """Changes and deletes entities; also deletes idle ones (AutoDeleteOnIdle).

    Args:
        hub: the connections.

    Attributes:
        namespace: the entities; callers add new ones there, as these have no links yet.
    """

    def __init__(self, hub: Hub) -> None:
        self.namespace = hub.namespace
        self.namespace.on_idle = self.remove
        self._hub = hub

    def change(
        self, entity: Queue | Topic, settings: QueueSettings | TopicSettings
    ) -> None:
        """Change the settings of an entity.

        Receivers are detached if the entity is no longer active, or if it now forwards
        its messages. Senders stay attached; if they may not send, their messages are
        refused.

        Raises:
            RefusedError: the target of its forwarding does not exist.
        """
        self.namespace.change(entity, settings)
        if settings.status is not Status.ACTIVE:
            disabled = RefusedError(
                Condition.ENTITY_DISABLED, f"{entity.name!r} is {settings.status}"
            )
            self._hub.detach_links(entity.name, disabled)
        elif isinstance(settings, QueueSettings) and settings.forward_to is not None:
            forwards = RefusedError(
                Condition.NOT_ALLOWED, f"{entity.name!r} forwards all of its messages"
            )
            self._hub.detach_links(entity.name, forwards)
        self._hub.turn()

    def remove(self, entity: Queue | Topic) -> None:
        """Delete an entity, and detach its links with the error "not found".

        The link of a sender is detached at its next message, which is refused with the
        same error.
        """
        for path in self.namespace.remove(entity):
            # Clients recognise "The messaging entity" and "could not be found".
            gone = RefusedError(
                Condition.NOT_FOUND,
                f"The messaging entity {path!r} could not be found: it was deleted",
            )
            self._hub.detach_links(path, gone)

"""Change and delete entities of a running broker, and detach their links."""

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    QueueSettings,
    Status,
    TopicSettings,
)
from bridge.simulator.servicebus.topics import Topic


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

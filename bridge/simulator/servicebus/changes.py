"""Change the entities of a running broker: open links notice, as in the cloud."""

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
    """Changes and deletes entities, also those that nobody has used for their time.

    Args:
        hub: the connections.

    Attributes:
        namespace: the entities; what is only added needs nobody to notice.
    """

    def __init__(self, hub: Hub) -> None:
        self.namespace = hub.namespace
        self.namespace.on_idle = self.remove
        self._hub = hub

    def change(
        self, entity: Queue | Topic, settings: QueueSettings | TopicSettings
    ) -> None:
        """Change the behaviour of an entity.

        Its receivers are detached if it is disabled for anything, and if it forwards
        from now on. What a sender may no longer send is refused.

        Raises:
            RefusedError: it forwards to what is not there.
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
        """Delete an entity; its links are detached with "not found".

        Those of senders with their next message, which is refused so, too.
        """
        for path in self.namespace.remove(entity):
            # The clients know it by these words.
            gone = RefusedError(
                Condition.NOT_FOUND,
                f"the messaging entity {path!r} could not be found: it was deleted",
            )
            self._hub.detach_links(path, gone)

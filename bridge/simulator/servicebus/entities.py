"""The namespace: all entities of a broker, found by their paths.

Pure: no I/O, an injected clock. It holds the whole state of a broker.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.deadlines import Deadlines
from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    DEAD_LETTER_SUFFIX,
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.storage import Target
from bridge.simulator.servicebus.topics import Topic


class Namespace:
    """Queues, topics, subscriptions and their dead-letter queues.

    Args:
        entities: the settings of the entities.
        clock: returns seconds since the epoch.
    """

    def __init__(self, entities: Entities, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadlines = Deadlines()
        self._woken: dict[Queue, None] = {}
        self._by_path: dict[str, Queue | Topic] = {}
        for queue in entities.queues:
            self._add_queue(queue)
        for topic in entities.topics:
            self._add_topic(topic)
        self._connect_forwarding()

    def find(self, path: str) -> Queue | Topic:
        """Return the entity with this path; case does not matter.

        Raises:
            RefusedError: it does not exist.
        """
        found = self._by_path.get(path.lower())
        if found is None:
            raise RefusedError(
                Condition.NOT_FOUND, f"the messaging entity {path!r} could not be found"
            )
        return found

    def find_target(self, path: str) -> Target:
        """Return an entity that can be sent to.

        Raises:
            RefusedError: it does not exist, or cannot be sent to directly.
        """
        found = self.find(path)
        if isinstance(found, Topic) or (
            found.dead_letters is not None
            and not isinstance(found.settings, SubscriptionSettings)
        ):
            return found
        raise RefusedError(Condition.NOT_ALLOWED, f"{path!r} cannot be sent to")

    def find_queue(self, path: str) -> Queue:
        """Return an entity that can be received from.

        Raises:
            RefusedError: it does not exist, or cannot be received from.
        """
        found = self.find(path)
        if isinstance(found, Topic):
            raise RefusedError(
                Condition.NOT_ALLOWED, f"{path!r} is a topic: name a subscription"
            )
        if found.storage.forward_to is not None:
            raise RefusedError(
                Condition.NOT_ALLOWED, f"{path!r} forwards all of its messages"
            )
        return found

    def run_due(self) -> None:
        """Expire and enqueue everything that is due."""
        self._deadlines.run_due(self._clock())

    def next_deadline(self) -> float | None:
        """Return when the next action is due, or None."""
        return self._deadlines.next_deadline()

    def take_woken(self) -> tuple[Queue, ...]:
        """Return the queues that may have new messages."""
        woken = tuple(self._woken)
        self._woken.clear()
        return woken

    def snapshot(self) -> Mapping[str, Counts]:
        """Return the counts of every queue, topic and subscription by its path."""
        return {
            entity.name: entity.counts()
            for entity in self._by_path.values()
            if isinstance(entity, Topic) or entity.dead_letters is not None
        }

    def _wake(self, queue: Queue) -> None:
        self._woken[queue] = None

    def _add_queue(self, settings: QueueSettings) -> Queue:
        dead = QueueSettings(
            name=settings.name + DEAD_LETTER_SUFFIX,
            lock_duration=settings.lock_duration,
        )
        dead_letters = self._new_queue(dead, None)
        return self._new_queue(settings, dead_letters)

    def _new_queue(self, settings: QueueSettings, dead_letters: Queue | None) -> Queue:
        queue = Queue(
            settings,
            clock=self._clock,
            deadlines=self._deadlines,
            wake=self._wake,
            dead_letters=dead_letters,
        )
        self._by_path[settings.name.lower()] = queue
        return queue

    def _add_topic(self, settings: TopicSettings) -> None:
        subscriptions = []
        for subscription in settings.subscriptions:
            path = f"{settings.name}/Subscriptions/{subscription.name}"
            subscriptions.append(self._add_queue(replace(subscription, name=path)))
        self._by_path[settings.name.lower()] = Topic(
            settings, subscriptions, clock=self._clock, deadlines=self._deadlines
        )

    def _connect_forwarding(self) -> None:
        for queue in tuple(self._by_path.values()):
            if isinstance(queue, Topic) or queue.dead_letters is None:
                continue
            if queue.settings.forward_to is not None:
                target = self.find_target(queue.settings.forward_to)
                queue.storage.forward_to = target
            if queue.settings.forward_dead_letters_to is not None:
                target = self.find_target(queue.settings.forward_dead_letters_to)
                queue.dead_letters.storage.forward_to = target

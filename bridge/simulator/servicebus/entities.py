"""The namespace: all entities of a broker, found by their paths.

Pure: no I/O, an injected clock. It holds the whole state of a broker.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from bridge.simulator.servicebus.access import AccessRule
from bridge.simulator.servicebus.backlog import Counts, Deadline, Deadlines
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import (
    DEAD_LETTER_SUFFIX,
    TRANSFER_SUFFIX,
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
    check_receives,
    check_sends,
)
from bridge.simulator.servicebus.storage import Target
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.values import Condition, RefusedError


class Namespace:
    """Queues, topics, subscriptions and their dead-letter queues.

    Args:
        entities: the settings of the entities.
        clock: returns seconds since the epoch.

    Attributes:
        on_idle: called with an entity that was idle for its AutoDeleteOnIdle; the
            default deletes the entity.
        access: the rules of shared access by path in lower case; "" is the whole
            namespace. Paths without rules are absent.
    """

    def __init__(self, entities: Entities, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.access: dict[str, tuple[AccessRule, ...]] = {}
        self._keep_access("", entities.access)
        self._deadlines = Deadlines()
        self.on_idle: Callable[[Queue | Topic], object] = self.remove
        self._idleness = Idleness(
            clock=clock,
            deadlines=self._deadlines,
            delete=self._delete_idle,
        )
        self._woken: dict[Queue, None] = {}
        self._by_path: dict[str, Queue | Topic] = {}
        for queue in entities.queues:
            self._add_queue(queue)
        for topic in entities.topics:
            self._add_topic(topic)
        self._connect_forwarding()

    def entities(self) -> tuple[Queue | Topic, ...]:
        """Return all queues, topics and subscriptions, in the order of creation."""
        return tuple(
            entity
            for entity in self._by_path.values()
            if isinstance(entity, Topic) or entity.dead_letters is not None
        )

    def add_queue(self, settings: QueueSettings) -> Queue:
        """Add a queue.

        Raises:
            RefusedError: the name is taken, or the target of forwarding is invalid.
        """
        self._check_new(settings.name)
        self._check_forwarding(settings)
        queue = self._add_queue(settings)
        self._connect_forwarding()
        return queue

    def add_topic(self, settings: TopicSettings) -> Topic:
        """Add a topic with its subscriptions.

        Raises:
            RefusedError: the name is taken.
        """
        self._check_new(settings.name)
        topic = self._add_topic(settings)
        self._connect_forwarding()
        return topic

    def add_subscription(self, topic: Topic, settings: SubscriptionSettings) -> Queue:
        """Add a subscription to a topic.

        Raises:
            RefusedError: the name is taken, or the target of forwarding is invalid.
        """
        path = subscription_path(topic.name, settings.name)
        self._check_new(path)
        self._check_forwarding(settings)
        queue = self._add_queue(replace(settings, name=path))
        topic.subscriptions.append(queue)
        queue.use.parent = topic.use
        self._connect_forwarding()
        return queue

    def change(
        self, entity: Queue | Topic, settings: QueueSettings | TopicSettings
    ) -> None:
        """Change the settings of an entity.

        Raises:
            RefusedError: the target of forwarding is invalid.
        """
        if isinstance(entity, Topic) and isinstance(settings, TopicSettings):
            entity.change(settings)
        elif isinstance(entity, Queue) and isinstance(settings, QueueSettings):
            self._check_forwarding(settings)
            entity.change(settings)
            self._connect_forwarding()
        self._keep_access(entity.name, entity.settings.access)
        self._idleness.watch(entity)

    def remove(self, entity: Queue | Topic) -> tuple[str, ...]:
        """Delete an entity with its messages, and a topic with its subscriptions.

        Returns:
            The paths that no longer exist, including those of dead-letter queues.
        """
        gone = list(entity.subscriptions) if isinstance(entity, Topic) else [entity]
        paths = [entity.name] if isinstance(entity, Topic) else []
        self._idleness.forget(entity)
        for queue in gone:
            self._idleness.forget(queue)
            paths += [queue.name, queue.name + DEAD_LETTER_SUFFIX]
        for path in paths:
            del self._by_path[path.lower()]
            self._keep_access(path, ())
        for topic in self._by_path.values():
            if isinstance(topic, Topic):
                topic.subscriptions[:] = [
                    q for q in topic.subscriptions if q not in gone
                ]
        self._connect_forwarding()
        # The deadlines of a deleted queue still run, e.g. the end of a time to live.
        # Without a target, they cannot forward a message to another entity.
        for queue in gone:
            queue.storage.forward_to = None
            if queue.dead_letters is not None:
                queue.dead_letters.storage.forward_to = None
        return tuple(paths)

    def find(self, path: str) -> Queue | Topic:
        """Return the entity with this path; case does not matter.

        Raises:
            RefusedError: no entity has this path, or it is a transfer dead-letter
                queue, which this broker does not support.
        """
        found = self._by_path.get(path.lower())
        if found is None and is_transfer(path):
            raise RefusedError(
                Condition.NOT_IMPLEMENTED,
                "this broker keeps no transfer dead letters: a message stays in its "
                "queue if the target of forwarding does not exist",
            )
        if found is None:
            raise RefusedError(
                Condition.NOT_FOUND, f"The messaging entity {path!r} could not be found"
            )
        return found

    def find_target(self, path: str) -> Target:
        """Return an entity that can be sent to.

        Raises:
            RefusedError: the entity does not exist, is disabled for sending, or is a
                subscription or dead-letter queue.
        """
        found = self.find(path)
        if isinstance(found, Topic) or (
            found.dead_letters is not None
            and not isinstance(found.settings, SubscriptionSettings)
        ):
            check_sends(path, found.settings.status)
            return found
        raise RefusedError(Condition.NOT_ALLOWED, f"{path!r} cannot be sent to")

    def find_queue(self, path: str) -> Queue:
        """Return an entity that can be received from.

        Raises:
            RefusedError: the entity does not exist, is disabled for receiving, is a
                topic, or forwards its messages.
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
        check_receives(path, found.settings.status)
        return found

    def run_due(self) -> None:
        """Run all due actions, e.g. expire locks and enqueue scheduled messages."""
        self._deadlines.run_due(self._clock())

    def plan(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Plan an action, which can be cancelled."""
        return self._deadlines.add(self._clock() + seconds, action)

    def next_deadline(self) -> float | None:
        """Return when the next action is due, or None."""
        return self._deadlines.next_deadline()

    def take_woken(self) -> tuple[Queue, ...]:
        """Return the queues that may have new messages, and clear the list."""
        woken = tuple(self._woken)
        self._woken.clear()
        return woken

    def snapshot(self) -> Mapping[str, Counts]:
        """Return the counts of every queue, topic and subscription by its path."""
        return {entity.name: entity.counts() for entity in self.entities()}

    def _delete_idle(self, entity: Queue | Topic) -> None:
        self.on_idle(entity)

    def _wake(self, queue: Queue) -> None:
        self._woken[queue] = None

    def _add_queue(self, settings: QueueSettings) -> Queue:
        dead = QueueSettings(
            name=settings.name + DEAD_LETTER_SUFFIX,
            lock_duration=settings.lock_duration,
        )
        self._keep_access(settings.name, settings.access)
        dead_letters = self._new_queue(dead, None)
        queue = self._new_queue(settings, dead_letters)
        dead_letters.use = queue.use
        self._idleness.watch(queue)
        return queue

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

    def _add_topic(self, settings: TopicSettings) -> Topic:
        subscriptions = []
        for subscription in settings.subscriptions:
            path = subscription_path(settings.name, subscription.name)
            subscriptions.append(self._add_queue(replace(subscription, name=path)))
        topic = Topic(
            settings, subscriptions, clock=self._clock, deadlines=self._deadlines
        )
        for queue in subscriptions:
            queue.use.parent = topic.use
        self._by_path[settings.name.lower()] = topic
        self._idleness.watch(topic)
        self._keep_access(settings.name, settings.access)
        return topic

    def _keep_access(self, path: str, rules: tuple[AccessRule, ...]) -> None:
        self.access.pop(path.lower(), None)
        if rules:
            self.access[path.lower()] = rules

    def _check_new(self, path: str) -> None:
        if path.lower() in self._by_path:
            raise RefusedError(
                Condition.ENTITY_ALREADY_EXISTS, f"the entity {path!r} exists"
            )

    def _check_forwarding(self, settings: QueueSettings) -> None:
        """Check that the targets exist.

        As in the cloud, a queue may forward to itself once it exists: its messages then
        become dead letters after four hops.
        """
        for target in (settings.forward_to, settings.forward_dead_letters_to):
            if target is not None:
                self.find_target(target)

    def _connect_forwarding(self) -> None:
        """Set the target of each forwarding queue; None if the target is deleted."""
        for queue in tuple(self._by_path.values()):
            if isinstance(queue, Topic) or queue.dead_letters is None:
                continue
            settings = queue.settings
            queue.storage.forward_to = self._target(settings.forward_to)
            queue.dead_letters.storage.forward_to = self._target(
                settings.forward_dead_letters_to
            )

    def _target(self, path: str | None) -> Target | None:
        if path is None or path.lower() not in self._by_path:
            return None
        return self.find(path)


def is_transfer(path: str) -> bool:
    """Return whether a path is that of transfer dead letters."""
    return path.lower().endswith(TRANSFER_SUFFIX.lower())


def subscription_path(topic: str, name: str) -> str:
    """Return the path of a subscription."""
    return f"{topic}/Subscriptions/{name}"


# -- Delete entities that were unused for the time in AutoDeleteOnIdle. Pure -----------
#
# Use of an entity is:
#     queue         sends, receives, peeks, updates, scheduled messages, forwarding
#     topic         sends, updates, scheduled messages, use of a subscription
#     subscription  receives, peeks, updates, new rules, forwarding
# An attached receiver counts as use, even if it gets no messages. Use of dead letters
# counts as use of their queue or subscription.
#
# Source: Azure Service Bus, message expiration: temporary entities, idleness. That page
#         does not mention attached receivers and dead letters.


class Idleness:
    """Finds idle entities.

    Args:
        clock: returns seconds since the epoch.
        deadlines: plans the next check of each entity.
        delete: called with an entity that was idle for its AutoDeleteOnIdle.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
        delete: Callable[[Queue | Topic], None],
    ) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._delete = delete
        self._checks: dict[Queue | Topic, Deadline] = {}

    def watch(self, entity: Queue | Topic) -> None:
        """Measure the idle time of an entity from now on, if its settings limit it."""
        self.forget(entity)
        entity.use.restart()
        self._plan(entity, self._clock())

    def forget(self, entity: Queue | Topic) -> None:
        """Stop watching an entity."""
        planned = self._checks.pop(entity, None)
        if planned is not None:
            planned.cancel()

    def _plan(self, entity: Queue | Topic, since: float) -> None:
        window = entity.settings.auto_delete_on_idle
        if window is not None:
            at = since + window.total_seconds()
            self._checks[entity] = self._deadlines.add(at, lambda: self._check(entity))

    def _check(self, entity: Queue | Topic) -> None:
        window = entity.settings.auto_delete_on_idle
        now = self._clock()
        since = now if _is_used(entity) else _last_used(entity)
        if window is None or now < since + window.total_seconds():
            self._plan(entity, since)
        else:
            del self._checks[entity]
            self._delete(entity)


def _is_used(entity: Queue | Topic) -> bool:
    if isinstance(entity, Queue) and entity.settings.forward_to is not None:
        return True
    return entity.use.is_held or len(entity.intake) > 0


def _last_used(entity: Queue | Topic) -> float:
    return max(entity.use.at, entity.intake.activated_at)

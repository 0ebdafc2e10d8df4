"""Delete entities that were unused for the time in AutoDeleteOnIdle. Pure.

Use of an entity is:
    queue         sends, receives, peeks, updates, scheduled messages, forwarding
    topic         sends, updates, scheduled messages, use of a subscription
    subscription  receives, peeks, updates, new rules, forwarding
An attached receiver counts as use, even if it gets no messages. Use of dead letters
counts as use of their queue or subscription.

Source: Azure Service Bus, message expiration: temporary entities, idleness. That page
        does not mention attached receivers and dead letters.
"""

from collections.abc import Callable

from bridge.simulator.servicebus.deadlines import Deadline, Deadlines
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.topics import Topic


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

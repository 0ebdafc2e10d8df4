"""Delete entities that nobody has used for a time: AutoDeleteOnIdle. Pure.

What counts as use:
    queue         sends, receives, looks, updates, scheduled messages, forwarding
    topic         sends, updates, scheduled messages, use of a subscription
    subscription  receives, looks, updates, new rules, forwarding
A receiver that is attached receives, whether messages come or not; whoever uses dead
letters uses their queue or subscription.

Source: Azure Service Bus, message expiration: temporary entities, idleness. It does not
        speak of attached receivers, nor of dead letters.
"""

from collections.abc import Callable

from bridge.simulator.servicebus.deadlines import Deadline, Deadlines
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.topics import Topic


class Idleness:
    """Watches entities.

    Args:
        clock: returns seconds since the epoch.
        deadlines: where it waits.
        delete: called with an entity that was idle for its time.
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
        self._looks: dict[Queue | Topic, Deadline] = {}

    def watch(self, entity: Queue | Topic) -> None:
        """Count an entity's time from now on, as its settings say."""
        self.forget(entity)
        entity.use.touch()
        self._plan(entity, self._clock())

    def forget(self, entity: Queue | Topic) -> None:
        """Watch an entity no longer."""
        planned = self._looks.pop(entity, None)
        if planned is not None:
            planned.cancel()

    def _plan(self, entity: Queue | Topic, since: float) -> None:
        window = entity.settings.auto_delete_on_idle
        if window is not None:
            at = since + window.total_seconds()
            self._looks[entity] = self._deadlines.add(at, lambda: self._look(entity))

    def _look(self, entity: Queue | Topic) -> None:
        window = entity.settings.auto_delete_on_idle
        now = self._clock()
        since = now if _is_used(entity) else _last_used(entity)
        if window is None or now < since + window.total_seconds():
            self._plan(entity, since)
        else:
            del self._looks[entity]
            self._delete(entity)


def _is_used(entity: Queue | Topic) -> bool:
    if isinstance(entity, Queue) and entity.settings.forward_to is not None:
        return True
    return entity.use.is_held or len(entity.intake) > 0


def _last_used(entity: Queue | Topic) -> float:
    return max(entity.use.at, entity.intake.activated_at)

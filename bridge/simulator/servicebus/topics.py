"""A topic: copies each message to every subscription that admits it.

Pure. A topic itself stores only scheduled messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.deadlines import Deadlines
from bridge.simulator.servicebus.intake import Intake
from bridge.simulator.servicebus.message import Message, Origin
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import SubscriptionSettings, TopicSettings


class Topic:
    """A topic and its subscriptions.

    Args:
        settings: its behaviour.
        subscriptions: each with its queue, in the order of the settings.
        clock: returns seconds since the epoch.
        deadlines: where scheduled messages wait.
    """

    def __init__(
        self,
        settings: TopicSettings,
        subscriptions: Sequence[tuple[SubscriptionSettings, Queue]],
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
    ) -> None:
        self._settings = settings
        self._subscriptions = tuple(subscriptions)
        self._intake = Intake(
            clock=clock,
            deadlines=deadlines,
            window=settings.duplicate_window,
            enqueue=self._publish,
        )

    @property
    def name(self) -> str:
        """Its path."""
        return self._settings.name

    def send(self, messages: Sequence[Message]) -> tuple[int | None, ...]:
        """Accept messages from a sender: all or none.

        Returns:
            The sequence number of each; None for a duplicate, which is dropped.

        Raises:
            RefusedError: a subscription is full.
        """
        for settings, queue in self._subscriptions:
            queue.check_room([m for m in messages if settings.admits(m)])
        return tuple(self._intake.accept(message) for message in messages)

    def accept(self, message: Message, origin: Origin) -> None:
        """Accept a message from another entity, even if a subscription is full."""
        self._intake.accept(message, origin)

    def cancel_scheduled(self, numbers: Sequence[int]) -> None:
        """Drop scheduled messages.

        Raises:
            RefusedError: one of them is not scheduled; then none is dropped.
        """
        self._intake.cancel(numbers)

    def counts(self) -> Counts:
        """Return the number of scheduled messages in the topic itself."""
        return Counts(scheduled=len(self._intake))

    def _publish(self, message: Message, number: int, origin: Origin) -> None:
        message = self._limit_time_to_live(message)
        origin = replace(origin, sequence_number=origin.sequence_number or number)
        for settings, queue in self._subscriptions:
            if settings.admits(message):
                queue.accept(message, origin)

    def _limit_time_to_live(self, message: Message) -> Message:
        default = self._settings.default_time_to_live
        if default is None:
            return message
        sent = message.time_to_live
        limit = default.total_seconds()
        return replace(
            message, time_to_live=limit if sent is None else min(sent, limit)
        )

"""A topic: copies each message to every subscription that admits it.

Pure. A topic itself stores only scheduled messages.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bridge.simulator.servicebus.backlog import Counts, Deadlines
from bridge.simulator.servicebus.intake import Intake, check_partition
from bridge.simulator.servicebus.message import DeadLetter, Message, Origin
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.rules.row import Arrival
from bridge.simulator.servicebus.settings import (
    SubscriptionSettings,
    TopicSettings,
    check_sends,
)
from bridge.simulator.servicebus.storage import Use
from bridge.simulator.servicebus.wire import cap_time_to_live

FILTER_FAILED = "FilterEvaluationException"


class Topic:
    """A topic and its subscriptions.

    Args:
        settings: the behaviour of the topic.
        subscriptions: the queues of its subscriptions, in the order of the settings.
        clock: returns seconds since the epoch.
        deadlines: plans the time of scheduled messages.

    Attributes:
        settings: the behaviour of the topic.
        subscriptions: the queues of its subscriptions.
        intake: accepts messages, and holds the scheduled ones.
        use: when the topic was used.
    """

    def __init__(
        self,
        settings: TopicSettings,
        subscriptions: Sequence[Queue],
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self.subscriptions = list(subscriptions)
        self.use = Use(clock)
        self.intake = Intake(
            clock=clock,
            deadlines=deadlines,
            window=settings.duplicate_window,
            enqueue=self._publish,
        )

    @property
    def name(self) -> str:
        """The path of the topic."""
        return self.settings.name

    def change(self, settings: TopicSettings) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self.intake.detect_within(settings.duplicate_window)

    def send(self, messages: Sequence[Message]) -> tuple[int | None, ...]:
        """Accept messages from a sender: all or none.

        Returns:
            The sequence number of each; None for a duplicate, which is dropped.

        Raises:
            RefusedError: see ``check``.
        """
        self.check(messages)
        self.use.touch()
        return tuple(self.intake.accept(message) for message in messages)

    def check(self, messages: Sequence[Message]) -> None:
        """Check that messages of a sender would be accepted.

        Raises:
            RefusedError: the topic is disabled, or a subscription is full.
        """
        check_sends(self.name, self.settings.status)
        if self.settings.is_partitioned:
            check_partition(self.name, messages)
        now = self._clock()
        for queue in self.subscriptions:
            room = [
                queue.rules.admit(m, Arrival(number=0, at=now)).copies for m in messages
            ]
            queue.check_room([copy for copies in room for copy in copies])

    def accept(self, message: Message, origin: Origin) -> None:
        """Accept a message from another entity, even if a subscription is full."""
        self.intake.accept(message, origin)

    def cancel_scheduled(self, numbers: Sequence[int]) -> None:
        """Drop scheduled messages.

        Raises:
            RefusedError: one of them is not scheduled; then none is dropped.
        """
        self.intake.cancel(numbers)

    def counts(self) -> Counts:
        """Return the number of scheduled messages in the topic itself."""
        return Counts(scheduled=len(self.intake))

    def _publish(self, message: Message, number: int, origin: Origin) -> None:
        message = cap_time_to_live(message, self.settings.default_time_to_live)
        origin = replace(origin, sequence_number=origin.sequence_number or number)
        dead = origin.dead_letter
        arrival = Arrival(
            number=number,
            at=self._clock(),
            dead_letter_source=None if dead is None else dead.source,
        )
        for queue in self.subscriptions:
            admitted = queue.rules.admit(message, arrival)
            for copy in admitted.copies:
                queue.accept(copy, origin)
            if admitted.failures:
                _dead_letter(queue, message, origin, "; ".join(admitted.failures))


def _dead_letter(queue: Queue, message: Message, origin: Origin, why: str) -> None:
    """Dead-letter a message that a rule cannot be applied to, if so configured."""
    settings, dead_letters = queue.settings, queue.dead_letters
    is_wanted = isinstance(settings, SubscriptionSettings) and (
        settings.dead_letter_filter_errors
    )
    if is_wanted and dead_letters is not None:
        dead_letter = DeadLetter(
            source=queue.name, reason=FILTER_FAILED, description=why
        )
        dead_letters.accept(message, replace(origin, dead_letter=dead_letter))

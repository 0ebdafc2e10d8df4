"""Record when an entity was used last, and whether receivers are attached. Pure."""

from collections.abc import Callable


class Use:
    """The use of one entity.

    Args:
        clock: returns seconds since the epoch.

    Attributes:
        at: the time of the last use; at first, the time of creation.
        accessed_at: the time of the last use; None: it was never used.
        parent: the use of the topic, which the use of a subscription counts for; None:
            this is not a subscription.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._holders = 0
        self.at = clock()
        self.accessed_at: float | None = None
        self.parent: Use | None = None

    @property
    def is_held(self) -> bool:
        """Whether a receiver is attached."""
        return self._holders > 0

    def restart(self) -> None:
        """Begin to measure the idle time again; this is no use of the entity."""
        self.at = self._clock()
        if self.parent is not None:
            self.parent.restart()

    def touch(self) -> None:
        """Record a use of the entity."""
        self.at = self.accessed_at = self._clock()
        if self.parent is not None:
            self.parent.touch()

    def begin(self) -> None:
        """Record that a receiver is attached."""
        self._holders += 1
        self.accessed_at = self._clock()
        if self.parent is not None:
            self.parent.begin()

    def end(self) -> None:
        """Record that a receiver is detached; its use ends now."""
        self._holders -= 1
        self.at = self.accessed_at = self._clock()
        if self.parent is not None:
            self.parent.end()

"""When an entity was used last, and whether somebody uses it now. Pure."""

from collections.abc import Callable


class Use:
    """The use of one entity.

    Args:
        clock: returns seconds since the epoch.

    Attributes:
        at: the last use; at first, when it was made.
        above: what is used with it: the topic of a subscription.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._holders = 0
        self.at = clock()
        self.above: Use | None = None

    @property
    def is_held(self) -> bool:
        """Whether a receiver is attached."""
        return self._holders > 0

    def touch(self) -> None:
        """Note that it is used."""
        self.at = self._clock()
        if self.above is not None:
            self.above.touch()

    def begin(self) -> None:
        """Note that a receiver is attached."""
        self._holders += 1
        if self.above is not None:
            self.above.begin()

    def end(self) -> None:
        """Note that a receiver is gone: until now, there was use."""
        self._holders -= 1
        self.at = self._clock()
        if self.above is not None:
            self.above.end()

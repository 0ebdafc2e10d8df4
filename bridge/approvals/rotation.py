"""The interface through which approvals use the traffic probe.

It is a module of its own, so that a bridge without approvals does not load the other
modules of this package.
"""

from typing import Protocol

from bridge.events.document import ScheduledEvent


class Rotation(Protocol):
    """Takes this VM out of a balancer's rotation before maintenance."""

    def leave(self, event: ScheduledEvent, *, settles: bool) -> float:
        """Take this VM out of rotation for an event of its own that will be approved.

        Return the seconds that the approval must still wait: if it ``settles``, until
        the probe has said "out" for the time of that name.
        """
        ...

    def stay(self, key: str) -> None:
        """Undo ``leave``: the event was not approved after all."""
        ...

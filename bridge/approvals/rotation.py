"""What approvals ask of whoever answers the probes of a balancer.

Apart from the rest, so that who has no approvals does not load them.
"""

from dataclasses import dataclass
from typing import Protocol

from bridge.events.document import ScheduledEvent


class Rotation(Protocol):
    """Takes this VM out of a balancer's rotation before it is touched."""

    def leave(self, event: ScheduledEvent, *, settles: bool) -> float:
        """Take this VM out for an event that is about to be approved, if it is its own.

        Args:
            event: as the document has it.
            settles: whether the approval waits until the probe was out for a while.

        Returns:
            For how many seconds the approval is still to wait.
        """
        ...

    def stay(self, key: str) -> None:
        """Let an event hold this VM out no longer: its approval came to nothing."""
        ...


@dataclass(frozen=True, slots=True)
class _Stays:
    """No balancer asks for this VM."""

    def leave(self, event: ScheduledEvent, *, settles: bool) -> float:  # noqa: ARG002 - the protocol's
        """Wait for nothing."""
        return 0.0

    def stay(self, key: str) -> None:
        """Do nothing."""


STAYS = _Stays()

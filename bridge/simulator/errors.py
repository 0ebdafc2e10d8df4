"""What can go wrong in the simulator. Each text is one sentence for its user."""

import os
from collections.abc import Sequence


class SimulatorError(Exception):
    """The simulator cannot do what it was asked to."""


class ListenError(SimulatorError):
    """A server that cannot listen where it is to.

    Args:
        name: how to name the server.
        host: the address it was to listen on.
        port: the port.
        error: what the system said.
    """

    def __init__(self, name: str, host: str, port: int, error: Exception) -> None:
        number = getattr(error, "errno", None) or 0
        # asyncio wraps the system's text into one of its own; a name that is not
        # resolved has a number below 0 and a text of the resolver.
        why = os.strerror(number) if number > 0 else str(error)
        super().__init__(f"{name} cannot listen on {host}:{port}: {why}")


class EntityFileError(SimulatorError):
    """An entity file that cannot be used.

    Args:
        lines: one for each fault, with the file and the place in it.

    Attributes:
        lines: the same.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class ScenarioError(SimulatorError):
    """A scenario that does not exist or cannot be read."""


class BadInputError(SimulatorError):
    """A control request that is not understood."""


class ForeignCallerError(SimulatorError):
    """A control request that a page of another site had a browser send."""


class NoSuchEventError(SimulatorError):
    """A control request about an event that is not there."""


class NoSuchEntityError(SimulatorError):
    """A control request about a queue, topic or subscription that is not there."""


class NotLiveError(SimulatorError):
    """A change of events while fixed documents are shown instead of them."""

"""The errors of the simulator. Each text is one sentence for the user."""

import os
from collections.abc import Sequence


class SimulatorError(Exception):
    """The simulator cannot do what was requested."""


class ListenError(SimulatorError):
    """A server cannot listen at its address.

    Args:
        name: the name of the server in the text.
        host: the address it was to listen on.
        port: the port.
        error: the error of the system.
    """

    def __init__(self, name: str, host: str, port: int, error: Exception) -> None:
        number = getattr(error, "errno", None) or 0
        # asyncio wraps the system's text, so the text is looked up by errno. If a name
        # cannot be resolved, errno is below 0 and the text is the resolver's.
        why = os.strerror(number) if number > 0 else str(error)
        super().__init__(f"{name} cannot listen on {host}:{port}: {why}")


class EntityFileError(SimulatorError):
    """An entity file cannot be used.

    Args:
        lines: one for each fault, with the file and the place in it.

    Attributes:
        lines: the given lines.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class ScenarioError(SimulatorError):
    """A scenario does not exist or cannot be read."""


class BadInputError(SimulatorError):
    """A control request is invalid."""


class ForeignCallerError(SimulatorError):
    """A control request comes from a page of another site."""


class NoSuchEventError(SimulatorError):
    """A control request names an event that does not exist."""


class NoSuchEntityError(SimulatorError):
    """A control request names a queue, topic or subscription that does not exist."""


class NotLiveError(SimulatorError):
    """A change of events is requested while fixed documents are shown."""

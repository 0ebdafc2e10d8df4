"""The settings of a command that ``actor`` needs."""

from typing import Protocol

from bridge.events.routing import Route
from bridge.foundation.values import Duration


class Terms(Protocol):
    """The settings of a command; ``CommandSinkConfig`` has them."""

    @property
    def name(self) -> str:
        """The name of the sink."""
        ...

    @property
    def route(self) -> Route:
        """The events that the command is run for."""
        ...

    @property
    def program(self) -> tuple[str, ...]:
        """The program and its arguments."""
        ...

    @property
    def lead(self) -> Duration:
        """The longest time before NotBefore at which a prepare may begin."""
        ...

    @property
    def timeout(self) -> Duration:
        """The longest time of one run."""
        ...

    @property
    def retry_exit_codes(self) -> tuple[int, ...]:
        """The exit codes after which the command is run again."""
        ...

    @property
    def max_attempts(self) -> int:
        """The most runs for one step."""
        ...

    @property
    def output(self) -> str:
        """When the result event contains the output: failed, always or never."""
        ...

    @property
    def at_start(self) -> bool:
        """Whether the bridge runs a restore after a start without a fitting event."""
        ...

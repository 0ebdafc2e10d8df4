"""What a configuration says of a command, for who runs it."""

from typing import Protocol

from bridge.events.routing import Route
from bridge.foundation.values import Duration


class Terms(Protocol):
    """What a configuration says of a command."""

    @property
    def name(self) -> str:
        """The sink's."""
        ...

    @property
    def route(self) -> Route:
        """What it is run for."""
        ...

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments."""
        ...

    @property
    def lead(self) -> Duration:
        """How long before NotBefore it is run at the earliest."""
        ...

    @property
    def timeout(self) -> Duration:
        """How long it may take."""
        ...

    @property
    def retry_exit_codes(self) -> tuple[int, ...]:
        """By which it asks to be run again."""
        ...

    @property
    def max_attempts(self) -> int:
        """How often it is run for one step."""
        ...

    @property
    def output(self) -> str:
        """When its output is told."""
        ...

    @property
    def at_start(self) -> bool:
        """Whether a life that finds no event begins with a restore."""
        ...

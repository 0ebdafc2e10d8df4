"""The settings of a command that ``actor`` needs."""

from collections.abc import Callable
from typing import Protocol

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.events.routing import Route
from bridge.foundation.values import Duration
from bridge.sinks.acting import Begin, Outlook, Skip, Verdict, Wait


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


# -- The restore after a start of the bridge, such as on a VM that was redeployed ------
#
# the first good document ─┬─ has no event that fits the sink ─▶ one restore
#                          └─ has one ──▶ nothing: the end of the event restores


_TYPE = ".bridge.started.v1"
_LOOK_AGAIN = 1.0

Fits = Callable[[ScheduledEvent], bool]


def is_start(event: CloudEvent) -> bool:
    """Whether an event is the ``started`` event that stands for such a restore."""
    return event.type.endswith(_TYPE)


def is_free(outlook: Outlook, fits: Fits) -> bool | None:
    """Whether no known event fits the sink; None while this is not certain."""
    document = outlook.document
    if document is None or document.faults:
        return None  # an element that could not be read may be such an event
    known = (one.event for one in outlook.watch.known.values())
    return not any(fits(event) for event in (*document.events.values(), *known))


def verdict(outlook: Outlook, fits: Fits) -> Verdict:
    """Decide whether the restore may begin now."""
    found = is_free(outlook, fits)
    if found is None:
        return Wait(_LOOK_AGAIN)
    return Begin() if found else Skip("an event exists: its end runs the restore")

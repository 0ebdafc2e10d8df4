"""The keys of a command, and when it restores after a start of the bridge."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.foundation.values import Duration
from bridge.sinks.acting import Begin, Outlook, Skip, Verdict, Wait
from bridge.sinks.base import SinkConfig
from bridge.sinks.command.unit import Places, hook_name


class CommandKeys(SinkConfig, frozen=True, kw_only=True):
    """The keys of a sink that runs a command.

    Attributes:
        command: the program with its whole path, and its arguments; no shell. The event
            comes on standard input. Example: ``["/etc/sebridge/hooks/drain"]``.
        unit: in place of command, on Linux: the unit in which root runs the hook
            /etc/sebridge/hooks/NAME. Example: ``"sebridge-hook@drain.service"``.
        lead: a prepare begins at most this long before NotBefore.
        timeout: the longest time of one run; then SIGTERM, and SIGKILL after 10 s.
        retry_exit_codes: exit codes after which the command is run again, as after a
            timeout or a signal. Any other code but 0 is final. Example: ``[75]``.
        max_attempts: the most runs for one step. Example: ``3``.
        output: when the result event contains the output of the command.
        at_start: whether one restore is run after a start of the bridge, if the first
            good document has no event for this sink, as after a redeployment of the VM.
    """

    hooks: ClassVar[Path] = Places().hooks

    command: tuple[str, ...] = ()
    unit: str = ""
    lead: Duration = Duration(1800)
    timeout: Duration = Duration(600)
    retry_exit_codes: tuple[int, ...] = (75,)
    max_attempts: int = 3
    output: Literal["failed", "always", "never"] = "failed"
    at_start: bool = False

    @property
    def program(self) -> tuple[str, ...]:
        """The program and its arguments; the hook of the unit has no arguments."""
        name = hook_name(self.unit)
        return self.command if name is None else (str(self.hooks / name),)


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

"""The restore at the start of a life that finds no event: a VM that was redeployed.

the first good document ─┬─ names no event that fits ─▶ one restore is asked for
                         └─ names one ──▶ nothing: its end restores
"""

from collections.abc import Callable

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.sinks.acting import Begin, Outlook, Skip, Verdict, Wait

_TYPE = ".bridge.started.v1"
_LOOK_AGAIN = 1.0

Fits = Callable[[ScheduledEvent], bool]


def is_start(event: CloudEvent) -> bool:
    """Whether it is the start of the bridge that a restore is asked for by."""
    return event.type.endswith(_TYPE)


def is_free(outlook: Outlook, fits: Fits) -> bool | None:
    """Whether no event is known that fits; None while that cannot be said."""
    document = outlook.document
    if document is None or document.faults:
        return None  # what could not be read may be one
    known = (one.event for one in outlook.watch.known.values())
    return not any(fits(event) for event in (*document.events.values(), *known))


def verdict(outlook: Outlook, fits: Fits) -> Verdict:
    """Say whether the restore may begin now."""
    found = is_free(outlook, fits)
    if found is None:
        return Wait(_LOOK_AGAIN)
    return Begin() if found else Skip("an event is there: its end restores")

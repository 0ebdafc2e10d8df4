"""The closed sets of words that events, sinks, approvals and the hub share. Pure.

The members are text: they compare equal to the words of a type, of ``data`` and of a
row, and are written as these words.

Source: config/events.md, config/approvals.md.
"""

from enum import StrEnum

from msgspec import Struct


class EventType(Struct, frozen=True):
    """What an EventType means for the VM.

    Attributes:
        name: as in IMDS.
        impact: what happens to the VM, as part of a sentence.
        is_disruptive: what runs on the VM ends: it is severe, and the default of
            ``[traffic]`` and of hooks.
        ends_vm: the VM is gone afterwards, and reports nothing more.
        cause: why the VM was down, if the type alone says it; "": it does not.
    """

    name: str
    impact: str
    is_disruptive: bool = True
    ends_vm: bool = False
    cause: str = ""


# The documented values. Azure may send others; those are passed on. A further one is a
# line here: all that depends on the type reads this table.
_EVENT_TYPES = (
    EventType(
        "Freeze",
        "the VM is paused for some seconds; memory and connections are kept",
        is_disruptive=False,
    ),
    EventType("Reboot", "the VM is restarted; what is only in memory is lost"),
    EventType("Redeploy", "the VM moves to another host; temporary disks are lost"),
    EventType(
        "Preempt",
        "a Spot VM is evicted; temporary disks are lost",
        ends_vm=True,
        cause="Spot capacity",
    ),
    EventType("Terminate", "the VM is going to be deleted", ends_vm=True),
)
KNOWN_TYPES = {one.name: one for one in _EVENT_TYPES}
EVENT_TYPES = tuple(KNOWN_TYPES)
DISRUPTIVE = tuple(one.name for one in _EVENT_TYPES if one.is_disruptive)
_BY_SMALL_NAME = {one.name.casefold(): one for one in _EVENT_TYPES}


def impact_of(event_type: object, seconds: object) -> str:
    """Return what happens to the VM, for people: "" if that is not known.

    Args:
        event_type: ``EventType`` as received; case does not matter.
        seconds: ``DurationInSeconds`` as received; 0: without impact.
    """
    if seconds == 0 and not isinstance(seconds, bool):
        return "none"
    name = event_type.casefold() if isinstance(event_type, str) else ""
    known = _BY_SMALL_NAME.get(name)
    return known.impact if known else ""


class EventStatus(StrEnum):
    """The documented values of EventStatus; Azure may send others."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"


class TransitionKind(StrEnum):
    """What happened to a scheduled event; CloudEvents types contain these values."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    UPDATED = "updated"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ENDED = "ended"


class OutcomeKind(StrEnum):
    """The outcome of one EventId; CloudEvents types contain these values."""

    INVALID = "invalid"
    RELAYED = "relayed"
    EXPIRED = "expired"
    UNKNOWN_EVENT = "unknown-event"
    EVENT_ENDED = "event-ended"
    ALREADY_STARTED = "already-started"
    DENIED = "denied"
    REJECTED = "rejected"
    FAILED = "failed"
    WITHHELD = "withheld"  # only for a rule's request, never for a message


COMMAND_OUTCOMES = ("succeeded", "failed", "skipped")

# The sets are of ``str``, because most callers look up a word from outside.
TRANSITIONS: frozenset[str] = frozenset(TransitionKind)
# The transitions after which the scheduled event is no longer in the document.
GONE: frozenset[str] = frozenset(
    {TransitionKind.COMPLETED, TransitionKind.CANCELLED, TransitionKind.ENDED}
)
# The transitions after which the scheduled event is in the document.
PRESENT: frozenset[str] = TRANSITIONS - GONE
# The outcomes that mean: the event is approved, and no further POST is needed.
APPROVED: frozenset[str] = frozenset({OutcomeKind.RELAYED, OutcomeKind.ALREADY_STARTED})
# The outcomes after which an approval would change nothing: approved, or gone.
NOTHING_TO_APPROVE: frozenset[str] = APPROVED | {OutcomeKind.EVENT_ENDED}

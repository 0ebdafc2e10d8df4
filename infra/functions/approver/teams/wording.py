"""The words of the card: what the bridge's messages in Slack say, too. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from approver.announcements import moment
from approver.ballots import Ballot, Mark
from approver.errors import UnreadableError
from approver.people import mentions

NAME, LINE, PARAGRAPH = 80, 200, 600
_MOST_NAMES: Final = 10
# Control characters, marks that change the writing direction, and lone surrogates.
_NOT_SHOWN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff]"
)
_STEPS: Final = {
    "scheduled": "is scheduled",
    "started": "has started",
    "updated": "was changed",
    "completed": "is over",
    "cancelled": "was cancelled",
    "ended": "has ended; its outcome is not known",
}
_MARKS: Final = {
    "scheduled": "Scheduled",
    "started": "Started",
    "updated": "Changed",
    "completed": "Over",
    "cancelled": "Cancelled",
    "ended": "Ended",
}
_OUTCOMES: Final = {
    "relayed": "Approval passed on to Azure",
    "already-started": "Approval not needed: it has started already",
    "event-ended": "Approval too late: the event is gone",
    "unknown-event": "Approval refused: no such event here",
    "denied": "Approval denied",
    "expired": "Approval expired",
    "invalid": "Approval not readable",
    "rejected": "Approval rejected by Azure",
    "failed": "Approval not passed on: Azure could not be reached",
    "withheld": "Approval not given yet",
}
_IMPACTS: Final = {
    "freeze": "the VM is paused for some seconds; memory and connections are kept",
    "reboot": "the VM is restarted; what is only in memory is lost",
    "redeploy": "the VM moves to another host; temporary disks are lost",
    "preempt": "a Spot VM is evicted; temporary disks are lost",
    "terminate": "the VM is going to be deleted",
}


def headline(ballot: Ballot) -> str:
    """Return the type of the event and where it stands."""
    kind = text_of(ballot.event.get("EventType"), NAME) or "Event of unknown type"
    return f"{kind} {_STEPS.get(status_of(ballot), 'was changed')}"


def status_of(ballot: Ballot) -> str:
    """Return the step; after an update, the status of the event."""
    if ballot.step != "updated":
        return ballot.step
    status = ballot.event.get("EventStatus")
    found = {"Scheduled": "scheduled", "Started": "started"}
    return found.get(str(status), ballot.step)


def machines(ballot: Ballot, most: int = _MOST_NAMES) -> str:
    """Return the first names of Resources, and how many more there are."""
    shown = ", ".join(safe(each, NAME) for each in ballot.names[:most])
    rest = len(ballot.names) - most
    return (shown + (f" and {rest} more" if rest > 0 else "")) or "unknown machines"


def impact_of(event: Mapping[str, object]) -> str:
    """Return the impact on the VM, and its duration."""
    kind, seconds = event.get("EventType"), event.get("DurationInSeconds")
    impact = _IMPACTS.get(kind.casefold() if isinstance(kind, str) else "", "not known")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 0:
        return impact
    return f"{impact}; about {_span(seconds)}" if seconds else "none"


def decided(ballot: Ballot, missing: str = "") -> str:
    """Return who voted or decided; "" if nobody did yet.

    Args:
        ballot: the votes.
        missing: what is still wanted, for votes that do not decide yet.
    """
    words = _voted(ballot, missing)
    if decision := ballot.decision:
        people = safe(mentions(decision.by, decision.names, "Teams"), LINE)
        if ballot.is_refused:
            since = f"; since then {words}" if words else ""
            return f"Not approved: refused by {people}{since}"
        return f"Approved by {people}" + ("" if decision.is_sent else "; not sent yet")
    return words


def _voted(ballot: Ballot, missing: str) -> str:
    """Return who has approved, and what is still wanted; "" if nobody has."""
    if not ballot.votes:
        return ""
    names = [each.name for each in ballot.votes]
    people = safe(
        mentions([each.person for each in ballot.votes], names, "Teams"), LINE
    )
    return f"{people} approved" + (f"; missing: {missing}" if missing else "")


def marked(mark: Mark) -> str:
    """Return a step or an outcome as a line, without its time."""
    if mark.what in _MARKS:
        return _MARKS[mark.what]
    words = _OUTCOMES.get(mark.what, safe(mark.what, NAME))
    because = f": {safe(mark.because, LINE)}" if mark.because else ""
    return f"{words}{because}"


def date_of(at: object, form: str = "SHORT") -> str:
    """Return a time that Teams shows in the reader's zone; "" if it is not a time."""
    try:
        found = moment(at) if at else None
    except UnreadableError:
        return ""
    if found is None:
        return ""
    stamp = found.strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{{{{DATE({stamp}, {form})}}}} {{{{TIME({stamp})}}}}"


def text_of(value: object, limit: int) -> str:
    """Return a string as text; "" if it is absent, empty or something else."""
    return safe(value, limit) if isinstance(value, str) and value.strip() else ""


def safe(value: str, limit: int) -> str:
    """Return a text on one short line that calls no function of a card."""
    line = _NOT_SHOWN.sub("\ufffd", " ".join(value[: limit + 1].split())) or "-"
    line = line.replace("{{", "{\u200a{")  # a hair space, which is invisible
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _span(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"

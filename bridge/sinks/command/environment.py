"""The environment variables of a command. Pure.

Their values come from Azure and are not trusted: line breaks and control characters
are replaced, and long values are cut.
"""

import re
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from bridge.events.cloudevent import rfc3339
from bridge.events.document import ScheduledEvent
from bridge.sinks.acting import Action

_INHERITED = ("PATH", "HOME", "LANG")
_OF_WINDOWS = (
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP"),
    *("PROGRAMDATA", "PROGRAMFILES", "USERPROFILE"),
)
_LONGEST = 1024
_LONGEST_LIST = 16 * 1024
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BLANK = re.compile(r"\s")


class Occasion(Struct, frozen=True, kw_only=True):
    """Why a command is run.

    Attributes:
        sink: the name of the sink.
        type: the type of the CloudEvent.
        id: the id of the CloudEvent.
        transition: the step of ``event``.
        others: EventIds of other events of this VM in the document that fit the sink.
        attempt: the number of the attempt; the first one is 1.
        now: when this attempt begins.
        is_test: whether the event is invented, by ``send-test``.
    """

    sink: str
    action: Action
    type: str
    id: str
    transition: str
    event: ScheduledEvent
    others: tuple[str, ...]
    vm_name: str
    attempt: int
    now: datetime
    is_test: bool = False


def inherited(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command inherits from the forwarder."""
    known = {name.upper(): value for name, value in outer.items()}
    names = (*_INHERITED, *(_OF_WINDOWS if "SYSTEMROOT" in known else ()))
    return {name: known[name] for name in names if name in known}


def variables_of(occasion: Occasion) -> dict[str, str]:
    """Return the ``SEBRIDGE_…`` variables of a run."""
    event, not_before = occasion.event, occasion.event.not_before
    left = not_before and int((not_before - occasion.now).total_seconds() // 1)
    duration = event.duration
    texts = {
        "ACTION": occasion.action.value,
        "TYPE": occasion.type,
        "ID": occasion.id,
        "TRANSITION": occasion.transition,
        "EVENT_ID": event.event_id,
        "EVENT_TYPE": event.event_type or "",
        "EVENT_STATUS": event.status or "",
        "EVENT_SOURCE": event.event_source or "",
        "NOT_BEFORE": rfc3339(not_before) if not_before else "",
        "NOTICE_SECONDS": "" if left is None else str(left),
        "DURATION_SECONDS": "" if duration is None else str(duration),
        "VM_NAME": occasion.vm_name,
        "SINK": occasion.sink,
        "ATTEMPT": str(occasion.attempt),
    }
    if occasion.is_test:
        texts["TEST"] = "1"
    lists = {"RESOURCES": event.resources, "OTHER_EVENTS": occasion.others}
    values = {name: _plain(text)[:_LONGEST] for name, text in texts.items()}
    values |= {name: _listed(names) for name, names in lists.items()}
    return {f"SEBRIDGE_{name}": text for name, text in values.items()}


def _plain(text: str) -> str:
    return _UNFIT.sub("?", text)


def _listed(names: tuple[str, ...]) -> str:
    """Join names by blanks; a blank inside a name becomes ``?``.

    Names beyond 16 KiB are left out.
    """
    found, length = list[str](), 0
    for name in names:
        plain = _BLANK.sub("?", _plain(name))[:_LONGEST] or "?"
        length += len(plain) + 1
        if length > _LONGEST_LIST:
            break
        found.append(plain)
    return " ".join(found)

"""The environment of a command: what it is told beside the event. Pure.

Values come from Azure: they are data, so none has a line break or a control character,
and each has an end.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bridge.events.build import rfc3339
from bridge.events.document import ScheduledEvent
from bridge.sinks.acting import Action

_INHERITED = ("PATH", "HOME", "LANG")
_OF_WINDOWS = ("SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "TEMP", "TMP")
_LONGEST = 1024
_LONGEST_LIST = 16 * 1024
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BLANK = re.compile(r"\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Why a command is run.

    Attributes:
        sink: its name.
        type: of the CloudEvent, which has ``id``.
        transition: which step of ``event``.
        others: other own EventIds now in the document that fit.
        attempt: the first one is 1.
        now: when this attempt begins.
        is_test: whether nothing of it is real.
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
    """Return what a command may know of the forwarder's own environment."""
    known = {name.upper(): value for name, value in outer.items()}
    names = (*_INHERITED, *(_OF_WINDOWS if "SYSTEMROOT" in known else ()))
    return {name: known[name] for name in names if name in known}


def told_of(occasion: Occasion) -> dict[str, str]:
    """Return what a command is told of its occasion."""
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
    told = {name: _plain(text)[:_LONGEST] for name, text in texts.items()}
    told |= {name: _listed(names) for name, names in lists.items()}
    return {f"SEBRIDGE_{name}": text for name, text in told.items()}


def _plain(text: str) -> str:
    return _UNFIT.sub("?", text)


def _listed(names: tuple[str, ...]) -> str:
    """Return names in one line; a blank within one would make two of it."""
    found, length = list[str](), 0
    for name in names:
        plain = _BLANK.sub("?", _plain(name))[:_LONGEST] or "?"
        length += len(plain) + 1
        if length > _LONGEST_LIST:
            break
        found.append(plain)
    return " ".join(found)

"""How an event is approved from a terminal, where Slack has no button for it. Pure."""

import re
from collections.abc import Mapping

from bridge.sinks.base import ApprovalAddress

# What needs no quotes in any shell, is no option, and is no markup either.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def command(event: Mapping[str, object], address: ApprovalAddress | None) -> str | None:
    """Return what approves an event; None where it could not be copied as it stands.

    Args:
        event: the IMDS object.
        address: where approvals are received; None = nowhere.
    """
    if address is None or not _is_plain(event_id := event.get("EventId")):
        return None
    if address.session is None:
        return f"sebridge approve {event_id}"
    if not _is_plain(address.session):
        return None
    return f"sebridge approve {event_id} --session {address.session}"


def _is_plain(word: object) -> bool:
    return isinstance(word, str) and bool(_PLAIN.fullmatch(word))

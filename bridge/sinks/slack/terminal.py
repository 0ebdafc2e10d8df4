"""The command that approves an event in a terminal, for Slack messages. Pure."""

import re
from collections.abc import Mapping

from bridge.sinks.base import ApprovalAddress

# Words that need no quotes in any shell, are no option, and contain no markup.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def command(event: Mapping[str, object], address: ApprovalAddress | None) -> str | None:
    """Return the command that approves an event; None if it could not be copied safely.

    Args:
        event: the IMDS object.
        address: the approval entity; None = there is none.
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

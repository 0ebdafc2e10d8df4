"""The link of an event: the address at which people read about it, and decide. Pure."""

import re
from urllib.parse import quote

from bridge.events.cloudevent import CloudEvent

PLACE = "{event_id}"
_LONGEST = 2000
# The characters of RFC 3986: none is markup in a chat message, a card or a mail.
_LINK = re.compile(r"https?://[A-Za-z0-9\[][A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")


def link_fault(template: str) -> str | None:
    """Return why a template of links is invalid; None = it is valid."""
    without = template.replace(PLACE, "")
    if not _LINK.fullmatch(without) or PLACE not in template.partition("//")[2]:
        return f'must be a URL with {PLACE}, such as "https://…/events/{PLACE}"'
    return None


def link_to(template: str, event_id: str | None) -> dict[str, object]:
    """Return the member ``link`` of ``data``; {} if there is no link.

    Args:
        template: a URL with ``{event_id}``; "" = there are no links.
        event_id: the EventId; None = the event has none.
    """
    if not template or not event_id:
        return {}
    link = template.replace(PLACE, quote(event_id, safe="", errors="replace"))
    return {"link": link} if len(link) <= _LONGEST else {}


def link_of(event: CloudEvent) -> str:
    """Return the link of an event, safe to show as it is; "" = there is none."""
    return shown_link(event.data.get("link"))


def shown_link(value: object) -> str:
    """Return a value if it is a valid link; else ""."""
    is_text = isinstance(value, str) and len(value) <= _LONGEST
    return str(value) if is_text and _LINK.fullmatch(str(value)) else ""

"""The CloudEvents 1.0 value, its JSON form, its hash and its size. Pure.

This is not the SDK's class, because the SDK adds a time and an id of its own,
changes its arguments, and accepts what the specification refuses. The tests use the
SDK as an independent reader.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2 (spec.md, json-format.md)
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar, Self
from urllib.parse import quote

import msgspec
import orjson
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

SPEC_VERSION = "1.0"
STRUCTURED_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"
SIGNATURE = "dssematerial"
"""The attribute with the signature of an event: see ``bridge.signing``."""
DEEPEST = 80
"""How many levels an event may have: a scheduled event has at most 64."""

# What CloudEvents forbids in a string attribute: controls and noncharacters.
FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff"
    + "".join(f"{chr(p * 65536 + 65534)}{chr(p * 65536 + 65535)}" for p in range(1, 17))
    + "]"
)
_OWN = frozenset(
    {
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "datacontenttype",
        "dataschema",
        "data",
    }
)


class CloudEvent(Struct, frozen=True, kw_only=True, dict=True):
    """One event as it is sent.

    Attributes:
        time: RFC 3339 in UTC, as a string.
        extensions: extension attributes. Names are ``[a-z0-9]+``. Values are 32-bit
            integers, or strings without control characters. A boolean that was read
            from JSON is kept as the text "true" or "false".
        data: the payload, a JSON object.
    """

    id: str
    source: str
    type: str
    time: str
    dataschema: str
    subject: str | None = None
    extensions: Mapping[str, str | int] = field(default_factory=dict)
    data: Mapping[str, object] = field(default_factory=dict)
    _json: ClassVar[bytes | None] = None  # of one event; no part of its value

    def attributes(self) -> dict[str, str | int]:
        """Return every context attribute that is set, in the order of writing."""
        subject = {} if self.subject is None else {"subject": self.subject}
        return {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            **subject,
            "time": self.time,
            "datacontenttype": "application/json",
            "dataschema": self.dataschema,
            **self.extensions,
        }

    def to_json(self) -> bytes:
        """Return the event in structured JSON, which is written only once.

        An event that came from ``from_json`` returns the bytes that were read.
        """
        if (body := self._json) is None:
            body = orjson.dumps({**self.attributes(), "data": self.data})
            self.__dict__["_json"] = body
        return body

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Parse what ``to_json`` wrote.

        Raises:
            msgspec.ValidationError: ``body`` was not written by ``to_json``.
        """
        try:
            members = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise msgspec.ValidationError(f"no JSON: {error}") from error
        if not isinstance(members, dict):
            raise msgspec.ValidationError("no JSON object")
        own, extensions = dict[str, object](), dict[str, object]()
        for name, value in members.items():
            if name in _OWN:
                own[name] = value
            elif isinstance(value, bool):  # as text: see Type System in the spec
                extensions[name] = "true" if value else "false"
            else:
                extensions[name] = value
        own["extensions"] = extensions
        event = msgspec.convert(own, cls)
        event.__dict__["_json"] = body
        return event

    def unsigned(self) -> Self:
        """Return the event without its signature, before its data is changed."""
        kept = {k: v for k, v in self.extensions.items() if k != SIGNATURE}
        return (
            self
            if len(kept) == len(self.extensions)
            else replace(self, extensions=kept)
        )

    def text(self, name: str) -> str | None:
        """Return an extension attribute as text; None if it is not set."""
        value = self.extensions.get(name)
        return None if value is None else str(value)


# -- The link of an event: where people read about it, and decide ----------------------

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


def link_to(template: str, event_id: str | None) -> str | UnsetType:
    """Return the member ``link`` of ``data``; UNSET if there is no link.

    Args:
        template: a URL with ``{event_id}``; "" = there are no links.
        event_id: the EventId; None = the event has none.
    """
    if not template or not event_id:
        return UNSET
    link = template.replace(PLACE, quote(event_id, safe="", errors="replace"))
    return link if len(link) <= _LONGEST else UNSET


def link_of(event: CloudEvent) -> str:
    """Return the link of an event, safe to show as it is; "" = there is none."""
    return shown_link(event.data.get("link"))


def shown_link(value: object) -> str:
    """Return a value if it is a valid link; else ""."""
    is_text = isinstance(value, str) and len(value) <= _LONGEST
    return str(value) if is_text and _LINK.fullmatch(str(value)) else ""


# -- How severe an event is ------------------------------------------------------------

# The extension attributes for each severity.
SEVERITY: dict[str, dict[str, str | int]] = {
    text: {"severitytext": text, "severitynumber": number}
    for text, number in (("INFO", 9), ("WARN", 13), ("ERROR", 17))
}


# -- What attributes may hold ----------------------------------------------------------


def clean(text: str) -> str:
    """Replace the characters that CloudEvents forbids in an attribute by U+FFFD."""
    is_plain = text.isascii() and text.isprintable()  # a search takes 10 times as long
    return text if is_plain else FORBIDDEN.sub("\ufffd", text)


def rfc3339(moment: datetime) -> str:
    """Write a time in UTC; with a fraction of a second only if it is not zero."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


# -- The hash that ids are made of -----------------------------------------------------


def hash32(value: object) -> str:
    """Return the first 32 hex digits of SHA-256 over the canonical JSON of ``value``.

    Canonical means: sorted keys, no spaces, no escapes for non-ASCII characters, UTF-8.
    The standard library writes the JSON, so that anybody can check an id with it.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# -- An event is cut down to a size that every receiver accepts ------------------------
#
# These parts are dropped, in this order, until the event is small enough: the rules of
# a bridge's approvals (their digest stays), ``previous``, Resources after the first
# hundred, Description after 1 KiB, all fields that Azure does not document, and the
# whole document. ``data.truncated`` names what was dropped.
#
# Source: config/events.md; CloudEvents asks intermediaries to pass on 64 KiB.

MAX_BYTES = 60 * 1024
_MANY_RESOURCES = 100
_LONG_DESCRIPTION = 1024
_LONG_TEXT = 1024
_LONG_NAME = 64


def fitted(event: CloudEvent, room: int = 0) -> CloudEvent:
    """Return the event in at most 60 KiB; ``data.truncated`` names what was dropped.

    Args:
        event: the event.
        room: how many bytes of the 60 KiB are left free.
    """
    steps = (
        _without_rules,
        _without_previous,
        _fewer_resources,
        _shorter_description,
        _known_only,
    )
    earlier = event.data.get("truncated")
    dropped = list[object](earlier if isinstance(earlier, list) else ())
    data = dict(event.data)
    for step in (*steps, _without_document):
        if len(event.to_json()) <= MAX_BYTES - room:
            break
        if name := step(data):
            dropped += [] if name in dropped else [name]
            event = replace(event, data={**data, "truncated": list(dropped)})
    return event


def _without_rules(data: dict[str, object]) -> str | None:
    """Drop the rules of approvals; their digest stays."""
    approvals = data.get("approvals")
    if not isinstance(approvals, dict) or "rules" not in approvals:
        return None
    data["approvals"] = {k: v for k, v in approvals.items() if k != "rules"}
    return "rules"


def _without_previous(data: dict[str, object]) -> str | None:
    if data.get("previous") is None:
        return None
    data["previous"] = None
    return "previous"


def _fewer_resources(data: dict[str, object]) -> str | None:
    event = data.get("event")
    names = event.get("Resources") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(names, list):
        return None
    if len(names) <= _MANY_RESOURCES:
        return None
    data["event"] = {**event, "Resources": names[:_MANY_RESOURCES]}
    return "Resources"


def _shorter_description(data: dict[str, object]) -> str | None:
    event = data.get("event")
    text = event.get("Description") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(text, str):
        return None
    short = text.encode()[:_LONG_DESCRIPTION].decode(errors="ignore")
    if short == text:
        return None
    data["event"] = {**event, "Description": short}
    return "Description"


_SMALL_FIELDS = (
    "EventId",
    "EventStatus",
    "EventType",
    "ResourceType",
    "Resources",
    "NotBefore",
    "Description",
    "EventSource",
    "DurationInSeconds",
)


def _known_only(data: dict[str, object]) -> str | None:
    """Drop the fields that Azure does not document, and shorten the others."""
    event = data.get("event")
    if not isinstance(event, dict):
        return None
    data["event"] = {
        name: _small(name, event[name]) for name in _SMALL_FIELDS if name in event
    }
    changes = data.get("changes")
    if isinstance(changes, list):
        data["changes"] = [name for name in changes if name in _SMALL_FIELDS]
    return "event"


def _small(name: str, value: object) -> object:
    """Shorten a value, so that all fields together stay within the limit."""
    if isinstance(value, str):
        return value if name == "EventId" else _cut(value, _LONG_TEXT)
    if isinstance(value, list) and name == "Resources":
        names = [item for item in value[:_MANY_RESOURCES] if isinstance(item, str)]
        return [_cut(item, _LONG_NAME) for item in names]
    return None if isinstance(value, (dict, list)) else value


def _cut(text: str, limit: int) -> str:
    """Return the start of a text that takes at most ``limit`` bytes as JSON.

    The size is counted in JSON, because a control character takes six bytes there.
    """
    size = 0
    for index, character in enumerate(text):
        size += len(orjson.dumps(character)) - len(b'""')
        if size > limit:
            return text[:index]
    return text


def _without_document(data: dict[str, object]) -> str | None:
    if "document" not in data:
        return None
    data["document"] = None
    return "document"

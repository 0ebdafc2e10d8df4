"""Building blocks for the JSON Schemas of events and approvals."""

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.events.vocabulary import EVENT_TYPES

Json = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PREFIX = "[a-zA-Z0-9][a-zA-Z0-9.-]*"  # of types: events.type_prefix
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
WHOLE = {"type": "integer", "format": "int64"}
WHOLE_OR_NULL = {"type": ["integer", "null"], "format": "int64"}
YES_NO_OR_NULL = {"type": ["boolean", "null"]}
TIME = {"type": "string", "format": "date-time"}
TIME_OR_NULL = {"type": ["string", "null"], "format": "date-time"}
TEXTS = {"type": "array", "items": TEXT}

# Values for the examples.
EVENT_ID = "602d9444-d2cd-49c7-8624-8643e7171297"
VM_ID = "13f56399-bd52-4150-9748-7190aae1ff21"
GROUP = "/subscriptions/00001111-aaaa-2222-bbbb-3333cccc4444/resourcegroups/web"
AT = "2026-03-02T12:00:00Z"
NOT_BEFORE = "2026-03-02T12:15:00Z"  # that of IMDS_EVENT
IMDS_EVENT = {
    "EventId": EVENT_ID,
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-1"],
    "EventStatus": "Scheduled",
    "NotBefore": "Mon, 02 Mar 2026 12:15:00 GMT",
    "Description": "A reboot that an authorized user has requested.",
    "EventSource": "User",
    "DurationInSeconds": -1,
}
IMDS_MEANINGS = {
    "EventId": "The id of the event. Compare it without regard to case.",
    "EventType": f"{', '.join(EVENT_TYPES)}, or a future one.",
    "ResourceType": "The kind of the affected resources.",
    "Resources": "The names of the affected VMs.",
    "EventStatus": "Scheduled or Started.",
    "NotBefore": "The earliest time of the start; empty once the event has started.",
    "Description": "Text about the event. Never trust it as markup.",
    "EventSource": "Platform or User.",
    "DurationInSeconds": "How long the impact lasts, in seconds; -1: not known.",
}


def field(schema: Json, description: str, *examples: object) -> Json:
    """Return the schema of a field, with its description and examples.

    It has a type beside an enumeration or a constant: code generators need it.
    """
    full = _type_of_values(schema) | schema
    return {"description": description, **full, "examples": list(examples)}


_TYPES = {str: "string", int: "integer", bool: "boolean", type(None): "null"}


def _type_of_values(schema: Json) -> Json:
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    names = list(dict.fromkeys(_TYPES[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names} if names else {}


LINK = field(
    {"type": "string", "format": "uri"},
    "The page about the event: events.link, or the page of the hub.",
    f"https://maintenance.contoso.com/events/{EVENT_ID}",
)

TRUNCATED = field(
    TEXTS,
    "Fields that were left out to stay within 60 KiB.",
    ["previous"],
    ["Resources"],
)


SIGNING = field(
    {"type": "object"},
    "With events.sign: the number of the last signed event before this one (null: none "
    "since the start), and in the start and one heartbeat a day the public keys (JWK).",
    {"n": 41, "keys": []},
)


CHAIN = field(
    {"type": "object"},
    "Its place among the signed events of a key; n is null if it is not on the disk.",
    {"key": "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U", "run": "0a1b", "n": 7},
)


def record(
    title: str,
    properties: Mapping[str, object],
    optional: Iterable[str] = (),
    description: str = "",
) -> Json:
    """Return the schema of an object; more properties are allowed, for later."""
    left_out = set(optional)
    return {
        "title": title,
        **({"description": description} if description else {}),
        "type": "object",
        "required": [name for name in properties if name not in left_out],
        "properties": dict(properties),
    }


def ref(name: str) -> Json:
    """Return a reference to a definition of the same schema."""
    return {"$ref": f"#/definitions/{name}"}


def or_null(name: str) -> Json:
    """Return a reference to a definition that may be null instead."""
    return {"anyOf": [ref(name), {"type": "null"}]}

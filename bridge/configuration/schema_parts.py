"""Building blocks for the JSON Schemas of events and approvals."""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.events.vocabulary import EVENT_TYPES

Json = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PREFIX = "[a-zA-Z0-9][a-zA-Z0-9.-]*"  # of types: events.type_prefix
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
TIME = {"type": "string", "format": "date-time"}
TIME_OR_NULL = {"type": ["string", "null"], "format": "date-time"}

# Values for the examples.
EVENT_ID = "602d9444-d2cd-49c7-8624-8643e7171297"
GROUP = "/subscriptions/00001111-aaaa-2222-bbbb-3333cccc4444/resourcegroups/web"
AT = "2026-03-02T12:00:00Z"
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


# -- What docstrings say ---------------------------------------------------------------


_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n     .+)*)", re.MULTILINE)
_EXAMPLES = re.compile(r"\s*Example: ((?:``.+?``(?:, )?)+)\.$")


def docs_of(*kinds: type) -> dict[str, Json]:
    """Return description and examples of each attribute, by the docstrings of types."""
    found: dict[str, Json] = {}
    for kind in kinds:
        text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
        _, _, attributes = text.partition("\nAttributes:\n")
        for name, words in _ATTRIBUTE.findall(attributes):
            found[name] = _doc(" ".join(words.split()))
    return found


def _doc(words: str) -> Json:
    """Return description and examples from the text after the name of a key."""
    match = _EXAMPLES.search(words)
    if match is None:
        return {"description": _sentence(words)}
    texts = re.findall("``(.+?)``", match[1])
    return {
        "description": _sentence(words[: match.start()]),
        "examples": [json.loads(text) for text in texts],
    }


def summary_of(kind: type) -> str:
    """Return the first line of a docstring, without the name of the table."""
    line = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
    return _sentence(re.sub(r"^``\[[^`]*``: ", "", line).replace("``", ""))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].rstrip(".") + "."

"""The JSON Schema of the configuration, made from the sections.

The docstring of a section describes its keys under ``Attributes``: there is no second
list. If the type of a key gives no example, the docstring does: ``Example:`` and JSON
between double backticks at the end.
"""

import json
from collections.abc import Mapping

import msgspec

from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.config import Config, Settings
from bridge.configuration.event_schema import event, example_of, objects
from bridge.configuration.schema_parts import (
    AT,
    DRAFT,
    EVENT_ID,
    IMDS_EVENT,
    PREFIX,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    Json,
    docs_of,
    field,
    record,
    ref,
    summary_of,
)
from bridge.foundation.sections import Reader, Section
from bridge.foundation.values import (
    Address,
    Duration,
    FilePath,
    PublicKeys,
    Rate,
    Secret,
    Size,
)
from bridge.servicebus.namespace import NamespaceConfig
from bridge.sinks.registry import SINK_TYPES

_DURATION = {
    "examples": ["30s", 1.5],
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"},
    ],
}
_SIZE = {
    "examples": ["256MB", 1000000],
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d{1,15}\s*(B|[KMG]i?B)?\s*$"},
    ],
}
_RATE = {
    "examples": [1, 0.5],
    "type": "number",
    "minimum": 0.0001,
    "maximum": 100000,
}
_SECRET = {"type": "string", "examples": ["env:NAME", "file:/etc/sebridge/secret"]}
_FILE_PATH = {"type": "string"}
_ADDRESS = {"type": "string"}
_SCHEMAS: dict[type, Json] = {
    Duration: _DURATION,
    Size: _SIZE,
    Rate: _RATE,
    Secret: _SECRET,
    FilePath: _FILE_PATH,
    Address: _ADDRESS,
    PublicKeys: _ADDRESS,
}
# The allowed forms of a value: the same for every key of a type.
_WRITTEN: dict[type, str] = {
    Rate: "Per second.",
    Duration: 'Seconds, or text with a unit: "500ms", "30s", "5m", "24h".',
    Size: 'Bytes, or text with a unit: "500KB", "256MB", "1GB".',
    FilePath: "The path of a file; ${NAME} is replaced by an environment variable.",
    Address: 'The value itself, "env:NAME" or "file:PATH".',
    PublicKeys: '"file:PATH" or "env:NAME".',
    Secret: '"env:NAME", "file:PATH", or the secret itself.',
}


def text(what: str) -> str:
    """Return one schema as text: ``config``, ``event`` or ``approval``."""
    make = {"config": config, "event": event, "approval": approval}
    return json.dumps(make[what](), indent=2, ensure_ascii=False) + "\n"


def config() -> Json:
    """Return the schema of the configuration file, as parsed from TOML."""
    root = section(Settings)
    docs = _docs(Config)
    kinds = {name: {"const": name, "examples": [name]} for name in SINK_TYPES}
    sinks = [section(SINK_TYPES[name], {"type": kind}) for name, kind in kinds.items()]
    root["properties"] |= {
        "sinks": {"type": "array", "items": {"anyOf": sinks}} | docs["sinks"],
        "approvals": section(ApprovalsConfig) | docs["approvals"],
    }
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:config:v1",
        **root,
        "title": "Configuration of scheduled-events-bridge",
        "description": "The configuration file, as parsed from TOML.",
    }


def section(kind: type[Section], known: Mapping[str, Json] | None = None) -> Json:
    """Return the schema of a section, with known schemas of some of its keys."""
    fields = msgspec.structs.fields(kind)
    docs = _docs(kind)
    properties = {
        field.name: (known or {}).get(field.name) or _field(kind, field)
        for field in fields
    }
    return {
        "title": kind.__name__,
        "description": summary_of(kind),
        "type": "object",
        "required": [field.name for field in fields if field.required],
        "properties": {
            name: _described(found, docs.get(name, {}))
            for name, found in properties.items()
        },
        "additionalProperties": False,
    }


def _docs(kind: type[Section]) -> dict[str, Json]:
    """Return description and examples of each key, from the docstrings.

    A sink with the keys of a Service Bus namespace gets their descriptions, too.
    """
    names = {field.name for field in msgspec.structs.fields(kind)}
    of_namespace = {field.name for field in msgspec.structs.fields(NamespaceConfig)}
    more = [NamespaceConfig] if of_namespace <= names else []
    return docs_of(*reversed(kind.__mro__), *more)


def _described(schema: Json, doc: Json) -> Json:
    """Return a schema with its description first and its examples last.

    The description is the purpose of the key, then the allowed forms of its type.
    """
    schema = {**schema, **_described_inside(schema)}
    known: Json = {"examples": _examples(schema)} | schema | doc
    words = (known.pop("description", ""), known.pop("written", ""))
    examples = known.pop("examples")
    more = {"examples": examples} if examples else {}
    return {"description": " ".join(filter(None, words))} | known | more


def _described_inside(schema: Json) -> Json:
    """Describe the allowed forms of items in a list or a table."""
    inside = {key: schema.get(key) for key in ("items", "additionalProperties")}
    return {
        key: _described(found, {})
        for key, found in inside.items()
        if isinstance(found, dict) and "written" in found
    }


def _examples(schema: Json) -> list[object]:
    if "enum" in schema:
        return list(schema["enum"])
    return [True, False] if schema.get("type") == "boolean" else []


def _field(kind: type[Section], field: msgspec.structs.FieldInfo) -> Json:
    if (nested := Reader.section_type(kind, field.name)) is not None:
        return section(nested)
    if (part := Reader.part_type(kind, field.name)) is not None:
        return {"type": "array", "items": section(part), "default": []}
    schema = msgspec.json.schema(field.type, schema_hook=_hook)
    schema.pop("$defs", None)
    options = [o for o in schema.pop("anyOf", ()) if o != {"type": "null"}]
    if len(options) == 1:
        schema |= options[0]  # TOML has no null: leaving out the key means null
    elif options:
        schema["anyOf"] = options
    default = field.default
    if isinstance(default, (str, bool, int, float, tuple)):
        schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


def _hook(kind: type) -> Json:
    return {**_SCHEMAS[kind], "written": _WRITTEN[kind]}


# -- The JSON Schema of an approval message --------------------------------------------


_ENTRIES = [{"EventId": EVENT_ID}]
_BODY = {
    "StartRequests": field(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": ref("StartRequest"),
        },
        "The events that Azure may start, in the format of IMDS.",
        _ENTRIES,
    )
}
_CLAIMS = {
    "approvedBy": field(
        TEXT_OR_NULL, "Who approved. It is recorded, and not checked.", "ops"
    ),
    "reason": field(TEXT_OR_NULL, "Why. It is recorded.", "drained"),
    "expiresAt": field(
        TIME_OR_NULL,
        "A limit: after this time nothing is sent to IMDS. Seconds may be left out.",
        AT,
    ),
    "approvedEvent": field(
        {"type": ["object", "null"]},
        "A limit: the event as the approver saw it. A worse event is denied.",
        IMDS_EVENT,
    ),
    "audience": field(
        TEXT_OR_NULL, "The source of the event; what is signed must have it.", "/s"
    ),
}
_START_REQUEST = record(
    "StartRequest",
    {
        "EventId": field(
            {"type": "string", "pattern": r"\S", "maxLength": 1024},
            "The event, as the bridge published it.",
            EVENT_ID,
        )
    },
)
_CLOUD_EVENT = record(
    "ApprovalEvent",
    {
        "specversion": field({"const": "1.0"}, "The version of CloudEvents.", "1.0"),
        "id": field(
            {"type": "string", "minLength": 1}, "The id of the approval.", "m-1"
        ),
        "source": field(
            {"type": "string", "minLength": 1}, "The sender.", "/contoso/approver"
        ),
        "type": field(
            {"type": "string", "pattern": rf"^{PREFIX}\.startrequest\.v1$"},
            "The type of an approval, after the bridge's events.type_prefix.",
            "sebridge.startrequest.v1",
        ),
        "data": field(
            ref("ApprovalData"), "The approved events.", {"StartRequests": _ENTRIES}
        ),
    },
    description="As a structured CloudEvent, which may have more attributes.",
)


def approval() -> Json:
    """Return the schema of an approval message's body: plain or as a CloudEvent.

    The definition ``ApprovalReply`` is the body of the reply to it.
    """
    made = objects()
    outcome = made["StartRequestData"]
    definitions = [
        record(
            "ApprovalBody",
            {**_BODY, **_CLAIMS},
            _CLAIMS,
            "In the format of IMDS, with claims and limits beside StartRequests.",
        ),
        _CLOUD_EVENT,
        record("ApprovalData", {**_BODY, **_CLAIMS}, _CLAIMS),
        _START_REQUEST,
        _reply(outcome),
        outcome,
        *(made[name] for name in ("Reporter", "ImdsEvent", "ApprovalRequest")),
    ]
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:approval:v1",
        "title": "Approval",
        "description": (
            "The body of a message to the approval entity. The case of letters in the "
            "names of StartRequests, EventId, claims and limits does not matter. A "
            "member that looks like another limit makes the message invalid. The reply "
            "is #/definitions/ApprovalReply."
        ),
        "anyOf": [ref("ApprovalBody"), ref("ApprovalEvent")],
        "definitions": {found["title"]: found for found in definitions},
    }


def _reply(outcome: Json) -> Json:
    outcomes = {"type": "array", "minItems": 1, "items": ref(outcome["title"])}
    return record(
        "ApprovalReply",
        {
            "messageId": field(
                TEXT_OR_NULL, "The MessageId of the approval, as CorrelationId.", "m-1"
            ),
            "outcomes": field(
                outcomes,
                "For each EventId, in the order of the approval: the data of its "
                "outcome.",
                [example_of(outcome)],
            ),
        },
        description="The body of a reply to an approval. It is not a CloudEvent.",
    )

"""The JSON Schemas of configuration, events and approvals, from the code itself.

Those of events and approvals stand here in words, since what they describe comes
from Azure and from strangers; the tests hold them against what is really written.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from bridge.approvals.listener import ApprovalsConfig
from bridge.config import Settings
from bridge.options import Reader, Section
from bridge.sinks.registry import SINK_TYPES
from bridge.telemetry import OUTCOMES
from bridge.transitions import TransitionKind
from bridge.values import Address, Duration, FilePath, Rate, Size

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DURATION = {
    "description": 'seconds, or text with a unit: "500ms", "30s", "5m", "24h"',
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"},
    ],
}
_SIZE = {
    "description": 'bytes, or text with a unit: "500KB", "256MB", "1GB"',
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d{1,15}\s*(B|[KMG]i?B)?\s*$"},
    ],
}
_RATE = {
    "description": "times a second",
    "type": "number",
    "minimum": 0.0001,
    "maximum": 100000,
}
_SECRET = {"type": "string", "description": '"env:NAME", "file:PATH", or the secret'}
_FILE_PATH = {
    "type": "string",
    "description": "the path of a file; ${NAME} of the environment is filled in",
}
_ADDRESS = {"type": "string", "description": 'itself, "env:NAME" or "file:PATH"'}

Json = dict[str, Any]


def text(what: str) -> str:
    """Return a schema as text: ``config``, ``event`` or ``approval``."""
    make = {"config": config, "event": event, "approval": approval}[what]
    return json.dumps(make(), indent=2, ensure_ascii=False) + "\n"


def config() -> Json:
    """Return the schema of the configuration file, as parsed from TOML."""
    root = _section(Settings)
    sinks = [
        _section(kind, {"type": {"const": name}}) for name, kind in SINK_TYPES.items()
    ]
    root["properties"] |= {
        "sinks": {"type": "array", "items": {"anyOf": sinks}},
        "approvals": _section(ApprovalsConfig),
    }
    return {
        "$schema": _DRAFT,
        "$id": "urn:sebridge:schema:config:v1",
        "title": "Configuration of scheduled-events-bridge",
        **root,
    }


def _section(kind: type[Section], known: Mapping[str, Json] | None = None) -> Json:
    """Return the schema of a section; what it does not name is a fault."""
    fields = msgspec.structs.fields(kind)
    properties = {field.name: _field(kind, field) for field in fields}
    return {
        "type": "object",
        "required": [field.name for field in fields if field.required],
        "properties": properties | dict(known or {}),
        "additionalProperties": False,
    }


def _field(kind: type[Section], field: msgspec.structs.FieldInfo) -> Json:
    if (nested := Reader.section_type(kind, field.name)) is not None:
        return _section(nested)
    if (part := Reader.part_type(kind, field.name)) is not None:
        return {"type": "array", "items": _section(part), "default": []}
    schema = msgspec.json.schema(field.type, schema_hook=_hook)
    schema.pop("$defs", None)
    options = [o for o in schema.pop("anyOf", ()) if o != {"type": "null"}]
    if len(options) == 1:
        schema |= options[0]  # TOML has no null: a key left out is what it means
    elif options:
        schema["anyOf"] = options
    default = field.default
    if isinstance(default, (str, bool, int, float, tuple)):
        schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


def _hook(kind: type) -> Json:
    if issubclass(kind, Duration):
        return dict(_DURATION)
    if issubclass(kind, Size):
        return dict(_SIZE)
    if issubclass(kind, FilePath):
        return dict(_FILE_PATH)
    if issubclass(kind, Rate):
        return dict(_RATE)
    return dict(_ADDRESS if issubclass(kind, Address) else _SECRET)


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_WHOLE_OR_NULL = {"type": ["integer", "null"]}
_YES_NO_OR_NULL = {"type": ["boolean", "null"]}
_TIME = {"type": "string", "format": "date-time"}
_TIME_OR_NULL = {"type": ["string", "null"], "format": "date-time"}
_OBJECT = {"type": "object"}
_OBJECT_OR_NULL = {"type": ["object", "null"]}


def _record(properties: Mapping[str, object], optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": dict(properties)}


_REPORTER = _record(
    {
        "vmName": _TEXT_OR_NULL,
        "vmId": _TEXT_OR_NULL,
        "resourceId": _TEXT_OR_NULL,
        "location": _TEXT_OR_NULL,
        "vmScaleSetName": _TEXT_OR_NULL,
        "version": _TEXT,
    }
)
_SCHEDULED_EVENT = _record(
    {
        "transition": {"enum": [kind.value for kind in TransitionKind]},
        "event": _OBJECT,
        "previous": _OBJECT_OR_NULL,
        "changes": {"type": "array", "items": _TEXT},
        "announced": _YES_NO_OR_NULL,
        "documentIncarnation": _WHOLE_OR_NULL,
        "observedAt": _TIME,
        "notBefore": _TIME_OR_NULL,
        "noticeSeconds": _WHOLE_OR_NULL,
        "affectsThisVm": _YES_NO_OR_NULL,
        "unobservedSeconds": _WHOLE_OR_NULL,
        "reporter": _REPORTER,
        "outcome": {"const": "unknown"},
        "truncated": {"type": "array", "items": _TEXT},
        "durable": {"const": False},
        "test": {"const": True},
    },
    optional=("outcome", "truncated", "durable", "test"),
)
_START_REQUEST = _record(
    {
        "outcome": {"enum": list(OUTCOMES)},
        "eventId": _TEXT_OR_NULL,
        "event": _OBJECT_OR_NULL,
        "imdsStatus": _WHOLE_OR_NULL,
        "confirmed": _YES_NO_OR_NULL,
        "reason": _TEXT_OR_NULL,
        "request": _record(
            {
                "messageId": _TEXT_OR_NULL,
                "enqueuedAt": _TIME_OR_NULL,
                "approvedBy": _TEXT_OR_NULL,
                "reason": _TEXT_OR_NULL,
                "expiresAt": _TIME_OR_NULL,
            }
        ),
        "observedAt": _TIME,
        "reporter": _REPORTER,
    }
)
_BRIDGE = _record(
    {
        "observedAt": _TIME,
        "reporter": _REPORTER,
        "reason": _TEXT_OR_NULL,
        "pending": {"type": "integer"},
        "dead": {"type": "integer"},
        "freeDiskBytes": {"type": "integer"},
    },
    optional=("pending", "dead", "freeDiskBytes"),
)
_DOCUMENT = _record(
    {
        "documentIncarnation": _WHOLE_OR_NULL,
        "previousIncarnation": _WHOLE_OR_NULL,
        "document": _OBJECT_OR_NULL,
        "observedAt": _TIME,
        "reporter": _REPORTER,
        "truncated": {"type": "array", "items": _TEXT},
    },
    optional=("truncated",),
)


def event() -> Json:
    """Return the schema of every CloudEvent the bridge sends, structured."""
    kinds = {
        "scheduledevent": _SCHEDULED_EVENT,
        "startrequest": _START_REQUEST,
        "bridge": _BRIDGE,
        "document": _DOCUMENT,
    }
    attributes = {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        "source": {"type": "string", "minLength": 1, "format": "uri-reference"},
        "type": {"type": "string", "minLength": 1},
        "subject": {"type": "string", "minLength": 1},
        "time": _TIME,
        "datacontenttype": {"const": "application/json"},
        "dataschema": {"enum": [f"urn:sebridge:schema:{k}:v1" for k in kinds]},
        "eventtype": _TEXT,
        "eventsource": _TEXT,
        "eventstatus": _TEXT,
        "correlationid": _TEXT,
        "severitytext": {"enum": ["INFO", "WARN", "ERROR"]},
        "severitynumber": {"enum": [9, 13, 17]},
        "sebridgetest": {"const": "true"},
        "data": _OBJECT,
    }
    optional = (
        *("subject", "eventtype", "eventsource", "eventstatus", "correlationid"),
        "sebridgetest",
    )
    return {
        "$schema": _DRAFT,
        "$id": "urn:sebridge:schema:event:v1",
        "title": "An event of scheduled-events-bridge",
        **_record(attributes, optional),
        "allOf": [
            {
                "if": {
                    "properties": {
                        "dataschema": {"const": f"urn:sebridge:schema:{k}:v1"}
                    }
                },
                "then": {"properties": {"data": data}},
            }
            for k, data in kinds.items()
        ],
    }


def approval() -> Json:
    """Return the schema of an approval message's body, in its two written forms."""
    body = {
        "StartRequests": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": _record(
                {"EventId": {"type": "string", "pattern": r"\S", "maxLength": 1024}}
            ),
        }
    }
    claims = {
        "approvedBy": _TEXT_OR_NULL,
        "reason": _TEXT_OR_NULL,
        "expiresAt": _TIME_OR_NULL,
        "approvedEvent": _OBJECT_OR_NULL,
    }
    return {
        "$schema": _DRAFT,
        "$id": "urn:sebridge:schema:approval:v1",
        "title": "An approval: what is sent to the approval entity",
        "anyOf": [
            {"title": "As IMDS takes it", **_record(body)},
            {
                "title": "As a structured CloudEvent",
                **_record(
                    {
                        "specversion": {"const": "1.0"},
                        "id": {"type": "string", "minLength": 1},
                        "source": {"type": "string", "minLength": 1},
                        "type": {
                            "type": "string",
                            "pattern": r"\.startrequest\.v1$",
                        },
                        "data": _record({**body, **claims}, tuple(claims)),
                    },
                ),
            },
        ],
    }

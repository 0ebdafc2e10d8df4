"""The JSON Schema of events, made from the types in ``events/data``.

Fields of IMDS are passed on unchanged: they are described, but their types are not
promised.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from bridge.configuration.schema_parts import (
    AT,
    DRAFT,
    EVENT_ID,
    GROUP,
    IMDS_EVENT,
    IMDS_MEANINGS,
    PREFIX,
    TEXT,
    TIME,
    Json,
    docs_of,
    field,
    or_null,
    record,
    ref,
    summary_of,
)
from bridge.events import data
from bridge.events.alarm import BACK, CLOCK, KEY, REPORT, SILENT, SLOW, UNREPORTED
from bridge.events.vocabulary import COMMAND_OUTCOMES, TransitionKind
from bridge.telemetry.metrics import OUTCOMES

APPROVALS = ("decided", "refused", "done", "failed", "void")
HUB_STEPS = [
    *(SILENT, BACK, UNREPORTED, SLOW, CLOCK, KEY, REPORT),
    *(f"approval.{word}" for word in APPROVALS),
]
# For each kind: its title, the last parts of its types, and its data.
_KINDS: dict[str, tuple[str, list[str], type[data.Data]]] = {
    "scheduledevent": (
        "ScheduledEvent",
        [kind.value for kind in TransitionKind],
        data.ScheduledEventData,
    ),
    "startrequest": ("StartRequestOutcome", list(OUTCOMES), data.StartRequestData),
    "command": ("CommandResult", list(COMMAND_OUTCOMES), data.CommandData),
    "bridge": (
        "BridgeEvent",
        [
            *("started", "stopped", "heartbeat", "imds-unreachable", "imds-recovered"),
            *("traffic-out", "traffic-in"),
        ],
        data.BridgeData,
    ),
    "document": ("DocumentEvent", ["changed"], data.DocumentData),
    "hub": ("HubEvent", HUB_STEPS, data.HubData),
}
# Of the examples; all others are INFO.
_SEVERITIES = {"scheduledevent": (17, "ERROR"), "hub": (13, "WARN")}


def event() -> Json:
    """Return the schema of every CloudEvent of a bridge or a hub, structured.

    ``type`` decides what ``data`` is: the schema has one named branch for each kind.
    """
    definitions = objects()
    events = {
        title: _cloud_event(title, kind, steps, definitions[of_data.__name__])
        for kind, (title, steps, of_data) in _KINDS.items()
    }
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:event:v1",
        "title": "Event",
        "description": "An event of scheduled-events-bridge: a structured CloudEvent.",
        "oneOf": [ref(title) for title in events],
        "definitions": events | definitions,
    }


def objects() -> dict[str, Json]:
    """Return the schema of each kind of data, and of the objects in it, by its name."""
    inner: list[type[data.Data]] = [*(data.Reporter, data.HubReporter)]
    inner += [data.ApprovalRequest]
    types = {one.__name__: one for one in (*inner, *(k[2] for k in _KINDS.values()))}
    _, found = msgspec.json.schema_components(
        types.values(), ref_template="#/definitions/{name}"
    )
    made = {"ImdsEvent": _IMDS_EVENT}
    for name, kind in types.items():
        made[name] = _described(kind, found[name], made)
    return made


_IMDS_EVENT = record(
    "ImdsEvent",
    {
        name: field(TEXT if name == "EventId" else {}, words, IMDS_EVENT[name])
        for name, words in IMDS_MEANINGS.items()
    },
    optional=set(IMDS_MEANINGS) - {"EventId"},
    description="The event as IMDS shows it, including fields not known yet.",
)


def _described(kind: type[Struct], schema: Json, made: Mapping[str, Json]) -> Json:
    """Return the schema of a type, with what its docstring says.

    Args:
        kind: the type.
        schema: as msgspec makes it.
        made: the schemas of the objects in it.
    """
    docs, properties = docs_of(*reversed(kind.__mro__)), schema["properties"]
    names = dict(
        zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    )
    members = {
        name: _member(properties[name], docs[own], made) for own, name in names.items()
    }
    left_out = members.keys() - {*schema["required"]}
    return record(kind.__name__, members, left_out, summary_of(kind))


def _member(schema: Json, doc: Json, made: Mapping[str, Json]) -> Json:
    one, *null = schema.get("anyOf", [schema])
    name = one.get("title") or one.get("$ref", "").rpartition("/")[2]
    words, examples = doc["description"], [*doc.get("examples", [])]
    if name:
        examples += [example_of(made[name])]
        examples += [None] if null and None not in examples else []
        return field(or_null(name) if null else ref(name), words, *examples)
    if null:
        one["type"] = [one["type"], "null"]
        one |= {"enum": [*one["enum"], None]} if "enum" in one else {}
    return field(one, words, *examples)


def example_of(schema: Json) -> Json:
    """Return the first example of each required property; of an event, of each."""
    names = schema["properties" if schema is _IMDS_EVENT else "required"]
    return {name: schema["properties"][name]["examples"][0] for name in names}


def _cloud_event(title: str, kind: str, steps: list[str], of_data: Json) -> Json:
    of_schema = f"urn:sebridge:schema:{kind}:v1"
    names = "|".join(steps).replace(".", r"\.")
    pattern = f"^{PREFIX}\\.{kind}\\.({names})\\.v1$"
    outcome = example_of(of_data).get("outcome", steps[0])  # of the example of data
    types = [f"sebridge.{kind}.{step}.v1" for step in steps]
    types.sort(key=lambda name: f".{outcome}." not in name)
    number, severity = _SEVERITIES.get(kind, (9, "INFO"))
    attributes = {
        "specversion": field({"const": "1.0"}, "The version of CloudEvents.", "1.0"),
        "id": field(
            {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "The same for the same change, from every VM and on every delivery.",
            "c39a9ee2f07140d6a282ec6b9334cba6",
        ),
        "source": field(
            {"type": "string", "minLength": 1, "format": "uri-reference"},
            "The origin: the same for all VMs of a resource group.",
            f"{GROUP}/providers/microsoft.compute",
        ),
        "type": field(
            {"type": "string", "pattern": pattern},
            "What happened, after events.type_prefix. It decides what data is.",
            *types,
        ),
        "subject": field(
            {"type": "string", "minLength": 1},
            "The EventId; the vmId if the event is about the bridge; or none.",
            EVENT_ID,
        ),
        "time": field(TIME, "When this bridge observed it.", AT),
        "datacontenttype": field(
            {"const": "application/json"}, "The format of data.", "application/json"
        ),
        "dataschema": field(
            {"const": of_schema}, "The name of data's schema.", of_schema
        ),
        "eventtype": field(TEXT, "The EventType, for filters.", "Reboot"),
        "eventsource": field(TEXT, "The EventSource, for filters.", "User"),
        "eventstatus": field(TEXT, "The EventStatus, for filters.", "Scheduled"),
        "correlationid": field(TEXT, "The EventId.", EVENT_ID),
        "severitytext": field(
            {"enum": ["INFO", "WARN", "ERROR"]}, "The severity.", severity
        ),
        "severitynumber": field(
            {"enum": [9, 13, 17]}, "The severity as a number of OpenTelemetry.", number
        ),
        "traceparent": field(
            {"type": "string", "pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$"},
            "W3C Trace Context: one trace for each EventId, one span for each event.",
            "00-602d9444d2cd49c786248643e7171297-c39a9ee2f07140d6-01",
        ),
        "dssematerial": field(TEXT, "The signature, by DSSE.", "eyJwYXlsb2FkIjoi"),
        "sebridgetest": field({"const": "true"}, "This is a test event.", "true"),
        "data": field(ref(of_data["title"]), "The details.", example_of(of_data)),
    }
    seen = ("eventtype", "eventsource", "eventstatus", "correlationid")
    optional = ("subject", *seen, "traceparent", "dssematerial", "sebridgetest")
    return record(title, attributes, optional)

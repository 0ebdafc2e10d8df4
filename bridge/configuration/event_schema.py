"""The JSON Schema of events.

It is written by hand: the data comes from Azure and from senders of approvals, so no
type in the code describes all of it. Tests compare the schema with real events. Fields
of IMDS are passed on unchanged: they are described, but their types are not promised.
"""

from bridge.configuration.event_records import DEFINITIONS, KINDS
from bridge.configuration.hub_records import HUB, HUB_DEFINITIONS, HUB_STEPS
from bridge.configuration.schema_parts import (
    AT,
    DRAFT,
    EVENT_ID,
    GROUP,
    PREFIX,
    TEXT,
    TIME,
    Json,
    field,
    record,
    ref,
)

# Of the examples; all others are INFO.
_SEVERITIES = {"scheduledevent": (17, "ERROR"), "hub": (13, "WARN")}


def event() -> Json:
    """Return the schema of every CloudEvent of a bridge or a hub, structured.

    ``type`` decides what ``data`` is: the schema has one named branch for each kind.
    """
    kinds = {**KINDS, "hub": ("HubEvent", HUB_STEPS, HUB)}
    events = {
        title: _cloud_event(title, kind, steps, data)
        for kind, (title, steps, data) in kinds.items()
    }
    data = {data["title"]: data for _, _, data in kinds.values()}
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:event:v1",
        "title": "Event",
        "description": "An event of scheduled-events-bridge: a structured CloudEvent.",
        "oneOf": [ref(title) for title in events],
        "$defs": {**events, **data, **DEFINITIONS, **HUB_DEFINITIONS},
    }


def _cloud_event(title: str, kind: str, steps: list[str], data: Json) -> Json:
    of_schema = f"urn:sebridge:schema:{kind}:v1"
    names = "|".join(steps).replace(".", r"\.")
    pattern = f"^{PREFIX}\\.{kind}\\.({names})\\.v1$"
    outcome = _example(data).get("outcome", steps[0])  # of the example of data
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
        "sebridgetest": field({"const": "true"}, "This is a test event.", "true"),
        "data": field(ref(data["title"]), "The details.", _example(data)),
    }
    seen = ("eventtype", "eventsource", "eventstatus", "correlationid")
    optional = ("subject", *seen, "traceparent", "sebridgetest")
    return record(title, attributes, optional)


def _example(data: Json) -> Json:
    """Return the first example of each required property of data."""
    return {name: data["properties"][name]["examples"][0] for name in data["required"]}

"""The JSON Schema of events, in words.

What they describe comes from Azure and from strangers, so that no type of the code says
all of it; the tests hold them against what is really written. What IMDS says is passed
on as it is: its fields are described, and their types are not promised.
"""

from bridge.configuration.event_records import DEFINITIONS, KINDS
from bridge.configuration.schema_parts import (
    AT,
    DRAFT,
    EVENT_ID,
    GROUP,
    PREFIX,
    TEXT,
    TIME,
    Json,
    record,
    ref,
    said,
)


def event() -> Json:
    """Return the schema of every CloudEvent the bridge sends, structured.

    ``type`` says what ``data`` is: there is one branch, with a name, for each kind.
    """
    events = {
        title: _cloud_event(title, kind, steps, data)
        for kind, (title, steps, data) in KINDS.items()
    }
    data = {data["title"]: data for _, _, data in KINDS.values()}
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:event:v1",
        "title": "Event",
        "description": "An event of scheduled-events-bridge: a structured CloudEvent.",
        "oneOf": [ref(title) for title in events],
        "$defs": {**events, **data, **DEFINITIONS},
    }


def _cloud_event(title: str, kind: str, steps: list[str], data: Json) -> Json:
    of_schema = f"urn:sebridge:schema:{kind}:v1"
    pattern = f"^{PREFIX}\\.{kind}\\.({'|'.join(steps)})\\.v1$"
    types = [f"sebridge.{kind}.{step}.v1" for step in steps]
    attributes = {
        "specversion": said({"const": "1.0"}, "The version of CloudEvents.", "1.0"),
        "id": said(
            {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "The same for the same news, whichever VM tells it, and however often.",
            "0f4c0bd2b5b7d7ce43cf0e4ed2c7a3f1",
        ),
        "source": said(
            {"type": "string", "minLength": 1, "format": "uri-reference"},
            "Where it comes from: the same for all VMs of a resource group.",
            f"{GROUP}/providers/microsoft.compute",
        ),
        "type": said(
            {"type": "string", "pattern": pattern},
            "What has happened, behind events.type_prefix: it says what data is.",
            *types,
        ),
        "subject": said(
            {"type": "string", "minLength": 1},
            "The EventId; the vmId where it is about the bridge.",
            EVENT_ID,
        ),
        "time": said(TIME, "When this bridge observed it.", AT),
        "datacontenttype": said(
            {"const": "application/json"}, "The form of data.", "application/json"
        ),
        "dataschema": said(
            {"const": of_schema}, "The name of data's schema.", of_schema
        ),
        "eventtype": said(TEXT, "EventType of the event, to filter by.", "Reboot"),
        "eventsource": said(TEXT, "EventSource of the event.", "Platform"),
        "eventstatus": said(TEXT, "EventStatus of the event.", "Scheduled"),
        "correlationid": said(TEXT, "The EventId.", EVENT_ID),
        "severitytext": said(
            {"enum": ["INFO", "WARN", "ERROR"]}, "How severe it is.", "ERROR"
        ),
        "severitynumber": said(
            {"enum": [9, 13, 17]}, "The same as a number of OpenTelemetry.", 17
        ),
        "sebridgetest": said(
            {"const": "true"}, "Nothing has happened: it was sent as a test.", "true"
        ),
        "data": said(ref(data["title"]), "What there is to tell.", _example(data)),
    }
    seen = ("eventtype", "eventsource", "eventstatus", "correlationid")
    return record(title, attributes, ("subject", *seen, "sebridgetest"))


def _example(data: Json) -> Json:
    """Return data with the first example of all that is never left out."""
    return {name: data["properties"][name]["examples"][0] for name in data["required"]}

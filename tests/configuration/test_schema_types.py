"""Types that a code generator makes from the schemas can read real events."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bridge.configuration import json_schema
from bridge.configuration.event_records import HUB_STEPS
from bridge.events.alarm import Alarm, HubContext, from_alarm
from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.body import one_of_each
from tests.support.fakes import START

HUB = HubContext(prefix="sebridge", source="/hub", name="hub", version="1")
CONFIG = Path(__file__).parents[2] / "config"
EVENTS = {event.type: event for event in one_of_each(lifecycle=True)}
ALARMS = [
    from_alarm(
        HUB,
        Alarm(what=what, id="0" * 32, severity="INFO", headline="It is so.", more={}),
        START,
    ).event
    for what in HUB_STEPS
]
CLASSES = {
    "scheduledevent": ("ScheduledEvent", "ScheduledEventData"),
    "startrequest": ("StartRequestOutcome", "StartRequestData"),
    "command": ("CommandResult", "CommandData"),
    "bridge": ("BridgeEvent", "BridgeData"),
    "document": ("DocumentEvent", "DocumentData"),
    "hub": ("HubEvent", "HubData"),
}


def generated(what: str, folder: Path) -> ModuleType:
    """Generate a module from a schema with datamodel-code-generator, and load it."""
    path = folder / f"{what}_types.py"
    subprocess.run(  # noqa: S603 - our own words
        [
            *(sys.executable, "-m", "datamodel_code_generator"),
            *("--input", str(CONFIG / f"{what}.schema.json")),
            *("--input-file-type", "jsonschema", "--output", str(path)),
            *("--output-model-type", "pydantic_v2.BaseModel"),
            *("--target-python-version", "3.11", "--formatters", "builtin"),
        ],
        check=True,
        capture_output=True,
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # its classes refer to one another
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def event_types(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return generated("event", tmp_path_factory.mktemp("event"))


@pytest.fixture(scope="module")
def approval_types(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return generated("approval", tmp_path_factory.mktemp("approval"))


def test_samples_cover_each_type_of_the_schema() -> None:
    defs = json_schema.event()["$defs"]
    types = [defs[name]["properties"]["type"] for name, _ in CLASSES.values()]

    assert [f"#/$defs/{name}" for name, _ in CLASSES.values()] == [
        kind["$ref"] for kind in json_schema.event()["oneOf"]
    ]
    told = {*EVENTS, *(alarm.type for alarm in ALARMS)}
    assert {example for one in types for example in one["examples"]} == told


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.type)
def test_event_of_each_type_is_read_as_that_type(
    event: CloudEvent, event_types: ModuleType
) -> None:
    read = event_types.Event.model_validate_json(event.to_json()).root

    kind = event.type.split(".")[1]
    assert (type(read).__name__, type(read.data).__name__) == CLASSES[kind]
    assert read.data.reporter.vmName == "web-0"
    assert read.data.observedAt.isoformat() == "2026-03-02T12:00:00+00:00"
    told = json.loads(event.to_json())
    again = json.loads(read.model_dump_json(exclude_unset=True))
    assert {**again, "data": None} == {**told, "data": None}
    assert set(again["data"]) == set(told["data"])


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.type)
def test_alarm_of_a_hub_is_read_as_one(
    alarm: CloudEvent, event_types: ModuleType
) -> None:
    read = event_types.Event.model_validate_json(alarm.to_json()).root

    assert (type(read).__name__, type(read.data).__name__) == CLASSES["hub"]
    assert (read.data.headline, read.data.reporter.vmName) == ("It is so.", "hub")


def test_data_of_the_wrong_kind_is_refused(event_types: ModuleType) -> None:
    found = json.loads(EVENTS["sebridge.scheduledevent.started.v1"].to_json())
    denied = json.loads(EVENTS["sebridge.startrequest.denied.v1"].to_json())
    for wrong in (
        {"data": denied["data"]},
        {"type": denied["type"]},
        {"type": "sebridge.scheduledevent.begun.v1"},
        {"dataschema": denied["dataschema"]},
    ):
        with pytest.raises(ValueError, match="Event"):
            event_types.Event.model_validate({**found, **wrong})


def test_unexpected_types_of_imds_fields_are_read(event_types: ModuleType) -> None:
    """Fields of IMDS are passed on unchanged, whatever the documentation says."""
    found = json.loads(EVENTS["sebridge.scheduledevent.started.v1"].to_json())
    odd = {"Resources": "web-1", "DurationInSeconds": "long", "NewField": [1]}
    found["data"]["event"] |= odd

    read = event_types.Event.model_validate(found).root

    assert read.data.event.Resources == "web-1"


def test_types_of_approvals_make_an_approval(approval_types: ModuleType) -> None:
    entry = {"EventId": "E-1"}
    data = {"StartRequests": [entry], "approvedBy": "ops"}
    event = {"specversion": "1.0", "id": "1", "source": "/ops", "data": data}
    event["type"] = "sebridge.startrequest.v1"

    plain = approval_types.Approval.model_validate({"StartRequests": [entry]})
    told = approval_types.Approval.model_validate(event)

    assert plain.root.StartRequests[0].EventId == "E-1"
    assert told.root.data.approvedBy == "ops"

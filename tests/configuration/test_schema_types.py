"""Types that code generators make from the schemas can read real events.

quicktype needs Node.js and the package that node/package.json names:
``npm ci --prefix DIRECTORY`` and NODE_PATH=DIRECTORY/node_modules, or npm ci in node/.
No generator of .NET runs here: the rules that NJsonSchema needs are checked instead.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bridge.configuration import event_schema
from bridge.configuration.event_schema import HUB_STEPS
from bridge.events.alarm import Alarm, HubContext, from_alarm
from bridge.events.cloudevent import CloudEvent, rfc3339
from bridge.events.data import HubData
from bridge.events.samples import one_of_each
from tests.support.fakes import START

HUB = HubContext(prefix="sebridge", source="/hub", name="hub", version="1")
SO = HubData(
    observed_at=rfc3339(START),
    headline="It is so.",
    reason=None,
    reporter=HUB.reporter,
)
CONFIG = Path(__file__).parents[2] / "config"
SCRIPTS = Path(__file__).parent / "node"
NODE = shutil.which("node")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)")
EVENTS = {event.type: event for event in one_of_each(lifecycle=True)}
ALARMS = [
    from_alarm(
        HUB,
        Alarm(what=what, id="0" * 32, severity="INFO", data=SO),
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
    defs = event_schema.event()["definitions"]
    types = [defs[name]["properties"]["type"] for name, _ in CLASSES.values()]

    assert [f"#/definitions/{name}" for name, _ in CLASSES.values()] == [
        kind["$ref"] for kind in event_schema.event()["oneOf"]
    ]
    found = {*EVENTS, *(alarm.type for alarm in ALARMS)}
    assert {example for one in types for example in one["examples"]} == found


@pytest.mark.integration
@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.type)
def test_event_of_each_type_is_read_as_that_type(
    event: CloudEvent, event_types: ModuleType
) -> None:
    read = event_types.Event.model_validate_json(event.to_json()).root

    kind = event.type.split(".")[1]
    assert (type(read).__name__, type(read.data).__name__) == CLASSES[kind]
    assert read.data.reporter.vmName == "web-0"
    assert read.data.observedAt.isoformat() == "2026-03-02T12:00:00+00:00"
    found = json.loads(event.to_json())
    again = json.loads(read.model_dump_json(exclude_unset=True))
    assert {**again, "data": None} == {**found, "data": None}
    assert set(again["data"]) == set(found["data"])


@pytest.mark.integration
@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.type)
def test_alarm_of_a_hub_is_read_as_one(
    alarm: CloudEvent, event_types: ModuleType
) -> None:
    read = event_types.Event.model_validate_json(alarm.to_json()).root

    assert (type(read).__name__, type(read.data).__name__) == CLASSES["hub"]
    assert (read.data.headline, read.data.reporter.vmName) == ("It is so.", "hub")


@pytest.mark.integration
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


@pytest.mark.integration
def test_unexpected_types_of_imds_fields_are_read(event_types: ModuleType) -> None:
    """Fields of IMDS are passed on unchanged, whatever the documentation says."""
    found = json.loads(EVENTS["sebridge.scheduledevent.started.v1"].to_json())
    odd = {"Resources": "web-1", "DurationInSeconds": "long", "NewField": [1]}
    found["data"]["event"] |= odd

    read = event_types.Event.model_validate(found).root

    assert read.data.event.Resources == "web-1"


@pytest.mark.integration
def test_types_of_approvals_make_an_approval(approval_types: ModuleType) -> None:
    entry = {"EventId": "E-1"}
    data = {"StartRequests": [entry], "approvedBy": "ops"}
    event = {"specversion": "1.0", "id": "1", "source": "/ops", "data": data}
    event["type"] = "sebridge.startrequest.v1"

    plain = approval_types.Approval.model_validate({"StartRequests": [entry]})
    found = approval_types.Approval.model_validate(event)

    assert plain.root.StartRequests[0].EventId == "E-1"
    assert found.root.data.approvedBy == "ops"


# -- all examples, and back ------------------------------------------------------------

WEEK = (CONFIG / "examples" / "events.ndjson").read_text(encoding="utf-8").splitlines()
EACH = [event.to_json().decode() for event in (*EVENTS.values(), *ALARMS)]
LINES = [*WEEK, *EACH]


def plain(value: Any) -> Any:
    """Return a value with its times in one spelling, of whole milliseconds."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        moment = datetime.fromisoformat(value).astimezone(UTC)
        return moment.isoformat(timespec="milliseconds")
    return value


def test_there_are_many_examples() -> None:
    types = {json.loads(line)["type"] for line in LINES}
    assert (len(WEEK) > 100, len(types) > 30) == (True, True)


@pytest.mark.integration
def test_examples_are_the_same_after_classes_of_python(event_types: ModuleType) -> None:
    for line in LINES:
        read = event_types.Event.model_validate_json(line).root
        again = json.loads(read.model_dump_json(exclude_unset=True, by_alias=True))
        found = json.loads(line)
        assert plain({**again, "data": None}) == plain({**found, "data": None})
        for name, value in found["data"].items():
            if name != "event":  # of IMDS: its class need not have all fields
                assert plain(again["data"][name]) == plain(value), name


@pytest.mark.integration
def test_examples_are_the_same_after_what_quicktype_makes(tmp_path: Path) -> None:
    if NODE is None:
        pytest.skip("Node.js is not installed")
    probe = [NODE, "--eval", "require.resolve('quicktype')"]
    if subprocess.run(probe, cwd=SCRIPTS, capture_output=True, check=False).returncode:  # noqa: S603  # nothing from outside
        pytest.skip("quicktype is missing: npm ci in tests/configuration/node")
    events = tmp_path / "events.ndjson"
    events.write_text("\n".join(LINES), encoding="utf-8")
    schema = CONFIG / "event.schema.json"

    found = subprocess.run(  # noqa: S603  # nothing from outside
        [NODE, str(SCRIPTS / "read.js"), str(schema), str(events), str(tmp_path)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )

    assert found.returncode == 0, found.stderr
    again = [plain(json.loads(line)) for line in found.stdout.splitlines()]
    assert again == [plain(json.loads(line)) for line in LINES]


# -- rules that NJsonSchema needs ------------------------------------------------------


def parts_of(schema: Any, place: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of a schema that is no example, with its place."""
    if isinstance(schema, list):
        for number, below in enumerate(schema):
            yield from parts_of(below, f"{place}/{number}")
    elif isinstance(schema, dict):
        yield place, schema
        for key, below in schema.items():
            if key not in {"examples", "default"}:
                yield from parts_of(below, f"{place}/{key}")


@pytest.mark.parametrize("what", ["event", "approval"])
def test_schema_keeps_the_rules_of_njsonschema(what: str) -> None:
    """It knows ``definitions``, not $defs, and one type beside null for a property."""
    schema = json.loads((CONFIG / f"{what}.schema.json").read_text(encoding="utf-8"))
    names = schema["definitions"]

    assert "$defs" not in schema
    for name, one in names.items():
        assert (one["title"], one["type"]) == (name, "object")  # the name of its class
    for place, part in parts_of(schema):
        if target := part.get("$ref"):
            assert target.removeprefix("#/definitions/") in names, place
        if isinstance(types := part.get("type"), list):
            assert len({*types} - {"null"}) == 1, place
        if isinstance(part.get("properties"), dict) and "type" in part:
            assert part is schema or place.count("/") == 2, f"{place} has no name"
        if place != "#":
            assert "oneOf" not in part, place
            others = [one for one in part.get("anyOf", []) if one != {"type": "null"}]
            assert len(others) <= 1, f"{place}: a class is one of these, or null"

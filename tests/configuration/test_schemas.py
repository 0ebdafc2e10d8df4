"""The JSON Schemas describe the documents that the bridge really reads and writes."""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

from bridge.approvals.message import parse
from bridge.cli.main import main
from bridge.configuration import event_schema, json_schema
from bridge.events.build import (
    EventContext,
    Outcome,
    OutgoingEvent,
    from_document,
    from_outcome,
    from_transition,
)
from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.transitions import diff
from bridge.events.vocabulary import COMMAND_OUTCOMES, TransitionKind
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import MalformedApprovalError
from bridge.hub import load
from bridge.imds.config import ImdsConfig
from bridge.telemetry.metrics import OUTCOMES
from tests.support.builders import (
    EVENT_ID,
    document,
    event_context_of,
    imds_event,
    own_event,
    started,
)
from tests.support.fakes import START
from tests.support.schemas import validator
from tests.support.strategies import histories, odd_documents

CONFIG = Path(__file__).parents[2] / "config"
KINDS = ["config", "event", "approval"]


def faults(what: str, value: object) -> list[str]:
    """Return the violations of a schema in a value."""
    found = validator(what).iter_errors(value)
    return [f"{e.json_path}: {e.message}" for e in found]


def sent(event: OutgoingEvent) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.event.to_json())
    return found


@pytest.mark.parametrize("what", KINDS)
def test_schema_is_a_schema(what: str) -> None:
    Draft202012Validator.check_schema(json.loads(json_schema.text(what)))


@pytest.mark.parametrize("what", KINDS)
def test_schema_file_is_what_the_code_prints(what: str) -> None:
    path = CONFIG / f"{what}.schema.json"

    assert path.read_text(encoding="utf-8") == json_schema.text(what), (
        f"write it anew: sebridge schema {what} > {path}"
    )


# -- descriptions and examples -----------------------------------------------------

Found = Iterator[tuple[str, dict[str, Any]]]


def properties_of(schema: Any, place: str = "") -> Found:
    """Yield every property of a schema, at any depth."""
    if isinstance(schema, list):
        for number, below in enumerate(schema):
            yield from properties_of(below, f"{place}[{number}]")
    elif isinstance(schema, dict):
        for name, found in schema.get("properties", {}).items():
            yield f"{place}.{name}", found
        for key, below in schema.items():
            if key not in {"examples", "default"}:
                yield from properties_of(below, f"{place}.{key}")


@pytest.mark.parametrize("what", KINDS)
def test_every_property_has_a_description(what: str) -> None:
    found = dict(properties_of(json.loads(json_schema.text(what))))

    silent = [name for name, one in found.items() if not one.get("description")]
    odd = [name for name, one in found.items() if "``" in one.get("description", "")]
    assert len(found) >= 12
    assert (silent, odd) == ([], [])


@pytest.mark.parametrize("what", KINDS)
def test_every_property_has_examples_that_it_allows(what: str) -> None:
    schema = json.loads(json_schema.text(what))
    for name, one in properties_of(schema):
        assert one.get("examples"), f"{name}: give its docstring an Example: ``…``"
        validator = Draft202012Validator(
            {"definitions": schema.get("definitions", {}), **one},
            format_checker=FormatChecker(),
        )
        for example in one["examples"]:
            assert list(validator.iter_errors(example)) == [], name


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a schema that is no example, at any depth."""
    if isinstance(schema, list):
        for below in schema:
            yield from parts_of(below)
    elif isinstance(schema, dict):
        yield schema
        for key, below in schema.items():
            if key != "examples":
                yield from parts_of(below)


@pytest.mark.parametrize("what", ["event", "approval"])
def test_values_have_a_type_for_generators(what: str) -> None:
    """Without it, a generated class has no type for the property, or one of 32 bits."""
    parts = list(parts_of(json.loads(json_schema.text(what))))

    fixed = [one for one in parts if "enum" in one or "const" in one]
    assert fixed
    for one in fixed:
        values = one.get("enum") or [one["const"]]
        assert all(
            Draft202012Validator({"type": one["type"]}).is_valid(v) for v in values
        )
    whole = [one for one in parts if "integer" in one.get("type", ())]
    free = [one for one in whole if "enum" not in one]
    assert free
    assert [one for one in free if one.get("format") != "int64"] == []


def test_schema_has_only_keywords_of_json_schema() -> None:
    """A strict validator refuses all other keywords."""
    for what in KINDS:
        assert '"written"' not in json_schema.text(what)


def test_descriptions_of_the_configuration_are_those_of_the_sections() -> None:
    schema = json_schema.config()
    interval = schema["properties"]["imds"]["properties"]["poll_interval"]
    (bus,) = (
        one
        for one in schema["properties"]["sinks"]["items"]["anyOf"]
        if one["properties"]["type"]["const"] == "servicebus"
    )

    assert "poll_interval: how often to read the document" in str(ImdsConfig.__doc__)
    assert interval["description"].startswith("How often to read the document; at")
    assert interval["description"].endswith('"500ms", "30s", "5m", "24h".')
    found = schema["properties"]["imds"]["description"]
    assert found == "Where and how often the document of scheduled events is read."
    lent = schema["properties"]["approvals"]["properties"]["namespace"]
    assert bus["properties"]["namespace"] == lent


# -- configuration -----------------------------------------------------------------


def example() -> dict[str, Any]:
    return tomllib.loads((CONFIG / "bridge.example.toml").read_text(encoding="utf-8"))


def test_example_is_valid() -> None:
    assert faults("config", example()) == []


def test_empty_configuration_is_valid() -> None:
    assert faults("config", {}) == []


@pytest.mark.parametrize("table", ["", "imds", "http", "approvals"])
def test_unknown_key_is_invalid(table: str) -> None:
    tables = example()
    (tables[table] if table else tables)["polll"] = 1

    (fault,) = faults("config", tables)

    assert "'polll' was unexpected" in fault


@pytest.mark.parametrize("number", [0, 1, 2])
def test_unknown_key_of_a_sink_is_invalid(number: int) -> None:
    tables = example()
    tables["sinks"][number]["polll"] = 1

    assert faults("config", tables)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("key", ["name", "type"])
def test_sink_without_name_or_type_is_invalid(number: int, key: str) -> None:
    tables = example()
    del tables["sinks"][number][key]

    assert faults("config", tables)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("imds", "poll_interval", "soon"),
        ("imds", "poll_interval", -1),
        ("imds", "api_version", "2038-01-01"),
        ("log", "level", "loud"),
        ("events", "documents", "yes"),
        ("http", "listen", None),
        ("http", "token", 5),
    ],
)
def test_refused_value_is_invalid_by_the_schema(
    section: str, key: str, value: object
) -> None:
    assert faults("config", {section: {key: value}})


@pytest.mark.parametrize("value", [0, 1.5, "500ms", "1.5h", " 5 m ", "7"])
def test_accepted_duration_is_valid_by_the_schema(value: object) -> None:
    assert faults("config", {"shutdown_grace": value}) == []


# -- events ------------------------------------------------------------------------


def test_every_kind_of_transition_is_valid() -> None:
    watch, kinds = Watch(), set()
    for number, found in enumerate(
        (
            document(incarnation=1),
            document(imds_event(), imds_event("B"), incarnation=2),
            document(imds_event(Description="x"), started("B"), incarnation=3),
            document(imds_event(), incarnation=4),
            document(incarnation=5),
            document(imds_event(), incarnation=6),
            document(incarnation=9),
        )
    ):
        watch, shown = step(watch, found, number)
        for one in shown:
            assert faults("event", sent(one)) == []
            kinds.add(one.event.data["transition"])

    assert len(kinds) == 6


def step(
    watch: Watch, found: Document, second: int
) -> tuple[Watch, list[OutgoingEvent]]:
    """Return the watch after a document, and the published events."""
    at = datetime.fromtimestamp(START.timestamp() + second, UTC)
    moment = Moment(at=at, monotonic=float(second))
    after, steps = diff(watch, found, moment, poll_interval=1, relayed=frozenset())
    return after, [
        from_transition(
            event_context_of(),
            one,
            incarnation=found.incarnation,
            observed_at=at,
            repeats=0,
        )
        for one in steps
    ]


def first_examples(title: str) -> dict[str, Any]:
    """Return an event of the first example of each attribute of a kind."""
    event = event_schema.event()["definitions"][title]["properties"]
    return {name: one["examples"][0] for name, one in event.items()}


def reporter_of(example: Mapping[str, Any]) -> EventContext:
    """Return what a bridge needs to report as in an example."""
    found = example["data"]["reporter"]
    named = ("vm_name", "vm_id", "resource_id", "location", "vm_scale_set_name")
    values = (value for name, value in found.items() if name != "version")
    return EventContext(
        prefix="sebridge",
        source=example["source"],
        identity=Identity(**dict(zip(named, values, strict=True))),
        version=found["version"],
    )


def test_example_of_a_scheduled_event_is_what_a_bridge_makes_of_it() -> None:
    example = first_examples("ScheduledEvent")
    del example["sebridgetest"], example["dssematerial"]
    at = datetime.fromisoformat(example["time"])
    data = example["data"]
    found = document(data["event"], incarnation=data["documentIncarnation"])
    before = Moment(at=at - timedelta(seconds=1), monotonic=0.0)
    _, (one,) = diff(
        Watch(incarnation=1, seen=before),
        found,
        Moment(at=at, monotonic=1.0),
        poll_interval=1,
    )

    shown = from_transition(
        reporter_of(example),
        one,
        incarnation=found.incarnation,
        observed_at=at,
        repeats=0,
    )

    assert sent(shown) == example


def test_example_of_an_outcome_is_what_a_bridge_makes_of_it() -> None:
    example = first_examples("StartRequestOutcome")
    data = example["data"]
    event = next(iter(document(data["event"]).events.values()))
    relayed = outcome(
        data["outcome"],
        event_id=data["eventId"],
        event=event,
        imds_status=data["imdsStatus"],
        reason=data["reason"],
        request=data["request"],
    )
    at = datetime.fromisoformat(example["time"])

    found = from_outcome(reporter_of(example), relayed, at)

    # Of the message, which is not in it, or of what is not set.
    hashed = ("id", "traceparent", "sebridgetest", "dssematerial")
    shown = {name: value for name, value in example.items() if name not in hashed}
    assert {name: sent(found).get(name) for name in shown} == shown


@pytest.mark.slow
@given(histories() | st.lists(odd_documents(), max_size=4))
def test_events_from_any_document_fit_the_schema(
    history: list[Document],
) -> None:
    watch = Watch()
    for number, found in enumerate(history):
        watch, shown = step(watch, found, number)
        shown.append(
            from_document(
                event_context_of(),
                found,
                previous_incarnation=watch.incarnation,
                observed_at=START,
                repeats=number,
            )
        )
        for one in shown:
            assert faults("event", sent(one)) == []


def test_truncated_event_is_valid() -> None:
    huge = document(imds_event(Description="x" * 70_000, Resources=["é" * 90] * 200))
    _, (found,) = step(Watch(), huge, 0)

    assert "truncated" in found.event.data
    assert faults("event", sent(found)) == []


def outcome(kind: str, **fields: Any) -> Outcome:
    return Outcome(
        outcome=kind,
        **{
            "event_id": EVENT_ID,
            "event": next(iter(document(imds_event()).events.values())),
            "imds_status": 200,
            "confirmed": True,
            "reason": "because",
            "request": {
                "messageId": "m",
                "enqueuedAt": "2026-03-02T12:00:00Z",
                "approvedBy": None,
                "reason": None,
                "expiresAt": None,
            },
            "origin": ("vm-approvals", "m", 1),
            **fields,
        },
    )


@pytest.mark.parametrize("kind", OUTCOMES)
def test_every_outcome_of_an_approval_is_valid(kind: str) -> None:
    assert (
        faults("event", sent(from_outcome(event_context_of(), outcome(kind), START)))
        == []
    )


def test_outcome_of_an_unreadable_message_is_valid() -> None:
    nothing = outcome(
        "invalid",
        event_id=None,
        event=None,
        imds_status=None,
        confirmed=None,
        origin=("q", None, None),
    )
    found = from_outcome(event_context_of(Identity()), nothing, START)

    assert faults("event", sent(found)) == []


@pytest.mark.parametrize(
    "what",
    [
        *("started", "stopped", "heartbeat", "imds-unreachable", "imds-recovered"),
        *("traffic-out", "traffic-in"),
    ],
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"pending": 1, "dead": 0, "free_disk_bytes": 2**40},
        {"event_id": None, "since": "2026-03-02T12:00:00Z"},
    ],
)
def test_event_of_the_bridge_itself_is_valid(
    what: str, more: Mapping[str, Any]
) -> None:
    found = own_event(event_context_of(Identity()), what, reason="429", **more)

    assert faults("event", sent(found)) == []


ALL_TYPES = {
    *(f"scheduledevent.{kind}" for kind in TransitionKind),
    *(f"startrequest.{kind}" for kind in OUTCOMES),
    *(f"bridge.{what}" for what in ("started", "stopped", "heartbeat")),
    *("bridge.traffic-out", "bridge.traffic-in"),
    *(f"bridge.imds-{what}" for what in ("unreachable", "recovered")),
    *(f"command.{outcome}" for outcome in COMMAND_OUTCOMES),
    "document.changed",
    *(f"hub.{what}" for what in ("bridge-silent", "bridge-back", "unreported")),
    "hub.clock-wrong",
    "hub.key-unknown",
    "hub.message-slow",
    "hub.report",
    *(f"hub.approval.{word}" for word in ("decided", "refused", "done")),
    *(f"hub.approval.{word}" for word in ("failed", "void")),
}


def types_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schema of ``type`` for each kind of event."""
    names = [one["$ref"].rpartition("/")[2] for one in schema["oneOf"]]
    return [schema["definitions"][name]["properties"]["type"] for name in names]


def test_types_are_an_enumeration_behind_a_prefix() -> None:
    types = types_of(event_schema.event())
    examples = [example for one in types for example in one["examples"]]

    assert sorted(examples) == sorted(f"sebridge.{name}.v1" for name in ALL_TYPES)
    for name in examples:
        for prefix in ("sebridge", "com.contoso-1.web"):
            found = name.replace("sebridge", prefix, 1)
            assert [re.search(one["pattern"], found) for one in types].count(None) == 5


@pytest.mark.parametrize(
    "kind",
    [
        "sebridge.scheduledevent.begun.v1",
        "sebridge.scheduledevent.started.v2",
        "sebridge.scheduledevent.started.v1x",
        "scheduledevent.started.v1",
        ".scheduledevent.started.v1",
        "se bridge.scheduledevent.started.v1",
        "sebridge.startrequest.started.v1",
        "sebridge.document.started.v1",
    ],
)
def test_type_that_the_bridge_never_sends_is_invalid(kind: str) -> None:
    assert [
        one for one in types_of(event_schema.event()) if re.search(one["pattern"], kind)
    ] == []


def test_data_belongs_to_the_type() -> None:
    """No event is valid with the data of another kind."""
    kinds = [
        sent(own_event(event_context_of(), "started")),
        sent(from_outcome(event_context_of(), outcome("relayed"), START)),
        sent(step(Watch(), document(imds_event(), incarnation=2), 1)[1][0]),
        sent(changed_document()),
    ]
    for one, other in itertools.permutations(kinds, 2):
        # all other data has the fields of bridge data, and extra fields are allowed
        if one["data"]["reporter"] and "bridge" not in one["type"]:
            assert faults("event", {**one, "data": other["data"]})
        assert faults("event", {**one, "type": other["type"]})
        assert faults("event", {**one, "dataschema": other["dataschema"]})


def changed_document() -> OutgoingEvent:
    return from_document(
        event_context_of(),
        document(imds_event(), incarnation=2),
        previous_incarnation=1,
        observed_at=START,
        repeats=0,
    )


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("id", "no hash"),
        ("specversion", "0.3"),
        ("time", "yesterday"),
        ("severitynumber", 10),
        ("dataschema", "urn:sebridge:schema:other:v1"),
        ("data", {}),
        ("data", []),
    ],
)
def test_event_that_the_bridge_never_sends_is_invalid(
    attribute: str, value: object
) -> None:
    event = sent(own_event(event_context_of(), "started"))

    assert faults("event", {**event, attribute: value})


# -- approvals -----------------------------------------------------------------------

BODY = {"StartRequests": [{"EventId": EVENT_ID}]}


def structured(**data: object) -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": "1",
        "source": "/approver",
        "type": "sebridge.startrequest.v1",
        "data": {**BODY, **data},
    }


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        {**BODY, "DocumentIncarnation": 5},
        structured(),
        structured(
            approvedBy="me",
            reason="quiet night",
            expiresAt="2026-03-02T12:00:00Z",
            approvedEvent=imds_event(),
        ),
        structured(approvedBy=None, approvedEvent=None),
        {**BODY, "expiresAt": "2026-03-02T12:00:00Z", "approvedEvent": imds_event()},
    ],
)
def test_approval_in_either_written_form_is_valid(body: object) -> None:
    assert faults("approval", body) == []
    assert parse(json.dumps(body).encode(), {}, prefix="sebridge").event_ids


@pytest.mark.parametrize(
    "body",
    [
        *({}, [], {"StartRequests": []}, {"StartRequests": [{}]}),
        {"StartRequests": [{"EventId": 5}]},
        {"StartRequests": [{"EventId": " "}]},
        {"StartRequests": [{"EventId": "x" * 1025}]},
        {"StartRequests": [{"EventId": str(n)} for n in range(101)]},
        structured(expiresAt="soon"),
        {**BODY, "expiresAt": "soon"},
        {**BODY, "approvedEvent": []},
        {**structured(), "type": "sebridge.startrequest.v2"},
        {k: v for k, v in structured().items() if k != "data"},
    ],
)
def test_approval_that_is_refused_is_invalid(body: object) -> None:
    assert faults("approval", body)
    with pytest.raises(MalformedApprovalError):
        parse(json.dumps(body).encode(), {}, prefix="sebridge")


# -- the hub's file, and the lines that name a schema ------------------------------


def test_schema_of_the_hub_is_whole() -> None:
    text = load.schema_text()

    Draft202012Validator.check_schema(json.loads(text))
    assert (CONFIG / "hub.schema.json").read_text(encoding="utf-8") == text, (
        "write it anew: sebridge schema hub > config/hub.schema.json"
    )
    for name, one in properties_of(json.loads(text)):
        assert one.get("description"), name
    assert CliRunner().invoke(main, ["schema", "hub"]).stdout == text


@pytest.mark.parametrize(
    "path",
    [CONFIG / "bridge.example.toml", *sorted((CONFIG / "examples").glob("*.toml"))],
    ids=lambda path: path.stem,
)
def test_file_fits_the_schema_that_its_first_line_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    first, name = text.splitlines()[0].split(" ")
    schema = json.loads((path.parent / name).read_text(encoding="utf-8"))

    assert first == "#:schema"
    Draft202012Validator(schema).validate(tomllib.loads(text))


def test_schema_of_the_hub_finds_a_wrong_key() -> None:
    found = tomllib.loads((CONFIG / "examples" / "hub.toml").read_text("utf-8"))
    found["hub"]["sources"][0]["tpoic"] = "x"

    with pytest.raises(ValidationError):
        Draft202012Validator(load.schema()).validate(found)

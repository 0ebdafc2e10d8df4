"""The JSON Schemas say what is really read and written."""

import json
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from bridge import schemas
from bridge.approvals.message import parse
from bridge.errors import MalformedApprovalError
from bridge.events import (
    Outcome,
    Told,
    from_bridge,
    from_document,
    from_outcome,
    from_transition,
)
from bridge.identity import Identity
from bridge.imds.document import Document
from bridge.telemetry import OUTCOMES
from bridge.transitions import Moment, Watch, diff
from tests.builders import EVENT_ID, document, imds_event, started, teller_of
from tests.fakes import START
from tests.strategies import histories, odd_documents

CONFIG = Path(__file__).parents[2] / "config"
KINDS = ["config", "event", "approval"]


def faults(what: str, value: object) -> list[str]:
    """Return what the schema finds wrong with a value."""
    schema = json.loads(schemas.text(what))
    validator = Draft202012Validator(schema, format_checker=FormatChecker())
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(value)]


def sent(told: Told) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.event.to_json())
    return found


@pytest.mark.parametrize("what", KINDS)
def test_schema_is_a_schema(what: str) -> None:
    Draft202012Validator.check_schema(json.loads(schemas.text(what)))


@pytest.mark.parametrize("what", KINDS)
def test_schema_file_is_what_the_code_prints(what: str) -> None:
    path = CONFIG / f"{what}.schema.json"

    assert path.read_text(encoding="utf-8") == schemas.text(what), (
        f"write it anew: sebridge schema {what} > {path}"
    )


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
def test_value_that_the_code_refuses_is_invalid(
    section: str, key: str, value: object
) -> None:
    assert faults("config", {section: {key: value}})


@pytest.mark.parametrize("value", [0, 1.5, "500ms", "1.5h", " 5 m ", "7"])
def test_duration_that_the_code_takes_is_valid(value: object) -> None:
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
        watch, told = step(watch, found, number)
        for one in told:
            assert faults("event", sent(one)) == []
            kinds.add(one.event.data["transition"])

    assert len(kinds) == 6


def step(watch: Watch, found: Document, second: int) -> tuple[Watch, list[Told]]:
    """Return the watch after a document, and what is told of it."""
    at = datetime.fromtimestamp(START.timestamp() + second, UTC)
    moment = Moment(at=at, monotonic=float(second))
    after, steps = diff(watch, found, moment, poll_interval=1, relayed=frozenset())
    return after, [
        from_transition(
            teller_of(), one, incarnation=found.incarnation, observed_at=at, told=0
        )
        for one in steps
    ]


@given(histories() | st.lists(odd_documents(), max_size=4))
def test_whatever_imds_says_is_told_as_the_schema_has_it(
    history: list[Document],
) -> None:
    watch = Watch()
    for number, found in enumerate(history):
        watch, told = step(watch, found, number)
        told.append(
            from_document(
                teller_of(),
                found,
                previous_incarnation=watch.incarnation,
                observed_at=START,
                told=number,
            )
        )
        for one in told:
            assert faults("event", sent(one)) == []


def test_event_too_large_for_the_wire_is_valid_once_cut() -> None:
    huge = document(imds_event(Description="x" * 70_000, Resources=["é" * 90] * 200))
    _, (told,) = step(Watch(), huge, 0)

    assert "truncated" in told.event.data
    assert faults("event", sent(told)) == []


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
    assert faults("event", sent(from_outcome(teller_of(), outcome(kind), START))) == []


def test_outcome_of_what_could_not_be_read_is_valid() -> None:
    nothing = outcome(
        "invalid",
        event_id=None,
        event=None,
        imds_status=None,
        confirmed=None,
        origin=("q", None, None),
    )
    told = from_outcome(teller_of(Identity()), nothing, START)

    assert faults("event", sent(told)) == []


@pytest.mark.parametrize(
    "what", ["started", "stopped", "heartbeat", "imds-unreachable", "imds-recovered"]
)
@pytest.mark.parametrize(
    "more", [{}, {"pending": 1, "dead": 0, "freeDiskBytes": 2**40}]
)
def test_event_of_the_bridge_itself_is_valid(
    what: str, more: Mapping[str, object]
) -> None:
    told = from_bridge(
        teller_of(Identity()), what, observed_at=START, reason="429", more=more
    )

    assert faults("event", sent(told)) == []


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
    event = sent(from_bridge(teller_of(), "started", observed_at=START))

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
        {**structured(), "type": "sebridge.startrequest.v2"},
        {k: v for k, v in structured().items() if k != "data"},
    ],
)
def test_approval_that_is_refused_is_invalid(body: object) -> None:
    assert faults("approval", body)
    with pytest.raises(MalformedApprovalError):
        parse(json.dumps(body).encode(), {}, prefix="sebridge")

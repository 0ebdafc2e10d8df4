"""What is published: ids, attributes, data, severities, sizes."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import jsonschema
import orjson
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.build import (
    OutgoingEvent,
    cause_of,
    cause_of_document,
    from_document,
    from_outcome,
)
from bridge.events.cloudevent import (
    MAX_BYTES,
    STRUCTURED_TYPE,
    CloudEvent,
    hash32,
    rfc3339,
)
from bridge.events.config import EventsConfig
from bridge.events.document import parse
from bridge.events.identity import Identity
from bridge.events.transitions import diff
from bridge.events.vocabulary import TransitionKind
from bridge.events.watch import Moment, Watch
from bridge.foundation.sections import Reader
from tests.support.builders import (
    DATA,
    EVENT_ID,
    ME,
    body_of,
    document,
    event_context_of,
    imds_event,
    not_before,
    own_event,
    started,
)
from tests.support.example_events import outcome, published, seen, transition
from tests.support.fakes import START
from tests.support.strategies import JSON_VALUES, bodies, events

SCHEMA = jsonschema.Draft7Validator(
    json.loads((DATA / "cloudevents.schema.json").read_text()),
    format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER,
)
# What CloudEvents forbids in a string attribute.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
SOURCE = (
    "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourcegroups/web-rg"
    "/providers/microsoft.compute"
)


def data_of(event: OutgoingEvent) -> dict[str, object]:
    found: dict[str, object] = orjson.loads(event.event.to_json())["data"]
    return found


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


# -- the shape ---------------------------------------------------------------


def test_transition_has_exactly_the_attributes_of_the_contract() -> None:
    written = orjson.loads(published(transition()).event.to_json())

    span_id = written.pop("id")[:16]
    del written["data"]
    assert written == {
        "specversion": "1.0",
        "source": SOURCE,
        "type": "sebridge.scheduledevent.scheduled.v1",
        "subject": EVENT_ID,
        "time": "2026-03-02T12:00:00Z",
        "datacontenttype": "application/json",
        "dataschema": "urn:sebridge:schema:scheduledevent:v1",
        "eventtype": "Freeze",
        "eventsource": "Platform",
        "eventstatus": "Scheduled",
        "correlationid": EVENT_ID,
        "severitytext": "WARN",
        "severitynumber": 13,
        "traceparent": f"00-{EVENT_ID.replace('-', '').lower()}-{span_id}-01",
    }


def test_transition_has_exactly_the_data_of_the_contract() -> None:
    before, after = imds_event(DurationInSeconds=9), imds_event()
    step = transition("updated", after, before, changes=("DurationInSeconds",))

    assert data_of(published(step)) == {
        "transition": "updated",
        "event": after,
        "previous": before,
        "changes": ["DurationInSeconds"],
        "announced": True,
        "documentIncarnation": 2,
        "observedAt": "2026-03-02T12:00:00Z",
        "notBefore": "2026-03-02T12:15:00Z",
        "noticeSeconds": 900,
        "affectsThisVm": True,
        "unobservedSeconds": 1,
        "reporter": {
            "vmName": "WestNO_0",
            "vmId": ME.vm_id,
            "resourceId": ME.resource_id,
            "location": "westnorway",
            "vmScaleSetName": "WestNO",
            "version": "1.2.3",
        },
    }


def test_what_is_not_known_is_null() -> None:
    step = transition("started", started(), announced=None, unobserved=None)
    data = data_of(
        published(step, context=event_context_of(Identity()), incarnation=None)
    )

    reporter = data["reporter"]
    assert isinstance(reporter, dict)
    assert set(reporter.values()) == {None, "1.2.3"}
    for name in ("previous", "announced", "documentIncarnation", "notBefore"):
        assert data[name] is None
    for name in ("noticeSeconds", "affectsThisVm", "unobservedSeconds"):
        assert data[name] is None


@pytest.mark.parametrize("kind", list(TransitionKind))
def test_only_ended_says_that_the_outcome_is_unknown(kind: str) -> None:
    data = data_of(published(transition(kind)))

    assert data.get("outcome") == ("unknown" if kind == "ended" else None)


@pytest.mark.parametrize(
    ("seconds", "notice"), [(900, 900), (0.5, 0), (0, 0), (-0.5, -1), (-90, -90)]
)
def test_notice_is_a_whole_number_and_may_be_negative(
    seconds: float, notice: int
) -> None:
    at = START + timedelta(seconds=900 - seconds)

    assert data_of(published(transition(), at=at))["noticeSeconds"] == notice


@pytest.mark.parametrize(
    ("names", "is_own"),
    [
        (["WestNO_0"], True),
        (["other", "westno_0"], True),
        (["_WESTNO_0"], True),
        (["WestNO_1"], False),
        ([], False),
        (None, False),
    ],
)
def test_affects_this_vm_without_case_and_underscore(
    names: object, *, is_own: bool
) -> None:
    step = transition(event=imds_event(Resources=names))

    assert data_of(published(step))["affectsThisVm"] is is_own


def test_source_is_the_same_for_all_vms_of_a_group() -> None:
    neighbour = Identity(
        vm_name="WestNO_1",
        subscription_id="8D10DA13-8125-4BA9-A717-BF7490507B3D",
        resource_group="WEB-rg",
    )

    here, there = (
        published(transition()),
        published(transition(), context=event_context_of(neighbour)),
    )
    assert here.event.source == there.event.source == SOURCE


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 3, 2, 12, tzinfo=UTC), "2026-03-02T12:00:00Z"),
        (datetime(2026, 3, 2, 12, 0, 0, 5, tzinfo=UTC), "2026-03-02T12:00:00.000005Z"),
        (
            datetime(2026, 3, 2, 14, tzinfo=timezone(timedelta(hours=2))),
            "2026-03-02T12:00:00Z",
        ),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"),
    ],
)
def test_times_are_rfc_3339_in_utc(moment: datetime, text: str) -> None:
    assert rfc3339(moment) == text


# -- ids ---------------------------------------------------------------------

# The same vector stands in config/events.md: anybody must be able to compute it.
VECTOR = (
    '["C7061BAC-AFDC-4513-B24B-AA5F13A16123","scheduled",null,'
    '{"Description":"Wärtung","DurationInSeconds":5,'
    '"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123","EventSource":"Platform",'
    '"EventStatus":"Scheduled","EventType":"Freeze",'
    '"NotBefore":"Mon, 11 Apr 2022 22:26:58 GMT",'
    '"ResourceType":"VirtualMachine","Resources":["WestNO_0","WestNO_1"]}]'
)


def vector_event() -> dict[str, object]:
    return imds_event(
        EVENT_ID.lower(),
        NotBefore="Mon, 11 Apr 2022 22:26:58 GMT",
        Resources=["WestNO_1", "WestNO_0"],
        Description="Wärtung",
    )


def test_id_is_the_hash_of_its_cause_in_canonical_json() -> None:
    found = published(transition(event=vector_event()))

    assert found.event.id == sha(VECTOR)
    assert found.cause == sha(VECTOR)


@pytest.mark.parametrize("times", [1, 2, 10])
def test_id_of_a_repetition_has_its_count_appended(times: int) -> None:
    found = published(transition(event=vector_event()), repeats=times)

    assert found.event.id == sha(f"{VECTOR[:-1]},{times}]")
    assert found.cause == sha(VECTOR)


def test_cause_of_updated_holds_before_and_after() -> None:
    before, after = imds_event(NotBefore="a"), imds_event(NotBefore="b")

    cause = cause_of(transition("updated", after, before))
    assert cause == [EVENT_ID, "updated", before, after]


def test_cause_of_started_holds_only_after() -> None:
    cause = cause_of(transition("started", started(), imds_event()))

    assert cause == [EVENT_ID, "started", None, started()]


@pytest.mark.parametrize("kind", ["completed", "cancelled", "ended"])
def test_cause_of_what_is_gone_holds_neither(kind: str) -> None:
    cause = cause_of(transition(kind, imds_event(), imds_event()))

    assert cause == [EVENT_ID, kind, None, None]


def test_ids_of_vms_that_saw_the_same_step_are_equal() -> None:
    """Neither who saw it nor when, in which document or in which spelling matters."""
    here = published(
        transition(event=imds_event("ab", Resources=["b", "a"]), unobserved=1)
    )
    there = published(
        transition(event=imds_event("AB", Resources=["a", "b"]), unobserved=None),
        context=event_context_of(Identity(vm_name="other")),
        at=START + timedelta(hours=3),
        incarnation=77,
    )

    assert here.event.id == there.event.id


@given(events(), st.integers(0, 3), st.integers(0, 3))
def test_ids_differ_when_the_count_does(
    raw: dict[str, object], one: int, two: int
) -> None:
    ids = [published(transition(event=raw), repeats=n).event.id for n in (one, two)]

    assert (ids[0] == ids[1]) == (one == two)


# -- severities ----------------------------------------------------------------

_IMPACTS = ["Reboot", "Redeploy", "Preempt", "Terminate"]


@pytest.mark.parametrize(
    ("kind", "fields", "severity"),
    [
        *((kind, {"EventType": t}, ("ERROR", 17)) for t in _IMPACTS
          for kind in ("scheduled", "started")),
        *((kind, {"EventType": t}, ("WARN", 13)) for t in ("Freeze", "Melt", None, 7)
          for kind in ("scheduled", "started")),
        *((kind, {"EventType": "Reboot"}, ("INFO", 9))
          for kind in ("updated", "cancelled", "completed")),
        ("ended", {"EventType": "Freeze"}, ("WARN", 13)),
        ("ended", {"EventType": "Reboot"}, ("WARN", 13)),
        ("scheduled", {"EventType": "Reboot", "DurationInSeconds": 0}, ("INFO", 9)),
        ("started", {"EventType": "Freeze", "DurationInSeconds": 0}, ("INFO", 9)),
        ("scheduled", {"EventType": "Reboot", "DurationInSeconds": -1}, ("ERROR", 17)),
        ("scheduled", {"EventType": "Reboot", "DurationInSeconds": False},
         ("ERROR", 17)),
    ],
)  # fmt: skip
def test_severity_of_a_transition(
    kind: str, fields: dict[str, object], severity: tuple[str, int]
) -> None:
    extensions = published(transition(kind, imds_event() | fields)).event.extensions

    assert (extensions["severitytext"], extensions["severitynumber"]) == severity


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("relayed", "INFO"),
        ("already-started", "INFO"),
        *((w, "WARN") for w in ("invalid", "expired", "unknown-event", "denied")),
        *((w, "WARN") for w in ("event-ended", "rejected", "failed")),
    ],
)
def test_severity_of_an_outcome(what: str, text: str) -> None:
    event = from_outcome(event_context_of(), outcome(what), START).event

    assert event.extensions["severitytext"] == text


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("imds-unreachable", "ERROR"),
        *((w, "INFO") for w in ("started", "stopped", "heartbeat", "imds-recovered")),
    ],
)
def test_severity_of_the_bridges_own_life(what: str, text: str) -> None:
    event = own_event(event_context_of(), what).event

    assert event.extensions["severitytext"] == text


# -- attributes --------------------------------------------------------------


def test_attributes_never_hold_what_cloudevents_forbids() -> None:
    odd = "a\x00b\x1f\x7f\x85\ufdd0\uffff\U0001ffff\nc"
    event = published(transition(event=imds_event(odd, EventType=odd))).event

    clean = "a\ufffdb" + "\ufffd" * 7 + "c"
    assert event.subject == clean
    assert event.extensions["correlationid"] == clean
    assert event.extensions["eventtype"] == clean
    assert data_of(published(transition(event=imds_event(odd))))["event"] == imds_event(
        odd
    )


@pytest.mark.parametrize("value", [None, "", 7, ["x"]])
def test_attribute_without_a_text_is_left_out(value: object) -> None:
    raw = imds_event(EventType=value, EventSource=value, EventStatus=value)
    extensions = published(transition(event=raw)).event.extensions

    assert set(extensions) == {
        "correlationid",
        "severitytext",
        "severitynumber",
        "traceparent",
    }


def test_long_attribute_is_cut() -> None:
    event = published(transition(event=imds_event(EventType="x" * 1000))).event

    assert event.extensions["eventtype"] == "x" * 256


# -- what routing and the outbox get -------------------------------------------


def test_transition_is_ordered_by_event_id_without_case() -> None:
    assert published(transition(event=imds_event("ab"))).key == "AB"


def test_not_before_makes_urgent_until_the_event_is_gone() -> None:
    due = START + timedelta(minutes=15)

    assert published(transition("scheduled")).not_before == due
    assert published(transition("completed")).not_before is None


@pytest.mark.parametrize("kind", list(TransitionKind))
def test_only_started_says_that_it_has_begun(kind: str) -> None:
    assert published(transition(kind)).is_started == (kind == "started")


@pytest.mark.parametrize("kind", list(TransitionKind))
def test_only_what_is_gone_is_the_last_of_its_event(kind: str) -> None:
    is_last = kind in {"completed", "cancelled", "ended"}

    assert published(transition(kind)).is_last == is_last


def test_routing_sees_the_event_before_and_after() -> None:
    before, after = imds_event(EventType="Reboot"), imds_event()
    subject = published(transition("updated", after, before)).subject

    assert subject.events == (seen(after), seen(before))
    assert subject.transition == "updated"


# -- outcomes, the bridge, the document ----------------------------------------


def test_outcome_is_published_as_the_contract_says() -> None:
    found = from_outcome(
        event_context_of(), outcome("denied", reason="EventChanged"), START
    )

    event = found.event
    assert event.type == "sebridge.startrequest.denied.v1"
    assert event.subject == EVENT_ID
    assert event.extensions["correlationid"] == EVENT_ID
    assert event.extensions["eventtype"] == "Freeze"
    assert event.id == hash32(["vm-approvals", "m1", 7, EVENT_ID, "denied"])
    assert found.key == EVENT_ID
    assert data_of(found) == {
        "outcome": "denied",
        "eventId": EVENT_ID,
        "event": imds_event(),
        "imdsStatus": 200,
        "confirmed": True,
        "reason": "EventChanged",
        "request": {"messageId": "m1", "approvedBy": "ada", "reason": None},
        "observedAt": "2026-03-02T12:00:00Z",
        "reporter": event_context_of().reporter,
    }


def test_outcome_without_a_readable_event_id_has_no_subject() -> None:
    found = from_outcome(
        event_context_of(), outcome("invalid", event_id=None, event=None), START
    )

    assert found.event.subject is None
    assert "correlationid" not in found.event.extensions
    assert (found.key, found.subject.events) == (None, ())


def test_outcome_names_the_event_as_the_document_spells_it() -> None:
    """Sessions and subjects have case: it must join the event's other steps."""
    found = from_outcome(event_context_of(), outcome(event_id=EVENT_ID.lower()), START)

    assert found.event.subject == EVENT_ID
    assert found.event.extensions["correlationid"] == EVENT_ID
    assert found.key == EVENT_ID


def test_outcome_without_an_event_names_it_as_the_approver_spelled_it() -> None:
    shown = outcome("unknown-event", event_id=EVENT_ID.lower(), event=None)

    found = from_outcome(event_context_of(), shown, START)

    assert found.event.subject == EVENT_ID.lower()
    assert found.event.extensions["correlationid"] == EVENT_ID.lower()


def test_bridges_own_event_is_published_as_the_contract_says() -> None:
    found = own_event(event_context_of(), "heartbeat", reason="r", pending=3)

    kind = "sebridge.bridge.heartbeat.v1"
    assert (found.event.type, found.event.subject) == (kind, ME.vm_id)
    assert found.event.id == hash32([ME.vm_id, kind, "2026-03-02T12:00:00Z"])
    assert found.subject.is_lifecycle
    assert (found.key, found.not_before) == (None, None)
    assert data_of(found) == {
        "observedAt": "2026-03-02T12:00:00Z",
        "reporter": event_context_of().reporter,
        "reason": "r",
        "pending": 3,
    }


def test_change_of_the_document_is_published_with_all_of_it() -> None:
    seen_document = document(imds_event(), incarnation=7)
    found = from_document(
        event_context_of(),
        seen_document,
        previous_incarnation=6,
        observed_at=START,
        repeats=0,
    )

    kind = "sebridge.document.changed.v1"
    assert found.event.id == hash32([ME.vm_id, kind, seen_document.raw])
    assert found.subject.is_lifecycle
    data = data_of(found)
    assert data["documentIncarnation"] == 7
    assert data["previousIncarnation"] == 6
    assert data["document"] == {"DocumentIncarnation": 7, "Events": [imds_event()]}


def test_repeated_document_gets_another_id() -> None:
    seen_document = document(incarnation=7)
    cause = cause_of_document(event_context_of(), seen_document)
    found = from_document(
        event_context_of(),
        seen_document,
        previous_incarnation=6,
        observed_at=START,
        repeats=2,
    )

    assert found.event.id == hash32([*cause, 2])
    assert found.cause == hash32(cause)


# -- sizes -------------------------------------------------------------------


def test_event_that_fits_is_not_cut() -> None:
    raw = imds_event(Resources=[f"vm{n}" for n in range(500)])

    assert "truncated" not in data_of(published(transition(event=raw)))


def test_previous_is_dropped_first() -> None:
    before = imds_event(Description="x" * 60_000)
    data = data_of(published(transition("updated", imds_event(), before)))

    assert data["truncated"] == ["previous"]
    assert data["previous"] is None
    assert data["event"] == imds_event()


def test_resources_past_a_hundred_are_dropped_next() -> None:
    names = [f"vm-{n:05d}" for n in range(9000)]
    raw = imds_event(Resources=names, Description="d" * 5000)
    data = data_of(published(transition(event=raw)))

    assert data["truncated"] == ["Resources"]
    assert data["event"] == raw | {"Resources": names[:100]}


def test_description_past_a_kibibyte_is_dropped_next() -> None:
    raw = imds_event(Description="ä" * 60_000)
    data = data_of(published(transition("updated", raw, raw)))

    assert data["truncated"] == ["previous", "Description"]
    assert data["event"] == raw | {"Description": "ä" * 512}


def test_what_nobody_knows_is_dropped_last() -> None:
    raw = imds_event(Resources=["x" * 200], Unknown="u" * 70_000)
    step = transition("updated", raw, raw, changes=("EventType", "Unknown"))
    data = data_of(published(step))

    assert data["truncated"] == ["previous", "event"]
    assert data["changes"] == ["EventType"]
    assert data["event"] == imds_event(Resources=["x" * 64])


def test_document_too_large_to_send_is_dropped() -> None:
    large = document(imds_event(Description="x" * 70_000), incarnation=7)
    found = from_document(
        event_context_of(), large, previous_incarnation=6, observed_at=START, repeats=0
    )

    data = data_of(found)
    assert (data["document"], data["truncated"]) == (None, ["document"])
    assert data["documentIncarnation"] == 7


@dataclass(frozen=True)
class Long:
    """A text that is short to print: of bytes that JSON writes as one to six."""

    text: str
    times: int

    def __str__(self) -> str:
        return self.text * self.times


LONG = st.builds(
    Long,
    st.text('a\x00\x1fä\U0001f600"', min_size=1, max_size=5),
    st.integers(1, 20_000),
)
FIELDS = st.sampled_from(
    [
        "EventStatus",
        "EventType",
        "Resources",
        "NotBefore",
        "Description",
        "EventSource",
        "ResourceType",
        "DurationInSeconds",
        "NextYearsField",
    ]
)
LONG_FIELDS = st.dictionaries(
    FIELDS, LONG | st.tuples(LONG, st.integers(1, 2000)) | st.none(), max_size=9
)


def long_event(
    fields: Mapping[str, Long | tuple[Long, int] | None], event_id: str
) -> dict[str, object]:
    """Return an event in which a text, or a list of texts, is as long as given."""
    made: dict[str, object] = {
        name: [str(value[0])[:300]] * value[1]
        if isinstance(value, tuple)
        else {"deep": ["x"]}
        if value is None
        else str(value)
        for name, value in fields.items()
    }
    return imds_event() | made | {"EventId": event_id, str(event_id): 1}


def test_characters_count_as_many_bytes_as_json_writes_for_them() -> None:
    raw = dict.fromkeys(imds_event(), "\x00" * 9000) | {"EventId": EVENT_ID}
    event = published(transition(event=raw)).event

    assert len(event.to_json()) <= MAX_BYTES


@given(st.sampled_from(list(TransitionKind)), LONG_FIELDS, LONG)
def test_transition_of_any_size_fits(
    kind: str, fields: dict[str, Long | tuple[Long, int] | None], event_id: Long
) -> None:
    raw = long_event(fields, str(event_id)[:1024])
    step = transition(kind, raw, raw, changes=tuple(sorted(raw)))
    event = published(step).event

    assert len(event.to_json()) <= MAX_BYTES
    assert event.data["event"] == raw or event.data["truncated"]


@given(LONG_FIELDS, st.tuples(LONG, LONG, LONG, LONG))
def test_outcome_of_any_size_fits(
    fields: dict[str, Long | tuple[Long, int] | None], texts: tuple[Long, ...]
) -> None:
    """The limits are those of an approval message."""
    limits = (1024, 256, 2048, 128)
    event_id, by, why, name = (
        str(text)[:limit] for text, limit in zip(texts, limits, strict=True)
    )
    request = {"messageId": name, "approvedBy": by, "reason": why, "expiresAt": None}
    result = outcome(
        event_id=event_id, event=seen(long_event(fields, event_id)), request=request
    )
    event = from_outcome(event_context_of(), result, START).event

    assert len(event.to_json()) <= MAX_BYTES
    assert event.data["request"] == request


@pytest.mark.parametrize("field", ["Description", "NotBefore", "EventType"])
def test_list_where_text_belongs_is_not_taken_for_small(field: str) -> None:
    long = {name: ["\x01" * 200] * 200 for name in (field, "Resources")}
    raw = {**imds_event(), **long, "Unheard": "z" * 70_000}

    event = published(transition("scheduled", raw)).event

    shown = event.data["event"]
    assert isinstance(shown, dict)
    assert shown[field] is None
    assert len(shown["Resources"]) == 100
    assert len(event.to_json()) <= MAX_BYTES


def test_outcome_of_more_than_a_message_can_hold_is_published_all_the_same() -> None:
    """Nothing of it can be cut: too large is better than unsaid."""
    result = outcome("invalid", event=None, reason="r" * 70_000)
    found = from_outcome(event_context_of(), result, START)

    assert data_of(found)["reason"] == "r" * 70_000
    assert "truncated" not in data_of(found)


# -- independent readers -------------------------------------------------------


def valid(event: CloudEvent) -> None:
    """Hold an event against the schema, the SDK and the grammar of the spec."""
    written = orjson.loads(event.to_json())
    SCHEMA.validate(written)
    message = HTTPMessage({"content-type": STRUCTURED_TYPE}, event.to_json())
    read = from_http(message, JSONFormat())
    assert read.get_id() == event.id
    assert read.get_data() == written["data"]
    for name, value in event.attributes().items():
        assert re.fullmatch(r"[a-z][a-z0-9]{0,19}", name)
        assert value != ""
        assert not FORBIDDEN.search(str(value))
        if name != "time":
            assert read.get_attributes()[name] == value


@given(st.lists(bodies(), min_size=1, max_size=3))
def test_independent_readers_take_whatever_is_published_of_any_documents(
    found: list[bytes],
) -> None:
    watch = Watch()
    for number, body in enumerate(found):
        seen_document = parse(body)
        now = Moment(at=START + timedelta(seconds=number), monotonic=number)
        watch, steps = diff(watch, seen_document, now, poll_interval=1)

        for step in steps:
            valid(published(step, incarnation=seen_document.incarnation).event)


@given(events(), st.sampled_from(["relayed", "denied"]), JSON_VALUES)
def test_independent_readers_take_any_outcome(
    raw: dict[str, object], what: str, request: object
) -> None:
    result = outcome(
        what, event=seen(raw), event_id=raw["EventId"], request={"reason": request}
    )

    valid(from_outcome(event_context_of(), result, START).event)


@pytest.mark.parametrize("identity", [ME, Identity()])
def test_independent_readers_take_the_bridges_own_life(identity: Identity) -> None:
    valid(own_event(event_context_of(identity), "started").event)


@given(bodies(events() | JSON_VALUES))
def test_independent_readers_take_any_change_of_the_document(body: bytes) -> None:
    found = from_document(
        event_context_of(),
        parse(body),
        previous_incarnation=1,
        observed_at=START,
        repeats=0,
    )

    valid(found.event)


# -- options -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("type_prefix", "", "letters, digits, dots"),
        ("type_prefix", ".com", "letters, digits, dots"),
        ("type_prefix", "a b", "letters, digits, dots"),
        ("source", "urn:a b", "no spaces"),
        ("source", "urn:ä", "ASCII"),
        ("scope", "first", '"all", "own"'),
        ("heartbeat", "500ms", "at least 1s"),
    ],
)
def test_events_section_refuses_what_cannot_be_published(
    key: str, value: object, what: str
) -> None:
    reader = Reader("f")
    assert reader.section(EventsConfig, {key: value}, "events") is None

    assert reader.faults[0].startswith(f"f: events.{key}: ")
    assert what in reader.faults[0]


def test_events_section_takes_what_can_be_published() -> None:
    table = {"type_prefix": "com.contoso.vm-1", "source": "urn:x", "heartbeat": "0s"}
    reader = Reader("f")

    assert reader.section(EventsConfig, table, "events") is not None
    assert reader.faults == []


def test_reading_of_the_builders_is_what_the_service_writes() -> None:
    event = parse(body_of(imds_event())).events[EVENT_ID]

    assert event.not_before == START + timedelta(minutes=15)
    assert not_before(0) == "Mon, 02 Mar 2026 12:00:00 GMT"


def test_offer_of_a_bridge_with_very_many_rules_keeps_its_digest() -> None:
    """A hub does not read what is larger; without rules it knows that it knows none."""
    rules = [{"name": f"rule-{n}", "action": "allow"} for n in range(3000)]
    offer = {"entity": "vm-approvals", "rules": rules, "digest": "d"}
    now = datetime(2026, 3, 2, 12, tzinfo=UTC)

    event = own_event(
        event_context_of(ME), "started", observed_at=now, approvals=offer
    ).event

    assert len(event.to_json()) <= MAX_BYTES
    assert event.data["approvals"] == {"entity": "vm-approvals", "digest": "d"}
    assert event.data["truncated"] == ["rules"]

"""Events to try a configuration with: what may stand in a file, and what is made up."""

import json
from typing import Any

import pytest

from bridge.events import samples
from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.events.routing import Subject
from bridge.events.samples import Sample, marked_event, sample
from tests.support.builders import (
    ME,
    body_of,
    event_context_of,
    imds_event,
    own_event,
    started,
)
from tests.support.example_events import seen
from tests.support.fakes import START
from tests.support.nested import HERE, holding, lists
from tests.support.schemas import validator
from tests.support.sink_fixtures import cloud_event

CONTEXT = event_context_of()


def read(body: bytes) -> Sample:
    return samples.read(body, CONTEXT, START)


def data_of(event: CloudEvent) -> Any:
    found = json.loads(event.to_json())
    validator("event").validate(found)
    return found["data"]


# -- made up -----------------------------------------------------------------------


def test_sample_is_an_event_of_this_vm() -> None:
    made = sample(CONTEXT, START)

    data = data_of(made.event)
    assert data["affectsThisVm"] is True
    assert (data["noticeSeconds"], data["event"]["EventType"]) == (900, "Reboot")
    assert made.subject.transition == "scheduled"
    assert data_of(sample(event_context_of(Identity()), START).event)["event"][
        "Resources"
    ]


def test_test_event_has_the_real_shape_and_says_that_it_is_none() -> None:
    event = marked_event(CONTEXT, "Preempt", unique="1", now=START)

    data = data_of(event)
    assert event.type == "sebridge.scheduledevent.scheduled.v1"
    assert event.extensions["eventtype"] == "Preempt"
    assert event.extensions["sebridgetest"] == "true"
    assert data["test"] is True
    assert data["event"]["EventId"] == event.subject == "TEST-1"
    assert data["event"]["Description"].startswith("TEST ")


def test_nobody_is_hit_by_a_test_event() -> None:
    event = marked_event(CONTEXT, "Reboot", unique="1", now=START)

    assert data_of(event)["affectsThisVm"] is False
    assert data_of(event)["event"]["Resources"] == ["TEST (no machine)"]


def test_no_two_test_events_are_repetitions_of_each_other() -> None:
    one, two = (marked_event(CONTEXT, "Reboot", unique=u, now=START) for u in "12")

    assert one.id != two.id


def at(time: str) -> bytes:
    return json.dumps(json.loads(cloud_event().to_json()) | {"time": time}).encode()


def with_attribute(name: str) -> bytes:
    return json.dumps(json.loads(cloud_event().to_json()) | {name: "1"}).encode()


# -- read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(imds_event()).encode(),
        b"\xef\xbb\xbf" + json.dumps(imds_event()).encode() + b"\n",
        body_of(imds_event(), incarnation=None),
    ],
)
def test_event_of_imds_is_published_as_on_first_sight(body: bytes) -> None:
    found = read(body)

    assert found.event.type == "sebridge.scheduledevent.scheduled.v1"
    assert data_of(found.event)["event"] == imds_event()
    assert found.subject == Subject(
        transition="scheduled", events=(seen(imds_event()),)
    )


def test_event_that_has_started_says_so() -> None:
    found = read(body_of(started(), incarnation=7))

    assert found.subject.transition == "started"
    assert data_of(found.event)["documentIncarnation"] == 7


def test_cloud_event_is_taken_as_it_stands() -> None:
    previous = imds_event(EventType="Reboot")
    now = imds_event()
    event = cloud_event("scheduledevent.updated", event=now, previous=previous)
    body = event.to_json().replace(b',"data":', b', "data": ')

    found = read(body)

    assert found.event.to_json() == body
    assert found.subject == Subject(
        transition="updated", events=(seen(now), seen(previous))
    )
    assert found.reporter == Identity(vm_name="web-0", vm_id="vm-1")


def test_outcome_is_read_with_its_event_and_without() -> None:
    found = read(cloud_event("startrequest.relayed", event=imds_event()).to_json())

    assert found.subject == Subject(events=(seen(imds_event()),))
    without = read(cloud_event("startrequest.invalid", event=None).to_json())
    assert without.subject == Subject()


@pytest.mark.parametrize("what", ["bridge.imds-unreachable", "document.changed"])
def test_lifecycle_is_read_as_such(what: str) -> None:
    assert read(cloud_event(what).to_json()).subject == Subject(is_lifecycle=True)


def changed(**members: object) -> bytes:
    """Return an event with other members; None leaves one out."""
    found = json.loads(cloud_event().to_json()) | members
    return json.dumps({k: v for k, v in found.items() if v is not None}).encode()


def nested(depth: int) -> bytes:
    """Return an event with data of this depth."""
    return holding(json.loads(cloud_event(unknown=HERE).to_json()), lists(depth))


def with_null(name: str) -> bytes:
    return json.dumps(json.loads(cloud_event().to_json()) | {name: None}).encode()


@pytest.mark.parametrize("body", [changed(time=None), with_null("time")])
def test_time_that_is_not_said_is_that_of_the_look(body: bytes) -> None:
    """It may be left out, and null says the same; the bridge always tells one."""
    found = read(body).event

    assert found.time == "2026-03-02T12:00:00Z"
    assert json.loads(found.to_json())["time"] == found.time
    assert json.loads(found.to_json())["data"] == cloud_event().data


@pytest.mark.parametrize("body", [changed(dataschema=None), with_null("dataschema")])
def test_schema_that_is_not_said_is_the_one_of_the_type(body: bytes) -> None:
    found = read(body).event

    assert found.dataschema == "urn:sebridge:schema:scheduledevent:v1"
    assert json.loads(found.to_json())["dataschema"] == found.dataschema


@pytest.mark.parametrize("name", ["subject", "datacontenttype", "eventtype", "other"])
def test_null_is_as_good_as_absent(name: str) -> None:
    found = read(with_null(name)).event

    assert name not in json.loads(found.to_json())
    assert found.text(name) is None


def test_extension_may_be_a_boolean() -> None:
    """In binary mode and as a property it is text: see Type System in the spec."""
    body = changed(flag=True, other=False)
    found = read(body).event

    assert found.to_json() == body
    assert (found.text("flag"), found.text("other")) == ("true", "false")
    assert found.attributes()["flag"] == "true"


def test_odd_time_goes_out_as_all_can_read_it() -> None:
    found = read(changed(time="2016-12-31t23:59:60z")).event

    assert found.time == "2017-01-01T00:00:00Z"
    assert json.loads(found.to_json())["time"] == found.time


def test_numbers_of_data_stay_as_they_are_written() -> None:
    """Whatever else has to be filled in."""
    body = with_null("time").replace(b'"noticeSeconds": 840', b'"noticeSeconds": 84e1')

    assert b"84e1" in body
    assert b"84e1" in read(body).event.to_json()


def test_content_type_may_have_parameters() -> None:
    body = changed(datacontenttype="application/json; charset=utf-8")

    assert read(body).event.to_json() == body


def test_prefix_of_others_is_no_hindrance() -> None:
    body = cloud_event("started").to_json().replace(b"sebridge.st", b"a.bridge.b.st")
    found = own_event(CONTEXT, "started").event.to_json()

    with pytest.raises(ValueError, match=r"its type is 'a\.bridge\.b\.started\.v1'"):
        read(body)
    assert read(found.replace(b"sebridge.bridge", b"document.x.v1.bridge")).subject == (
        Subject(is_lifecycle=True)
    )


def test_reporter_that_is_none_says_nothing() -> None:
    assert read(cloud_event(reporter=7).to_json()).reporter == Identity()
    assert sample(CONTEXT, START).reporter.vm_name == ME.vm_name


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is no JSON object"),
        (b"# x", "is no JSON object"),
        (b"[]", "is no JSON object"),
        (b"\xff{}", "is no JSON object"),
        (b"{}", "is neither a structured CloudEvent"),
        (body_of(), "holds no events"),
        (body_of(imds_event("A"), imds_event("B")), r"holds 2 events \(A, B\)"),
        (body_of({"EventId": 7}), r"cannot be read: Events\[0\] has no EventId"),
        (b'{"EventId": ""}', r"cannot be read: Events\[0\] has no EventId"),
        (b'{"Events": 7}', "cannot be read: the document has no Events array"),
        (b'{"specversion": "1.0"}', "is no CloudEvent: it has no id; it has no source"),
        (b'{"specversion": "1.0", "a": 1e999}', "is no JSON object"),
        (changed(id=""), "is no CloudEvent: its id is empty"),
        (changed(source=""), "is no CloudEvent: its source is empty"),
        (changed(specversion="0.9"), "its specversion is '0.9', and not '1.0'"),
        (changed(datacontenttype="xyz"), "its datacontenttype is 'xyz', and no media"),
        (changed(extension=[1]), "its extension must be text, true, false or a whole"),
        (changed(dataschema="x"), "its dataschema is 'x', and no URI with a scheme"),
        (changed(data=7), "is no CloudEvent of the bridge: its data is no JSON object"),
        (changed(datacontenttype="text/plain"), "of the bridge: its data is no JSON"),
        (
            changed(data=None, data_base64="AA=="),
            "is no CloudEvent of the bridge: its data is no JSON object",
        ),
        (cloud_event(event=None).to_json(), "has no scheduled event"),
        (with_attribute("x\r\nInjected"), "attribute is called 'x.*a to z and 0 to 9"),
        (at("2026-03-02"), "its time is '2026-03-02', and not as in RFC 3339"),
        (at("2026-03-02T12:00:00"), "not as in RFC 3339"),
        (at("0001-01-01T00:00:00+23:59"), "not as in RFC 3339"),
        (at("x\n"), r"its time is 'x\\n', and not as in RFC 3339"),
        (with_attribute("\u0130"), "attribute is called '.*a to z and 0 to 9"),
        (nested(100), "is nested more than 80 levels deep"),
        (nested(990), "is nested more than 80 levels deep|is no JSON object"),
        (nested(1015), "is no JSON object"),
    ],
)
def test_file_that_holds_no_event_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(body)

"""Whatever the bytes are, a message is read, left out, or refused with a reason."""

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.errors import UnreadableMessageError
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.bridge_messages import NOTHING, Read
from bridge.hub.facts import Fact, Kind, Note, NoteKind, group_of
from tests.support.builders import EVENT_ID, document, imds_event
from tests.support.fleet import (
    GROUP,
    SUBSCRIPTION,
    TOPIC,
    annotation,
    at,
    azure,
    batch_of,
    event,
    health,
    life,
    outcome,
    step,
    window,
)
from tests.support.strategies import JSON_VALUES

Change = Callable[[dict[str, Any]], object]


def read(body: bytes) -> Read:
    return bridge_messages.read(body, heard=at(0), source="bridges")


def changed(body: bytes, change: Change) -> bytes:
    found = orjson.loads(body)
    change(found)
    return orjson.dumps(found)


def nested(levels: int) -> list[Any]:
    found = list[Any]()
    for _ in range(levels):
        found = [found]
    return found


def grid(body: bytes) -> Fact | None:
    return azure_messages.read(body, heard=at(0))


@pytest.mark.parametrize(
    "kind", ["hub.unreported", "document.changed", "command.succeeded", "x"]
)
def test_what_is_not_of_an_event_or_a_bridge_is_left_out(kind: str) -> None:
    body = changed(step("scheduled"), lambda e: e.update(type=f"sebridge.{kind}.v1"))

    assert read(body) == NOTHING


def test_test_events_are_left_out() -> None:
    assert read(changed(step("scheduled"), lambda e: e["data"].update(test=True))) == (
        NOTHING
    )


def test_transition_of_a_newer_bridge_is_a_sign_of_life_alone() -> None:
    kind = "sebridge.scheduledevent.postponed.v1"
    found = read(changed(step("scheduled"), lambda e: e.update(type=kind)))

    assert found.fact is None
    assert found.report is not None


def test_prefix_may_have_dots() -> None:
    kind = "com.contoso.scheduledevent.scheduled.v1"
    found = read(changed(step("scheduled"), lambda e: e.update(type=kind))).fact

    assert found is not None
    assert found.prefix == "com.contoso"


def test_outcome_that_names_no_event_is_left_out() -> None:
    body = changed(outcome("invalid", "m"), lambda e: e["data"].update(eventId=None))

    assert read(body).fact is None


def test_list_that_was_cut_is_not_whole() -> None:
    cut = changed(
        step("scheduled"), lambda e: e["data"].update(truncated=["Resources"])
    )
    found = read(cut).fact

    assert found is not None
    assert not found.is_whole


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(specversion="0.3"),
        lambda e: e.update(type=1),
        lambda e: e.update(id=""),
        lambda e: e.update(id="x" * 1025),
        lambda e: e.update(time="yesterday"),
        lambda e: e.update(time="2026-03-02T12:00:00"),
        lambda e: e.update(data=None),
        lambda e: e["data"].update(event={"EventId": ""}),
        lambda e: e["data"]["event"].update(EventId="x" * 1025),
        lambda e: e["data"]["reporter"].update(vmId="Azure"),
        lambda e: e["data"]["event"].update(Description=nested(78)),
    ],
)
def test_event_that_says_nothing_is_refused(change: Change) -> None:
    with pytest.raises(UnreadableMessageError):
        read(changed(step("scheduled"), change))


def test_deepest_event_of_a_bridge_is_read() -> None:
    """A bridge leaves out an event of IMDS that has more levels."""
    deepest = imds_event(Deep=nested(62))
    (event,) = document(deepest).events.values()

    body = changed(step("scheduled"), lambda e: e["data"].update(event=event.raw))

    found = read(body).fact
    assert found is not None
    assert found.event is not None
    assert found.event.raw == deepest


def test_many_brackets_are_no_depth() -> None:
    flat: list[list[Any]] = [[] for _ in range(200)]
    body = changed(step("scheduled"), lambda e: e["data"]["event"].update(X=flat))

    assert read(body).fact is not None


@pytest.mark.parametrize("body", [b"", b"\0", b"[]", b"{", b'{"a":\xff}'])
def test_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableMessageError):
        read(body)
    with pytest.raises(UnreadableMessageError):
        grid(body)


@pytest.mark.parametrize("schema", ["cloudevent", "eventgrid"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("Scheduled", Kind.SCHEDULED),
        ("started", Kind.STARTED),
        ("Completed", Kind.COMPLETED),
        ("Canceled", Kind.CANCELLED),
        ("Postponed", Kind.OTHER),
    ],
)
def test_both_schemas_of_event_grid_are_read(
    schema: str, status: str, kind: Kind
) -> None:
    found = grid(azure(status, schema=schema))

    assert found is not None
    assert (found.kind, found.group) == (kind, (SUBSCRIPTION, GROUP))
    assert found.time == at(0)


@pytest.mark.parametrize(
    "kind",
    [
        "microsoft.maintenance/scheduledevents/write",
        "Microsoft.Maintenance.ScheduledEvents",
    ],
)
def test_every_name_of_the_type_is_taken(kind: str) -> None:
    assert grid(changed(azure("Started"), lambda e: e.update(type=kind))) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(type="Microsoft.Storage.BlobCreated"),
        lambda e: e["data"]["resourceInfo"].update(type="managedclusters"),
        lambda e: e["data"]["resourceInfo"]["properties"].update(
            ResourceType="ManagedCluster"
        ),
    ],
)
def test_what_is_of_something_else_is_left_out(change: Change) -> None:
    assert grid(changed(azure("Started"), change)) is None


def test_time_of_the_envelope_stands_in_for_the_event_s() -> None:
    for schema in ("cloudevent", "eventgrid"):
        body = azure("Started", schema=schema, seconds=5)
        found = grid(changed(body, lambda e: e["data"].update(operationalInfo=1)))

        assert found is not None
        assert found.time == at(5)


def test_event_of_azure_without_a_status_is_refused() -> None:
    body = changed(
        azure("x"),
        lambda e: e["data"]["resourceInfo"]["properties"].update(EventStatus=None),
    )

    with pytest.raises(UnreadableMessageError):
        grid(body)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(data={}),
        lambda e: e["data"].update(resourceInfo=None),
        lambda e: e["data"]["resourceInfo"].update(type=None),
        lambda e: e["data"]["resourceInfo"].update(properties=None),
        lambda e: e["data"]["resourceInfo"]["properties"].update(ResourceType=""),
        lambda e: e.update(data={"resourcesContainer": "Blob", "resources": None}),
    ],
)
def test_scheduled_event_of_azure_in_another_form_is_a_fault(change: Change) -> None:
    """It was left out in silence: nobody would have known of the event."""
    with pytest.raises(UnreadableMessageError):
        grid(changed(azure("Started"), change))


def test_batch_of_azure_is_read() -> None:
    two = event("OTHER", Resources=["web-5"])
    parts = list(
        azure_messages.parts_of(
            batch_of(azure("Started", seconds=3), azure("Completed", two, seconds=4))
        )
    )
    first, second = (grid(part) for part in parts)

    assert first is not None
    assert second is not None
    assert (first.kind, first.event_id, first.time) == (Kind.STARTED, EVENT_ID, at(3))
    assert (second.kind, second.event_id) == (Kind.COMPLETED, "OTHER")
    assert second.resource.endswith("/scheduledevents/OTHER")
    assert first.id != second.id


def test_list_of_events_is_read() -> None:
    """As Event Grid's own schema shows its examples."""
    body = b"[" + azure("Started") + b"," + azure("Completed") + b"]"

    found = [grid(part) for part in azure_messages.parts_of(body)]

    assert [one.kind for one in found if one] == [Kind.STARTED, Kind.COMPLETED]


@pytest.mark.parametrize("body", [azure("Started"), b"{", b"1", b'{"data": 1}'])
def test_message_about_one_event_stays_as_it_came(body: bytes) -> None:
    assert list(azure_messages.parts_of(body)) == [body]


def test_batch_without_end_is_cut_and_a_fault() -> None:
    parts = azure_messages.parts_of(batch_of(*[azure("Started")] * 2001))
    found = list(islice(parts, 2000))

    assert len(found) == 2000
    with pytest.raises(UnreadableMessageError):
        next(parts)


def test_batch_that_is_nested_too_deep_is_a_fault() -> None:
    """JSON of this depth can be read, but not be written."""
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    for body in (b"[%b]" % deep, b'{"data":{"resources":[{"armResource":%b}]}}' % deep):
        with pytest.raises(UnreadableMessageError, match="nested too deep"):
            list(azure_messages.parts_of(body))


# -- Resource Health and Maintenance Configurations -----------------------------------


def notes(body: bytes) -> tuple[Note, ...]:
    return azure_messages.notes_in(body, heard=at(0))


MACHINE = (SUBSCRIPTION, GROUP, "web-0")


def test_availability_is_read() -> None:
    (found,) = notes(
        health(
            -9, availabilityState="Unavailable", previousAvailabilityState="Available"
        )
    )

    assert (found.kind, found.machine, found.time) == (NoteKind.HEALTH, MACHINE, at(-9))
    assert found.data == {"state": "Unavailable", "previous": "Available"}


def test_annotation_is_read() -> None:
    (found,) = notes(annotation(-9, "VirtualMachineHostCrashed", "Unplanned"))

    assert (found.kind, found.machine) == (NoteKind.ANNOTATION, MACHINE)
    assert found.data["annotationName"] == "VirtualMachineHostCrashed"
    assert found.data["category"] == "Unplanned"
    assert found.data["context"] == "Platform Initiated"


def test_window_of_a_maintenance_configuration_is_read() -> None:
    (before,) = notes(window(-90, is_over=False, begin=-60, end=600))
    (after,) = notes(window(-5, is_over=True, begin=-60, end=600))

    assert before.id == after.id
    assert before.machine == (SUBSCRIPTION, "", "")
    assert (before.time, before.until) == (at(-60), at(600))
    assert (after.time, after.until, after.is_last) == (at(-60), at(-5), True)
    assert after.data == {"configuration": "patches", "status": "Succeeded"}


@pytest.mark.parametrize(
    "body",
    [
        health(availabilityState=""),
        health(annotationName=""),
        changed(
            window(0, is_over=False, begin=1, end=2),
            lambda e: e["data"].update(startDateTime=None),
        ),
        changed(
            window(0, is_over=True, begin=1, end=2),
            lambda e: e["data"].update(correlationId=None),
        ),
    ],
)
def test_note_that_cannot_be_read_is_a_fault(body: bytes) -> None:
    with pytest.raises(UnreadableMessageError):
        notes(body)


def test_health_of_anything_but_a_machine_is_left_out() -> None:
    scale_set = f"{TOPIC}/resourceGroups/g/x/virtualMachineScaleSets/s"
    assert (
        notes(health(availabilityState="Available", targetResourceId=scale_set)) == ()
    )
    assert notes(health(what="Other")) == ()
    assert notes(azure("Started")) == ()


def test_pause_is_read_of_a_step() -> None:
    def paused(seconds: object) -> Note | None:
        body = changed(
            step("completed"), lambda e: e["data"].update(pausedSeconds=seconds)
        )
        return read(body).note

    found = paused(31)
    assert found is not None
    assert (found.kind, found.machine, found.event_key) == (
        NoteKind.PAUSED,
        MACHINE,
        EVENT_ID.upper(),
    )
    assert (found.time, found.until) == (at(-31), at(0))
    for wrong in (True, "31", -1, 0, 1e300, None):
        assert paused(wrong) is None


def test_group_is_read_of_a_resource_id() -> None:
    assert group_of("/subscriptions/S/resourceGroups/RG/providers/x") == ("s", "rg")
    assert group_of("urn:sebridge:host") == ("", "")
    encoded = "/subscriptions/S/resourcegroups/wartung-s%C3%BCd/providers/x"
    assert group_of(encoded) == ("s", "wartung-s\u00fcd")
    assert group_of("/subscriptions/S/resourceGroups/Wartung-S\u00dcD") == group_of(
        encoded
    )


@given(st.binary() | JSON_VALUES.map(lambda v: orjson.dumps({"specversion": v})))
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    for one in (read, grid):
        with suppress(UnreadableMessageError):
            one(body)


PATHS = st.sampled_from(["id", "type", "source", "time", "data", "subject"])


@given(PATHS, JSON_VALUES)
def test_no_value_in_the_place_of_another_does_more(key: str, value: object) -> None:
    for body in (step("updated"), outcome("relayed", "m"), life("started")):
        mixed = changed(body, lambda e: e.update({key: value}))
        with suppress(UnreadableMessageError):
            read(mixed)
    for body in (
        azure("Started"),
        health(availabilityState="Available"),
        window(0, is_over=True, begin=0, end=1),
        batch_of(azure("Started")),
    ):
        mixed = changed(body, lambda e: e.update({key: value}))
        for part in azure_messages.parts_of(mixed):
            with suppress(UnreadableMessageError):
                grid(part)
            with suppress(UnreadableMessageError):
                notes(part)

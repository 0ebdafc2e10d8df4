"""Another process controls the simulated IMDS."""

from typing import Any

import pytest

from tests.simulator.imds_client import START, life, vm

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


async def test_event_is_scheduled_over_http() -> None:
    async with vm() as it:
        reply = await it.control(
            "POST",
            "events",
            {
                "eventId": ID,
                "type": "Redeploy",
                "resources": ["vm-1", "vm-2"],
                "notBefore": 600,
                "duration": 9,
                "source": "User",
                "description": "Moved.",
            },
        )

        assert reply.json["startsAt"] == START + 600
        assert await it.event() == {
            "EventId": ID,
            "EventStatus": "Scheduled",
            "EventType": "Redeploy",
            "ResourceType": "VirtualMachine",
            "Resources": ["vm-1", "vm-2"],
            "NotBefore": "Mon, 11 Apr 2022 22:21:58 GMT",
            "Description": "Moved.",
            "EventSource": "User",
            "DurationInSeconds": 9,
        }


async def test_event_concerns_this_vm_unless_said_otherwise() -> None:
    async with vm(vm_name="web-1") as it:
        await it.control("POST", "events", {"type": "Reboot", "status": "Started"})

        event = await it.event()
        assert event["Resources"] == ["web-1"]
        assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


async def test_event_is_started_and_removed_over_http() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))

        assert (await it.control("POST", f"events/{ID}/start")).status == 200
        assert (await it.event())["EventStatus"] == "Started"
        assert (await it.control("DELETE", f"events/{ID.lower()}")).status == 200
        assert (await it.document())["Events"] == []


async def test_event_is_changed_over_http() -> None:
    """In reality, an event rarely changes its type."""
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))
        await it.control("PATCH", f"events/{ID}", {"type": "Freeze", "notBefore": 60})

        event = await it.event()
        assert event["EventType"] == "Freeze"
        assert event["NotBefore"] == "Mon, 11 Apr 2022 22:12:58 GMT"
        assert event["Resources"] == ["WestNO_0"]


async def test_other_vm_approves_over_http() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))
        await it.control("POST", f"events/{ID}/approve", {"by": "WestNO_1"})

        state = (await it.control("GET", "state")).json
        assert state["events"][0]["approvedBy"] == ["westno_1"]
        assert state["events"][0]["status"] == "Started"
        assert state["approvals"] == [{"eventIds": [ID], "by": "WestNO_1", "at": START}]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "events/none/start", None),
        ("DELETE", "events/none", None),
        ("PATCH", "events/none", {}),
        ("POST", "events/none/approve", {"by": "vm"}),
    ],
)
async def test_unknown_event_is_not_found(method: str, path: str, body: object) -> None:
    async with vm() as it:
        reply = await it.control(method, path, body)

        assert reply.status == 404
        assert reply.json == {"error": "there is no event none in the document"}


@pytest.mark.parametrize(
    "document",
    [
        b'{"DocumentIncarnation":7,"Events":[{"EventId":"a","Odd":1}]}',
        b"[]",
        b"null",
        b'{"Events": 5}',
    ],
)
async def test_any_document_is_shown_verbatim(document: bytes) -> None:
    async with vm() as it:
        assert (await it.control("PUT", "document", document)).status == 200

        assert (await it.get()).body == document


async def test_raw_bytes_are_shown_when_asked_for() -> None:
    async with vm() as it:
        await it.control("PUT", "document?raw=1", b"<html>\xff")

        reply = await it.get()
        assert (reply.status, reply.body) == (200, b"<html>\xff")


async def test_bytes_that_are_no_json_are_refused_otherwise() -> None:
    async with vm() as it:
        reply = await it.control("PUT", "document", b"{")

        assert reply.status == 400
        assert "?raw=1" in reply.json["error"]


async def test_event_of_a_given_document_can_be_approved_and_stays() -> None:
    async with vm() as it:
        event = {"EventId": ID, "EventStatus": "Scheduled"}
        document = {"DocumentIncarnation": "x", "Events": [event, {"EventId": 5}, 6]}
        await it.control("PUT", "document", document)

        assert (await it.approve(ID.lower())).status == 200
        assert (await it.approve("gone")).status == 400
        assert await it.document() == document


async def test_events_come_back_in_place_of_a_given_document() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))
        await it.control("PUT", "document", {"Events": []})
        await it.control("DELETE", "document")

        assert (await it.event())["EventId"] == ID


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "events", {"type": "Reboot"}),
        ("DELETE", f"events/{ID}", None),
        ("POST", f"events/{ID}/start", None),
        ("POST", "incarnation", {"incarnation": 1}),
    ],
)
async def test_events_cannot_change_while_a_given_document_is_shown(
    method: str, path: str, body: object
) -> None:
    async with vm() as it:
        await it.control("PUT", "document", {"Events": []})

        reply = await it.control(method, path, body)

        assert reply.status == 409
        assert "DELETE /simulator/document" in reply.json["error"]


async def test_incarnation_is_set_over_http() -> None:
    async with vm() as it:
        await it.control("POST", "incarnation", {"incarnation": 40})

        assert (await it.document())["DocumentIncarnation"] == 40


async def test_options_that_are_not_named_stay() -> None:
    async with vm() as it:
        await it.control("PUT", "options", {"etag": True, "startOn": "all-concerned"})
        reply = await it.control("PUT", "options", {"firstCallDelay": 3})

        assert reply.json == {
            "etag": True,
            "firstCallDelay": 3.0,
            "startOn": "all-concerned",
            "rateLimit": False,
        }


async def test_start_rule_is_switched_for_events_that_are_there() -> None:
    async with vm() as it:
        it.imds.schedule(life("Freeze", "WestNO_0", "WestNO_1", event_id=ID))
        await it.control("PUT", "options", {"startOn": "all-concerned"})
        await it.approve(ID)

        assert (await it.event())["EventStatus"] == "Scheduled"


async def test_requests_are_listed_and_deleted() -> None:
    async with vm() as it:
        await it.approve("x")

        (request,) = (await it.control("GET", "requests")).json
        assert request["body"] == '{"StartRequests":[{"EventId":"x"}]}'
        await it.control("DELETE", "requests")
        assert (await it.control("GET", "requests")).json == []


async def test_state_shows_the_document_without_starting_anything() -> None:
    async with vm() as it:
        state = (await it.control("GET", "state")).json

        assert state["document"] == {"DocumentIncarnation": 1, "Events": []}
        assert state["showsEvents"] is True
        assert state["requests"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "fault"),
    [
        ("POST", "events", {}, "missing required field `type`"),
        ("POST", "events", {"type": 5}, "Expected `str`, got `int` - at `$.type`"),
        ("POST", "events", {"type": "Reboot", "when": 5}, "unknown field `when`"),
        ("POST", "events", {"type": "R", "status": "Over"}, "Invalid enum value"),
        ("POST", "events", {"type": "R", "notBefore": -1}, ">= 0"),
        ("POST", "events", b"{", "truncated"),
        ("PUT", "options", {"startOn": "never"}, "Invalid enum value 'never'"),
        ("PUT", "instance", [], "Expected `object`"),
        ("POST", "incarnation", {"incarnation": "5"}, "Expected `int`"),
        ("POST", "faults", {}, "exactly one of"),
        ("POST", "faults", {"status": 503, "hang": 1}, "exactly one of"),
        ("POST", "faults", {"status": 99}, ">= 200"),
        ("POST", "faults", {"status": 503, "times": 0}, ">= 1"),
    ],
)
async def test_faulty_input_is_reported_in_a_sentence(
    method: str, path: str, body: Any, fault: str
) -> None:
    async with vm() as it:
        reply = await it.control(method, path, body)

        assert reply.status == 400
        assert fault in reply.json["error"]


async def test_unknown_control_is_not_found() -> None:
    async with vm() as it:
        assert (await it.control("GET", "nothing")).status == 404
        assert (await it.control("GET", "faults")).status == 405

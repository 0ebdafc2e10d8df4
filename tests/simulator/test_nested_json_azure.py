"""JSON that is nested very deep: the simulated Azure refuses it, or shows its text."""

import json

import pytest

from bridge.simulator.arm import Arm
from bridge.simulator.errors import ScenarioError
from bridge.simulator.event_grid import EventGrid, Place
from bridge.simulator.foreign import DEEPEST
from bridge.simulator.imds.scenario import parse_scenario
from tests.simulator.imds_client import EVENTS, METADATA, http_client, vm
from tests.support.nested import HERE, Nest, each_depth, holding

EVENT_ID = "602D9444-D2CD-49C7-8624-8643E7171297"
EVENT = {"EventId": EVENT_ID, "EventStatus": "Scheduled", "Deep": HERE}


@pytest.mark.parametrize("query", ["", "?raw=1"])
@each_depth
async def test_imds_shows_a_nested_document_or_refuses_it(
    query: str, depth: int, nest: Nest
) -> None:
    document = holding({"DocumentIncarnation": 7, "Events": [EVENT]}, nest(depth))
    async with vm() as it:
        shown = await it.control("PUT", f"document{query}", document)
        state = await it.control("GET", "state")
        read = await it.get()

    assert state.status == 200
    if depth < DEEPEST - 3:
        assert (shown.status, state.json["document"]) == (200, json.loads(document))
    elif query:
        assert (shown.status, state.json["document"]) == (200, document.decode())
    else:
        assert shown.status == 400
        assert "?raw=1" in shown.json["error"]
    assert (read.body == document) == (shown.status == 200)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@each_depth
async def test_imds_shows_a_nested_instance_or_refuses_it(
    method: str, depth: int, nest: Nest
) -> None:
    async with vm() as it:
        body = holding({"name": "vm-1", "tagsList": HERE}, nest(depth))
        given = await it.control(method, "instance", body)
        path = "/metadata/instance?api-version=2021-12-13"
        read = await it.http.send("GET", path, headers=METADATA)
        state = await it.control("GET", "state")

    assert given.status == (200 if depth < DEEPEST else 400)
    assert (read.status, state.status) == (200, 200)


@each_depth
async def test_imds_refuses_nested_start_requests(depth: int, nest: Nest) -> None:
    async with vm() as it:
        wanted = {"StartRequests": [{"EventId": EVENT_ID, "x": HERE}], "y": HERE}
        path = f"{EVENTS}?api-version=2020-07-01"
        reply = await it.http.send("POST", path, holding(wanted, nest(depth)), METADATA)

    assert reply.status == 400
    assert reply.json["error"].startswith("Bad request.")


@each_depth
def test_scenario_with_a_nested_document_is_refused(depth: int, nest: Nest) -> None:
    body = holding([{"DocumentIncarnation": 7, "Events": [EVENT]}], nest(depth))

    if depth < DEEPEST - 4:
        assert parse_scenario(body, "s").documents == tuple(json.loads(body))
    else:
        with pytest.raises(ScenarioError, match="s is no"):
            parse_scenario(body, "s")


@each_depth
async def test_event_grid_publishes_nested_events_or_nothing(
    depth: int, nest: Nest
) -> None:
    event = {**EVENT, "EventId": HERE, "Resources": HERE, "EventStatus": "Scheduled"}
    async with vm() as it:
        published: list[bytes] = []
        grid = EventGrid(
            document=it.imds, place=Place(vm_name="web-0"), publish=published.append
        )
        for number in (7, 8):
            document = {"DocumentIncarnation": number, "Events": [event]}
            body = holding(document, nest(depth))
            await it.control("PUT", "document?raw=1", body)
            grid.look()

    assert len(published) == (1 if depth < DEEPEST - 3 else 0)


@pytest.mark.parametrize("path", ["/options", "/faults"])
@each_depth
async def test_arm_refuses_a_nested_control_request(
    path: str, depth: int, nest: Nest
) -> None:
    async with Arm([]) as arm, http_client(arm.url) as http:
        method = "POST" if path == "/faults" else "PUT"
        reply = await http.send(method, path, holding({"x": HERE}, nest(depth)))

    assert reply.status == 400


@each_depth
async def test_arm_refuses_a_nested_list_of_events(depth: int, nest: Nest) -> None:
    path = Place(vm_name="web-0").resource("x").removesuffix("/x")
    async with Arm([]) as arm, http_client(arm.url) as http:
        body = holding({"value": [HERE]}, nest(depth))
        reply = await http.send("POST", f"{path}?api-version=2025-11-01", body)

    assert reply.status == 400

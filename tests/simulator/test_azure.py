"""The local ARM acknowledges events; Event Grid's messages report the same events."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from bridge.hub import azure_messages
from bridge.hub.facts import Kind
from bridge.simulator.arm import Arm
from bridge.simulator.event_grid import EventGrid, Place, health
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.state import ImdsSettings, ImdsState
from bridge.simulator.serve import Simulator, SimulatorOptions
from tests.simulator.imds_client import FakeClock, http_client

EVENT_ID = "602D9444-D2CD-49C7-8624-8643E7171297"
PLACE = Place(vm_name="web-0")
EVENTS = PLACE.resource("x").removesuffix("/x")
ONE = f"{EVENTS}/{EVENT_ID}/acknowledge?api-version=2025-11-01"
LIST = f"{EVENTS}?api-version=2025-11-01"


@pytest.fixture
def imds() -> ImdsState:
    found = ImdsState(ImdsSettings(vm_name="web-0"), FakeClock())
    found.schedule(
        EventLife(event_type="Freeze", resources=("web-0",), event_id=EVENT_ID)
    )
    return found


@pytest.fixture
async def arm(imds: ImdsState) -> AsyncIterator[Arm]:
    async with Arm([imds], clock=FakeClock()) as opened:
        yield opened


async def post(arm: Arm, path: str, body: object = None, **headers: str) -> Any:
    async with http_client(arm.url) as http:
        data = b"" if body is None else json.dumps(body).encode()
        return await http.send("POST", path, body=data, headers=headers)


async def test_event_is_acknowledged_once(arm: Arm, imds: ImdsState) -> None:
    found = await post(arm, ONE)
    assert (found.status, found.json) == (200, {"value": "Successfully Approved"})
    assert [one.by for one in imds.approvals] == ["azure-resource-manager"]

    again = await post(arm, ONE.lower())
    assert (again.status, again.json["error"]["code"]) == (409, "Conflict")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (ONE.replace(EVENT_ID, "nobody"), 404, "NotFound"),
        (ONE.partition("?")[0], 400, "MissingApiVersionParameter"),
        ("/subscriptions/x", 400, "MissingApiVersionParameter"),
        ("/subscriptions/x?api-version=2025-11-01", 404, "ResourceNotFound"),
    ],
)
async def test_request_that_is_wrong_is_refused(
    arm: Arm, path: str, status: int, code: str
) -> None:
    found = await post(arm, path)
    assert (found.status, found.json["error"]["code"]) == (status, code)


async def test_token_that_is_not_the_one_is_refused(arm: Arm) -> None:
    async with http_client(arm.url) as http:
        await http.send("PUT", "/options", body=b'{"token": "t"}')
        assert (await http.send("POST", ONE)).status == 401
        good = {"Authorization": "Bearer t"}
        assert (await http.send("POST", ONE, headers=good)).status == 200
        asked = (await http.send("GET", "/requests")).json
    assert len(asked) == 2
    assert "t" not in str([one["path"] for one in asked]).split("/")


@pytest.mark.parametrize("form", ["response", "error"])
@pytest.mark.parametrize("targets", [True, False])
async def test_list_is_answered_in_either_form(
    arm: Arm,
    form: str,
    targets: bool,  # noqa: FBT001 - a case
) -> None:
    options = json.dumps({"form": form, "targets": targets}).encode()
    async with http_client(arm.url) as http:
        await http.send("PUT", "/options", body=options)
    found = await post(arm, LIST, {"value": [EVENT_ID, "nobody"]})

    assert found.status == 207
    assert found.json[form]["code"] == "MultiStatusResponse"
    assert [one["code"] for one in found.json["details"]] == ["OK", "NotFound"]
    assert all(("target" in one) is targets for one in found.json["details"])
    assert (await post(arm, LIST, {"value": "x"})).status == 400


async def test_list_of_good_ones_is_one_word(arm: Arm) -> None:
    assert (await post(arm, LIST, {"value": [EVENT_ID]})).status == 200


async def test_fault_on_demand(arm: Arm) -> None:
    fault = b'{"status": 429, "retry_after": 7}'.replace(b"retry_after", b"retryAfter")
    async with http_client(arm.url) as http:
        await http.send("POST", "/faults", body=fault)
        found = await http.send("POST", ONE)
        assert (found.status, found.headers["Retry-After"]) == (429, "7")
        await http.send("POST", "/faults", body=fault)
        await http.send("DELETE", "/faults")
        assert (await http.send("POST", ONE)).status == 200
        bad = await http.send("POST", "/faults", body=b"{}")
        assert bad.status == 400


@pytest.mark.parametrize("schema", ["cloudevents", "eventgrid"])
def test_event_grid_publishes_each_change_of_an_event(
    imds: ImdsState, schema: Any
) -> None:
    published: list[bytes] = []
    grid = EventGrid(
        document=imds,
        place=PLACE,
        publish=published.append,
        schema=schema,
        copies=2,
        with_foreign=True,
        clock=FakeClock(),
    )
    for change in (
        None,
        lambda: imds.start(EVENT_ID),
        lambda: imds.remove(EVENT_ID),
        None,
    ):
        if change is not None:
            change()
        grid.look()

    heard = datetime.fromtimestamp(FakeClock().now(), UTC)
    facts = [azure_messages.read(body, heard=heard) for body in published]
    kinds = [fact.kind for fact in facts if fact is not None]
    steps = [Kind.SCHEDULED, Kind.STARTED, Kind.COMPLETED]
    assert kinds == [kind for kind in steps for _ in range(2)]
    assert facts.count(None) == 3, "those of another kind are left out"
    assert len({fact.id for fact in facts if fact is not None}) == 3
    assert {fact.key for fact in facts if fact is not None} == {EVENT_ID}


def test_event_that_vanishes_before_it_started_is_canceled(imds: ImdsState) -> None:
    published: list[bytes] = []
    grid = EventGrid(
        document=imds, place=PLACE, publish=published.append, clock=FakeClock()
    )
    grid.look()
    imds.remove(EVENT_ID)
    grid.look()
    assert b'"Canceled"' in published[-1]
    imds.show(b"garbage")
    grid.look()
    assert len(published) == 2


async def test_simulator_publishes_event_grid_messages_in_a_queue() -> None:
    options = SimulatorOptions(vm_name="web-0", event_grid="cloudevents")
    stop = asyncio.Event()
    async with Simulator(options) as simulator, asyncio.TaskGroup() as group:
        group.create_task(simulator.run_event_grid(stop))
        simulator.imds.schedule(EventLife(event_type="Freeze", resources=("web-0",)))
        text = simulator.broker.connection_string
        async with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_receiver("azure-events", max_wait_time=10) as receiver,
        ):
            (first,) = await receiver.receive_messages(1)
            body = b"".join(first.body)
        stop.set()
    assert b"resourceInfo" in body


def test_resource_health_is_read_as_the_hub_reads_azures() -> None:
    place, when = Place(vm_name="web-1"), 1_772_452_800.0
    heard = datetime.fromtimestamp(when + 60, UTC)
    state = {"availabilityState": "Unavailable"}
    why = {"annotationName": "VirtualMachineHostCrashed", "category": "Unplanned"}

    first, second = (
        azure_messages.notes_in(health(place, when, said), heard=heard)
        for said in (state, why)
    )

    assert [one.machine[2] for one in (*first, *second)] == ["web-1", "web-1"]
    assert [one.kind.value for one in (*first, *second)] == ["health", "annotation"]

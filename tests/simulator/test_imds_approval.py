"""StartRequests: 200 if each event is in the document, else 400."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from bridge.simulator.imds.lifecycle import StartOn
from bridge.simulator.imds.scenario import load
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsOptions, ImdsSettings
from tests.simulator.imds_client import EVENTS, METADATA, life, vm

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


@pytest.mark.parametrize("spelled", [ID, ID.lower()])
async def test_approval_starts_the_event_at_once(spelled: str) -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID, started_seconds=600))

        assert (await it.approve(spelled)).status == 200

        assert (await it.event())["EventStatus"] == "Started"
        it.clock.at += 600
        assert (await it.document())["Events"] == []


async def test_approval_of_a_started_event_is_taken_and_changes_nothing() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))
        it.imds.start(ID)
        before = await it.document()

        assert (await it.approve(ID)).status == 200

        assert await it.document() == before


async def test_repeated_approval_is_taken() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))

        assert [(await it.approve(ID)).status for _ in range(2)] == [200, 200]


async def test_several_events_are_approved_in_one_request() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id="A"))
        it.imds.schedule(life(event_id="B"))

        assert (await it.approve("A", "B", "a")).status == 200

        events = (await it.document())["Events"]
        assert [event["EventStatus"] for event in events] == ["Started", "Started"]


async def test_event_that_is_not_there_is_refused_with_all_the_others() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id="A"))

        assert (await it.approve("A", "gone")).status == 400

        assert (await it.event())["EventStatus"] == "Scheduled"


async def test_event_that_the_version_does_not_show_is_refused() -> None:
    async with vm() as it:
        it.imds.schedule(life("Preempt", event_id=ID))

        assert (await it.approve(ID, version="2017-08-01")).status == 400
        assert (await it.approve(ID, version="2017-11-01")).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        [],
        {},
        {"StartRequests": []},
        {"StartRequests": {"EventId": ID}},
        {"StartRequests": [ID]},
        {"StartRequests": [{}]},
        {"StartRequests": [{"EventId": 1}]},
        {"StartRequests": [{"EventId": ID}, {"EventId": None}]},
        {"StartRequests": [{"EventId": ID}], "DocumentIncarnation": []},
    ],
    ids=lambda body: str(body)[:40],
)
async def test_malformed_approval_is_refused(body: object) -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))

        assert (await it.post(body)).status == 400

        assert (await it.event())["EventStatus"] == "Scheduled"


@pytest.mark.parametrize("incarnation", ["2", 2])
async def test_preview_takes_the_incarnation_as_text_or_number(
    incarnation: str | int,
) -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))
        wanted = [{"EventId": ID}]
        body = {"DocumentIncarnation": incarnation, "StartRequests": wanted}

        assert (await it.post(body, "2017-03-01")).status == 200

        assert (await it.event())["EventStatus"] == "Started"


async def test_event_waits_for_all_concerned_with_this_option() -> None:
    async with vm(options=ImdsOptions(start_on=StartOn.ALL_CONCERNED)) as it:
        it.imds.schedule(life("Freeze", "WestNO_0", "WestNO_1", event_id=ID))

        assert (await it.approve(ID)).status == 200
        assert (await it.event())["EventStatus"] == "Scheduled"
        assert it.imds.approve(ID, "westno_1")

        assert (await it.event())["EventStatus"] == "Started"


async def test_event_starts_at_not_before_though_others_have_not_approved() -> None:
    async with vm(options=ImdsOptions(start_on=StartOn.ALL_CONCERNED)) as it:
        it.imds.schedule(life("Freeze", "WestNO_0", "WestNO_1", event_id=ID))
        await it.approve(ID)
        it.clock.at += 900

        assert (await it.event())["EventStatus"] == "Started"


async def test_approval_alone_does_not_raise_the_incarnation() -> None:
    """The document does not show the approval."""
    async with vm() as it:
        it.imds.schedule(life(event_id=ID, waits_for_others=True))
        before = await it.document()
        await it.approve(ID)

        assert await it.document() == before


async def test_approvals_are_reported_and_kept() -> None:
    async with vm() as it:
        reported: list[str] = []
        it.imds.on_approved.append(reported.append)
        it.imds.schedule(life(event_id=ID))
        await it.approve("gone")
        await it.approve(ID.lower())

        assert reported == [ID.lower()]
        (approval,) = it.imds.approvals
        assert (approval.event_ids, approval.by) == ((ID.lower(),), "WestNO_0")


async def test_listener_of_the_documentation_sees_a_migration_through() -> None:
    """As Microsoft's Python sample, but polling faster: read, and confirm each event,
    until it is gone. The requests have no Content-Type."""
    settings = ImdsSettings(
        scenario=load("live-migration"), speed=1500, least_phase=2.5
    )
    seen: list[tuple[int, str]] = []
    async with ImdsSimulator(settings) as imds, aiohttp.ClientSession() as session:
        while not seen or seen[-1] != (4, ""):
            document = await get_scheduled_events(session, imds.url)
            for event in document["Events"] or [{"EventStatus": ""}]:
                step = (document["DocumentIncarnation"], event["EventStatus"])
                seen += [step] if step not in seen else []
                if event["EventStatus"] == "Scheduled":
                    event_id = event["EventId"]
                    status = await confirm(session, imds.url, event_id)
                    assert status == 200
            await asyncio.sleep(0.02)

    assert seen == [(1, ""), (2, "Scheduled"), (3, "Started"), (4, "")]


async def get_scheduled_events(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(
        url + EVENTS, headers=METADATA, params={"api-version": "2020-07-01"}
    ) as response:
        return await response.json()


async def confirm(session: aiohttp.ClientSession, url: str, event_id: str) -> int:
    async with session.post(
        url + EVENTS,
        headers=METADATA,
        params={"api-version": "2020-07-01"},
        data=json.dumps({"StartRequests": [{"EventId": event_id}]}),
    ) as response:
        return response.status

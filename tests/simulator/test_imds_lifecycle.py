"""The life of an event: Scheduled, Started, removed, each step an incarnation."""

import pytest

from bridge.simulator.imds.document import Status
from tests.simulator.imds_client import START, life, vm


async def test_each_change_raises_the_incarnation_by_one() -> None:
    async with vm() as it:
        event = it.imds.schedule(life())
        seen = [(await it.document())["DocumentIncarnation"]]
        it.imds.start(event.event_id)
        seen.append((await it.document())["DocumentIncarnation"])
        it.imds.remove(event.event_id)
        seen.append((await it.document())["DocumentIncarnation"])

        assert seen == [2, 3, 4]


async def test_equal_incarnation_is_equal_content() -> None:
    async with vm() as it:
        it.imds.schedule(life())
        first = await it.get()
        it.clock.at += 60

        assert (await it.get()).body == first.body


async def test_event_starts_at_its_not_before() -> None:
    async with vm() as it:
        it.imds.schedule(life(notice_seconds=900))
        it.clock.at = START + 899
        assert (await it.event())["EventStatus"] == "Scheduled"

        it.clock.at = START + 900

        event = await it.event()
        assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


async def test_not_before_is_rfc_1123_and_never_too_early() -> None:
    """NotBefore has whole seconds. It is rounded up: no event may start before it."""
    async with vm() as it:
        it.clock.at = START + 0.25
        it.imds.schedule(life(notice_seconds=60))

        assert (await it.event())["NotBefore"] == "Mon, 11 Apr 2022 22:12:59 GMT"
        it.clock.at = START + 60.5
        assert (await it.event())["EventStatus"] == "Scheduled"


async def test_started_event_is_removed_when_its_time_is_over() -> None:
    async with vm() as it:
        it.imds.schedule(life(notice_seconds=900, started_seconds=600))
        it.clock.at = START + 1499
        assert (await it.event())["EventStatus"] == "Started"

        it.clock.at = START + 1500

        assert await it.document() == {"DocumentIncarnation": 4, "Events": []}


async def test_started_event_without_an_end_stays() -> None:
    async with vm() as it:
        it.imds.schedule(life())
        it.clock.at += 1_000_000

        assert (await it.event())["EventStatus"] == "Started"


async def test_event_keeps_its_id_as_it_was_given() -> None:
    async with vm() as it:
        mixed = "c7061BAC-afdc-4513-B24B-AA5F13A16123"
        it.imds.schedule(life(event_id=mixed))
        it.imds.start(mixed.upper())

        assert (await it.event())["EventId"] == mixed


async def test_several_events_are_in_the_document_at_once() -> None:
    async with vm() as it:
        it.imds.schedule(life("Freeze", event_id="A"))
        it.imds.schedule(life("Reboot", event_id="B"))
        it.imds.remove("A")
        it.imds.schedule(life("Redeploy", event_id="C"))

        document = await it.document()

        assert [event["EventId"] for event in document["Events"]] == ["B", "C"]
        assert document["DocumentIncarnation"] == 5


async def test_steps_missed_between_two_looks_count_in_their_order() -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id="A", notice_seconds=60, started_seconds=60))
        it.imds.schedule(life(event_id="B", notice_seconds=90))
        it.clock.at += 100

        document = await it.document()

        statuses = {e["EventId"]: e["EventStatus"] for e in document["Events"]}
        assert statuses == {"A": "Started", "B": "Started"}
        assert document["DocumentIncarnation"] == 5


async def test_host_failure_appears_as_started() -> None:
    async with vm() as it:
        it.imds.schedule(life(status=Status.STARTED, started_seconds=600))

        event = await it.event()
        assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")
        it.clock.at += 600
        assert (await it.document())["Events"] == []


@pytest.mark.parametrize("seconds", [0, 30])
async def test_withdrawn_event_goes_without_being_started(seconds: float) -> None:
    async with vm() as it:
        it.imds.schedule(life(cancelled_after_seconds=seconds))
        it.clock.at += seconds

        assert await it.document() == {"DocumentIncarnation": 3, "Events": []}


async def test_moved_vm_counts_on_from_another_incarnation() -> None:
    async with vm() as it:
        it.imds.schedule(life())
        it.imds.set_incarnation(1)
        assert (await it.document())["DocumentIncarnation"] == 1

        it.imds.schedule(life())

        assert (await it.document())["DocumentIncarnation"] == 2

"""Scenarios as a client sees them, at any speed."""

import pytest

from bridge.simulator.imds.scenario import Scenario, load, names
from tests.simulator.imds_client import START, Vm, vm

EIGHT = [name for name in names() if not name.startswith("documents-")]
DOCUMENTS = (
    {"DocumentIncarnation": 5, "Events": []},
    {
        "DocumentIncarnation": 6,
        "Events": [{"EventId": "aB", "EventStatus": "Scheduled"}],
    },
    {
        "DocumentIncarnation": 7,
        "Events": [{"EventId": "aB", "EventStatus": "Scheduled", "Description": "!"}],
    },
    {
        "DocumentIncarnation": 8,
        "Events": [{"EventId": "aB", "EventStatus": "Started"}],
    },
    {"DocumentIncarnation": 9, "Events": []},
)


async def watch(it: Vm, *, approves: bool) -> list[str]:
    """Return the transitions that a client sees that polls once a second."""
    seen: list[str] = []
    status, not_before_at = None, 0.0
    while not (it.imds.is_over and status is None and it.clock.at > START + 1):
        events = (await it.document())["Events"]
        now = events[0]["EventStatus"] if events else None
        if now == "Scheduled" != status:
            not_before_at = it.imds.events()[0].not_before
            seen.append("scheduled")
            if approves:
                await it.approve(events[0]["EventId"])
        elif now == "Started" != status:
            seen.append("started")
        elif now is None and status is not None:
            seen.append(_end(status, it.clock.at, not_before_at, approves=approves))
        status = now
        it.clock.at += 1
    return seen


def _end(status: str, at: float, not_before: float, *, approves: bool) -> str:
    if status == "Started":
        return "completed"
    is_well_before = at < not_before - 5
    return "cancelled" if is_well_before and not approves else "ended"


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1, 60, 100, 1000])
@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("approves", [False, True])
async def test_watcher_sees_what_is_expected(
    name: str,
    speed: float,
    approves: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    scenario = load(name)
    async with vm(scenario, speed=speed, least_phase=2.5) as it:
        seen = await watch(it, approves=approves)

    expected = scenario.expected_approved if approves else scenario.expected
    assert tuple(seen) == expected


async def test_scenario_begins_with_the_first_read() -> None:
    async with vm(load("live-migration")) as it:
        it.clock.at += 3600
        await it.control("GET", "state")
        assert await it.document() == {"DocumentIncarnation": 1, "Events": []}

        event = await it.event()

        assert event["EventStatus"] == "Scheduled"
        assert event["NotBefore"] == "Mon, 11 Apr 2022 23:26:58 GMT"


async def test_speed_divides_the_durations() -> None:
    async with vm(load("user-reboot"), speed=60) as it:
        await it.document()
        it.clock.at = START + 14
        assert (await it.event())["EventStatus"] == "Scheduled"
        it.clock.at = START + 15
        assert (await it.event())["EventStatus"] == "Started"
        it.clock.at = START + 24
        assert (await it.event())["EventStatus"] == "Started"
        it.clock.at = START + 25

        assert await it.document() == {"DocumentIncarnation": 4, "Events": []}


async def test_approval_does_not_wait_for_not_before() -> None:
    async with vm(load("user-reboot"), speed=60) as it:
        await it.document()
        await it.approve((await it.event())["EventId"])
        assert (await it.event())["EventStatus"] == "Started"
        it.clock.at += 10

        assert (await it.document())["Events"] == []


async def test_no_phase_is_pressed_below_the_least() -> None:
    """Without the limit, a notice of half a second would fall between two polls."""
    async with vm(load("spot-eviction"), speed=60, least_phase=2.5) as it:
        await it.document()
        it.clock.at += 2

        assert (await it.event())["EventType"] == "Preempt"


async def test_spot_vm_is_gone_at_its_not_before() -> None:
    async with vm(load("spot-eviction")) as it:
        await it.document()
        it.clock.at = START + 29
        assert (await it.event())["EventStatus"] == "Scheduled"
        it.clock.at = START + 30

        assert await it.document() == {"DocumentIncarnation": 3, "Events": []}


async def test_host_failure_comes_without_notice() -> None:
    async with vm(load("host-failure")) as it:
        await it.document()

        event = await it.event()
        assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


async def test_event_ids_are_upper_case_guids_and_differ() -> None:
    ids = [await event_id_of(seed=None) for _ in range(2)]

    assert len(set(ids)) == 2
    assert all(each == each.upper() and len(each) == 36 for each in ids)


async def test_seed_makes_the_same_event_ids() -> None:
    assert await event_id_of(seed=7) == await event_id_of(seed=7)


async def event_id_of(seed: int | None) -> str:
    async with vm(load("user-reboot"), seed=seed) as it:
        await it.document()
        return str((await it.event())["EventId"])


async def test_vm_is_the_first_resource_unless_named() -> None:
    async with vm(load("documents-user-reboot")) as it:
        assert it.imds.vm_name == "flatcar-vm1"
    async with vm(load("documents-user-reboot"), vm_name="web-1") as it:
        assert it.imds.vm_name == "web-1"


async def test_documents_are_shown_one_after_the_other() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS), speed=60) as it:
        it.clock.at += 100
        shown = []
        for _ in range(7):
            shown.append(await it.document())
            it.clock.at += 1

        assert tuple(shown) == (*DOCUMENTS, DOCUMENTS[-1], DOCUMENTS[-1])


async def test_documents_are_held_a_minute() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS)) as it:
        await it.document()
        it.clock.at += 59.9
        assert (await it.document())["DocumentIncarnation"] == 5
        it.clock.at += 0.1

        assert (await it.document())["DocumentIncarnation"] == 6


async def test_approval_jumps_to_where_the_event_is_scheduled_no_more() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS)) as it:
        await it.document()
        it.clock.at += 60
        assert (await it.document())["DocumentIncarnation"] == 6

        assert (await it.approve("Ab")).status == 200

        assert await it.document() == DOCUMENTS[3]
        it.clock.at += 59
        assert await it.document() == DOCUMENTS[3]


async def test_approval_of_what_is_started_jumps_nowhere() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS[3:])) as it:
        await it.document()

        assert (await it.approve("aB")).status == 200

        assert await it.document() == DOCUMENTS[3]


async def test_approval_of_what_a_document_lacks_is_refused() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS)) as it:
        await it.document()

        assert (await it.approve("aB")).status == 400


async def test_approval_without_a_later_document_changes_nothing() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS[1:3])) as it:
        await it.document()

        assert (await it.approve("aB")).status == 200

        assert await it.document() == DOCUMENTS[1]


async def test_documents_are_over_with_the_last() -> None:
    async with vm(Scenario(name="mine", documents=DOCUMENTS[:2])) as it:
        await it.document()
        assert not it.imds.is_over
        it.clock.at += 60

        assert it.imds.is_over

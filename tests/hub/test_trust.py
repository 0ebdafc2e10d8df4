"""What a VM that may only send gains by words in another's name; on either store."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from msgspec.structs import replace

from bridge.events.cloudevent import hash32
from bridge.events.identity import Identity
from bridge.hub.access import AccessRule
from bridge.hub.config import HubConfig
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store
from tests.support.builders import EVENT_ID
from tests.support.fleet import SUBSCRIPTION, azure, event, life, outcome, step, vm
from tests.support.hub import (
    ARM_CONFIG,
    HubWorld,
    access,
    beat,
    config,
    grid,
    offer,
    received,
)

ALLOW, DENY = {"action": "allow"}, {"name": "no", "action": "deny"}
HOUR = 3600.0
EVIL = vm(7)  # another VM of the fleet, which is not in Resources
Opened = Callable[[HubConfig], Any]


@pytest.fixture
async def opened(store: Store) -> AsyncIterator[Opened]:
    """Open a hub over the store of the test."""
    async with AsyncExitStack() as stack:

        async def opens(given: HubConfig) -> HubWorld:
            return await stack.enter_async_context(HubWorld(store, given).open())

        yield opens


@pytest.fixture
async def world(opened: Opened) -> Any:
    """Return a hub where web-0 has offered its own session for an hour."""
    found: HubWorld = await opened(config())
    await found.store.keep(
        [
            beat(0, -HOUR, approvals=signed(session="s-0")),
            beat(0, 0, approvals=signed(session="s-0")),
            received(step("scheduled"), session="s-0"),
        ]
    )
    return found


def signed(*rules: Mapping[str, object], **more: object) -> dict[str, object]:
    """Return an offer with the digest that a bridge computes."""
    made = offer(*rules, **more)
    del made["digest"]
    return {**made, "digest": hash32(made)}


def heartbeat(seconds: float, approvals: dict[str, object]) -> Incoming:
    """Return the heartbeat of web-0."""
    body = life(
        "heartbeat",
        seconds=seconds,
        intervalSeconds=60,
        approvals={"digest": approvals["digest"]},
    )
    return received(body, seconds)


async def sent_to(world: HubWorld) -> tuple[str, str] | None:
    """Return where the next approval goes; None = nowhere."""
    await world.dispatcher.step()
    found = world.transport.taken
    address = found[-1].address if found else None
    return (address.entity, address.session) if address else None


async def test_session_of_a_stranger_gets_no_approval(world: HubWorld) -> None:
    """However many bridges it says are there."""
    fakes = [vm(number) for number in range(20, 24)]
    for number, who in enumerate([EVIL, *fakes], 1):
        heard = life(
            "started",
            who=who,
            seconds=-HOUR,
            intervalSeconds=60,
            approvals=signed(session="evil"),
        )
        said = step("scheduled", who=who, seconds=number)
        await world.store.keep(
            [received(heard, -HOUR), received(said, 1, session="evil")]
        )

    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")


async def test_reply_to_that_its_reporter_does_not_offer_is_not_used(
    world: HubWorld,
) -> None:
    world.clock.pass_by(400)  # web-0 is silent
    said = step("updated", event(Description="x"), previous=event(), seconds=390)
    await world.store.keep(
        [received(said, -100, session="evil")]
    )  # in the name of web-0

    assert (await world.post())[0] == 200
    assert await sent_to(world) is None
    shown = await world.get(f"/api/v1/events/{EVENT_ID}/approval")
    assert [one["session"] for one in shown["addresses"]] == ["s-0"]


async def test_offer_in_anothers_name_makes_the_address_contested(
    world: HubWorld,
) -> None:
    forged = life(
        "started", seconds=2, intervalSeconds=60, approvals=signed(session="evil")
    )
    await world.store.keep([received(forged, 2)])

    status, body = await world.post()
    assert (status, body["needs"]) == (409, "address")
    assert "contested (web-0 has offered two addresses)" in body["error"]
    shown = await world.get(f"/api/v1/events/{EVENT_ID}/approval")
    ids = {one["session"]: one["id"] for one in shown["addresses"]}
    assert set(ids) == {"s-0", "evil"}
    page = await world.get(f"/events/{EVENT_ID}")
    assert f'name="address" value="{ids["s-0"]}"' in page
    assert (await world.post(address=ids["s-0"]))[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")
    decided = await world.decision()
    assert decided["address"] == "vm-approvals s-0"
    record = (await world.page())["record"]
    assert any(f"chosen address {ids['s-0']}" in str(one["detail"]) for one in record)


async def test_heartbeat_tells_which_offer_is_the_real_one(world: HubWorld) -> None:
    """Even if the forged one claims the digest of the real one."""
    real = signed(session="s-0")
    forged = {**signed(DENY, session="s-0"), "digest": real["digest"]}
    said = life("started", seconds=2, intervalSeconds=60, approvals=forged)
    await world.store.keep([received(said, 2)])
    assert (await world.post())[1]["needs"] == "override"

    await world.store.keep([heartbeat(60, real)])
    assert (await world.post())[0] == 200


async def test_session_passes_on_when_its_bridge_is_silent(world: HubWorld) -> None:
    """A VM that was made anew has another vmId, and here another session."""
    world.clock.pass_by(400)
    anew = Identity(vm_name="web-0", vm_id="another", resource_id=vm().resource_id)
    said = life(
        "started",
        who=anew,
        seconds=390,
        intervalSeconds=60,
        approvals=signed(session="s-1"),
    )
    await world.store.keep([received(said, 390)])

    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-1")


async def test_session_of_one_machine_is_contested_when_another_offers_it(
    world: HubWorld,
) -> None:
    """web-0 has it for an hour; then web-1 offers it, too, for an event of its own."""
    await world.store.keep(
        [
            beat(1, 0, approvals=signed(session="s-0")),
            received(
                step("scheduled", event("OTHER", Resources=["web-1"]), who=vm(1)),
                session="s-0",
            ),
        ]
    )
    assert (await world.post())[0] == 200, "it is that of web-0"
    status, body = await world.post(event_id="OTHER")
    assert (status, "its session is that of web-0" in body["error"]) == (409, True)

    world.clock.pass_by(901)
    await world.store.keep(
        [beat(n, 901, approvals=signed(session="s-0")) for n in (0, 1)]
    )
    late = event("OTHER", Resources=["web-1"])
    assert late
    status, _ = await world.post(event_id="OTHER")
    assert status == 200, "they share it"


async def test_type_prefix_of_another_leads_nothing_astray(opened: Opened) -> None:
    world = await opened(config())
    first = orjson.loads(step("scheduled", who=EVIL))
    first["type"] = first["type"].replace("sebridge", "evil", 1)
    await world.store.keep(
        [
            received(orjson.dumps(first), reply_to=None),
            beat(0, approvals=signed()),
            received(step("scheduled", seconds=1)),
        ]
    )
    await world.post()
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert orjson.loads(sent.message)["type"] == "sebridge.startrequest.v1"


async def test_refusal_of_a_bridge_is_shown_and_a_person_may_override_it(
    world: HubWorld,
) -> None:
    await world.store.keep([beat(0, 5, approvals=signed(DENY, session="s-0"))])
    status, body = await world.post()
    assert (status, body["needs"]) == (409, "override")
    assert "DeniedByRule no" in body["error"]
    assert 'name="override"' in await world.get(f"/events/{EVENT_ID}")

    assert (await world.post(override=True))[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")
    decided = await world.decision()
    assert decided["overridden"] is True
    record = (await world.page())["record"]
    assert any("a bridge would refuse" in str(one["detail"]) for one in record)


async def test_outcome_of_a_bridge_that_was_not_asked_closes_nothing(
    world: HubWorld,
) -> None:
    await world.store.keep([beat(7, approvals=signed(session="evil"))])
    _, decided = await world.post()
    await world.dispatcher.step()
    for number, what in enumerate(("relayed", "denied"), 2):
        body = orjson.loads(outcome(what, decided["id"], seconds=number))
        body["id"] = f"forged-{number}"
        body["data"]["reporter"] |= {"vmId": EVIL.vm_id, "vmName": "web-7"}
        await world.store.keep([received(orjson.dumps(body), number)])

    assert (await world.decision())["state"] == "sent"
    shown = await world.page()
    assert {one["standing"] for one in shown["outcomes"]} == {"not-asked"}
    assert "said by web-7, not asked" in await world.get(f"/events/{EVENT_ID}")
    await world.store.keep([received(outcome("relayed", decided["id"], seconds=9), 9)])
    assert (await world.decision())["state"] == "done"


async def test_outcome_with_another_message_id_is_approved_elsewhere(
    world: HubWorld,
) -> None:
    _, decided = await world.post()
    await world.dispatcher.step()
    await world.store.keep([received(outcome("relayed", "f" * 32, seconds=3), 3)])

    assert (await world.decision())["state"] == "sent"
    (one,) = (await world.page())["outcomes"]
    assert (one["standing"], one["messageId"]) == ("elsewhere", "f" * 32)
    assert "approved elsewhere" in await world.get(f"/events/{EVENT_ID}")
    assert decided["id"] != "f" * 32


async def test_offer_that_comes_after_the_outcome_counts(opened: Opened) -> None:
    """The bridge was started with another session, and ``started`` was late."""
    world = await opened(config())
    await world.store.keep(
        [
            beat(0, -HOUR, approvals=signed(session="old")),  # names web-1
            beat(1, -HOUR, approvals=signed(session="new")),
            received(step("scheduled"), session="old"),
        ]
    )
    world.more["listening"] = {"b": None}
    _, decided = await world.post()
    await world.dispatcher.step()
    await world.store.keep([received(outcome("relayed", decided["id"], seconds=3), 3)])
    assert (await world.decision())["state"] == "sent"
    await world.store.keep([beat(0, 2, approvals=signed(session="new"))])
    world.clock.pass_by(31)
    await world.dispatcher.step()
    assert (await world.decision())["state"] == "done"
    assert len(world.transport.taken) == 1


# How many people must approve.

TWO = AccessRule(resource_groups=("web",), persons=2)


def of_group(body: bytes, group: str, who: str = "evil") -> bytes:
    """Return a message as a bridge of another resource group sends it."""
    made = orjson.loads(body)
    made["id"] = f"{made['id']}-{group}"
    made["source"] = f"/subscriptions/{SUBSCRIPTION}/resourcegroups/{quote(group)}"
    made["data"]["reporter"] |= {
        "vmId": who,
        "vmName": who,
        "resourceId": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers"
        f"/Microsoft.Compute/virtualMachines/{who}",
    }
    return orjson.dumps(made)


async def wanted(world: HubWorld) -> tuple[int, list[str]]:
    found = (await world.page())["approval"]["persons"]
    return found["wanted"], [one["vmName"] for one in found["raisedBy"]]


async def test_message_with_an_early_time_makes_no_number_smaller(
    opened: Opened,
) -> None:
    world = await opened(config(access=access(1, TWO)))
    await world.store.keep([beat(0), beat(1), received(step("scheduled", seconds=5))])
    early = of_group(step("scheduled", seconds=-500), "dev")
    await world.store.keep([received(early, 6)])

    assert await world.post() == (202, {"state": "counted", "id": None, "missing": 1})
    assert "It takes 2 different people" in await world.get(f"/events/{EVENT_ID}")


async def test_group_beyond_ascii_fits_its_rule(opened: Opened) -> None:
    rule = AccessRule(resource_groups=("Wartung-Süd",), persons=2)
    world = await opened(config(access=access(1, rule)))
    one = event(Resources=["web-5"])
    start = of_group(life("started", who=vm(5)), "Wartung-Süd", "web-5")
    body = of_group(step("scheduled", one), "Wartung-Süd", "web-5")
    assert b"S%C3%BCd" in body
    await world.store.keep([received(start), received(body)])

    assert (await world.post())[0] == 202


async def test_name_whose_bridge_is_not_known_takes_the_largest_number(
    opened: Opened,
) -> None:
    rule = AccessRule(resource_groups=("prod",), persons=3)
    world = await opened(config(access=access(1, rule)))
    await world.store.keep([beat(0), received(step("scheduled"))])
    assert (await wanted(world))[0] == 3
    await world.store.keep([beat(1)])
    assert (await wanted(world))[0] == 1


async def test_page_says_whose_word_raised_it_and_people_set_it_aside(
    opened: Opened,
) -> None:
    rule = AccessRule(resource_groups=("prod",), persons=2)
    world = await opened(config(access=access(1, rule)))
    await world.store.keep([beat(0), beat(1), received(step("scheduled"))])
    await world.store.keep([received(of_group(step("updated", seconds=5), "prod"), 5)])

    assert await wanted(world) == (2, ["evil"])
    page = await world.get(f"/events/{EVENT_ID}")
    assert "by the word of evil" in page
    assert 'value="set-aside"' in page
    aside = {"decision": "set-aside", "about": "evil"}
    assert (await world.post("ann", **aside))[0] == 202
    assert (await world.post("ann", **aside))[0] == 202
    assert await wanted(world) == (2, ["evil"])
    assert (await world.post("bob", **aside, via="arm"))[0] == 200

    assert await wanted(world) == (1, [])
    row = await world.decision()
    assert (row["decision"], row["about"], row["by"], row["state"]) == (
        *("set-aside", "evil"),
        ["ann", "bob"],
        "done",
    )
    assert "set-aside,bridge,done" in (
        await world.get("/api/v1/decisions.csv")
    ).replace('"', "")
    assert (await world.post("bob", **aside))[0] == 404
    assert (await world.post("cat"))[0] == 200


async def test_type_that_was_reported_once_counts_until_the_end(opened: Opened) -> None:
    rule = AccessRule(event_types=("Redeploy",), persons=2)
    world = await opened(config(access=access(1, rule)))
    hard, easy = event(EventType="Redeploy"), event(EventType="Freeze")
    await world.store.keep([beat(0), received(step("scheduled", hard))])
    back = step("updated", easy, previous=hard, seconds=5)
    await world.store.keep([received(back, 5)])

    assert await wanted(world) == (2, ["web-0"])
    assert (await world.post())[0] == 202


# Through ARM: two bridges that fell silent, and Azure shows the event.


def arm_config(persons: int = 1, **more: Any) -> HubConfig:
    return config(persons, arm=replace(ARM_CONFIG, **more))


@pytest.fixture
async def silent(opened: Opened) -> Any:
    world: HubWorld = await opened(arm_config())
    await world.store.keep([beat(n, -HOUR, approvals=signed(ALLOW)) for n in (0, 1)])
    world.clock.pass_by(600)
    world.more["listening"] = {"b": at_seconds(100)}
    await world.store.keep(
        [received(step("scheduled", seconds=5)), grid(azure("Scheduled"), 590)]
    )
    return world


def at_seconds(seconds: float) -> Any:
    from tests.support.fleet import at  # noqa: PLC0415 - used here alone

    return at(seconds)


async def arm(world: HubWorld, who: str = "ann") -> str:
    status, body = await world.post(who, via="arm")
    return "decided" if status == 200 else body.get("error") or str(body["missing"])


async def test_forged_started_does_not_get_past_a_deny_of_the_last_day(
    silent: HubWorld,
) -> None:
    deny = signed(DENY)
    await silent.store.keep([beat(1, -HOUR / 2, approvals=deny)])
    await silent.store.keep([beat(1, -HOUR / 4, approvals=signed(ALLOW))])
    assert "web-1 does not allow it: DeniedByRule no" in await arm(silent)

    shown = await silent.get(f"/api/v1/events/{EVENT_ID}/approval")
    (mine,) = [one for one in shown["arm"]["offers"] if one["answer"] == "denies"]
    status, _ = await silent.post(decision="drop-offer", about=mine["id"])
    assert status == 200
    row = await silent.decision()
    assert (row["decision"], row["about"], row["by"]) == (
        "drop-offer",
        mine["id"],
        ["ann"],
    )
    assert await arm(silent) == "decided"


async def test_stopped_does_not_make_a_bridge_silent_that_was_heard(
    silent: HubWorld,
) -> None:
    said = life("stopped", who=vm(1), seconds=500)
    await silent.store.keep([received(said, 500)])
    assert "a bridge answers" in await arm(silent) or "was heard" in await arm(silent)


@pytest.mark.parametrize(
    "said",
    [
        life("stopped", who=vm(1), seconds=100),
        life(
            "started",
            who=vm(1),
            seconds=100,
            intervalSeconds=60,
            approvals=signed(ALLOW, session="x"),
        ),
        life(
            "started",
            who=Identity(vm_name="web-1", vm_id="new", resource_id=vm(1).resource_id),
            seconds=100,
            intervalSeconds=60,
            approvals=signed(ALLOW),
        ),
    ],
    ids=["stopped", "offer", "vmId"],
)
async def test_something_new_takes_one_person_more(
    silent: HubWorld, said: bytes
) -> None:
    await silent.store.keep([received(said, 100)])
    assert await arm(silent) == "1"
    assert await arm(silent, "bob") == "decided"
    assert "one person more" in (await silent.decision())["rule"]


async def test_many_offers_in_one_name_do_not_push_out_a_deny(
    silent: HubWorld,
) -> None:
    await silent.store.keep(
        [beat(1, -HOUR / 2, approvals=signed(DENY))]
        + [
            beat(1, -HOUR / 4, approvals=signed(ALLOW, session=f"s{n}"))
            for n in range(60)
        ]
    )
    assert "too many offers" in await arm(silent)


# Changes that others alone tell of.

FORGED = event(DurationInSeconds=60, EventType="Terminate")
LONG = event(DurationInSeconds=60)


def changed(raw: Mapping[str, object], seconds: float, who: Identity = EVIL) -> Any:
    """Return an ``updated`` of a VM that is not in Resources."""
    return received(step("updated", raw, previous=event(), seconds=seconds, who=who))


async def witnessed(opened: Opened, persons: int = 1) -> HubWorld:
    """Return a hub that knows an event by one VM that is not in Resources."""
    world: HubWorld = await opened(config(persons))
    await world.store.keep([beat(0), received(step("scheduled", who=vm(8)))])
    return world


@pytest.mark.parametrize("raw", [LONG, FORGED], ids=["longer", "type"])
async def test_change_by_others_voids_no_decision_that_is_not_sent(
    opened: Opened, raw: Mapping[str, object]
) -> None:
    world = await witnessed(opened)
    _, decided = await world.post()
    await world.store.keep([changed(raw, 5)])

    assert (await world.post("bob"))[1]["id"] == decided["id"]
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert sent.id == decided["id"]
    assert orjson.loads(sent.message)["data"]["approvedEvent"] == event()


async def test_change_by_one_in_resources_voids_it(opened: Opened) -> None:
    world = await witnessed(opened)
    await world.post()
    await world.store.keep([changed(LONG, 5, vm(1))])

    await world.dispatcher.step()
    assert world.transport.taken == []
    assert (await world.decision())["state"] == "void"


async def test_start_that_others_alone_tell_holds_a_decision_and_ends_none(
    opened: Opened,
) -> None:
    world = await witnessed(opened)
    await world.post()
    await world.store.keep([received(step("started", seconds=5, who=EVIL))])

    await world.dispatcher.step()
    assert world.transport.taken == []
    assert (await world.decision())["state"] == "decided"


async def test_change_by_others_voids_no_vote(opened: Opened) -> None:
    """What is approved then is what both have agreed to."""
    world = await witnessed(opened, 2)
    assert (await world.post("ann"))[0] == 202
    await world.store.keep([changed(LONG, 5)])

    assert (await world.post("bob"))[0] == 200
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert orjson.loads(sent.message)["data"]["approvedEvent"] == event()


async def test_votes_for_two_different_things_are_no_agreement(
    opened: Opened,
) -> None:
    """A forged type between two votes decides nothing, and takes no vote away."""
    world = await witnessed(opened, 2)
    await world.post("ann")
    await world.store.keep([changed(FORGED, 5)])
    assert (await world.post("bob"))[0] == 202

    await world.store.keep([received(step("scheduled", seconds=9, who=vm(1)))])
    assert (await world.post("cat"))[0] == 200
    assert (await world.decision())["by"] == ["ann", "cat"]


async def test_arm_is_not_asked_for_what_azure_tells_otherwise(
    opened: Opened,
) -> None:
    world = await opened(arm_config())
    await world.store.keep([beat(n, -HOUR, approvals=signed(ALLOW)) for n in (0, 1)])
    world.clock.pass_by(600)
    world.more["listening"] = {"b": at_seconds(100)}
    witness = received(step("scheduled", seconds=5, who=vm(8)), reply_to=None)
    await world.store.keep([witness, grid(azure("Scheduled"), 590)])
    assert await arm(world) == "decided"
    change = step("updated", FORGED, previous=event(), seconds=591, who=EVIL)
    await world.store.keep([received(change, 591, reply_to=None)])
    await world.store.keep([grid(azure("Scheduled", FORGED, seconds=592), 592)])

    await world.dispatcher.step()
    assert world.arm.taken == []
    assert (await world.decision())["state"] == "void"


# One attack each, by a VM that may only send; see also test_fold.py.


async def test_end_that_a_stranger_forges_leaves_the_event_to_be_approved(
    world: HubWorld,
) -> None:
    await world.store.keep([received(step("completed", seconds=5, who=EVIL), 5)])

    shown = await world.page()
    assert (shown["isOpen"], shown["status"]) == (True, "scheduled")
    assert shown["saidToBeOver"]["by"]["vmName"] == "web-7"
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")


async def test_scheduled_that_a_stranger_dates_back_replaces_nothing(
    world: HubWorld,
) -> None:
    """Nor does its (source, id), which is that of the honest message."""
    honest = orjson.loads(step("scheduled"))
    forged = orjson.loads(step("scheduled", FORGED, seconds=-600, who=EVIL))
    forged["id"] = honest["id"]
    before = await world.page()
    await world.store.keep([received(orjson.dumps(forged), 60)])

    after = await world.page()
    for name in ("content", "eventType", "event", "opened", "machines", "status"):
        assert after[name] == before[name], name


async def test_stop_of_the_year_2099_mutes_no_silence(world: HubWorld) -> None:
    """It counts as of when it was heard; the next word of the bridge ends it."""
    said = orjson.loads(life("stopped", seconds=0))
    said["time"] = "2099-01-01T00:00:00Z"
    said["data"]["observedAt"] = said["time"]
    await world.store.keep([received(orjson.dumps(said), 30)])
    assert await state_of(world) == "stopped"
    await world.store.keep([beat(0, 60, approvals=signed(session="s-0"))])
    world.clock.pass_by(61)
    assert await state_of(world) == "alive"
    world.clock.pass_by(600)
    assert await state_of(world) == "silent"


async def state_of(world: HubWorld) -> str:
    (found,) = (await world.get("/api/v1/bridges"))["bridges"]
    return str(found["state"])


async def test_stop_hides_silence_for_a_day_at_most(world: HubWorld) -> None:
    await world.store.keep([received(life("stopped", seconds=30), 30)])
    world.clock.pass_by(86_400)
    assert await state_of(world) == "stopped"
    world.clock.pass_by(100)
    assert await state_of(world) == "silent"


async def test_letters_that_become_others_in_capitals_are_another_event(
    world: HubWorld,
) -> None:
    await world.store.keep(
        [
            received(step("scheduled", event(name), seconds=1))
            for name in ("FF-1", "ff-1")
        ]
    )
    await world.store.keep(
        [received(step("completed", event("\ufb00-1"), seconds=5), 5)]
    )

    found = (await world.get("/api/v1/events"))["events"]
    assert {one["eventId"]: one["isOpen"] for one in found} == {
        EVENT_ID: True,
        "FF-1": True,
        "\ufb00-1": False,
    }

"""Who may decide, what it takes, and what takes a vote back; on either store."""

import base64
import csv
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from sqlalchemy import select

from bridge.approvals.message import parse
from bridge.hub.access import AccessRule
from bridge.hub.config import HubConfig
from bridge.hub.store.store import Store
from bridge.hub.store.tables import alarms
from bridge.hub.vote_rules import digest
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, event, outcome, step, vm
from tests.support.hub import HubWorld, access, beat, config, offer, received

LONGER = event(DurationInSeconds=90)


def principal(who: str, *roles: str) -> dict[str, str]:
    """Return the header of somebody who has signed in with Entra ID."""
    claims = [("tid", "t"), ("oid", who), *(("roles", role) for role in roles)]
    listed = [{"typ": kind, "val": value} for kind, value in claims]
    body = orjson.dumps({"auth_typ": "aad", "claims": listed})
    return {"X-MS-CLIENT-PRINCIPAL": base64.b64encode(body).decode()}


Opened = Callable[[HubConfig], Any]


@pytest.fixture
async def opened(hub_config: HubConfig, store: Store) -> AsyncIterator[Opened]:
    """Open a hub over the store of the test."""
    async with AsyncExitStack() as stack:

        async def opens(given: HubConfig) -> HubWorld:
            world: AbstractAsyncContextManager[HubWorld] = HubWorld(store, given).open()
            return await stack.enter_async_context(world)

        yield opens


@pytest.fixture
async def world(opened: Opened) -> Any:
    """Return a hub where one person is enough."""
    found: HubWorld = await opened(config())
    await found.scheduled()
    return found


@pytest.fixture
async def two(opened: Opened) -> Any:
    """Return a hub where two people are wanted."""
    found: HubWorld = await opened(config(2))
    await found.scheduled()
    return found


async def test_decision_of_one_is_committed_with_its_message(world: HubWorld) -> None:
    status, body = await world.post(reason=" kernel\x1b update ")

    assert (status, body["state"], body["missing"]) == (200, "decided", 0)
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    asked = parse(sent.message, {}, prefix="sebridge")
    assert sent.id == body["id"] == orjson.loads(sent.message)["id"]
    assert asked.event_ids == (EVENT_ID,)
    assert asked.approved_by == "ann"
    assert asked.approved_event == event()
    assert asked.expires_at == at(900)
    assert asked.reason is not None
    assert "\x1b" not in asked.reason
    assert sent.address is not None
    assert (sent.address.entity, sent.address.source) == ("vm-approvals", "b")


async def test_two_different_people_are_wanted(two: HubWorld) -> None:
    first = await two.post("ann")
    again = await two.post("ann")
    assert first == again == (202, {"state": "counted", "id": None, "missing": 1})
    shown = await two.page()
    assert [one["person"] for one in shown["approval"]["votes"]] == ["ann"]

    status, _ = await two.post("bob")

    assert status == 200
    decided = await two.decision()
    assert (decided["by"], decided["rule"]) == (["ann", "bob"], "rules[0]")
    assert decided["reason"] == "ann says so; bob says so"
    shown = await two.page()
    assert shown["approval"]["votes"] == []
    assert [one["what"] for one in shown["record"]] == ["voted"] * 3 + ["decided"]


async def test_whoever_follows_the_changes_sees_a_decision(world: HubWorld) -> None:
    last = (await world.get("/api/v1/events"))["events"][-1]["version"]
    await world.post()
    (seen,) = (await world.get(f"/api/v1/events?cursor={last}"))["events"]
    assert seen["approval"]["decision"]["state"] == "decided"


async def test_decision_that_stands_is_reported_again(world: HubWorld) -> None:
    _, first = await world.post("ann")
    _, again = await world.post("bob")

    assert first["id"] == again["id"]
    assert len((await world.get("/api/v1/decisions"))["decisions"]) == 1


async def test_request_that_may_be_forged_is_refused(world: HubWorld) -> None:
    for headers, status in (
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"X-Sebridge": "0"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"User": "dan"}, 403),
        ({"User": ""}, 401),
    ):
        found, body = await world.post(headers=headers)

        assert (found, bool(body["error"])) == (status, True), headers
        assert (await world.get("/api/v1/decisions"))["decisions"] == [], headers


async def test_origin_of_our_own_is_taken(opened: Opened) -> None:
    url = "https://maintenance.contoso.com"
    world = await opened(config(public_url=url))
    await world.scheduled()
    assert (await world.post(headers={"Origin": world.url}))[0] == 403
    assert (await world.post(headers={"Origin": url}))[0] == 200


async def test_request_that_cannot_be_read_is_reported_why(world: HubWorld) -> None:
    cases: list[tuple[Any, str]] = [
        (b"{", "truncated"),
        (b'{"decision": "\xff"}', "utf-8"),
        (b"[]", "object"),
        ({}, "missing required field `decision`"),
        ({"decision": "approve", "content": "x", "via": "pigeon"}, "$.via"),
        ({"decision": "approve"}, "missing required field `content`"),
        ({"decision": "approve", "content": ""}, "$.content"),
        ({"decision": "approve", "content": "x", "reason": "x" * 1025}, "$.reason"),
        ({"decision": "approve", "content": "x", "reason": 1}, "$.reason"),
        ({"decision": "set-aside", "content": "x"}, "about is missing"),
    ]
    for body, words in cases:
        status, found = await world.send(body, {"User": "ann", "X-Sebridge": "1"})
        assert (status, words in found["error"]) == (400, True), body


async def test_event_that_is_not_known_is_reported(world: HubWorld) -> None:
    assert (await world.post(event_id="nobody"))[0] == 404


async def test_event_that_has_changed_comes_with_its_new_form(world: HubWorld) -> None:
    seen = (await world.page())["content"]
    await world.store.keep(
        [received(step("updated", LONGER, previous=event(), seconds=5))]
    )

    status, body = await world.post(content=seen)

    assert status == 409
    assert body["event"]["event"] == LONGER
    assert (await world.post(content=body["event"]["content"]))[0] == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (step("completed", seconds=9), "is over"),
        (step("started", event(EventStatus="Started"), seconds=9), "has started"),
    ],
)
async def test_event_that_is_past_asking_is_reported(
    world: HubWorld, body: bytes, words: str
) -> None:
    await world.store.keep([received(body)])
    status, found = await world.post()
    assert (status, words in found["error"]) == (409, True)


async def test_event_nobody_takes_approvals_for_is_reported(opened: Opened) -> None:
    world = await opened(config())
    for address in (None, "elsewhere"):
        await world.store.keep([received(step("scheduled"), reply_to=address)])
        status, found = await world.post()
        assert status == 409
        assert "no bridge of this event takes approvals" in found["error"]


async def test_address_that_a_bridge_offers_is_taken(opened: Opened) -> None:
    world = await opened(config())
    await world.store.keep(
        [
            received(step("scheduled"), reply_to=None),
            beat(1, approvals=offer(entity="VM-Approvals-West", session="g")),
        ]
    )
    assert (await world.post())[0] == 200
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert sent.address is not None
    assert (sent.address.entity, sent.address.session) == ("VM-Approvals-West", "g")


async def test_event_of_which_names_were_left_out_is_not_decided(
    opened: Opened,
) -> None:
    world = await opened(config())
    cut = orjson.loads(step("scheduled"))
    cut["data"]["truncated"] = ["Resources"]
    await world.store.keep([received(orjson.dumps(cut))])
    status, found = await world.post()
    assert (status, "not all Resources" in found["error"]) == (409, True)


async def test_event_of_very_many_machines_can_be_decided(opened: Opened) -> None:
    world = await opened(config())
    await world.scheduled(Resources=[f"web-{n}" for n in range(1500)])
    assert "all its 1500 machines" in await world.get(f"/events/{EVENT_ID}")
    assert (await world.post())[0] == 200


async def test_event_that_fits_into_no_message_is_reported(opened: Opened) -> None:
    world = await opened(config())
    await world.scheduled(Description="x" * 60_000)
    status, found = await world.post()
    assert (status, "does not fit" in found["error"]) == (409, True)
    assert (await world.page())["approval"]["votes"] == []


async def test_what_the_rules_of_the_bridge_forbid_is_reported(opened: Opened) -> None:
    world = await opened(config())
    await world.scheduled()
    deny = {"name": "no", "event_types": ["Freeze"], "action": "deny"}
    await world.store.keep([beat(0, 5, approvals=offer(deny))])
    status, found = await world.post()
    assert (status, "DeniedByRule no" in found["error"]) == (409, True)


async def test_refusal_of_one_ends_all_votes(two: HubWorld) -> None:
    await two.post("ann")
    status, _ = await two.post("bob", decision="refuse", reason="not today")

    assert status == 200
    refused = await two.decision()
    assert (refused["decision"], refused["state"]) == ("refuse", "refused")
    assert (refused["by"], refused["reason"]) == (["bob"], "not today")
    assert (await two.post("cat"))[0] == 202
    assert (await two.post("ann"))[0] == 200
    await two.dispatcher.step()
    assert len(two.transport.taken) == 1


async def test_refusal_takes_back_what_was_not_sent(world: HubWorld) -> None:
    _, decided = await world.post("ann")
    await world.post("bob", decision="refuse")

    await world.dispatcher.step()

    assert world.transport.taken == []
    rows = (await world.get("/api/v1/decisions"))["decisions"]
    states = {one["id"]: one["state"] for one in rows}
    assert states[decided["id"]] == "void"


async def test_refusal_does_not_take_back_what_was_sent(world: HubWorld) -> None:
    await world.post("ann")
    await world.dispatcher.step()
    status, found = await world.post("bob", decision="refuse")
    assert (status, "sent already" in found["error"]) == (409, True)


async def test_votes_for_what_is_no_longer_do_not_count(two: HubWorld) -> None:
    await two.post("ann")
    await two.store.keep(
        [received(step("updated", LONGER, previous=event(), seconds=5))]
    )
    assert (await two.post("bob"))[0] == 202
    assert (await two.post("ann"))[0] == 200


async def test_earlier_start_voids_a_vote_and_a_later_one_does_not(
    two: HubWorld,
) -> None:
    await two.post("ann")
    later = event(NotBefore="Mon, 02 Mar 2026 13:00:00 GMT")
    await two.store.keep(
        [received(step("updated", later, previous=event(), seconds=5))]
    )
    assert len((await two.page())["approval"]["votes"]) == 1
    sooner = event(NotBefore="Mon, 02 Mar 2026 12:05:00 GMT")
    await two.store.keep([received(step("updated", sooner, previous=later, seconds=9))])
    assert (await two.page())["approval"]["votes"] == []


async def test_decision_on_what_is_no_longer_makes_room(world: HubWorld) -> None:
    _, first = await world.post("ann")
    await world.store.keep(
        [received(step("updated", LONGER, previous=event(), seconds=5))]
    )
    status, second = await world.post("ann")

    assert (status, second["id"] != first["id"]) == (200, True)
    states = [d["state"] for d in (await world.page())["decisions"]]
    assert sorted(states) == ["decided", "void"]


async def test_vote_of_who_is_no_approver_any_more_does_not_count(
    opened: Opened, two: HubWorld
) -> None:
    await two.post("ann")
    without = replace(access(2), approvers=("bob", "cat"))
    later = await opened(config(access=without))

    assert (await later.post("bob"))[0] == 202
    votes = (await later.page())["approval"]["votes"]
    assert [(v["person"], v["counts"], v["entry"]) for v in votes] == [
        ("ann", False, "ann"),
        ("bob", True, "bob"),
    ]
    shown = await later.get(f"/events/{EVENT_ID}", "bob")
    assert "ann (does not count: the person is no longer an approver)" in shown
    assert (await two.post("bob"))[0] == 200, "the entry is back, and so is the vote"


async def test_role_is_known_as_of_the_vote_and_asked_again_after_a_day(
    opened: Opened,
) -> None:
    rules = replace(access(2), mode="easy-auth", approvers=("role:ops",))
    world: HubWorld = await opened(config(access=rules))
    raw = event(NotBefore="Thu, 05 Mar 2026 12:00:00 GMT")
    await world.store.keep([beat(), received(step("scheduled", raw))])

    async def vote(who: str) -> tuple[int, Any]:
        return await world.post(content=digest(raw), headers=principal(who, "ops"))

    assert (await vote("ann"))[0] == 202
    world.clock.pass_by(86401)
    await world.store.keep([beat(0, 86401)])
    assert (await vote("bob"))[0] == 202, "whether ann has the role is not known"
    world.clock.pass_by(86399)
    await world.store.keep([beat(0, 172800)])
    assert (await vote("ann"))[0] == 200


async def test_after_it_is_done_a_second_vote_decides_nothing(world: HubWorld) -> None:
    _, first = await world.post()
    await world.dispatcher.step()
    await world.store.keep([received(outcome("relayed", first["id"], seconds=3))])

    assert await world.post("bob") == (200, {**first, "missing": 0})
    status, found = await world.post("bob", decision="refuse")
    assert (status, "sent already" in found["error"]) == (409, True)
    assert len((await world.page())["decisions"]) == 1
    changed = received(step("updated", LONGER, previous=event(), seconds=5))
    await world.store.keep([changed])
    assert (await world.post("bob"))[1]["id"] != first["id"]


async def test_application_has_no_vote_among_several(opened: Opened) -> None:
    world = await opened(config(2))
    world.config = replace(world.config)
    await world.scheduled()
    # whether somebody is one is found out by ``access``; here it is what follows of it
    from bridge.hub.access import Person  # noqa: PLC0415 - see above
    from bridge.hub.choices import Approval, VoteRequest  # noqa: PLC0415 - see above
    from bridge.hub.store.deciding import handle_vote  # noqa: PLC0415 - see above

    ask = VoteRequest(
        key=EVENT_ID,
        asked=Approval(decision="approve", content=(await world.page())["content"]),
        person=Person(id="app", name="app", is_application=True, may_decide=True),
        id="d",
    )
    found = await world.store.write(
        lambda c: handle_vote(c, ask, world.config, world.situation())
    )
    assert (found.status, "application" in found.words) == (403, True)


@pytest.mark.parametrize(
    ("fields", "group", "status"),
    [
        ({"EventType": "Redeploy"}, True, 202),
        ({"EventType": "redeploy"}, True, 202),
        ({"EventType": "Reboot"}, True, 200),
        ({"EventType": "Freeze"}, True, 202),
        ({"EventType": "Meteor"}, True, 202),
        ({"EventType": "Reboot"}, False, 202),
    ],
)
async def test_rule_that_fits_first_says_how_many(
    opened: Opened,
    fields: dict[str, Any],
    group: bool,  # noqa: FBT001 - a case
    status: int,
) -> None:
    rules = [
        AccessRule(event_types=("Redeploy",), persons=2),
        AccessRule(event_types=("Freeze",), resource_groups=("web",), persons=2),
    ]
    world = await opened(config(access=access(1, *rules)))
    if group:  # the bridge of each machine says where it is
        await world.store.keep([beat(0), beat(1)])
    body = step("scheduled", event(**fields))
    if not group:  # a bridge that does not know where it is
        made = orjson.loads(body)
        made["source"] = "urn:sebridge:host"
        made["data"]["reporter"]["resourceId"] = None
        body = orjson.dumps(made)
    await world.store.keep([received(body)])
    assert (await world.post())[0] == status


async def test_outcome_comes_by_the_topic_and_is_kept(world: HubWorld) -> None:
    _, decided = await world.post()
    await world.dispatcher.step()
    assert (await world.decision())["state"] == "sent"

    await world.store.keep([received(outcome("relayed", decided["id"], seconds=3))])

    found = await world.decision()
    assert (found["state"], found["outcome"]) == ("done", "relayed")


async def test_bad_outcome_reopens_without_votes(two: HubWorld) -> None:
    await two.post("ann")
    _, decided = await two.post("bob")
    await two.dispatcher.step()
    bad = outcome("denied", decided["id"], reason="EventChanged", seconds=3)
    await two.store.keep([received(bad)])

    found = await two.decision()
    assert (found["state"], found["outcomeReason"]) == ("failed", "EventChanged")
    assert (await two.post("cat"))[0] == 202


async def test_good_outcome_holds_whatever_comes_before_or_after(
    world: HubWorld,
) -> None:
    _, decided = await world.post()
    await world.dispatcher.step()
    ends = [
        outcome("unknown-event", decided["id"], seconds=2),
        outcome("relayed", decided["id"], seconds=3),
        outcome("rejected", decided["id"], seconds=4),
    ]
    for body in ends:
        await world.store.keep([received(body)])
    assert (await world.decision())["outcome"] == "relayed"


async def test_decisions_are_listed_page_by_page_and_as_a_table(
    world: HubWorld,
) -> None:
    for number in range(3):
        await world.post(decision="refuse", reason=f"=cmd|'{number}\r\n@x")
        world.clock.pass_by(1)
    first = await world.get("/api/v1/decisions?limit=2")
    rest = await world.get(f"/api/v1/decisions?limit=2&cursor={first['next']}")
    text = await world.get("/api/v1/decisions.csv")

    found = [one["reason"][5] for one in (*first["decisions"], *rest["decisions"])]
    assert found == ["'", "'", "'"]
    times = [one["time"] for one in (*first["decisions"], *rest["decisions"])]
    assert (times, rest["next"]) == (sorted(times, reverse=True), None)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 3
    assert rows[0]["reason"] == "'=cmd|'2 @x"
    assert (
        "not a cursor of this list"
        in (await world.get("/api/v1/decisions?cursor=x"))["error"]
    )


async def test_alarms_tell_of_decisions_once(world: HubWorld) -> None:
    _, decided = await world.post()
    await world.dispatcher.step()
    end = received(outcome("denied", decided["id"], seconds=3))
    await world.store.keep([end])
    await world.store.keep([end])

    found = await world.store.read(
        lambda c: list(c.scalars(select(alarms.c.kind).order_by(alarms.c.kind)))
    )
    assert found == ["hub.approval.decided", "hub.approval.failed"]


async def test_vm_that_is_made_anew_does_not_answer_for_the_old(
    world: HubWorld,
) -> None:
    await world.store.keep([received(step("completed", seconds=5))])
    await world.store.keep(
        [received(step("scheduled", seconds=60, who=vm(1), repeats=1), 60)]
    )
    shown = await world.page()
    assert (shown["occurrence"], shown["status"]) == (2, "scheduled")
    assert (await world.post())[0] == 200

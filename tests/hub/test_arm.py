"""Approving through ARM: when it is offered, what is sent, and what answers mean."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import orjson
import pytest

from bridge.hub.arm import ArmTransport, open_arm, result_of
from bridge.hub.arm_rules import path_of
from bridge.hub.config import ArmConfig, HubConfig
from bridge.hub.decisions import Claimed, Result
from bridge.hub.store.current import current_event
from bridge.hub.store.store import Store
from bridge.net.http_client import Answer, open_session
from bridge.simulator.arm import Arm
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.state import ImdsSettings, ImdsState
from tests.support.builders import EVENT_ID
from tests.support.fleet import SUBSCRIPTION, at, azure, event, outcome, step
from tests.support.hub import ARM_CONFIG, HubWorld, beat, config, grid, offer, received
from tests.support.ports import free_port

ALLOW = {"action": "allow"}
PATH = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/Web/providers/Microsoft.Compute"
    f"/virtualMachines/web-0/providers/Microsoft.Maintenance/scheduledevents"
    f"/{EVENT_ID}/acknowledge"
)


def claimed(endpoint_path: str = PATH, attempt: int = 1) -> Claimed:
    return Claimed(
        id="d",
        event_key=EVENT_ID,
        event_id=EVENT_ID,
        via="arm",
        address=None,
        message=orjson.dumps({"id": "d", "path": endpoint_path}),
        expires=at(900),
        attempt=attempt,
        until=at(15),
    )


@pytest.fixture
def given() -> HubConfig:
    return config(arm=ARM_CONFIG)


@pytest.fixture
async def world(store: Store, given: HubConfig) -> AsyncIterator[HubWorld]:
    """Return a hub where two bridges went silent that would have allowed it."""
    async with HubWorld(store, given).open() as opened:
        await store.keep([beat(n, -3600, approvals=offer(ALLOW)) for n in (0, 1)])
        opened.clock.pass_by(600)
        await store.keep(
            [received(step("scheduled", seconds=5)), grid(azure("Scheduled"), 590)]
        )
        opened.more["listening"] = {"b": at(100)}
        yield opened


async def objection(world: HubWorld, **more: Any) -> str | None:
    status, found = await world.post(via="arm", **more)
    return None if status == 200 else f"{status} {found['error']}"


async def test_event_that_no_bridge_answers_for_goes_to_arm(world: HubWorld) -> None:
    assert await objection(world) is None
    await world.dispatcher.step()
    (sent,) = world.arm.taken
    assert orjson.loads(sent.message)["path"] == PATH
    assert world.transport.taken == []


async def test_arm_is_off_unless_it_is_configured(world: HubWorld) -> None:
    world.config = config()
    async with HubWorld(world.store, config()).open() as other:
        other.clock, other.more = world.clock, world.more
        assert "there is no [hub.arm]" in str(await objection(other))
    await world.post(via="arm")
    await world.dispatcher.step()
    assert (await world.decision())["outcomeReason"] == "approving through ARM is off"


async def test_bridge_that_answers_is_asked_and_not_arm(world: HubWorld) -> None:
    await world.store.keep([beat(0, 590, approvals=offer(ALLOW))])
    assert "a bridge answers" in str(await objection(world))


async def test_bridge_that_nobody_can_judge_counts_as_answering(
    world: HubWorld,
) -> None:
    world.more["listening"] = {"b": None}
    assert "a bridge answers" in str(await objection(world))


async def test_bridge_may_live_when_its_source_is_back_after_weeks(
    world: HubWorld,
) -> None:
    """Its messages had a TTL; the next one comes within an interval."""
    weeks = 30 * 86400.0
    world.clock.pass_by(weeks)
    world.more["listening"] = {"b": at(weeks + 500)}
    await world.store.keep([grid(azure("Scheduled", seconds=weeks), weeks + 590)])

    assert "a bridge answers" in str(await objection(world))
    world.more["listening"] = {"b": at(weeks + 410)}
    assert await objection(world) is None


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"name": "no", "action": "deny"}], "DeniedByRule no"),
        ([{**ALLOW, "event_types": ["Reboot"]}], "NoRuleAllows"),
        ([{**ALLOW, "delay": 86400}], "still waits"),
        ([{"action": "auto-approve", "delay": 86400}], "still waits"),
        ([{"action": "auto-approve", "after": ["drain"]}], "still waits"),
        ([{"action": "meteor"}], "rules are not known"),
    ],
)
async def test_rules_of_one_bridge_forbid_it(
    world: HubWorld, rules: list[dict[str, object]], words: str
) -> None:
    await world.store.keep([beat(1, 100, approvals=offer(*rules))])
    assert words in str(await objection(world))
    assert "web-1" in str(await objection(world))


@pytest.mark.slow
@pytest.mark.parametrize(
    "approvals",
    [
        None,
        {"rules": "x", "allowEventTypes": []},
        {"rules": [], "allowEventTypes": None},
        {"rules": [], "allowEventTypes": [1]},
    ],
)
async def test_rules_that_are_not_known_mean_no_unless_configured(
    world: HubWorld, approvals: object
) -> None:
    await world.store.keep([beat(1, -400, approvals=approvals)])
    assert "rules are not known" in str(await objection(world))
    allowing = msgspec.structs.replace(ARM_CONFIG, unknown_rules="allow")
    async with HubWorld(world.store, config(arm=allowing)).open() as other:
        other.clock, other.more = world.clock, world.more
        assert await objection(other) is None


async def test_types_that_a_bridge_does_not_allow_forbid_it(world: HubWorld) -> None:
    await world.store.keep([beat(1, 100, approvals=offer(allowEventTypes=["Reboot"]))])
    assert "EventTypeNotAllowed" in str(await objection(world))


async def test_machine_without_a_bridge_forbids_it(world: HubWorld) -> None:
    third = event(Resources=["web-0", "web-7"])
    await world.store.keep(
        [
            received(step("updated", third, previous=event(), seconds=9)),
            grid(azure("Scheduled", third, seconds=9), 595),
        ]
    )
    assert "web-7" in str(await objection(world))


async def test_event_without_machines_is_not_approved(world: HubWorld) -> None:
    none = event(Resources=[])
    await world.store.keep(
        [
            received(step("updated", none, previous=event(), seconds=9)),
            grid(azure("Scheduled", none, seconds=9), 595),
        ]
    )
    assert "names no machine" in str(await objection(world))


async def test_azure_must_have_shown_it_a_short_time_ago(world: HubWorld) -> None:
    world.clock.pass_by(60)
    assert "too long ago" in str(await objection(world))


async def test_azure_must_show_what_bridges_do(world: HubWorld) -> None:
    longer = azure("Scheduled", event(DurationInSeconds=90), seconds=9)
    await world.store.keep([grid(longer, 595)])
    assert "describe the event differently" in str(await objection(world))


async def test_event_that_azure_did_not_tell_has_no_path(store: Store) -> None:
    async with HubWorld(store, config(arm=ARM_CONFIG)).open() as world:
        await world.store.keep([received(step("scheduled"), reply_to=None)])
        assert "Azure has not published" in str(await objection(world))


async def test_rules_are_judged_again_before_it_goes(world: HubWorld) -> None:
    await world.post(via="arm")
    await world.store.keep([beat(1, 100, approvals=offer({"action": "deny"}))])
    await world.dispatcher.step()
    assert world.arm.taken == []
    assert (await world.decision())["state"] == "void"


async def test_clock_that_is_wrong_keeps_it_from_arm(world: HubWorld) -> None:
    words = "the clock of this machine is 61 s ahead of the broker's"
    world.more["clock_fault"] = words
    refused = f"approving through ARM is off: {words}"
    assert await objection(world) == f"409 {refused}"
    shown = await world.get(f"/api/v1/events/{EVENT_ID}/approval")
    assert shown["arm"]["why"] == refused
    world.more["clock_fault"] = None
    assert await objection(world) is None

    world.more["clock_fault"] = words  # what was decided before waits for it
    await world.dispatcher.step()
    assert (world.arm.taken, (await world.decision())["state"]) == ([], "decided")
    world.more["clock_fault"] = None
    world.clock.pass_by(15)
    await world.dispatcher.step()
    assert len(world.arm.taken) == 1


async def test_bridge_may_approve_beside_it(world: HubWorld) -> None:
    await world.post(via="arm")
    await world.dispatcher.step()
    assert (await world.post(via="bridge"))[0] == 200
    (mine, *_) = world.arm.taken
    await world.store.keep([received(outcome("relayed", mine.id, seconds=9))])
    states = {one["via"]: one["state"] for one in (await world.page())["decisions"]}
    assert states == {"arm": "sent", "bridge": "decided"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "resource",
    [
        "/subscriptions/x/resourceGroups/Web/providers/Microsoft.Compute",
        "https://evil.example/subscriptions",
        PATH.replace("/acknowledge", "/../../x"),
        PATH.replace("/acknowledge", "?x="),
        PATH.replace("virtualMachines", "disks").removesuffix("/acknowledge"),
        PATH.replace(EVENT_ID, "another").removesuffix("/acknowledge"),
        PATH.replace("web-0", "..").removesuffix("/acknowledge"),
        PATH.replace("web-0", "we%2e").removesuffix("/acknowledge"),
    ],
)
async def test_resource_that_is_none_becomes_no_path(
    world: HubWorld, resource: str
) -> None:
    body = orjson.loads(azure("Scheduled", seconds=20))
    body["data"]["resourceInfo"]["id"] = resource
    await world.store.keep([grid(orjson.dumps(body), 599)])
    assert "no resource id" in str(await objection(world))


async def test_resource_may_be_the_machine_itself(world: HubWorld) -> None:
    body = orjson.loads(azure("Scheduled", seconds=20))
    machine = PATH.partition("/providers/Microsoft.Maintenance")[0]
    body["data"]["resourceInfo"]["id"] = machine
    await world.store.keep([grid(orjson.dumps(body), 599)])
    found = await world.store.read(lambda c: current_event(c, EVENT_ID))
    assert found is not None
    assert path_of(found) == PATH


class Local:
    """A local ARM, and the transport to it."""

    def __init__(self, arm: Arm, imds: ImdsState, transport: ArmTransport) -> None:
        self.arm, self.imds, self.transport = arm, imds, transport

    async def fault(self, **fault: Any) -> None:
        async with open_session(user_agent="t") as http:
            await http.post(f"{self.arm.url}/faults", json=fault)


@pytest.fixture
async def local() -> AsyncIterator[Local]:
    imds = ImdsState(ImdsSettings(vm_name="web-0"))
    imds.schedule(
        EventLife(event_type="Freeze", resources=("web-0",), event_id=EVENT_ID)
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Arm([imds]))
        http = await stack.enter_async_context(open_session(user_agent="t"))
        found = ArmConfig(endpoint=server.url, credential="none")
        transport = await stack.enter_async_context(open_arm(found, http))
        yield Local(server, imds, transport)


def end_of(result: Result) -> tuple[str, str] | None:
    return None if result.end is None else (result.end.state.value, result.end.outcome)


async def test_acknowledgement_reaches_azure(local: Local) -> None:
    found = await local.transport.send(claimed())

    assert end_of(found) == ("done", "acknowledged")
    (asked,) = local.arm.requests
    assert asked.path == f"{PATH}?api-version=2025-11-01"
    assert (asked.body, asked.authorization) == (b"", "")
    assert [one.event_ids for one in local.imds.approvals] == [(EVENT_ID,)]
    assert end_of(await local.transport.send(claimed())) == (
        "done",
        "already-started",
    )


async def test_event_that_is_gone_is_reported(local: Local) -> None:
    local.imds.remove(EVENT_ID)
    found = await local.transport.send(claimed())
    assert end_of(found) == ("failed", "unknown-event")


@pytest.mark.parametrize(
    ("status", "attempt", "end"),
    [
        (401, 1, None),
        (403, 1, None),
        (401, 3, ("failed", "unauthorized")),
        (403, 3, ("failed", "unauthorized")),
        (400, 1, ("failed", "rejected")),
        (307, 1, ("failed", "rejected")),
        (408, 9, None),
        (500, 9, None),
        (503, 9, None),
    ],
)
async def test_status_says_whether_it_is_tried_again(
    local: Local, status: int, attempt: int, end: tuple[str, str] | None
) -> None:
    body = '{"error": {"code": "Nope", "message": "because\\u0000"}}'
    await local.fault(status=status, body=body)
    found = await local.transport.send(claimed(attempt=attempt))
    assert end_of(found) == end
    words = found.fault or (found.end.reason if found.end else "")
    assert words.startswith(f"HTTP {status} Nope because")
    assert "\0" not in words


async def test_wish_to_wait_is_heard(local: Local) -> None:
    await local.fault(status=429, retryAfter=33)
    assert (await local.transport.send(claimed())).retry_after == 33


async def test_answer_that_is_garbage_or_none_is_asked_again(local: Local) -> None:
    await local.fault(status=502, body="<html>")
    found = await local.transport.send(claimed())
    assert (found.end, found.fault) == (None, "HTTP 502")
    await local.fault(reset=True)
    found = await local.transport.send(claimed())
    assert found.end is None
    assert found.fault


async def test_arm_that_nobody_reaches_is_tried_again() -> None:
    closed = ArmConfig(endpoint=f"http://127.0.0.1:{free_port()}", credential="none")
    async with (
        open_session(user_agent="t") as http,
        open_arm(closed, http) as transport,
    ):
        found = await transport.send(claimed(attempt=3))
    assert (found.end, found.retry_after) == (None, 8.0)
    assert EVENT_ID not in found.fault


@pytest.mark.parametrize("head", ["response", "error"])
@pytest.mark.parametrize(
    ("details", "end"),
    [
        ([{"target": EVENT_ID, "code": "OK"}], ("done", "acknowledged")),
        ([{"code": "OK"}], ("done", "acknowledged")),
        ([{"code": "Conflict"}], ("done", "already-started")),
        ([{"code": "NotFound", "message": "m"}], ("failed", "unknown-event")),
        ([{"code": "Teapot"}], ("failed", "rejected")),
        (
            [{"target": "x", "code": "OK"}, {"target": EVENT_ID, "code": "NotFound"}],
            ("failed", "unknown-event"),
        ),
        ([{"target": "x", "code": "OK"}], ("failed", "rejected")),
        (None, ("failed", "rejected")),
    ],
)
def test_answer_for_several_is_read_for_the_one(
    head: str, details: object, end: tuple[str, str]
) -> None:
    body = {head: {"code": "MultiStatusResponse"}, "details": details}
    answer = Answer(status=207, body=orjson.dumps(body), retry_after=None)
    assert end_of(result_of(answer, claimed())) == end


class Token:
    token = "t0k3n"


class Identity:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    async def get_token(self, scope: str) -> Token:
        from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415 - heavy

        if self.fails:
            raise ClientAuthenticationError("secret words")
        assert scope == "https://management.azure.com/.default"
        return Token()


async def test_token_of_the_identity_is_sent(local: Local) -> None:
    transport = ArmTransport(
        local.transport.config,
        local.transport.session,
        Identity(),  # type: ignore[arg-type]  # one method is used
    )
    await transport.send(claimed())
    assert local.arm.requests[0].authorization == "Bearer t0k3n"
    assert "t0k3n" not in repr(transport)


async def test_identity_without_a_token_is_asked_again(local: Local) -> None:
    identity = Identity(fails=True)
    transport = ArmTransport(local.transport.config, local.transport.session, identity)  # type: ignore[arg-type]  # as above
    found = await transport.send(claimed())
    assert (found.end, "secret" in found.fault) == (None, False)
    assert local.arm.requests == []

"""Words in another's name against bridges whose keys are pinned; on either store.

The attacks are those of ``test_trust.py`` that a hub without keys can only bound: they
come without the key of the machine that they claim to be.
"""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.events.identity import Identity
from bridge.foundation.values import Secret
from bridge.hub.access import AccessRule
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import look_at_keys
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import open_store
from bridge.signing.keys import PrivateKey, new_key, private_keys
from bridge.signing.own_key import EventSigner
from tests.hub.test_trust import (
    ALLOW,
    DENY,
    EVIL,
    HOUR,
    TWO,
    arm,
    arm_config,
    at_seconds,
    of_group,
    sent_to,
    wanted,
)
from tests.hub.test_trust import signed as offered
from tests.signing.test_dsse import KEY, OTHER
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, azure, event, life, outcome, step, vm
from tests.support.hub import HubWorld, access, config, grid, received

OWN = {0: KEY, 1: OTHER}
(STRANGE,) = private_keys(json.dumps(new_key()))
FORGED = event(DurationInSeconds=60, EventType="Terminate")
Opened = Callable[..., Any]


def jwks(*more: dict[str, str]) -> str:
    """Return ``[hub] keys``: those of web-0 and web-1, and more."""
    mine = [listed(number, key) for number, key in OWN.items()]
    return json.dumps({"keys": [*mine, *more]})


def listed(number: int, key: PrivateKey) -> dict[str, str]:
    who = vm(number)
    ids = {"vmId": str(who.vm_id), "resourceId": str(who.resource_id)}
    return {**key.public.jwk, **ids}


def by(
    body: bytes, *keys: PrivateKey, n: int | None = None, run: str = "run-1"
) -> bytes:
    """Return a message as a bridge with a key sends it."""
    made = EventSigner(list(keys) or [KEY], run).signed(CloudEvent.from_json(body), n)
    return made.to_json()


def beats(number: int, seconds: float, n: int, *rules: Any, **more: Any) -> Incoming:
    """Return ``bridge.started`` of web-0 or web-1, signed."""
    session = more.pop("session", f"s-{number}")
    said = life(
        "started",
        who=vm(number),
        seconds=seconds,
        intervalSeconds=60,
        approvals=offered(*rules, session=session),
    )
    return received(by(said, OWN[number], n=n, **more), seconds)


def hub_of(hub_config: HubConfig, file: Path, stack: AsyncExitStack) -> Opened:
    """Return what opens a hub that has the keys of web-0 and web-1."""

    async def opens(given: HubConfig | None = None, text: str = "") -> HubWorld:
        file.write_text(text or jwks())
        given = replace(given or config(), keys=Secret(f"file:{file}", {}))
        own = replace(given, store=hub_config.store)
        store = await stack.enter_async_context(open_store(own))
        await look_at_keys(store, at(0))
        return await stack.enter_async_context(HubWorld(store, own).open())

    return opens


@pytest.fixture
async def opened(hub_config: HubConfig, tmp_path: Path) -> AsyncIterator[Opened]:
    """Open a hub that has the keys of web-0 and web-1."""
    async with AsyncExitStack() as stack:
        yield hub_of(hub_config, tmp_path / "bridges.jwks", stack)


@pytest.fixture
async def world(opened: Opened) -> HubWorld:
    """Return a hub where web-0 is alive and has told of the event."""
    found: HubWorld = await opened()
    await found.store.keep(
        [
            beats(0, -HOUR, 1),
            beats(0, 0, 2),
            received(by(step("scheduled"), n=3), session="s-0"),
        ]
    )
    return found


async def state_of(world: HubWorld) -> str:
    (found,) = (await world.get("/api/v1/bridges"))["bridges"]
    return str(found["state"])


async def test_pinned_bridge_takes_approvals_at_its_own_address(
    world: HubWorld,
) -> None:
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")


@pytest.mark.parametrize("keys", [[], [STRANGE], [OTHER]], ids=["none", "new", "web-1"])
async def test_offer_in_its_name_makes_no_address_contested(
    world: HubWorld, keys: list[PrivateKey]
) -> None:
    body = life(
        "started", seconds=2, intervalSeconds=60, approvals=offered(session="evil")
    )
    await world.store.keep([received(by(body, *keys, n=9) if keys else body, 2)])

    shown = await world.get(f"/api/v1/events/{EVENT_ID}/approval")
    assert [one["session"] for one in shown["addresses"]] == ["s-0"]
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")


async def test_reply_to_of_a_replay_is_not_used(world: HubWorld) -> None:
    """Nobody signs ReplyTo."""
    await world.store.keep([received(by(step("scheduled"), n=3), 5, session="evil")])
    shown = await world.get(f"/api/v1/events/{EVENT_ID}/approval")
    assert [one["session"] for one in shown["addresses"]] == ["s-0"]


async def test_outcome_in_its_name_closes_no_decision(world: HubWorld) -> None:
    _, decided = await world.post()
    await world.dispatcher.step()
    forged = outcome("denied", decided["id"], seconds=2)
    await world.store.keep([received(forged, 2)])
    assert (await world.decision())["state"] == "sent"

    said = by(outcome("relayed", decided["id"], seconds=3), n=4)
    await world.store.keep([received(said, 3)])
    assert (await world.decision())["state"] == "done"


async def test_outcome_of_another_message_closes_no_decision(world: HubWorld) -> None:
    """Nobody signs MessageId: an unsigned message may have that of a decision."""
    _, decided = await world.post()
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    for seconds, body, state in ((2, b"another", "sent"), (3, sent.message, "done")):
        said = orjson.loads(outcome("relayed", decided["id"], seconds=seconds))
        said["data"]["request"]["bodyHash"] = sha256(body).hexdigest()
        told_of = by(orjson.dumps(said), n=seconds + 3)
        await world.store.keep([received(told_of, seconds)])
        assert (await world.decision())["state"] == state


async def test_stop_in_its_name_mutes_no_silence(world: HubWorld) -> None:
    await world.store.keep([received(life("stopped", seconds=30), 30)])
    assert await state_of(world) == "alive"
    world.clock.pass_by(600)
    assert await state_of(world) == "silent"
    await world.store.keep([received(by(life("stopped", seconds=601), n=4), 601)])
    assert await state_of(world) == "stopped"


async def test_heartbeat_in_its_name_hides_no_silence(world: HubWorld) -> None:
    world.clock.pass_by(600)
    body = life("heartbeat", seconds=590, intervalSeconds=60)
    for said in (body, by(body, STRANGE), step("started", seconds=590)):
        await world.store.keep([received(said, 590)])
    assert await state_of(world) == "silent"
    await world.store.keep([received(by(body), 590)])
    assert await state_of(world) == "alive"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["completed", "cancelled", "started", "updated"])
@pytest.mark.parametrize("who", [vm(0), vm(1), EVIL], ids=["web-0", "web-1", "web-7"])
async def test_step_in_any_name_changes_nothing_once_a_pinned_one_has_spoken(
    world: HubWorld, kind: str, who: Identity
) -> None:
    before = await world.page()
    previous = event() if kind == "updated" else None
    body = step(kind, FORGED, previous=previous, seconds=5, who=who)
    await world.store.keep([received(body, 5)])

    after = await world.page()
    for name in ("content", "event", "machines", "status", "isOpen", "saidToBeOver"):
        assert after[name] == before[name], name
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")


async def test_forged_end_begins_no_other_occurrence(world: HubWorld) -> None:
    """Nor does it once its time to count has come."""
    await world.store.keep([received(step("completed", seconds=5), 5)])
    late = by(step("updated", event(Description="x"), previous=event(), seconds=5000))
    await world.store.keep([received(late, 5000)])

    found = await world.page()
    assert (found["isOpen"], found["status"]) == (True, "scheduled")
    assert found["event"]["Description"] == "x"


async def test_first_message_in_its_name_opens_nothing_for_it(
    opened: Opened,
) -> None:
    world = await opened()
    await world.store.keep(
        [
            received(step("scheduled", FORGED, seconds=-30), -30),
            received(by(step("scheduled"), n=1), 0),
        ]
    )
    shown = await world.page()
    assert shown["event"] == event()
    assert shown["firstReportedBy"]["vmName"] == "web-0"


async def test_what_is_forged_is_shown_while_nobody_else_has_spoken(
    opened: Opened,
) -> None:
    """Nothing holds back an event."""
    world = await opened()
    await world.store.keep([received(step("scheduled"))])
    assert (await world.page())["isOpen"]


async def test_words_of_others_raise_no_number_once_a_pinned_one_has_spoken(
    opened: Opened,
) -> None:
    rule = AccessRule(resource_groups=("prod",), persons=2)
    world = await opened(config(access=access(1, rule)))
    first = by(step("scheduled"), n=3)
    await world.store.keep([beats(0, 0, 1), beats(1, 0, 1), received(first)])
    await world.store.keep([received(of_group(step("updated", seconds=5), "prod"), 5)])

    assert await wanted(world) == (1, [])


@pytest.mark.parametrize("keys", [[], [OTHER]], ids=["unsigned", "web-1"])
async def test_early_message_in_its_name_makes_no_number_smaller(
    opened: Opened, keys: list[PrivateKey]
) -> None:
    world = await opened(config(access=access(1, TWO)))
    first = received(by(step("scheduled", seconds=5), n=3), 5)
    await world.store.keep([beats(0, 0, 1), beats(1, 0, 1), first])
    early = of_group(step("scheduled", seconds=-500), "dev", str(vm(0).vm_id))
    await world.store.keep([received(by(early, *keys) if keys else early, 6)])

    assert (await world.post())[0] == 202
    assert (await wanted(world))[0] == 2


async def test_change_in_its_name_voids_no_vote_and_no_decision(
    opened: Opened,
) -> None:
    world = await opened(config(2))
    await world.store.keep([beats(0, 0, 2), received(by(step("scheduled"), n=3))])
    assert (await world.post("ann"))[0] == 202
    for seconds, answer in ((5, 200), (7, 0)):
        said = step("updated", FORGED, previous=event(), seconds=seconds)
        await world.store.keep([received(said, seconds)])
        if answer:
            assert (await world.post("bob"))[0] == answer
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert orjson.loads(sent.message)["data"]["approvedEvent"] == event()


async def test_type_prefix_in_its_name_leads_nothing_astray(opened: Opened) -> None:
    world = await opened()
    first = orjson.loads(step("scheduled"))
    first["type"] = first["type"].replace("sebridge", "evil", 1)
    scheduled = received(by(step("scheduled", seconds=1), n=3), 1)
    await world.store.keep([received(orjson.dumps(first)), beats(0, 0, 2), scheduled])
    await world.post()
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert orjson.loads(sent.message)["type"] == "sebridge.startrequest.v1"


async def test_stranger_without_an_offer_gets_no_approval_and_closes_none(
    world: HubWorld,
) -> None:
    """Without pins it counts as an older bridge, whose ReplyTo is an address."""
    stranger = received(step("scheduled", seconds=4, who=EVIL), 4, session="evil")
    await world.store.keep([stranger])
    shown = await world.get(f"/api/v1/events/{EVENT_ID}/approval")
    assert [one["session"] for one in shown["addresses"]] == ["s-0"]
    _, decided = await world.post()
    await world.dispatcher.step()
    said = orjson.loads(outcome("denied", decided["id"], seconds=5))
    said["data"]["reporter"] |= {"vmId": EVIL.vm_id, "resourceId": EVIL.resource_id}
    await world.store.keep([received(orjson.dumps(said), 5)])
    assert (await world.decision())["state"] == "sent"


async def test_message_with_its_id_replaces_nothing(world: HubWorld) -> None:
    """The same (source, id, vmId), with an earlier time and another content."""
    forged = orjson.loads(step("scheduled", FORGED, seconds=-600))
    forged["id"] = orjson.loads(step("scheduled"))["id"]
    await world.store.keep([received(orjson.dumps(forged), 60)])
    found = await world.page()
    assert (found["event"], found["eventType"]) == (event(), "Freeze")


async def test_stop_of_the_year_2099_in_its_name_mutes_no_silence(
    world: HubWorld,
) -> None:
    said = orjson.loads(life("stopped"))
    said["time"] = said["data"]["observedAt"] = "2099-01-01T00:00:00Z"
    await world.store.keep([received(orjson.dumps(said), 30)])
    assert await state_of(world) == "alive"
    world.clock.pass_by(600)
    assert await state_of(world) == "silent"


async def test_copy_without_the_signature_takes_nothing_away(world: HubWorld) -> None:
    """Also if its bytes sort before those of the signed one."""
    for body in (step("scheduled"), step("scheduled", seconds=-1)):
        await world.store.keep([received(body, 5)])
    await world.store.keep([received(step("completed", seconds=9, who=vm(1)), 9)])
    assert (await world.page())["saidToBeOver"] is None
    assert (await world.page())["isOpen"]


async def test_offer_in_a_heartbeat_is_one(opened: Opened) -> None:
    """A hub that begins later has not heard the start."""
    world = await opened()
    approvals = offered(session="s-0")
    body = life("heartbeat", intervalSeconds=60, approvals=approvals)
    await world.store.keep([received(by(body)), received(by(step("scheduled"), n=3))])
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-0")


# -- through ARM -----------------------------------------------------------------------


@pytest.fixture
async def silent(opened: Opened) -> HubWorld:
    """Return a hub where both bridges are silent, and Azure shows the event."""
    world: HubWorld = await opened(arm_config())
    await world.store.keep([beats(n, -HOUR, 1, ALLOW) for n in (0, 1)])
    world.clock.pass_by(600)
    world.more["listening"] = {"b": at_seconds(100)}
    first = received(by(step("scheduled", seconds=5), n=3), 5)
    await world.store.keep([first, grid(azure("Scheduled"), 590)])
    return world


async def test_deny_of_a_pinned_bridge_is_not_lifted_in_its_name(
    silent: HubWorld,
) -> None:
    await silent.store.keep([beats(1, -HOUR / 2, 2, DENY)])
    allowed = offered(ALLOW)
    forged = life("started", who=vm(1), intervalSeconds=60, approvals=allowed)
    await silent.store.keep([received(forged, 1)])
    assert "web-1 does not allow it: DeniedByRule no" in await arm(silent)


@pytest.mark.parametrize(
    "said",
    [
        life("stopped", who=vm(1), seconds=100),
        life("heartbeat", who=vm(1), seconds=599, intervalSeconds=60),
        life(
            "started",
            who=vm(1),
            seconds=100,
            intervalSeconds=60,
            approvals=offered(DENY, session="x"),
        ),
        life(
            "started",
            who=Identity(vm_name="web-1", vm_id="new", resource_id=vm(1).resource_id),
            seconds=599,
            intervalSeconds=60,
            approvals=offered(DENY),
        ),
        life(
            "started",
            who=Identity(
                vm_name="web-1",
                vm_id="new",
                resource_id=str(vm(8).resource_id),
            ),
            seconds=599,
            intervalSeconds=60,
            approvals=offered(DENY),
        ),
    ],
    ids=["stopped", "heartbeat", "offer", "vmId", "name"],
)
async def test_words_in_its_name_hold_no_approval_back(
    silent: HubWorld, said: bytes
) -> None:
    await silent.store.keep([received(said, 599)])
    assert await arm(silent) == "decided"


async def test_another_vm_id_replaces_no_pinned_bridge(world: HubWorld) -> None:
    other = Identity(vm_name="web-0", vm_id="other", resource_id=vm().resource_id)
    await world.store.keep([received(life("started", who=other, seconds=9), 9)])
    (found,) = (await world.get("/api/v1/bridges"))["bridges"]
    assert found["vmId"] == vm().vm_id


# -- replays ---------------------------------------------------------------------------


async def test_replay_of_an_earlier_run_is_an_old_fact(world: HubWorld) -> None:
    """web-0 was started again, with another session."""
    old = received(by(life("stopped", seconds=30), n=9), 400)
    await world.store.keep([beats(0, 60, 4, session="s-1", run="run-2")])
    await world.store.keep([beats(0, 61, 99, session="s-0"), old])
    world.clock.pass_by(241)
    await world.store.keep([beats(0, 241, 5, session="s-1", run="run-2")])

    assert await state_of(world) == "alive"
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-1")


async def test_replay_of_the_current_run_tells_nothing_new(world: HubWorld) -> None:
    beat = by(life("heartbeat", seconds=60, intervalSeconds=60))
    await world.store.keep([received(beat, 60)])
    world.clock.pass_by(600)
    later = orjson.loads(beat)
    later["time"] = later["time"].replace(".000", ".999")
    for body in (beat, by(step("scheduled"), n=3), orjson.dumps(later)):
        await world.store.keep([received(body, 599)])
    assert await state_of(world) == "silent"


async def test_run_does_not_begin_by_an_old_message(opened: Opened) -> None:
    world = await opened()
    body = by(life("started", seconds=0, intervalSeconds=60), n=1, run="old")
    await world.store.keep([received(body, 301)])
    assert (await world.get("/api/v1/bridges"))["bridges"] == []
    await world.store.keep([received(body, 299)])
    assert await state_of(world) == "alive"


async def test_restored_disk_is_a_new_run(world: HubWorld) -> None:
    """Its numbers are smaller than those that the hub knows."""
    world.clock.pass_by(241)
    await world.store.keep([beats(0, 240, 1, session="s-9", run="restored")])
    assert (await world.post())[0] == 200
    assert await sent_to(world) == ("vm-approvals", "s-9")


async def test_heartbeats_have_no_number_and_go_by_their_time(world: HubWorld) -> None:
    for seconds in (60, 120):
        body = by(life("heartbeat", seconds=seconds, intervalSeconds=60))
        await world.store.keep([received(body, seconds)])
    world.clock.pass_by(121 + 179)
    assert await state_of(world) == "alive"


# -- which key -------------------------------------------------------------------------


async def test_while_a_key_is_replaced_either_one_counts(opened: Opened) -> None:
    """Its messages have both signatures, and the hub may have one key or both."""
    for text in (jwks(), jwks(listed(0, STRANGE))):
        world = await opened(text=text)
        said = by(step("scheduled"), STRANGE, KEY, n=1)
        await world.store.keep([received(said)])
        await world.store.keep([received(step("completed", seconds=9, who=EVIL), 9)])
        assert (await world.page())["saidToBeOver"] is None


async def test_key_counts_for_its_own_machine_alone(opened: Opened) -> None:
    """web-1 is pinned, too, and speaks in the name of web-0 and of web-5."""
    world = await opened()
    first = received(by(step("scheduled"), n=1))
    await world.store.keep([beats(0, 0, 1), beats(1, 0, 1), first])
    for number in (0, 5):
        said = life("started", who=vm(number), seconds=9, intervalSeconds=60)
        await world.store.keep([received(by(said, OTHER, n=9), 9)])
    names = [one["vmName"] for one in (await world.get("/api/v1/bridges"))["bridges"]]
    assert names == ["web-0", "web-1"]


async def test_pin_is_asked_at_each_fold(opened: Opened) -> None:
    """The key of web-1 was listed after its message had come."""
    world = await opened(text=json.dumps({"keys": [listed(0, KEY), listed(1, OTHER)]}))
    said = received(by(step("scheduled", who=vm(1)), OTHER, n=1))
    await world.store.keep([said])
    alone = await opened(text=json.dumps({"keys": [listed(0, KEY)]}))
    forged = step("updated", FORGED, previous=event(), seconds=5, who=EVIL)
    await alone.store.keep([received(forged, 5)])
    again = await opened()
    await again.store.keep([received(forged, 6)])
    assert (await again.page())["event"] == event()


async def test_required_signature_is_asked_of_machines_without_a_key(
    opened: Opened,
) -> None:
    world = await opened(config(require_signed=("/subscriptions/*/web-7",)))
    said = life("started", who=EVIL, intervalSeconds=60, approvals=offered())
    await world.store.keep([received(said)])
    said = life("started", who=vm(8), intervalSeconds=60, approvals=offered())
    await world.store.keep([received(said)])
    names = [one["vmName"] for one in (await world.get("/api/v1/bridges"))["bridges"]]
    assert names == ["web-8"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("?", "must be a JWKS"),
        ("[]", "must be a JWKS"),
        (json.dumps({"keys": [KEY.public.jwk]}), "vmId and resourceId"),
        (json.dumps({"keys": [{**listed(0, KEY), "vmId": 5}]}), "vmId and resourceId"),
        (json.dumps({"keys": [{**listed(0, KEY), "x": "?"}]}), "base64url"),
        (json.dumps({"keys": [{**listed(0, KEY), "from": "?"}]}), "vmId and"),
        (jwks(listed(2, KEY)), "two vmIds"),
        (jwks({**listed(0, STRANGE), "vmId": "other"}), "has two vmIds"),
    ],
)
def test_file_without_machines_is_a_fault(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "bridges.jwks"
    file.write_text(text)
    found = list(config(keys=Secret(f"file:{file}", {})).faults())
    (fault,) = [one[1] for one in found if one[0] == "keys"]
    assert words in fault


async def test_data_beside_the_signed_data_is_no_signed_message(
    world: HubWorld,
) -> None:
    """A reader of ``data`` would believe what nobody has signed."""
    whole = orjson.loads(by(step("scheduled"), n=9))
    whole["data_base64"] = base64.b64encode(
        orjson.dumps(whole["data"], option=orjson.OPT_SORT_KEYS)
    ).decode()
    whole["data"]["event"] |= FORGED
    await world.store.keep([received(orjson.dumps(whole), 9)])
    assert (await world.page())["event"] == event()

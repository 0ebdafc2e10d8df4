"""Keys that bridges tell and that are not pinned: they wait for a person."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge.events.identity import Identity
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import Housekeeping
from bridge.hub.store import accepting, alarms
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import open_store
from bridge.signing.keys import PrivateKey, new_key, private_keys
from tests.hub.test_changed_pins import rotated
from tests.hub.test_pins import STRANGE, by, hub_of, jwks, listed
from tests.signing.test_dsse import KEY, OTHER
from tests.support.fleet import life, vm
from tests.support.hub import HubWorld, config, received

Opened = Callable[..., Any]


@pytest.fixture
async def opened(hub_config: HubConfig, tmp_path: Path) -> AsyncIterator[Opened]:
    """Open a hub that has the keys of web-0 and web-1."""
    async with AsyncExitStack() as stack:
        yield hub_of(hub_config, tmp_path / "bridges.jwks", stack)


@pytest.fixture
async def plain(hub_config: HubConfig) -> AsyncIterator[HubWorld]:
    """Return a hub without ``[hub] keys``."""
    own = config(store=hub_config.store)
    async with open_store(own) as store, HubWorld(store, own).open() as found:
        yield found


def tells(
    who: Identity, *keys: PrivateKey, seconds: float = 0.0, kind: str = "started"
) -> Incoming:
    """Return a message in which a bridge tells its keys, and that they have signed."""
    signing = {"n": 1, "keys": [one.jwk for one in keys]}
    body = life(kind, who=who, seconds=seconds, intervalSeconds=60, signing=signing)
    return received(by(body, *keys, n=1), seconds)


def other_vm(number: int, vm_id: str) -> Identity:
    """Return another VM with the name and the resource id of one."""
    same = vm(number)
    return Identity(
        vm_name=str(same.vm_name), vm_id=vm_id, resource_id=str(same.resource_id)
    )


async def waiting(world: HubWorld, query: str = "") -> dict[tuple[str, str], str]:
    """Return why keys wait, by machine and key."""
    found = await world.get(f"/api/v1/keys{query}")
    return {(one["vmName"], one["key"]): one["why"] for one in found["keys"]}


@pytest.mark.parametrize("kind", ["started", "heartbeat"])
async def test_key_that_a_bridge_tells_waits(plain: HubWorld, kind: str) -> None:
    """Also in a hub that pins no key yet."""
    await plain.store.keep([tells(vm(0), KEY, kind=kind)])
    await plain.store.keep([tells(vm(0), KEY, seconds=60, kind=kind)])
    (found,) = (await plain.get("/api/v1/keys"))["keys"]

    mine = listed(0, KEY)
    assert found["jwk"] == {**mine, "resourceId": mine["resourceId"].lower()}
    assert (found["key"], found["why"]) == (KEY.key_id, "new-machine")
    assert found["lastHeard"] > found["firstHeard"]
    assert await plain.store.read(alarms.waiting) == []


async def test_key_that_has_not_signed_the_message_does_not_wait(
    plain: HubWorld,
) -> None:
    """Whoever tells a key must hold it; and a message must have a signature."""
    signing = {"n": 1, "keys": [STRANGE.jwk]}
    body = life("started", intervalSeconds=60, signing=signing)
    await plain.store.keep([received(body), received(by(body, KEY, n=1))])
    assert await waiting(plain) == {}


async def test_pinned_key_does_not_wait(opened: Opened) -> None:
    world = await opened()
    await world.store.keep([tells(vm(0), KEY), tells(vm(1), OTHER)])
    assert await waiting(world) == {}


async def test_why_a_key_waits(opened: Opened) -> None:
    """What speaks for something that is pinned to another is an alarm, too."""
    world = await opened(text=json.dumps({"keys": [listed(0, KEY)]}))
    await world.store.keep(
        [
            tells(vm(1), OTHER),
            tells(vm(0), STRANGE),
            tells(other_vm(0, "b"), OTHER, seconds=1),
            tells(vm(2), KEY),
        ]
    )
    assert await waiting(world) == {
        ("web-1", OTHER.key_id): "shared-key",
        ("web-0", STRANGE.key_id): "second-vm-id",
        ("web-0", OTHER.key_id): "shared-key",
        ("web-2", KEY.key_id): "shared-key",
    }
    (found, *more) = await world.store.read(alarms.waiting)
    assert {one.data["vmId"] for one in (found, *more)} == {
        str(vm(0).vm_id),
        str(vm(2).vm_id),
        "b",
    }
    assert {one.kind for one in (found, *more)} == {"hub.key-unknown"}


async def test_new_key_of_a_pinned_machine_waits(opened: Opened) -> None:
    world = await opened()
    await world.store.keep([tells(vm(0), STRANGE)])
    assert await waiting(world) == {("web-0", STRANGE.key_id): "new-key"}


async def test_successor_of_a_pinned_key_does_not_wait(opened: Opened) -> None:
    world = await opened()
    await world.store.keep([rotated(5, STRANGE, KEY)])
    assert await waiting(world) == {}


async def test_second_successor_waits(opened: Opened) -> None:
    """A key is replaced once: who stole the old one may have told the second."""
    (third,) = private_keys(json.dumps(new_key()))
    world = await opened()
    await world.store.keep([rotated(5, STRANGE, KEY), rotated(6, third, KEY, n=9)])
    assert await waiting(world) == {("web-0", third.key_id): "new-key"}
    (found,) = await world.store.read(alarms.waiting)
    assert found.kind == "hub.key-unknown"


async def test_key_waits_no_more_once_the_list_has_it(opened: Opened) -> None:
    world = await opened(text=json.dumps({"keys": [listed(0, KEY)]}))
    await world.store.keep([tells(vm(1), OTHER)])
    again = await opened(text=jwks())
    assert await waiting(again) == {}


async def test_key_that_is_reported_no_more_is_forgotten(plain: HubWorld) -> None:
    await plain.store.keep([tells(vm(0), KEY)])
    keeper = Housekeeping(plain.store, plain.config, plain.clock)
    for days, count in ((6, 1), (2, 0)):
        plain.clock.pass_by(days * 86400)
        await keeper.step(asyncio.Event())
        assert len(await waiting(plain)) == count


async def test_stranger_pushes_no_key_out(plain: HubWorld) -> None:
    """What does not fit is refused, for each machine and in all."""
    keys = [private_keys(json.dumps(new_key()))[0] for _ in range(6)]
    await plain.store.keep([tells(vm(0), KEY)])
    await plain.store.keep([tells(vm(0), key) for key in keys])
    found = await waiting(plain)
    assert len(found) == accepting.MOST_OF_MACHINE
    assert ("web-0", KEY.key_id) in found
    _, page = await plain.ask("GET", "/bridges", {"User": "ann"})
    assert "Further keys of this machine are refused." in page
    await plain.store.keep([tells(vm(1), OTHER)])
    assert ("web-1", OTHER.key_id) in await waiting(plain)


@pytest.mark.slow
async def test_list_of_waiting_keys_is_bounded(plain: HubWorld) -> None:
    batch = [tells(vm(number), KEY) for number in range(accepting.MOST + 2)]
    for start in range(0, len(batch), 100):
        await plain.store.keep(batch[start : start + 100])
    found, count = await plain.get("/api/v1/keys"), 0
    assert found["isFull"]
    while found["next"]:
        count += len(found["keys"])
        found = await plain.get(f"/api/v1/keys?cursor={found['next']}")
    assert count + len(found["keys"]) == accepting.MOST
    _, page = await plain.ask("GET", "/bridges", {"User": "ann"})
    assert "The list is full" in page
    assert "and 1800 more" in page


async def test_keys_are_found_by_resource_id(plain: HubWorld) -> None:
    await plain.store.keep([tells(vm(0), KEY), tells(vm(1), OTHER)])
    found = await waiting(plain, "?match=*/WEB-1")
    assert found == {("web-1", OTHER.key_id): "new-machine"}
    for query, shown in (("", True), ("?keys=*/web-1", False), ("?keys=no", False)):
        _, page = await plain.ask("GET", f"/bridges{query}", {"User": "ann"})
        assert (KEY.key_id in page) is shown
        assert (OTHER.key_id in page) is (query != "?keys=no")
        assert "sebridge key show" in page


async def test_page_without_waiting_keys_does_not_name_them(plain: HubWorld) -> None:
    _, page = await plain.ask("GET", "/bridges", {"User": "ann"})
    assert "wait for acceptance" not in page

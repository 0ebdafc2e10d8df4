"""How pins change while a hub runs: its list of keys, their times, and new keys."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from bridge.events.cloudevent import rfc3339
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import HubStoreAwayError
from bridge.hub import pins
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import Housekeeping, StoreWatch
from bridge.hub.hub import Parts
from bridge.hub.load import HubFile
from bridge.hub.metrics import HubMetrics
from bridge.hub.store import alarms
from bridge.hub.store.intake import keep
from bridge.hub.store.kept_facts import Incoming
from bridge.signing.keys import PrivateKey, new_key, private_keys
from tests.hub.test_pins import FORGED, STRANGE, beats, by, hub_of, jwks, listed
from tests.hub.test_trust import EVIL, HOUR
from tests.signing.test_dsse import KEY, OTHER
from tests.support.fleet import at, life, step, vm
from tests.support.hub import HubWorld, received

(THIRD,) = private_keys(json.dumps(new_key()))
Opened = Callable[..., Any]


@pytest.fixture
async def opened(hub_config: HubConfig, tmp_path: Path) -> AsyncIterator[Opened]:
    """Open a hub that has the keys of web-0 and web-1."""
    async with AsyncExitStack() as stack:
        yield hub_of(hub_config, tmp_path / "bridges.jwks", stack)


@pytest.fixture
async def world(opened: Opened) -> HubWorld:
    """Return a hub where web-0 is alive and has told of the event."""
    found: HubWorld = await opened()
    first = received(by(step("scheduled"), n=3), session="s-0")
    await found.store.keep([beats(0, -HOUR, 1), beats(0, 0, 2), first])
    return found


# -- how pins change while the hub runs ------------------------------------------------


async def looks(world: HubWorld) -> str | None:
    """Let the hub look at its store and at its list of keys; return what is wrong."""
    watch = StoreWatch(world.store, world.clock, HubMetrics(("b",), "1"))
    await watch.step()
    return world.store.pinned.fault


def write(world: HubWorld, text: str) -> None:
    source = world.store.pinned.source
    assert source
    assert source.file
    source.file.write_text(text)


async def test_list_of_keys_is_read_again_when_it_changes(opened: Opened) -> None:
    world = await opened(text=json.dumps({"keys": [listed(1, OTHER)]}))
    write(world, jwks())
    assert await looks(world) is None
    await world.store.keep([beats(0, 0, 1), received(by(step("scheduled"), n=2))])
    await world.store.keep(
        [received(step("completed", FORGED, seconds=5, who=EVIL), 5)]
    )
    assert (await world.page())["saidToBeOver"] is None


@pytest.mark.parametrize("text", ["", "{", '{"keys": [{}]}'])
async def test_damaged_list_is_named_and_the_keys_of_before_count(
    world: HubWorld, text: str
) -> None:
    write(world, text)
    fault = await looks(world)
    assert fault is not None
    assert fault.startswith("hub.keys: ")
    await world.store.keep([received(step("completed", seconds=5), 5)])
    assert (await world.page())["isOpen"]
    write(world, jwks())
    assert await looks(world) is None


async def test_key_that_is_listed_no_more_ends(world: HubWorld) -> None:
    """What it has signed before still counts; what comes later is doubtful."""
    world.clock.pass_by(10)
    write(world, json.dumps({"keys": [listed(1, OTHER)]}))
    await looks(world)
    await world.store.keep([received(by(step("completed", seconds=5), n=4), 11)])
    assert (await world.page())["isOpen"]
    await world.store.keep([received(by(step("completed", seconds=6), n=5), 9)])
    assert not (await world.page())["isOpen"]


async def test_key_that_is_listed_again_counts_again(world: HubWorld) -> None:
    write(world, json.dumps({"keys": [listed(1, OTHER)]}))
    await looks(world)
    write(world, jwks())
    await looks(world)
    await world.store.keep([received(by(step("completed", seconds=5), n=4), 5)])
    assert not (await world.page())["isOpen"]


async def test_pin_that_is_over_is_kept_as_long_as_decisions(world: HubWorld) -> None:
    write(world, json.dumps({"keys": [listed(1, OTHER)]}))
    await looks(world)
    keeper = Housekeeping(world.store, world.config, world.clock)
    for days, count in ((700, 2), (31, 1)):
        world.clock.pass_by(days * 86400)
        await keeper.step(asyncio.Event())
        await looks(world)
        assert len(world.store.pinned.now.owners) == count


def within(key: str, seconds: float) -> dict[str, str]:
    return {**listed(0, KEY), key: rfc3339(at(seconds))}


@pytest.mark.parametrize(
    ("pin", "seconds", "is_open"),
    [
        (within("from", 5), 4, True),
        (within("from", 5), 5, False),
        (within("until", 5), 4, False),
        (within("until", 5), 5, True),
    ],
)
async def test_key_counts_from_and_until_the_times_that_are_listed(
    opened: Opened, pin: dict[str, str], seconds: float, *, is_open: bool
) -> None:
    text = json.dumps({"keys": [pin, listed(1, OTHER)]})
    world = await opened(text=text)
    first = received(by(step("scheduled", who=vm(1)), OTHER, n=1))
    await world.store.keep([first])
    await world.store.keep([received(by(step("completed", seconds=3), n=1), seconds)])
    assert (await world.page())["isOpen"] is is_open


# -- how a bridge replaces its key -----------------------------------------------------


def rotated(seconds: float, *keys: PrivateKey, n: int = 4) -> Incoming:
    """Return ``bridge.started`` of web-0 with the keys that sign it."""
    signing = {"n": n - 1, "keys": [one.jwk for one in keys]}
    body = life("started", seconds=seconds, intervalSeconds=60, signing=signing)
    return received(by(body, *keys, n=n, run=f"run-{keys[0].key_id}"), seconds)


async def test_key_is_replaced_by_a_message_of_both(world: HubWorld) -> None:
    """Nobody has to change the list of keys."""
    await world.store.keep([rotated(5, STRANGE, KEY)])
    await looks(world)
    await world.store.keep(
        [received(by(step("completed", seconds=9), STRANGE, n=5), 9)]
    )
    assert not (await world.page())["isOpen"]


async def test_replaced_key_ends_a_day_after_the_new_one_signs_alone(
    world: HubWorld,
) -> None:
    """What waited in the outbox meanwhile has the signature of the old one alone."""
    await world.store.keep([rotated(5, STRANGE, KEY)])
    await looks(world)
    await world.store.keep([received(by(step("started", seconds=9), n=5), 9)])
    assert (await world.page())["status"] == "started"
    await world.store.keep([rotated(20, STRANGE, n=9)])
    await looks(world)
    write(world, jwks(within("from", -HOUR)))  # an older list changes nothing of it
    await looks(world)
    late = received(by(step("completed", seconds=12), n=6), 20 + 86400)
    await world.store.keep([late])
    assert (await world.page())["isOpen"]
    await world.store.keep([received(by(step("completed", seconds=13), n=7), 86400)])
    assert not (await world.page())["isOpen"]


@pytest.mark.parametrize(
    "signers",
    [[STRANGE], [STRANGE, THIRD], [STRANGE, OTHER]],
    ids=["itself", "unknown", "web-1"],
)
async def test_key_is_not_replaced_without_the_pinned_one(
    world: HubWorld, signers: list[PrivateKey]
) -> None:
    await world.store.keep([rotated(5, *signers)])
    await looks(world)
    await world.store.keep(
        [received(by(step("completed", seconds=9), STRANGE, n=5), 9)]
    )
    assert (await world.page())["isOpen"]


@pytest.mark.parametrize("signers", [[STRANGE], [THIRD, STRANGE]])
async def test_unknown_key_of_a_pinned_machine_is_an_alarm(
    world: HubWorld, signers: list[PrivateKey]
) -> None:
    """One a day; with the key as the list takes it, for a VM that was made anew."""
    await world.store.keep([rotated(5, *signers), rotated(6, STRANGE)])
    (found,) = await world.store.read(alarms.waiting)
    key: Any = found.data["key"]
    assert found.kind == "hub.key-unknown"
    (pin,) = pins.listed(json.dumps({"keys": [key]}))
    assert (pin.key, pin.vm_id) == (signers[0].key_id, vm(0).vm_id)


async def test_key_is_replaced_with_its_message_or_not_at_all(
    world: HubWorld,
) -> None:
    """The hub dies before the commit: the broker delivers the message again."""
    said = rotated(5, STRANGE, KEY)

    def dies(connection: Connection) -> None:
        keep(connection, [said], world.store.pinned.now)
        raise HubStoreAwayError("killed")

    with pytest.raises(HubStoreAwayError):
        await world.store.write(dies)
    await looks(world)
    assert STRANGE.key_id not in world.store.pinned.now.keys
    for _ in range(2):  # a message may come twice
        await world.store.keep([said])
        await looks(world)
    assert STRANGE.key_id in world.store.pinned.now.keys


@pytest.mark.parametrize(
    "keys", [None, {}, [], ["?"], [{"crv": "P-256"}], [{}] * 2000, [{"crv": [1]}]]
)
async def test_odd_list_of_keys_in_a_message_replaces_none(
    world: HubWorld, keys: object
) -> None:
    signing = {"keys": keys}
    body = life("started", seconds=5, intervalSeconds=60, signing=signing)
    before = world.store.pinned.now.keys.keys()
    await world.store.keep([received(by(body, KEY, n=4, run="run-2"), 5)])
    await world.store.keep([received(body, 6)])
    await looks(world)
    assert world.store.pinned.now.keys.keys() == before


async def test_key_that_is_named_but_has_not_signed_is_no_alarm(
    world: HubWorld,
) -> None:
    signing = {"keys": [STRANGE.jwk]}
    body = life("started", seconds=5, intervalSeconds=60, signing=signing)
    for said in (body, by(body, THIRD)):
        await world.store.keep([received(said, 5)])
    assert await world.store.read(alarms.waiting) == []


async def test_key_that_has_not_signed_replaces_none(world: HubWorld) -> None:
    """Whoever holds the key must have agreed: else a bridge could name another's."""
    signing = {"keys": [STRANGE.jwk, KEY.jwk]}
    body = life("started", seconds=5, intervalSeconds=60, signing=signing)
    await world.store.keep([received(by(body, KEY, n=4, run="run-2"), 5)])
    await looks(world)
    assert STRANGE.key_id not in world.store.pinned.now.keys


async def test_key_is_replaced_once(world: HubWorld) -> None:
    """A stolen key that was replaced cannot be replaced by the thief's."""
    await world.store.keep([rotated(5, STRANGE, KEY)])
    await looks(world)
    await world.store.keep([rotated(6, THIRD, KEY)])
    await looks(world)
    await world.store.keep([received(by(step("completed", seconds=9), THIRD, n=5), 9)])
    assert (await world.page())["isOpen"]
    await world.store.keep([rotated(10, THIRD, STRANGE, n=6)])  # but the new one can
    await looks(world)
    await world.store.keep(
        [received(by(step("completed", seconds=11), THIRD, n=7), 11)]
    )
    assert not (await world.page())["isOpen"]


async def test_hub_is_not_ready_while_its_list_of_keys_is_damaged(
    world: HubWorld,
) -> None:
    parts = Parts.of(HubFile(hub=world.config), world.store, SystemClock())
    sources = parts.sources
    write(world, "{")
    await looks(world)
    assert any(one.startswith("hub.keys: ") for one in sources.missing())
    write(world, jwks())
    await looks(world)
    assert not any(one.startswith("hub.keys: ") for one in sources.missing())

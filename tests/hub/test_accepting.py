"""People accept keys that wait, on ``/bridges`` and by the API; on either store."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from sqlalchemy import select

from bridge.hub.config import HubConfig
from bridge.hub.store.store import open_store
from bridge.hub.store.tables import trail
from bridge.signing.keys import new_key, private_keys
from tests.hub.test_changed_pins import rotated
from tests.hub.test_pins import STRANGE, by, hub_of, jwks, listed
from tests.hub.test_told_keys import other_vm, tells, waiting
from tests.hub.test_trust import EVIL
from tests.signing.test_dsse import KEY, OTHER
from tests.support.fleet import step, vm
from tests.support.hub import HubWorld, config, forms, received

(THIRD,) = private_keys(json.dumps(new_key()))
Opened = Callable[..., Any]
API = {"User": "ann", "X-Sebridge": "1", "Content-Type": "application/json"}


@pytest.fixture
async def opened(hub_config: HubConfig, tmp_path: Path) -> AsyncIterator[Opened]:
    """Open a hub that has the keys of web-0 and web-1, or others."""
    async with AsyncExitStack() as stack:
        yield hub_of(hub_config, tmp_path / "bridges.jwks", stack)


@pytest.fixture
def persons() -> int:
    return 1


@pytest.fixture
async def world(hub_config: HubConfig, persons: int) -> AsyncIterator[HubWorld]:
    """Return a hub without ``[hub] keys``, to which web-0 has told its key."""
    own = config(persons, store=hub_config.store)
    async with open_store(own) as store, HubWorld(store, own).open() as found:
        await found.store.keep([tells(vm(0), KEY)])
        yield found


async def keys(world: HubWorld, state: str = "waiting") -> Any:
    return (await world.get(f"/api/v1/keys?state={state}"))["keys"]


async def decide(
    world: HubWorld, rows: Any, who: str = "ann", decision: str = "accept"
) -> tuple[int, Any]:
    """Accept or withdraw keys as they were shown, by the API."""
    named = [{"id": row["id"], "why": row["why"] or ""} for row in rows]
    body = msgspec.json.encode({"decision": decision, "keys": named})
    return await world.ask("POST", "/api/v1/keys", {**API, "User": who}, body)


async def record(world: HubWorld) -> list[tuple[str, str]]:
    """Return what the record says of keys, and who did it."""
    query = select(trail.c.what, trail.c.person).order_by(trail.c.seq)
    rows = await world.store.read(lambda c: c.execute(query).all())
    return [(row.what, row.person) for row in rows]


async def is_pinned(world: HubWorld, *, at: float = 10, key: Any = KEY) -> bool:
    """Whether web-0 has rights by its key alone: an end by others counts no more."""
    first = received(by(step("scheduled", seconds=at), key, n=30), at)
    forged = received(step("completed", seconds=at + 1, who=EVIL), at + 1)
    await world.store.keep([first, forged])
    return (await world.page())["saidToBeOver"] is None


async def test_accepted_key_is_pinned_to_its_machine(world: HubWorld) -> None:
    rows = await keys(world)
    status, found = await decide(world, rows)
    assert (status, found["done"]) == (200, [rows[0]["id"]])
    assert await keys(world) == []
    (row,) = await keys(world, "accepted")
    assert (row["key"], row["persons"], row["vmId"]) == (
        KEY.key_id,
        ["ann"],
        vm(0).vm_id,
    )
    assert await is_pinned(world)
    assert await record(world) == [("key accepted", "ann")]


async def test_without_acceptance_nothing_is_pinned(world: HubWorld) -> None:
    assert not await is_pinned(world)


async def test_accepted_key_counts_from_the_time_of_its_acceptance(
    world: HubWorld,
) -> None:
    """A few seconds later: what was judged without it stays as it was."""
    await decide(world, await keys(world))
    assert not await is_pinned(world, at=4)


async def test_hub_of_the_same_store_knows_it_with_its_next_message(
    world: HubWorld,
) -> None:
    async with (
        open_store(world.config) as store,
        HubWorld(store, world.config).open() as other,
    ):
        await decide(world, await keys(world))
        assert await is_pinned(other)


@pytest.mark.parametrize("persons", [2])
async def test_as_many_people_must_accept_as_the_strictest_rule_asks(
    world: HubWorld,
) -> None:
    rows = await keys(world)
    for who in ("ann", "ann"):
        status, found = await decide(world, rows, who)
        assert (status, found["missing"]) == (202, 1)
    (row,) = await keys(world)
    assert row["persons"] == ["ann"]
    _, page = await world.ask("GET", "/bridges", {"User": "ann"})
    assert "accepted by ann; 1 more must" in page
    assert (await decide(world, rows, "bob"))[0] == 200
    (row,) = await keys(world, "accepted")
    assert row["persons"] == ["ann", "bob"]
    assert await record(world) == [
        *[("key voted", "ann")] * 2,
        ("key accepted", "bob"),
    ]


@pytest.mark.parametrize("persons", [2])
async def test_vote_does_not_count_once_the_key_waits_for_another_reason(
    world: HubWorld,
) -> None:
    """Ann has not seen that another vmId tells the same machine."""
    rows = await keys(world)
    assert (await decide(world, rows, "ann"))[0] == 202
    await world.store.keep([tells(other_vm(0, "evil"), OTHER)])
    assert (await decide(world, rows, "bob"))[0] == 409
    (mine,) = [row for row in await keys(world) if row["key"] == KEY.key_id]
    assert (mine["why"], mine["persons"]) == ("second-vm-id", [])
    assert (await decide(world, [mine], "bob"))[0] == 202


@pytest.mark.parametrize("who", ["eve", "dan"])
async def test_who_may_only_look_accepts_nothing(world: HubWorld, who: str) -> None:
    rows = await keys(world)
    for decision in ("accept", "withdraw"):
        assert (await decide(world, rows, who, decision))[0] == 403
    assert await keys(world) == rows


async def test_key_that_waits_no_more_is_refused(world: HubWorld) -> None:
    rows = await keys(world)
    await decide(world, rows)
    status, found = await decide(world, rows)
    assert (status, found["error"]) == (409, "this key waits no more")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'{"decision": "\xff", "keys": [{"id": "x"}]}', {}, 400),
        (b'{"decision": "accept", "keys": []}', {}, 400),
        (b'{"decision": "keep", "keys": [{"id": "x"}]}', {}, 400),
        (b'{"decision": "accept", "keys": [{"id": "x"}]}', {"X-Sebridge": ""}, 403),
        (
            b'{"decision": "accept", "keys": [{"id": "x"}]}',
            {"Origin": "http://evil.example"},
            403,
        ),
        (b"", {"Content-Type": "text/plain"}, 415),
    ],
)
async def test_request_that_is_refused(
    world: HubWorld, body: bytes, headers: dict[str, str], status: int
) -> None:
    found = await world.ask("POST", "/api/v1/keys", {**API, **headers}, body)
    assert found[0] == status


# -- keys that contradict each other ---------------------------------------------------


async def test_new_key_of_a_machine_ends_the_accepted_one(world: HubWorld) -> None:
    """As after ``az vmss reimage``."""
    await decide(world, await keys(world))
    world.clock.pass_by(60)
    await world.store.keep([tells(vm(0), STRANGE, seconds=60)])
    rows = await keys(world)
    assert [row["why"] for row in rows] == ["new-key"]
    await decide(world, rows)
    world.clock.pass_by(6)
    (row,) = await keys(world, "accepted")
    assert row["key"] == STRANGE.key_id
    assert await is_pinned(world, at=70, key=STRANGE)
    late = received(by(step("completed", seconds=80), KEY, n=40), 80)
    await world.store.keep([late])
    assert (await world.page())["isOpen"]
    assert ("key ended", "ann") in await record(world)


async def test_second_vm_id_of_a_machine_ends_the_first_one(world: HubWorld) -> None:
    await decide(world, await keys(world))
    world.clock.pass_by(60)
    await world.store.keep([tells(other_vm(0, "new"), OTHER, seconds=60)])
    await decide(world, await keys(world))
    world.clock.pass_by(6)
    assert [row["vmId"] for row in await keys(world, "accepted")] == ["new"]


async def test_keys_that_contradict_each_other_are_not_accepted_together(
    world: HubWorld,
) -> None:
    more = [tells(other_vm(0, "new"), OTHER), tells(vm(2), STRANGE)]
    await world.store.keep(more)
    status, found = await decide(world, await keys(world))
    assert status == 200
    assert len(found["done"]) == 1
    assert {one["why"] for one in found["refused"]} == {
        "another key that you chose contradicts it: accept one of them"
    }
    assert set(await waiting(world)) == {
        ("web-0", KEY.key_id),
        ("web-0", OTHER.key_id),
    }


async def test_list_of_keys_wins_over_an_acceptance(opened: Opened) -> None:
    world = await opened(text=json.dumps({"keys": [listed(0, KEY)]}))
    await world.store.keep([tells(vm(0), STRANGE)])
    status, found = await decide(world, await keys(world))
    assert status == 409
    assert "hub.keys pins its vmId" in found["error"]


async def test_accepted_key_ends_once_the_list_contradicts_it(
    opened: Opened, world: HubWorld
) -> None:
    await decide(world, await keys(world))
    world.clock.pass_by(6)
    again = await opened(text=json.dumps({"keys": [listed(0, STRANGE)]}))
    assert await keys(again, "accepted") == []
    assert STRANGE.key_id in again.store.pinned.now.keys


async def test_accepted_key_and_another_one_of_the_list_hold(
    opened: Opened, world: HubWorld
) -> None:
    await decide(world, await keys(world))
    again = await opened(text=json.dumps({"keys": [listed(1, OTHER)]}))
    assert len(await keys(again, "accepted")) == 1


# -- withdrawal and rotation -----------------------------------------------------------


async def test_withdrawn_key_ends_at_once(world: HubWorld) -> None:
    """One person withdraws; what the key has signed before still counts."""
    await decide(world, await keys(world))
    assert await is_pinned(world)
    world.clock.pass_by(20)
    status, _ = await decide(world, await keys(world, "accepted"), "bob", "withdraw")
    assert status == 200
    assert await keys(world, "accepted") == []
    late = received(by(step("completed", seconds=30), n=40), 30)
    await world.store.keep([late])
    assert (await world.page())["isOpen"]
    assert (await record(world))[-1] == ("key withdrawn", "bob")
    status, found = await decide(world, [{"id": "?", "why": ""}], "bob", "withdraw")
    assert (status, "nobody has accepted" in found["error"]) == (409, True)


async def test_withdrawn_key_waits_again_once_it_is_reported(world: HubWorld) -> None:
    await decide(world, await keys(world))
    world.clock.pass_by(20)
    await decide(world, await keys(world, "accepted"), decision="withdraw")
    await world.store.keep([tells(vm(0), KEY, seconds=30)])
    assert await waiting(world) == {("web-0", KEY.key_id): "new-machine"}


async def test_withdrawal_follows_the_rotation(world: HubWorld) -> None:
    """Who had stolen the key may have told its successor."""
    await decide(world, await keys(world))
    world.clock.pass_by(20)
    await world.store.keep([rotated(20, STRANGE, KEY)])
    old = [row for row in await keys(world, "accepted") if row["key"] == KEY.key_id]
    assert (await keys(world)) == []
    await decide(world, old, decision="withdraw")
    assert await keys(world, "accepted") == []


async def test_successor_can_be_withdrawn_once_the_accepted_key_is_over(
    world: HubWorld,
) -> None:
    await decide(world, await keys(world))
    world.clock.pass_by(20)
    await world.store.keep([rotated(20, STRANGE, KEY)])
    await world.store.keep([rotated(21, STRANGE, n=9)])
    world.clock.pass_by(2 * 86400)
    (row,) = await keys(world, "accepted")
    assert row["key"] == STRANGE.key_id
    assert (await decide(world, [row], decision="withdraw"))[0] == 200


async def test_older_key_of_an_accepted_one_replaces_it_not(world: HubWorld) -> None:
    """A bridge that is replacing its key tells the new one first."""
    await world.store.keep([tells(vm(1), OTHER, STRANGE)])
    (new,) = [row for row in await keys(world) if row["key"] == OTHER.key_id]
    await decide(world, [new])
    world.clock.pass_by(20)
    await world.store.keep([tells(vm(1), OTHER, STRANGE, seconds=20)])
    assert [row["key"] for row in await keys(world, "accepted")] == [OTHER.key_id]


# -- the page --------------------------------------------------------------------------


def key_forms(page: str) -> list[dict[str, str]]:
    """Return the hidden fields of the forms that decide on keys."""
    return [one for one in forms(page) if "keys" in one]


async def press(
    world: HubWorld, form: dict[str, str], who: str = "ann", **more: str
) -> tuple[int, Any]:
    """Submit a form; the answer is the page that the browser shows then."""
    headers = {"User": who, "Origin": more.pop("origin", world.url)}
    headers["Content-Type"] = more.pop("kind", "application/x-www-form-urlencoded")
    fields = {**form, **more}
    data = urlencode({k: v for k, v in fields.items() if k != "action"}).encode()
    return await world.ask("POST", form["action"], headers, data)


async def test_form_accepts_exactly_the_keys_that_it_shows(world: HubWorld) -> None:
    """A key that is told after the page was made is not among them."""
    await world.store.keep([tells(vm(2), OTHER), tells(vm(12), STRANGE)])
    _, page = await world.ask("GET", "/bridges?keys=*/web-?", {"User": "ann"})
    (every,) = [one for one in key_forms(page) if " " in one["keys"]]
    await world.store.keep([tells(vm(3), THIRD)])
    status, page = await press(world, every)
    assert status == 200
    assert set(await waiting(world)) == {
        ("web-12", STRANGE.key_id),
        ("web-3", THIRD.key_id),
    }
    assert {row["key"] for row in await keys(world, "accepted")} == {
        KEY.key_id,
        OTHER.key_id,
    }
    _, page = await world.ask("GET", "/bridges?keys=*/web-0", {"User": "ann"})
    (form,) = key_forms(page)
    assert form["decision"] == "withdraw"
    await press(world, form)
    assert [row["key"] for row in await keys(world, "accepted")] == [OTHER.key_id]


@pytest.mark.parametrize(
    ("more", "who", "status"),
    [
        ({"token": "x"}, "ann", 403),
        ({"keys": "x:new-machine"}, "ann", 403),
        ({"decision": "withdraw"}, "ann", 403),
        ({}, "bob", 403),
        ({"origin": "http://evil.example"}, "ann", 403),
        ({"kind": "text/plain"}, "ann", 415),
    ],
)
async def test_form_that_was_not_made_so_is_refused(
    world: HubWorld, more: dict[str, str], who: str, status: int
) -> None:
    _, page = await world.ask("GET", "/bridges", {"User": "ann"})
    (form,) = key_forms(page)
    assert (await press(world, form, who, **more))[0] == status
    assert len(await keys(world)) == 1


async def test_form_says_which_keys_were_refused(world: HubWorld) -> None:
    _, page = await world.ask("GET", "/bridges", {"User": "ann"})
    (form,) = key_forms(page)
    await decide(world, await keys(world))
    status, page = await press(world, form)
    assert status == 409
    assert "This key waits no more." in page


async def test_who_may_only_look_sees_no_form(world: HubWorld) -> None:
    _, page = await world.ask("GET", "/bridges", {"User": "eve"})
    assert KEY.key_id in page
    assert key_forms(page) == []


async def test_listed_key_is_not_among_the_accepted(opened: Opened) -> None:
    world = await opened(text=jwks())
    assert await keys(world, "accepted") == []

"""What a store has confirmed is there after a kill, with either store."""

import asyncio
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bridge.foundation.values import Address, Secret
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import look_at_keys
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import open_store
from bridge.hub.store.tables import events, votes
from bridge.signing.keys import PrivateKey, new_key, private_keys
from tests.hub.test_pins import by, listed
from tests.hub.test_sources import rows
from tests.support import fleet
from tests.support.fleet import at, event, step, vm
from tests.support.hub import HubWorld, config, received

pytestmark = [pytest.mark.slow, pytest.mark.integration]


async def live(url: str, first: int) -> None:
    """Store events with a vote each; say each number once both are confirmed."""
    async with open_store(HubConfig(store=Address(url, {}))) as store:
        for number in range(first, first + 10_000):
            key = f"E-{number}"
            await store.keep([received(step("scheduled", event(key)))])
            vote: dict[str, object] = {c.name: "" for c in votes.columns}
            vote |= {"event_key": key, "life": 1, "via": "bridge", "person": "ann"}
            vote |= {"time": 0, "seen": b"{}"}
            await store.write(lambda c, vote=vote: c.execute(votes.insert(), vote))  # type: ignore[misc]  # a default binds it
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


async def test_no_vote_and_no_message_is_lost_by_a_kill(hub_config: HubConfig) -> None:
    dice, said = random.Random(5), list[int]()  # noqa: S311 - the same each time
    url = hub_config.store.reveal()
    code = "import asyncio, sys; from tests.hub.store.test_kill import live; "
    code += "asyncio.run(live(sys.argv[1], int(sys.argv[2])))"
    for life in range(5):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, url, str(life * 10_000)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        for _ in range(dice.randrange(1, 40)):
            said.append(int(await process.stdout.readline()))
        await asyncio.sleep(dice.uniform(0, 0.02))
        process.kill()
        rest = (await process.stdout.read()).split(b"\n")
        said += [int(line) for line in rest[:-1]]
        await process.wait()

    async with open_store(hub_config) as store:
        names = {f"E-{number}" for number in said}
        assert names <= {row.event_key for row in await rows(store, events)}
        assert names <= {row.event_key for row in await rows(store, votes)}


# -- keys of bridges -------------------------------------------------------------------


def rotations(held: list[PrivateKey]) -> list[Incoming]:
    """Return what web-0 says while it replaces its key again and again.

    First both keys sign, then the new one alone.
    """
    said = list[Incoming]()
    for old, new in pairwise(held):
        for keys in ((new, old), (new,)):
            n, run = len(said), f"run-{len(said)}"
            signing = {"n": n, "keys": [one.jwk for one in keys]}
            body = fleet.life("started", seconds=n, intervalSeconds=60, signing=signing)
            said.append(received(by(body, *keys, n=n + 1, run=run), n))
    return said


def listing(url: str, folder: Path) -> HubConfig:
    """Return a hub whose list has the first key of web-0, and no other."""
    source = Secret(f"file:{folder / 'bridges.jwks'}", {})
    return config(store=Address(url, {}), keys=source)


async def rotate(url: str, folder: Path, first: int) -> None:
    """Store what web-0 says from a number on; say each number once it is confirmed."""
    said = rotations(private_keys((folder / "keys.jwks").read_text()))
    async with open_store(listing(url, folder)) as store:
        await look_at_keys(store, at(0))
        for number in range(first, len(said)):
            await store.keep([said[number]])
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


async def test_no_rotation_is_lost_by_a_kill(
    hub_config: HubConfig, tmp_path: Path
) -> None:
    """The hub dies anywhere in it; the broker delivers again what was not confirmed."""
    made = [new_key() for _ in range(40)]
    held = private_keys(json.dumps({"keys": made}))
    (tmp_path / "keys.jwks").write_text(json.dumps({"keys": made}))
    (tmp_path / "bridges.jwks").write_text(json.dumps({"keys": [listed(0, held[0])]}))
    dice, done = random.Random(7), 0  # noqa: S311 - the same each time
    url, last = hub_config.store.reveal(), 2 * len(held) - 3
    code = "import asyncio, sys; from pathlib import Path; "
    code += "from tests.hub.store.test_kill import rotate; "
    code += "asyncio.run(rotate(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))"
    while done <= last:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, url, str(tmp_path), str(done)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        for _ in range(min(dice.randrange(10, 30), last - done + 1)):
            done = int(await process.stdout.readline()) + 1
        await asyncio.sleep(dice.uniform(0, 0.02))
        process.kill()
        for line in (await process.stdout.read()).split(b"\n")[:-1]:
            done = int(line) + 1
        await process.wait()

    own = listing(url, tmp_path)
    async with open_store(own) as store, HubWorld(store, own).open() as world:
        await look_at_keys(store, at(0))
        pins = {pin.key: pin for pin in store.pinned.now.owners.values()}
        assert [pins[one.key_id].successor for one in held[:-1]] == [
            one.key_id for one in held[1:]
        ]
        assert [key for key, pin in pins.items() if not pin.until] == [held[-1].key_id]
        said = by(step("scheduled", seconds=200), held[-1], n=1)
        forged = step("completed", seconds=201, who=vm(5))
        await store.keep([received(said, 200), received(forged, 201)])
        assert (await world.page())["saidToBeOver"] is None

"""What a store has confirmed is there after a kill, with either store."""

import asyncio
import random
import sys

import pytest

from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store.store import open_store
from bridge.hub.store.tables import events, votes
from tests.hub.test_sources import rows
from tests.support.fleet import event, step
from tests.support.hub import received

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

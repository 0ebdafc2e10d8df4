"""What is over goes after its time; what is open never does."""

import pytest
from sqlalchemy import select

from bridge.foundation.values import Duration
from bridge.hub import bridge_messages
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import forget, forget_bridges
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store
from bridge.hub.store.tables import bridges, events, messages, unreadable
from bridge.hub.view_rows import PAGE
from tests.hub.test_alarms import Fleet
from tests.support.fakes import FakeClock
from tests.support.fleet import at, azure, event, life, step, vm
from tests.support.hub import beat, grid
from tests.support.hub import received as received_with_address

DAY = 86400.0
YEARS = 3 * 365 * DAY


def received(body: bytes) -> Incoming:
    found = bridge_messages.read(body, heard=at(0), source="b")
    return Incoming(
        origin="b", body=body, heard=at(0), fact=found.fact, report=found.report
    )


async def forgotten(store: Store, seconds: float) -> int:
    day = Duration(DAY)
    config = HubConfig(
        retention=day, audit_retention=Duration(2 * DAY), forget_after=day
    )
    return await store.write(lambda c: forget(c, at(seconds), config))


async def test_what_is_over_is_forgotten_in_portions(store: Store) -> None:
    over = [received(step("completed", event(f"E-{n:03}"))) for n in range(250)]
    bad = Incoming(origin="b", body=b"", heard=at(0), fault="no JSON")
    await store.keep([*over, received(step("scheduled", event("OPEN"))), bad])

    assert await forgotten(store, DAY) == 0
    assert await forgotten(store, DAY + 1) == 201
    assert await forgotten(store, DAY + 1) == 50
    assert await forgotten(store, DAY + 1) == 0
    for table in (events, messages):
        query = select(table.c.event_key)
        assert await store.read(lambda c: list(c.scalars(query))) == ["OPEN"]  # noqa: B023 - called at once
    assert await store.read(lambda c: c.execute(select(unreadable)).all()) == []


# -- bridges -----------------------------------------------------------------------


@pytest.fixture
def fleet(store: Store, clock: FakeClock) -> Fleet:
    return Fleet(store, clock)


async def left(fleet: Fleet, seconds: float = 0.0) -> list[str]:
    """Look at the fleet after some time, twice; return the names that are left."""
    fleet.clock.pass_by(seconds)
    for _ in range(2):  # a bridge whose silence was alarmed is reported gone first
        await fleet.fleet_monitor.step()
    query = select(bridges.c.name).order_by(bridges.c.name)
    return await fleet.store.read(lambda c: list(c.scalars(query)))


async def test_bridges_that_are_gone_for_years_are_forgotten(fleet: Fleet) -> None:
    """A scale set makes ever new machines, and the monitor reads all of them."""
    await fleet.store.keep([beat(n) for n in range(PAGE + 50)])
    await fleet.look(600)  # all are silent, and alarmed

    await fleet.store.keep([beat(0, YEARS)])
    assert await left(fleet, YEARS - 600) == ["web-0"]


async def test_bridge_is_kept_until_it_is_gone_for_the_retention(fleet: Fleet) -> None:
    await fleet.store.keep([beat(0), received(life("stopped", who=vm(1)))])
    assert len(await left(fleet, 89 * DAY)) == 2
    fleet.listening = None
    assert len(await left(fleet, YEARS)) == 2, "nobody listened: they may live"


async def test_bridge_of_an_open_event_is_kept_for_its_decision(fleet: Fleet) -> None:
    """Without it, its address would count as that of a bridge that may be alive."""
    other = step("scheduled", event("E-2", Resources=["db"]), who=vm(2))
    over = step("completed", event("E-3", Resources=["web-3"]), who=vm(3), seconds=9)
    opened = grid(azure("Scheduled", event("E-1", Resources=["web-1"])))
    beats = [beat(n) for n in range(5)]
    await fleet.store.keep(
        [*beats, opened, received_with_address(other), received(over)]
    )

    assert await left(fleet, YEARS) == ["web-1", "web-2"]


async def test_bridge_that_speaks_again_meanwhile_is_kept(fleet: Fleet) -> None:
    await fleet.store.keep([beat(0)])
    fleet.clock.pass_by(YEARS)
    found = fleet.situation()
    await fleet.store.keep([beat(0, YEARS)])

    names = [vm(0).vm_id or ""]
    await fleet.store.write(
        lambda c: forget_bridges(c, names, found, retention=90 * DAY)
    )
    assert await left(fleet) == ["web-0"]

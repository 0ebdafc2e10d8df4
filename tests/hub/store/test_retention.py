"""What is over goes after its time; what is open never does."""

from sqlalchemy import select

from bridge.hub import bridge_messages
from bridge.hub.store.intake import Incoming
from bridge.hub.store.retention import forget
from bridge.hub.store.store import Store
from bridge.hub.store.tables import events, messages, unreadable
from tests.support.fleet import at, event, step

DAY = 86400.0


def told(body: bytes) -> Incoming:
    found = bridge_messages.read(body, heard=at(0), source="b")
    return Incoming(
        origin="b", body=body, heard=at(0), fact=found.fact, report=found.report
    )


async def forgotten(store: Store, seconds: float) -> int:
    return await store.write(
        lambda c: forget(c, at(seconds), retention=DAY, audit=2 * DAY)
    )


async def test_what_is_over_is_forgotten_in_portions(store: Store) -> None:
    over = [told(step("completed", event(f"E-{n:03}"))) for n in range(250)]
    bad = Incoming(origin="b", body=b"", heard=at(0), fault="no JSON")
    await store.keep([*over, told(step("scheduled", event("OPEN"))), bad])

    assert await forgotten(store, DAY) == 0
    assert await forgotten(store, DAY + 1) == 201
    assert await forgotten(store, DAY + 1) == 50
    assert await forgotten(store, DAY + 1) == 0
    for table in (events, messages):
        query = select(table.c.event_key)
        assert await store.read(lambda c: list(c.scalars(query))) == ["OPEN"]  # noqa: B023
    assert await store.read(lambda c: c.execute(select(unreadable)).all()) == []

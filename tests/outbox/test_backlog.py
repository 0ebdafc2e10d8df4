"""What a backlog costs: each delivery a little, however many are under way. Counted."""

import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from bridge.outbox.records import Delivery
from tests.support.builders import outgoing
from tests.support.outbox_door import Door

MANY = 480


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """An outbox that was opened with many events, each with a key of its own."""
    async with Door(tmp_path / "state.db") as found:
        await found.commit(*(outgoing(f"{n:04}", key=f"K{n}") for n in range(MANY)))
        await found.written()
        yield found


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of each built-in function in this thread."""
    calls = Counter[str]()

    def note(_: object, event: str, function: object) -> None:
        if event == "c_call":
            calls[getattr(function, "__name__", "")] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


async def statements(door: Door) -> set[str]:
    """Return the set to which each statement is added from now on, with its values."""
    found = set[str]()
    await door.outbox.database.run(lambda db: db.set_trace_callback(found.add))
    return found


def ids(found: list[Delivery]) -> list[int]:
    return [one.id for one in found]


async def test_what_is_under_way_costs_the_next_read_nothing(door: Door) -> None:
    under_way = ids(await door.due(limit=MANY - 10))
    await door.due(limit=1, but=under_way)

    with counted() as calls:
        found = await door.due(limit=1, but=under_way)

    assert len(found) == 1
    assert calls["heappop"] < 5


async def test_what_was_left_out_is_offered_again_in_its_order(door: Door) -> None:
    whole = ids(await door.due())
    assert ids(await door.due(limit=2, but=whole[:5])) == whole[5:7]

    assert ids(await door.due(limit=4, but=whole[3:5])) == [*whole[:3], whole[5]]


async def test_what_is_settled_meanwhile_is_not_offered_again(door: Door) -> None:
    first, second, *_ = await door.due(limit=4)
    await door.due(limit=1, but=[first.id, second.id])
    await door.settle(first)
    await door.postpone(second, 60)

    assert not {first.id, second.id} & {*ids(await door.due())}
    door.clock.pass_by(61)
    assert second.id in ids(await door.due())


async def test_urgent_one_that_was_left_out_comes_first_again(door: Door) -> None:
    await door.commit(
        outgoing("U", key="U", not_before=door.clock.now() + timedelta(seconds=60))
    )
    await door.written()
    (urgent,) = await door.due(limit=1)
    assert urgent.cloud_event_id == "U"
    assert urgent.id not in ids(await door.due(limit=9, but=[urgent.id]))

    assert ids(await door.due(limit=1)) == [urgent.id]


async def test_urgent_ones_that_are_read_again_and_again_take_no_memory(
    door: Door,
) -> None:
    """So it is while a sink is away: nothing is settled, and each look reads them."""
    later = door.clock.now() + timedelta(minutes=10)
    await door.commit(
        *(outgoing(f"U{n}", key=f"U{n}", not_before=later) for n in range(100))
    )
    await door.written()
    await door.due(limit=100)

    tracemalloc.start()
    try:
        for _ in range(50):
            door.clock.pass_by(1)
            await door.due(limit=100)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert grown < 100_000


async def test_many_settled_deliveries_are_written_with_few_statements(
    door: Door,
) -> None:
    every = await door.due()
    seen = await statements(door)

    await door.outbox.deliveries.delivered(*every, now=door.now)

    assert len([one for one in seen if "INTO deliveries" in one]) <= MANY / 16
    assert (await door.tallies())["a"].delivered == MANY


async def test_contents_are_read_in_few_rows(door: Door) -> None:
    await door.reopen()
    rows: list[object] = []

    def note(_: object, row: tuple[object, ...]) -> tuple[object, ...]:
        rows.append(row)
        return row

    await door.outbox.database.run(lambda db: setattr(db, "row_factory", note))

    every = await door.due()

    assert [one.cloud_event_id for one in every] == [f"{n:04}" for n in range(MANY)]
    assert 0 < len(rows) <= MANY / 16


async def test_next_page_is_read_before_it_is_needed(door: Door) -> None:
    more = range(MANY, MANY + 1000)
    await door.commit(*(outgoing(f"{n:04}", key=f"K{n}") for n in more))
    await door.reopen()
    for _ in range(6):
        sent = await door.due(limit=100)
        await door.outbox.deliveries.delivered(*sent, now=door.now)
    await door.written()
    door.disk.freeze("SELECT")

    assert len(await door.due(limit=400)) == 400

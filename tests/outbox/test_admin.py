"""Looking at deliveries and acting on them, in the order of their publication."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.errors import Reason
from bridge.outbox.admin import as_json
from bridge.outbox.questions import Selection
from bridge.outbox.records import Delivery, DeliveryState, Reply
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.store import Outbox
from tests.support.book import Book
from tests.support.builders import outgoing, patient_outbox, route, router
from tests.support.hanging import Hanging

NOW = 1_800_000_000.0
A, B = "a", "b"
EVERYTHING = Selection()
DEAD = Selection(states=("dead",))


@pytest.fixture
async def ledger(outbox: Outbox) -> Book:
    outbox.router = router({A: route()})
    return Book(outbox)


async def put(outbox: Outbox, *names: str, key: str | None = None) -> None:
    for name in names:
        await outbox.commit([outgoing(name, key=key)], now=NOW)


async def became(outbox: Outbox, **states: str) -> None:
    """Let deliveries become ``dead`` or ``delivered``, by name of their event."""
    for name, state in states.items():
        (delivery,) = await outbox.deliveries.of_cloud_event(A, name)
        if state == "dead":
            error = f"{name} was refused"
            await outbox.deliveries.dead_letter(
                delivery, now=NOW, error=error, reason=Reason.REJECTED
            )
        else:
            await outbox.deliveries.delivered(delivery, now=NOW)


async def due(outbox: Outbox, now: float = NOW + 1) -> list[str | None]:
    found, _ = await outbox.deliveries.due(A, now=now, limit=100)
    return names(found)


def names(deliveries: list[Delivery]) -> list[str | None]:
    return [delivery.cloud_event_id for delivery in deliveries]


async def states(ledger: Book) -> dict[str | None, str]:
    return {d.cloud_event_id: d.state for d in await ledger.find(EVERYTHING)}


# -- looking -------------------------------------------------------------------


async def test_deliveries_are_found_oldest_first(ledger: Book, outbox: Outbox) -> None:
    await put(outbox, "1", "2", "3")

    assert names(await ledger.find(EVERYTHING)) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("pending",), ["1"]),
        (("dead",), ["2"]),
        (("delivered",), ["3"]),
        (("dead", "pending"), ["1", "2"]),
        (("discarded",), []),
        (None, ["1", "2", "3"]),
    ],
)
async def test_deliveries_are_found_by_state(
    wanted: tuple[DeliveryState, ...] | None,
    expected: list[str],
    ledger: Book,
    outbox: Outbox,
) -> None:
    await put(outbox, "1", "2", "3")
    await became(outbox, **{"2": "dead", "3": "delivered"})

    assert names(await ledger.find(Selection(states=wanted))) == expected


@pytest.mark.parametrize("event_id", ["AbC-1", "ABC-1", "abc-1"])
async def test_deliveries_are_found_by_event_id_without_case(
    event_id: str, ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", key="ABC-1")
    await put(outbox, "2", key="OTHER")
    await put(outbox, "3")

    assert names(await ledger.find(Selection(event_id=event_id))) == ["1"]


async def test_deliveries_are_found_by_sink(ledger: Book, outbox: Outbox) -> None:
    outbox.router = router({A: route(), B: route()})
    await put(outbox, "1")

    (found,) = await ledger.find(Selection(sink=B))

    assert found.sink == B


async def test_delivery_is_found_by_number(ledger: Book, outbox: Outbox) -> None:
    await put(outbox, "1", "2")
    _, second = await ledger.find(EVERYTHING)

    assert await ledger.find(Selection(id=second.id)) == [second]
    assert await ledger.find(Selection(id=0)) == []


@pytest.mark.parametrize(
    "selection",
    [
        Selection(event_id=""),
        Selection(sink="' OR 1=1 --"),
        Selection(event_id="%"),
        Selection(sink="nobody"),
    ],
)
async def test_what_nobody_has_is_not_found(
    selection: Selection, ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", key="K")

    assert await ledger.find(selection) == []


async def test_so_many_are_found_at_most(ledger: Book, outbox: Outbox) -> None:
    await put(outbox, "1", "2", "3")

    assert names(await ledger.find(EVERYTHING, limit=2)) == ["1", "2"]


async def test_replies_are_nobodys_business(ledger: Book, outbox: Outbox) -> None:
    reply = Reply(key="r", body=b"{}")
    await outbox.commit([], now=NOW, reply=reply)

    assert await ledger.find(EVERYTHING) == []
    assert await ledger.retry(EVERYTHING, now=NOW, force=True) == ([], [], 0)
    assert await ledger.discard(EVERYTHING, now=NOW) == []


# -- sending again ---------------------------------------------------------------


async def test_dead_letter_is_due_again_at_once(ledger: Book, outbox: Outbox) -> None:
    await put(outbox, "1", "2")
    await became(outbox, **{"1": "dead", "2": "delivered"})

    sent, late, _ = await ledger.retry(DEAD, now=NOW + 1, force=False)

    assert (names(sent), late) == (["1"], [])
    assert await due(outbox) == ["1"]


async def test_dead_letter_sent_again_begins_anew(ledger: Book, outbox: Outbox) -> None:
    """Else its old attempts would make it a dead letter after the next one."""
    await put(outbox, "1")
    await became(outbox, **{"1": "dead"})

    await ledger.retry(DEAD, now=NOW + 1, force=False)

    (found,) = await ledger.find(EVERYTHING)
    assert (found.state, found.attempts, found.due) == ("pending", 0, NOW + 1)


async def test_dead_letters_of_one_event_go_in_their_order(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", "2", key="K")
    await became(outbox, **{"1": "dead", "2": "dead"})

    await ledger.retry(DEAD, now=NOW, force=False)

    assert await due(outbox) == ["1"]
    await became(outbox, **{"1": "delivered"})
    assert await due(outbox) == ["2"]


async def test_dead_letter_goes_before_what_waits_behind_it(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", "2", key="K")
    await became(outbox, **{"1": "dead"})
    assert await due(outbox) == ["2"]

    await ledger.retry(DEAD, now=NOW, force=False)

    assert await due(outbox) == ["1"]


async def test_dead_letter_that_a_later_step_overtook_is_left_out(
    ledger: Book, outbox: Outbox
) -> None:
    """It would send old news after new."""
    await put(outbox, "1", "2", "3", key="K")
    await became(outbox, **{"1": "dead", "2": "delivered", "3": "dead"})

    sent, late, _ = await ledger.retry(DEAD, now=NOW, force=False)

    assert (names(sent), names(late)) == (["3"], ["1"])
    assert (await states(ledger))["1"] == "dead"


async def test_overtaken_dead_letter_goes_when_it_is_forced(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", "2", key="K")
    await became(outbox, **{"1": "dead", "2": "delivered"})

    sent, late, _ = await ledger.retry(DEAD, now=NOW, force=True)

    assert (names(sent), late) == (["1"], [])
    assert await due(outbox) == ["1"]


@pytest.mark.parametrize("key", [None, "OTHER"])
async def test_only_a_step_of_the_same_event_overtakes(
    key: str | None, ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", key="K" if key else None)
    await put(outbox, "2", key=key)
    await became(outbox, **{"1": "dead", "2": "delivered"})

    sent, _, _ = await ledger.retry(DEAD, now=NOW, force=False)

    assert names(sent) == ["1"]


async def test_what_another_sink_got_overtakes_nothing(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", key="K")
    await became(outbox, **{"1": "dead"})
    outbox.router = router({B: route()})
    await put(outbox, "2", key="K")
    (other,) = await outbox.deliveries.of_cloud_event(B, "2")
    await outbox.deliveries.delivered(other, now=NOW)

    sent, _, _ = await ledger.retry(DEAD, now=NOW, force=False)

    assert names(sent) == ["1"]


async def test_waiting_delivery_is_tried_at_once(ledger: Book, outbox: Outbox) -> None:
    await put(outbox, "1")
    (delivery,) = await outbox.deliveries.of_cloud_event(A, "1")
    await outbox.deliveries.postpone(
        delivery, due=NOW + 999, error="no", reason=Reason.SERVER
    )
    assert await due(outbox) == []

    await ledger.retry(Selection(states=("pending",)), now=NOW, force=False)

    assert await due(outbox) == ["1"]


async def test_discarded_delivery_can_be_taken_back(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1")
    await ledger.discard(EVERYTHING, now=NOW)

    await ledger.retry(Selection(states=("discarded",)), now=NOW, force=False)

    assert await due(outbox) == ["1"]


async def test_tallies_follow(ledger: Book, outbox: Outbox) -> None:
    await put(outbox, "1", "2")
    await became(outbox, **{"1": "dead", "2": "dead"})

    await ledger.retry(Selection(id=1), now=NOW, force=False)
    await ledger.discard(Selection(id=2), now=NOW)

    tally = (await outbox.deliveries.tallies())[A]
    assert (tally.pending, tally.dead, tally.delivered) == (1, 0, 0)


async def steps(outbox: Outbox, work: Callable[[], Awaitable[object]]) -> int:
    """Return in how many steps of SQLite's machine a piece of work is done."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    read = outbox.database.read
    await read(lambda db: db.set_progress_handler(count, 10))
    await work()
    await read(lambda db: db.set_progress_handler(None, 0))
    return taken


async def backlog(outbox: Outbox, size: int) -> None:
    events = [outgoing(f"{size}-{n}", key=f"K{size}-{n}") for n in range(size)]
    await outbox.commit(events, now=NOW)


WORK: dict[str, Callable[[Outbox, Delivery], Awaitable[object]]] = {
    "commit": lambda outbox, _: outbox.commit([outgoing("more", key="K")], now=NOW),
    "deliver": lambda outbox, delivery: outbox.deliveries.delivered(delivery, now=NOW),
    "retry": lambda outbox, delivery: Book(outbox).retry(
        Selection(id=delivery.id), now=NOW, force=False
    ),
    "discard": lambda outbox, delivery: Book(outbox).discard(
        Selection(id=delivery.id), now=NOW
    ),
}


@pytest.mark.parametrize("work", WORK)
async def test_backlog_makes_no_delivery_dearer(work: str, outbox: Outbox) -> None:
    """Else a sink that was down for a day is drained in a time that grows with its
    square, and the file is held meanwhile."""
    outbox.router = router({A: route()})
    costs = []
    for size in (20, 2000):
        await backlog(outbox, size)
        await put(outbox, f"{size}", key="K")
        (delivery,) = await outbox.deliveries.of_cloud_event(A, f"{size}")
        if work in {"retry", "discard"}:  # done by another process
            outbox.database.snapshot = None
        costs.append(await steps(outbox, partial(WORK[work], outbox, delivery)))

    assert costs[1] < 3 * costs[0]


async def all_become(outbox: Outbox, state: str) -> None:
    sql = "UPDATE deliveries SET state = ? WHERE state = 'pending'"
    await outbox.database.run(lambda db: db.execute(sql, (state,)))


async def test_overtaken_dead_letters_are_found_in_one_pass(
    ledger: Book, outbox: Outbox
) -> None:
    costs = []
    for size in (50, 500):
        await backlog(outbox, size)
        await all_become(outbox, "dead")
        await backlog(outbox, size)
        await all_become(outbox, "delivered")
        costs.append(
            await steps(outbox, lambda: ledger.retry(DEAD, now=NOW, force=False))
        )

    assert costs[1] < 20 * costs[0]


@pytest.mark.parametrize("change", ["retry", "discard"])
async def test_many_deliveries_of_one_event_cost_no_more_for_each(
    change: str, ledger: Book, outbox: Outbox
) -> None:
    """The forwarder waits for the file meanwhile, and for a second at most."""
    waiting = Selection(states=("pending",))
    costs = []
    for size in (50, 500):
        await all_become(outbox, "delivered")
        await put(outbox, *map(str, range(size)), key="K")
        if change == "retry":
            await all_become(outbox, "dead")
        work: dict[str, Callable[[], Awaitable[object]]] = {
            "retry": lambda: ledger.retry(DEAD, now=NOW, force=True),
            "discard": lambda: ledger.discard(waiting, now=NOW),
        }
        costs.append(await steps(outbox, work[change]))

    assert costs[1] < 20 * costs[0]


# -- giving up -----------------------------------------------------------------


async def test_discarded_delivery_is_never_due_and_can_be_seen(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", "2")
    await became(outbox, **{"1": "dead"})

    assert names(await ledger.discard(DEAD, now=NOW)) == ["1"]

    assert await due(outbox) == ["2"]
    assert await states(ledger) == {"1": "discarded", "2": "pending"}


async def test_next_step_is_due_once_the_one_before_it_is_discarded(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", "2", key="K")
    first, _ = await ledger.find(EVERYTHING)

    await ledger.discard(Selection(id=first.id), now=NOW)

    assert await due(outbox) == ["2"]


async def test_discarded_delivery_is_pruned_after_retention(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1")
    await ledger.discard(EVERYTHING, now=NOW + 50)

    for before, gone in ((NOW + 49, 0), (NOW + 51, 1)):
        assert (
            await outbox.pruning.prune(before=before, now=NOW + 200, alive=frozenset())
            == gone
        )


async def test_what_was_delivered_cannot_be_given_up(
    ledger: Book, outbox: Outbox
) -> None:
    """It would be shown as never sent."""
    await put(outbox, "1")
    await became(outbox, **{"1": "delivered"})

    assert await ledger.discard(EVERYTHING, now=NOW) == []

    assert await states(ledger) == {"1": "delivered"}


async def test_what_is_discarded_already_is_not_discarded_again(
    ledger: Book, outbox: Outbox
) -> None:
    """Else it would be kept for another retention each time."""
    await put(outbox, "1")
    await ledger.discard(EVERYTHING, now=NOW)

    assert await ledger.discard(EVERYTHING, now=NOW + 1) == []


async def test_delivery_given_up_in_flight_stays_given_up(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1")
    (in_flight,) = await outbox.deliveries.of_cloud_event(A, "1")

    await ledger.discard(EVERYTHING, now=NOW)
    await outbox.deliveries.delivered(in_flight, now=NOW)

    assert await states(ledger) == {"1": "discarded"}


async def test_what_is_discarded_during_an_attempt_is_not_sent_again(
    state_path: Path,
) -> None:
    """The failed attempt is committed while the command reads the file."""
    disk = Hanging()
    async with Database.open(File(state_path, connect=disk.open)) as database:
        outbox = await Outbox.of(database, router({A: route()}))
        await put(outbox, "1", "2")
        (first,) = await outbox.deliveries.of_cloud_event(A, "1")
        disk.freeze("SELECT id FROM deliveries")
        discarding = asyncio.create_task(
            Book(outbox).discard(Selection(id=first.id), now=NOW)
        )
        await asyncio.to_thread(disk.hung.wait)
        failure = outbox.deliveries.postpone(
            first, due=NOW, error="503", reason=Reason.SERVER
        )
        disk.thaw()

        assert names(await discarding) == ["1"]
        await failure
        assert await due(outbox) == ["2"]
        assert await states(Book(outbox)) == {"1": "discarded", "2": "pending"}


# -- as JSON -------------------------------------------------------------------


async def test_delivery_is_shown_as_the_contract_has_it(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1", key="Abc")

    (found,) = await ledger.find(EVERYTHING)

    assert as_json(found) == {
        "id": found.id,
        "sink": A,
        "state": "pending",
        "eventId": "Abc",
        "cloudEventId": "1",
        "type": "sebridge.scheduledevent.scheduled.v1",
        "attempts": 0,
        "nextAttempt": datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lastError": None,
    }


async def test_settled_delivery_has_no_next_attempt(
    ledger: Book, outbox: Outbox
) -> None:
    await put(outbox, "1")
    await became(outbox, **{"1": "dead"})

    shown = as_json((await ledger.find(EVERYTHING))[0])

    assert shown["nextAttempt"] is None
    assert shown["attempts"] == 1
    assert shown["lastError"] == "1 was refused"


# -- whatever is done ------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "deliver", "dead_letter", "retry", "force", "discard"]),
        st.sampled_from(["K", "L"]),
    ),
    max_size=20,
)


@given(actions=ACTIONS)
async def test_each_event_has_its_first_pending_step_due_and_no_other(
    actions: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "state.db"
    async with patient_outbox(path, router({A: route()})) as outbox:
        ledger = Book(outbox)
        for number, (action, key) in enumerate(actions):
            await act(action, key, str(number), outbox, ledger)

        pending = await ledger.find(Selection(states=("pending",)))
        first = {d.key: d.cloud_event_id for d in reversed(pending)}
        assert set(await due(outbox)) == set(first.values())


async def act(action: str, key: str, name: str, outbox: Outbox, ledger: Book) -> None:
    found, _ = await outbox.deliveries.due(A, now=NOW + 1, limit=100)
    mine = [d.cloud_event_id or "" for d in found if d.key == key]
    if action == "put":
        await put(outbox, name, key=key)
    elif action in {"deliver", "dead_letter"}:
        state = {"deliver": "delivered", "dead_letter": "dead"}[action]
        await became(outbox, **dict.fromkeys(mine, state))
    elif action == "discard":
        await ledger.discard(Selection(event_id=key), now=NOW)
    else:
        chosen = Selection(event_id=key, states=("dead", "pending"))
        await ledger.retry(chosen, now=NOW, force=action == "force")

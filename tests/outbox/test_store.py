"""The outbox: nothing is lost, nothing comes twice, nothing overtakes its kin."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from bridge.events.routing import Route, Subject, When
from bridge.foundation.errors import (
    NewerSchemaError,
    OutboxCorruptError,
    OutboxError,
    Reason,
)
from bridge.outbox.records import (
    CHECKPOINT,
    REPLIES,
    Checkpoint,
    Decision,
    Delivery,
    Reply,
    Tally,
)
from bridge.outbox.statefile import owner_of, set_owner
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File, connect
from bridge.outbox.storage.journal import Timings, load
from bridge.outbox.storage.schema import SCHEMA, version
from bridge.outbox.store import Outbox
from tests.support.builders import (
    SINK,
    imds_event,
    outgoing,
    patient_outbox,
    route,
    router,
)
from tests.support.example_events import seen
from tests.support.hanging import Hanging
from tests.support.outboxes import publish_counts

NOW = 1_800_000_000.0
A, B = "a", "b"
TWO = router({A: route(), B: route()})


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Outbox]:
    """Open a state file that two sinks are served from."""
    async with patient_outbox(path, TWO) as found:
        yield found


async def due(outbox: Outbox, now: float = NOW, sink: str = SINK) -> list[str | None]:
    return [d.cloud_event_id for d in await rows(outbox, now, sink)]


async def rows(outbox: Outbox, now: float = NOW, sink: str = SINK) -> list[Delivery]:
    found, _ = await outbox.deliveries.due(sink, now=now, limit=100)
    return found


async def put(outbox: Outbox, *names: str, key: str | None = None) -> None:
    await outbox.commit([outgoing(name, key=key) for name in names], now=NOW)


async def postpone(outbox: Outbox, delivery: Delivery, due_at: float) -> None:
    await outbox.deliveries.postpone(
        delivery, due=due_at, error="no", reason=Reason.SERVER
    )


async def dead_letter(outbox: Outbox, delivery: Delivery) -> None:
    await outbox.deliveries.dead_letter(
        delivery, now=NOW, error="no", reason=Reason.REJECTED
    )


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def left_behind(path: Path, directory: Path) -> Path:
    """Return what a power cut would leave of the file: a copy of it as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", directory / f"{path.name}{suffix}")
    return directory / path.name


# -- order ---------------------------------------------------------------------


async def test_only_the_first_of_a_key_is_due(outbox: Outbox) -> None:
    await put(outbox, "1", "2", key="K")
    await put(outbox, "3", key="L")

    assert await due(outbox) == ["1", "3"]


async def test_next_of_a_key_is_due_once_the_first_is_delivered(
    outbox: Outbox,
) -> None:
    await put(outbox, "1", "2", "3", key="K")
    (first,) = await rows(outbox)

    await outbox.deliveries.delivered(first, now=NOW)

    assert await due(outbox) == ["2"]


async def test_dead_letter_leaves_the_order(outbox: Outbox) -> None:
    await put(outbox, "1", "2", key="K")
    (first,) = await rows(outbox)

    await dead_letter(outbox, first)

    assert await due(outbox) == ["2"]


async def test_first_of_a_key_that_waits_holds_up_the_others(outbox: Outbox) -> None:
    await put(outbox, "1", "2", key="K")
    (first,) = await rows(outbox)

    await postpone(outbox, first, NOW + 10)

    assert await due(outbox) == []
    assert await due(outbox, NOW + 10) == ["1"]


async def test_later_one_of_a_key_is_no_head_while_an_earlier_one_waits(
    outbox: Outbox,
) -> None:
    await put(outbox, "1", key="K")
    await postpone(outbox, (await rows(outbox))[0], NOW + 10)
    await put(outbox, "2", key="K")

    assert await due(outbox) == []


async def test_what_has_no_key_has_no_order(outbox: Outbox) -> None:
    await put(outbox, "1", "2")
    await postpone(outbox, (await rows(outbox))[0], NOW + 10)

    assert await due(outbox) == ["2"]


async def test_order_is_kept_for_each_sink_by_itself(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        await put(outbox, "1", "2", key="K")
        (first,) = await rows(outbox, sink=A)
        await outbox.deliveries.delivered(first, now=NOW)

        assert await due(outbox, sink=A) == ["2"]
        assert await due(outbox, sink=B) == ["1"]


async def test_what_is_due_goes_by_age(outbox: Outbox) -> None:
    for age, name in ((5, "old"), (9, "older"), (1, "young")):
        await outbox.commit([outgoing(name)], now=NOW - age)

    assert await due(outbox) == ["older", "old", "young"]


async def test_no_more_is_offered_than_asked_for(outbox: Outbox) -> None:
    await outbox.commit(
        [outgoing("x", not_before=at(60)), outgoing("1"), outgoing("2"), outgoing("3")],
        now=NOW,
    )

    found, _ = await outbox.deliveries.due(SINK, now=NOW, limit=2)

    assert [d.cloud_event_id for d in found] == ["x", "1"]


async def test_next_due_time_is_known(outbox: Outbox) -> None:
    await put(outbox, "1", "2")
    one, two = await rows(outbox)
    await postpone(outbox, one, NOW + 9)
    await postpone(outbox, two, NOW + 5)

    assert await outbox.deliveries.due(SINK, now=NOW, limit=9) == ([], NOW + 5)


async def test_next_due_time_is_none_of_what_is_due_already(outbox: Outbox) -> None:
    """It may be in flight: who waits for it would sleep past what comes after."""
    await put(outbox, "1", "2")
    _, two = await rows(outbox)
    await postpone(outbox, two, NOW + 5)

    assert (await outbox.deliveries.due(SINK, now=NOW, limit=9))[1] == NOW + 5


async def test_next_due_time_is_none_when_nothing_waits(outbox: Outbox) -> None:
    assert await outbox.deliveries.due(SINK, now=NOW, limit=9) == ([], None)


# -- urgency -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notice", "is_first"), [(1, True), (899, True), (901, False), (-1, False)]
)
async def test_notice_of_15_minutes_goes_first(
    outbox: Outbox, notice: float, *, is_first: bool
) -> None:
    """A NotBefore that has passed is no reason to hurry."""
    await outbox.commit([outgoing("old")], now=NOW - 60)
    await outbox.commit([outgoing("x", not_before=at(notice))], now=NOW)

    assert (await due(outbox))[0] == ("x" if is_first else "old")


@pytest.mark.parametrize(("age", "is_first"), [(0, True), (299, True), (301, False)])
async def test_start_of_5_minutes_ago_goes_first(
    outbox: Outbox, age: float, *, is_first: bool
) -> None:
    await outbox.commit([outgoing("old")], now=NOW - 600)
    await outbox.commit([outgoing("x", is_started=True)], now=NOW - age)

    assert (await due(outbox))[0] == ("x" if is_first else "old")


async def test_shortest_notice_goes_first_among_urgent_ones(outbox: Outbox) -> None:
    for name, notice in (("slow", 800), ("fast", 30), ("middle", 300)):
        await outbox.commit([outgoing(name, not_before=at(notice))], now=NOW)

    assert await due(outbox) == ["fast", "middle", "slow"]


async def test_urgent_one_lends_its_urgency_to_those_before_it(
    outbox: Outbox,
) -> None:
    await outbox.commit([outgoing("old")], now=NOW - 60)
    await outbox.commit([outgoing("1", key="K")], now=NOW)
    await outbox.commit([outgoing("2", key="K", not_before=at(30))], now=NOW)

    assert await due(outbox) == ["1", "old"]


@pytest.mark.parametrize(("first", "second"), [(1000, 2000), (2000, 1000)])
async def test_nothing_is_urgent_between_the_times_of_two_steps(
    outbox: Outbox, first: float, second: float
) -> None:
    """Whichever step is the earlier one."""
    await outbox.commit([outgoing("old")], now=NOW - 60)
    await outbox.commit([outgoing("1", key="K", not_before=at(first))], now=NOW)
    await outbox.commit([outgoing("2", key="K", not_before=at(second))], now=NOW)

    order = {ahead: await due(outbox, NOW + ahead) for ahead in (50, 150, 1050, 1150)}
    assert order == {
        50: ["old", "1"],
        150: ["1", "old"],
        1050: ["old", "1"],
        1150: ["1", "old"],
    }


async def test_delivery_says_when_its_line_is_urgent_now_or_else_next(
    outbox: Outbox,
) -> None:
    """Between the times of two steps, and while both are urgent."""
    for name, ahead in (("1", 2000), ("2", 1000), ("3", 2300)):
        await outbox.commit([outgoing(name, key="K", not_before=at(ahead))], now=NOW)

    found = dict[float, tuple[float | None, float | None]]()
    for ahead in (0, 150, 1050, 1200, 1500, 2400):
        (head,) = await rows(outbox, NOW + ahead)
        found[ahead] = (head.urgent_from, head.urgent_until)
    assert found == {
        0: (NOW + 100, NOW + 1000),
        150: (NOW + 100, NOW + 1000),
        1050: (NOW + 1100, NOW + 2000),
        1200: (NOW + 1100, NOW + 2000),
        1500: (NOW + 1400, NOW + 2300),
        2400: (None, None),
    }


async def test_step_that_leaves_the_line_takes_its_urgency_along(
    outbox: Outbox,
) -> None:
    """The step behind it that is urgent for a shorter time still lends its own."""
    await outbox.commit([outgoing("old")], now=NOW - 60)
    await outbox.commit([outgoing("1", key="K", not_before=at(900))], now=NOW)
    await outbox.commit([outgoing("2", key="K")], now=NOW)
    await outbox.commit([outgoing("3", key="K", not_before=at(30))], now=NOW)
    first = (await rows(outbox))[0]
    assert first.cloud_event_id == "1"
    await outbox.deliveries.delivered(first, now=NOW)

    assert await due(outbox) == ["2", "old"]
    assert await due(outbox, NOW + 40) == ["old", "2"]


async def test_lent_urgency_stays_when_one_without_urgency_follows(
    outbox: Outbox,
) -> None:
    await outbox.commit([outgoing("1", key="K")], now=NOW)
    await outbox.commit([outgoing("2", key="K", not_before=at(1000))], now=NOW)
    await outbox.commit([outgoing("3", key="K")], now=NOW)

    (head,) = await rows(outbox)
    assert (head.urgent_from, head.urgent_until) == (NOW + 100, NOW + 1000)


async def test_step_without_urgency_takes_none_away(outbox: Outbox) -> None:
    await outbox.commit([outgoing("old")], now=NOW - 60)
    await outbox.commit([outgoing("1", key="K", not_before=at(30))], now=NOW)
    await outbox.commit([outgoing("2", key="K", is_last=True)], now=NOW)

    assert await due(outbox) == ["1", "old"]


async def test_urgency_is_lent_to_nobody_else(state_path: Path) -> None:
    updates = Route(when=When(transitions=("updated",)), scope="all", lifecycle=True)
    async with patient_outbox(state_path, router({A: route(), B: updates})) as outbox:
        for key in ("L", "K"):
            update = outgoing(f"1{key}", key=key, subject=Subject(transition="updated"))
            await outbox.commit([update], now=NOW)
        await outbox.commit([outgoing("2", key="K", not_before=at(30))], now=NOW)

        assert await due(outbox, sink=A) == ["1K", "1L"]
        assert await due(outbox, sink=B) == ["1L", "1K"]


# -- a sink that is back -------------------------------------------------------


async def failed(outbox: Outbox, **seconds: float) -> None:
    """Have each delivery wait for the sink, so many seconds from now."""
    for one in await rows(outbox):
        name = one.cloud_event_id or ""
        await outbox.deliveries.postpone(
            one,
            due=NOW + seconds[name],
            error="no",
            reason=Reason.CONNECTION,
            waits_for_sink=True,
        )


async def test_what_was_due_first_is_due_first_when_the_sink_is_back(
    outbox: Outbox,
) -> None:
    await outbox.commit([outgoing("a"), outgoing("b"), outgoing("c")], now=NOW)
    await failed(outbox, a=30, b=10, c=20)
    order = list[str | None]()
    for _ in range(3):
        assert await outbox.deliveries.release(SINK, now=NOW, limit=1) == 1
        order += [name for name in await due(outbox) if name not in order]

    assert order == ["b", "c", "a"]


async def test_sink_that_may_be_back_is_tried_with_the_shortest_notice(
    outbox: Outbox,
) -> None:
    """Then with the others, by when they are due."""
    await outbox.commit([outgoing("a"), outgoing("b")], now=NOW)
    await outbox.commit([outgoing("c", not_before=at(600))], now=NOW)
    await outbox.commit([outgoing("d", not_before=at(60))], now=NOW)
    await failed(outbox, a=20, b=10, c=30, d=40)

    found = await outbox.deliveries.waiting_for_sink(SINK, now=NOW, limit=9)

    assert [one.cloud_event_id for one in found] == ["d", "c", "b", "a"]


# -- settling ------------------------------------------------------------------


async def test_delivery_holds_all_that_a_sink_needs(outbox: Outbox) -> None:
    event = outgoing("1", key="AB", not_before=at(30))
    await outbox.commit([event], now=NOW)

    assert await rows(outbox) == [
        Delivery(
            id=1,
            sink=SINK,
            kind="event",
            state="pending",
            key="AB",
            event_id="AB",
            cloud_event_id="1",
            type=event.event.type,
            body=event.event.to_json(),
            attempts=0,
            due=NOW,
            created=NOW,
            not_before=NOW + 30,
            urgent_from=NOW - 870,
            urgent_until=NOW + 30,
            last_error=None,
        )
    ]


async def test_postponed_delivery_remembers_what_was_tried(outbox: Outbox) -> None:
    await put(outbox, "1")
    await postpone(outbox, (await rows(outbox))[0], NOW + 5)

    (found,) = await rows(outbox, NOW + 5)
    assert (found.attempts, found.due, found.last_error) == (1, NOW + 5, "no")


@pytest.mark.parametrize("end", ["delivered", "dead"])
async def test_what_is_settled_stays_settled(outbox: Outbox, end: str) -> None:
    await put(outbox, "1")
    (found,) = await rows(outbox)
    await (
        outbox.deliveries.delivered(found, now=NOW)
        if end == "delivered"
        else dead_letter(outbox, found)
    )

    await postpone(outbox, found, NOW)
    await outbox.deliveries.delivered(found, now=NOW)
    await dead_letter(outbox, found)

    assert await due(outbox) == []
    tally = (await outbox.deliveries.tallies())[SINK]
    assert (tally.delivered, tally.dead) == ((1, 0) if end == "delivered" else (0, 1))


async def test_pending_deliveries_of_one_event_are_found(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        await put(outbox, "1", "2")

        (found,) = await outbox.deliveries.of_cloud_event(A, "2")

        assert (found.sink, found.cloud_event_id) == (A, "2")
        await outbox.deliveries.delivered(found, now=NOW)
        assert await outbox.deliveries.of_cloud_event(A, "2") == []


async def test_tallies_tell_how_each_sink_stands(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        await outbox.commit([outgoing("0")], now=NOW - 60)
        await put(outbox, "1", "2", "3")
        zero, one, two, _ = await rows(outbox, sink=A)
        await outbox.deliveries.delivered(zero, now=NOW)
        await dead_letter(outbox, one)
        await postpone(outbox, two, NOW + 5)

        assert await outbox.deliveries.tallies() == {
            A: Tally(pending=2, dead=1, delivered=1, oldest=NOW, last_error="no"),
            B: Tally(pending=4, oldest=NOW - 60),
        }


async def test_last_error_is_of_what_waits_longest(outbox: Outbox) -> None:
    await put(outbox, "1", "2")
    one, two = await rows(outbox)
    await dead_letter(outbox, one)
    await outbox.deliveries.postpone(two, due=NOW, error="busy", reason=Reason.SERVER)

    assert (await outbox.deliveries.tallies())[SINK].last_error == "busy"


async def test_last_error_is_of_the_dead_when_nothing_waits(outbox: Outbox) -> None:
    await put(outbox, "1")
    await dead_letter(outbox, (await rows(outbox))[0])

    assert (await outbox.deliveries.tallies())[SINK].last_error == "no"


# -- commit --------------------------------------------------------------------


def checkpoint(*keys: str) -> Checkpoint:
    return Checkpoint(body=b"{}", sightings=frozenset(keys))


async def test_commit_keeps_everything_together(outbox: Outbox) -> None:
    decision = Decision(message="m", key="K", event_id="k", sequence=1, state="relayed")
    await outbox.commit(
        [outgoing("1", key="K")],
        now=NOW,
        checkpoint=checkpoint("K"),
        decisions=[decision],
        reply=Reply(key="m", body=b"r"),
    )

    assert await due(outbox) == ["1"]
    assert await outbox.observations.load(CHECKPOINT) == b"{}"
    assert await outbox.observations.was_seen("K")
    assert await outbox.approvals.of_message("m") == {"K": decision}
    (reply,) = await rows(outbox, sink=REPLIES)
    assert (reply.kind, reply.body, reply.key) == ("reply", b"r", None)


async def test_commit_with_one_bad_event_keeps_nothing(outbox: Outbox) -> None:
    bad = outgoing("2", key="K", data={"x": object()})
    with pytest.raises(TypeError):
        await outbox.commit(
            [outgoing("1", key="K"), bad],
            now=NOW,
            checkpoint=checkpoint("K"),
            decisions=[
                Decision(message="m", key="K", event_id="k", sequence=1, state="x")
            ],
            reply=Reply(key="m", body=b"r"),
        )

    assert await outbox.observations.load(CHECKPOINT) is None
    assert not await outbox.observations.was_seen("K")
    assert await publish_counts(outbox, "1") == {}
    assert await outbox.approvals.of_message("m") == {}
    assert await outbox.deliveries.tallies() == {}


async def test_commit_wakes_the_relays_of_its_sinks(
    state_path: Path,
) -> None:
    quiet = Route(when=When(transitions=("ended",)), scope="all", lifecycle=True)
    async with patient_outbox(state_path, router({A: route(), B: quiet})) as outbox:
        events = [outbox.wakeups.of(name) for name in (A, B, REPLIES)]

        await outbox.commit([outgoing("1")], now=NOW, reply=Reply(key="m", body=b""))

        assert [event.is_set() for event in events] == [True, False, True]


async def test_all_relays_are_woken_when_another_process_has_written(
    outbox: Outbox,
) -> None:
    news = outbox.wakeups.of(SINK)
    outbox.wakeups.wake_all()

    assert news.is_set()


async def test_rows_are_never_merged_by_id(outbox: Outbox) -> None:
    await put(outbox, "same")
    await put(outbox, "same")

    assert await due(outbox) == ["same", "same"]


async def test_what_was_published_is_counted_by_cause(outbox: Outbox) -> None:
    await outbox.commit([outgoing("1", cause="c"), outgoing("2", cause="d")], now=NOW)
    await outbox.commit([outgoing("3", cause="c")], now=NOW)

    assert await publish_counts(outbox, "c", "d", "never") == {
        "c": 2,
        "d": 1,
    }


async def test_any_number_of_causes_can_be_asked_for(outbox: Outbox) -> None:
    """A document of 1 MiB can hold 50,000 events; not every SQLite takes as many."""
    limit = sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER
    await outbox.database.run(lambda db: db.setlimit(limit, 999))
    await put(outbox, "777")

    assert await publish_counts(outbox, *map(str, range(50_000))) == {"777": 1}


# -- followers -----------------------------------------------------------------


def step(name: str, event_type: str, *, is_last: bool = False) -> object:
    event = seen(imds_event(EventType=event_type))
    subject = Subject(transition="updated", events=(event,))
    return outgoing(name, key="K", subject=subject, is_last=is_last)


async def follow(path: Path, *steps: object) -> list[str | None]:
    """Return what a sink for reboots gets of these steps."""
    reboots = Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True)
    async with patient_outbox(path, router({SINK: reboots})) as outbox:
        found = []
        for one in steps:
            await outbox.commit([one], now=NOW)  # type: ignore[list-item]  # see step
            for delivery in await rows(outbox):
                found.append(delivery.cloud_event_id)
                await outbox.deliveries.delivered(delivery, now=NOW)
        return found


async def test_sink_that_got_an_event_gets_its_end_too(
    state_path: Path,
) -> None:
    found = await follow(
        state_path, step("1", "Freeze"), step("2", "Reboot"), step("3", "Freeze")
    )

    assert found == ["2", "3"]


async def test_event_that_returns_after_its_end_is_new_to_the_sinks(
    state_path: Path,
) -> None:
    found = await follow(
        state_path,
        step("1", "Reboot"),
        step("2", "Freeze", is_last=True),
        step("3", "Freeze"),
    )

    assert found == ["1", "2"]


async def test_approval_makes_no_sink_a_follower(state_path: Path) -> None:
    approval = outgoing("1", key="K", subject=Subject())

    assert await follow(state_path, approval, step("2", "Freeze")) == ["1"]


async def test_sinks_follow_over_a_restart(state_path: Path) -> None:
    await follow(state_path, step("1", "Reboot"))

    assert await follow(state_path, step("2", "Freeze")) == ["2"]


# -- facts: what is known of earlier events --------------------------------------


async def count(outbox: Outbox, cause: str) -> int:
    return (await outbox.observations.counts([cause])).get(cause, 0)


async def with_many_rows(outbox: Outbox) -> None:
    """Let the file have more than memory has: of both tables 6,000 newer rows."""

    def fill(db: sqlite3.Connection) -> None:
        rows = [(f"F{n}", NOW + 1) for n in range(6000)]
        db.executemany("INSERT INTO told (cause, times, at) VALUES (?, 1, ?)", rows)
        db.executemany("INSERT INTO followers (key, sink, at) VALUES (?, 's', ?)", rows)

    await outbox.database.run(fill)


async def test_old_facts_are_asked_of_the_file(state_path: Path) -> None:
    reboots = Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True)
    async with patient_outbox(state_path, router({SINK: reboots})) as outbox:
        await outbox.commit([step("1", "Reboot")], now=NOW)  # type: ignore[list-item]  # see step
        await with_many_rows(outbox)
    async with patient_outbox(state_path, router({SINK: reboots})) as outbox:
        assert await count(outbox, "1") == 1
        assert await count(outbox, "2") == 0
        await outbox.commit([step("2", "Freeze")], now=NOW)  # type: ignore[list-item]  # see step

        assert await tallied(outbox) == 2


async def tallied(outbox: Outbox) -> int:
    return (await outbox.deliveries.tallies())[SINK].pending


async def test_commit_that_must_ask_the_file_keeps_its_place(
    state_path: Path, outbox: Outbox
) -> None:
    await put(outbox, "0", key="OTHER")
    await with_many_rows(outbox)
    async with patient_outbox(state_path, router()) as asking:
        async with asyncio.TaskGroup() as calls:
            calls.create_task(put(asking, "1", key="NEW"))
            calls.create_task(put(asking, "2"))
            calls.create_task(put(asking, "3", key="NEW"))

        found, _ = await asking.deliveries.due(SINK, now=NOW, limit=9)
        first = found[1]
        await asking.deliveries.delivered(first, now=NOW)
        assert [one.cloud_event_id for one in found] == ["0", "1", "2"]
        assert await due(asking) == ["0", "2", "3"]


async def test_facts_that_were_pruned_are_forgotten(outbox: Outbox) -> None:
    await put(outbox, "1", key="K")
    assert await count(outbox, "1") == 1

    await prune(outbox)

    assert await count(outbox, "1") == 0


async def test_cancelled_commit_counts_if_it_is_written(outbox: Outbox) -> None:
    calling = asyncio.create_task(put(outbox, "1", key="K"))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)

    counts = await publish_counts(outbox, "1")
    assert await count(outbox, "1") == counts.get("1", 0)


# -- approvals -----------------------------------------------------------------


def intent(message: str = "m", key: str = "K", **fields: object) -> Decision:
    values = {"event_id": key.lower(), "sequence": 1, "state": "intent"} | fields
    return Decision(message=message, key=key, **values)  # type: ignore[arg-type]  # fields of Decision


@pytest.mark.parametrize("clocks", [{SINK: lambda: 5.0}, {}], ids=["known", "not"])
async def test_running_time_is_asked_for_once_in_a_commit(
    clocks: dict[str, Callable[[], float]], outbox: Outbox
) -> None:
    """Each look at it costs as much as the checkpoint beside it is long."""
    asked = list[str]()

    def ask(sink: str) -> float:
        asked.append(sink)
        return clocks[sink]()

    outbox.ages.clocks.update({sink: partial(ask, sink) for sink in clocks})
    await outbox.commit([outgoing(n) for n in "123"], now=NOW, checkpoint=checkpoint())

    assert asked == list(clocks)
    assert [d.born for d in await rows(outbox)] == [5.0 if clocks else 0.0] * 3


async def test_decisions_are_kept_by_message_and_event(outbox: Outbox) -> None:
    for one in (intent(), intent(key="L"), intent("other")):
        await outbox.approvals.save(one, now=NOW)

    assert await outbox.approvals.of_message("m") == {
        "K": intent(),
        "L": intent(key="L"),
    }
    assert await outbox.approvals.of_message("nobody") == {}


async def test_decision_takes_the_place_of_its_intent(outbox: Outbox) -> None:
    await outbox.approvals.save(intent(posted=True), now=NOW)
    after = intent(state="relayed", data=b"{}", sequence=2)
    await outbox.commit([], now=NOW, decisions=[after])

    (found,) = (await outbox.approvals.of_message("m")).values()
    assert (found.state, found.data, found.sequence) == ("relayed", b"{}", 2)
    assert found.posted, "that a POST was begun is never forgotten"


async def test_outcome_that_was_published_is_not_lost_to_a_later_intent(
    outbox: Outbox,
) -> None:
    await outbox.approvals.save(intent(state="failed", data=b"{}"), now=NOW)
    await outbox.approvals.save(intent(), now=NOW)

    assert (await outbox.approvals.of_message("m"))["K"].data == b"{}"


async def test_intent_that_came_to_nothing_is_forgotten(outbox: Outbox) -> None:
    await outbox.approvals.save(intent(), now=NOW)
    await outbox.approvals.save(intent(key="L"), now=NOW)

    await outbox.approvals.delete("m", "K")

    assert list(await outbox.approvals.of_message("m")) == ["L"]


async def test_events_that_a_post_was_begun_for_are_known(outbox: Outbox) -> None:
    for one in (intent(), intent("n", posted=True), intent(key="L")):
        await outbox.approvals.save(one, now=NOW)

    assert await outbox.approvals.posted() == {"K"}


async def test_recent_outcomes_come_newest_first(outbox: Outbox) -> None:
    for number in range(4):
        one = intent(str(number), data=b"%d" % number if number else None)
        await outbox.approvals.save(one, now=NOW + number)

    assert await outbox.approvals.recent_outcomes(2) == [b"3", b"2"]


async def test_outcome_is_the_newest_although_the_clock_went_back(
    outbox: Outbox,
) -> None:
    for number in (1, 2, 3):
        one = intent(str(number), data=b"%d" % number)
        await outbox.approvals.save(one, now=NOW - 3600 * number)

    assert await outbox.approvals.recent_outcomes(2) == [b"3", b"2"]


# -- housekeeping --------------------------------------------------------------------


async def prune(outbox: Outbox, *alive: str, limit: int = 500) -> int:
    """Drop what was settled a week ago, a week and an hour later."""
    return await outbox.pruning.prune(
        before=NOW + 3600, now=NOW + 7 * 86400, alive=frozenset(alive), limit=limit
    )


async def test_old_delivered_items_are_dropped(outbox: Outbox) -> None:
    await put(outbox, "1")
    await outbox.deliveries.delivered((await rows(outbox))[0], now=NOW)

    assert await prune(outbox) == 1
    assert (await outbox.deliveries.tallies())[SINK].delivered == 0


async def test_what_was_delivered_lately_is_kept(outbox: Outbox) -> None:
    await put(outbox, "1")
    await outbox.deliveries.delivered((await rows(outbox))[0], now=NOW + 3600)

    assert await prune(outbox) == 0


async def test_what_is_pending_or_dead_is_never_dropped(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        await put(outbox, "pending", "dead")
        for delivery in await rows(outbox, sink=A):
            await outbox.deliveries.delivered(delivery, now=NOW)
        await dead_letter(outbox, (await rows(outbox, sink=B))[1])

        assert await prune(outbox) == 0
        assert await due(outbox, sink=B) == ["pending"]
        assert (await outbox.deliveries.tallies())[B].dead == 1


async def test_items_without_a_delivery_are_dropped(state_path: Path) -> None:
    async with patient_outbox(state_path, router({})) as outbox:
        await put(outbox, "1")

        assert await prune(outbox) == 1


async def test_no_more_is_dropped_at_a_time_than_asked_for(outbox: Outbox) -> None:
    await put(outbox, "1", "2", "3")
    for delivery in await rows(outbox):
        await outbox.deliveries.delivered(delivery, now=NOW)

    assert [await prune(outbox, limit=2) for _ in range(3)] == [2, 1, 0]


async def test_memory_of_what_is_over_is_dropped(outbox: Outbox) -> None:
    await outbox.commit([outgoing("1", key="K")], now=NOW, checkpoint=checkpoint("K"))
    await outbox.approvals.save(intent(posted=True), now=NOW)

    await prune(outbox)

    assert not await outbox.observations.was_seen("K")
    assert await outbox.approvals.posted() == frozenset()
    assert await publish_counts(outbox, "1") == {}


async def test_memory_of_what_is_alive_is_kept(outbox: Outbox) -> None:
    await outbox.commit([outgoing("1", key="K")], now=NOW, checkpoint=checkpoint("K"))
    await outbox.approvals.save(intent(posted=True), now=NOW)

    await prune(outbox, "K")

    assert await outbox.observations.was_seen("K")
    assert await outbox.approvals.posted() == {"K"}
    assert await publish_counts(outbox, "1") == {"1": 1}


async def test_sinks_follow_an_event_announced_long_ahead(state_path: Path) -> None:
    await follow(state_path, step("1", "Reboot"))
    async with patient_outbox(state_path, router()) as outbox:
        await prune(outbox, "K")

    assert await follow(state_path, step("2", "Freeze")) == ["2"]


# -- crash and restart ---------------------------------------------------------


async def test_nothing_is_lost_over_a_restart(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        await outbox.commit(
            [outgoing("1", key="K"), outgoing("2", key="K")],
            now=NOW,
            checkpoint=checkpoint("K"),
        )
        await postpone(outbox, (await rows(outbox, sink=A))[0], NOW + 5)
        await outbox.observations.save({"name": b"value"})

    async with opened(state_path) as outbox:
        assert await due(outbox, NOW + 4, A) == []
        assert await due(outbox, NOW + 5, A) == ["1"]
        assert await due(outbox, sink=B) == ["1"]
        assert await outbox.observations.load("name") == b"value"
        assert await outbox.observations.load(CHECKPOINT) == b"{}"


async def test_what_was_committed_survives_a_power_cut(
    state_path: Path, tmp_path: Path
) -> None:
    async with opened(state_path) as outbox:
        await outbox.commit([outgoing("1")], now=NOW, checkpoint=checkpoint())
        copy = left_behind(state_path, tmp_path / "copy")

    async with opened(copy) as outbox:
        assert await due(outbox, sink=A) == await due(outbox, sink=B) == ["1"]
        assert await outbox.observations.load(CHECKPOINT) == b"{}"


class Gate:
    """A job that stops the outbox's thread in the middle of a transaction."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, db: sqlite3.Connection) -> None:
        self.begun.set()
        assert self.may_end.wait(60)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 60)


async def test_commit_cut_off_by_a_power_cut_leaves_nothing(
    state_path: Path, tmp_path: Path
) -> None:
    disk = Hanging()
    async with (
        Database.open(File(state_path, connect=disk.open)) as database,
        asyncio.TaskGroup() as group,
    ):
        outbox = await Outbox.of(database, TWO)
        disk.freeze("COMMIT")
        events = [outgoing("1"), outgoing("2")]
        commit = group.create_task(
            outbox.commit(events, now=NOW, checkpoint=checkpoint())
        )
        assert await asyncio.to_thread(disk.hung.wait, 60)
        copy = left_behind(state_path, tmp_path / "copy")
        was_published = commit.done()
        disk.thaw()

    assert not was_published
    async with opened(copy) as outbox:
        assert await outbox.deliveries.tallies() == {}
        assert await outbox.observations.load(CHECKPOINT) is None


# -- group commit --------------------------------------------------------------


async def together(database: Database, *jobs: Callable[..., object]) -> list[object]:
    """Run jobs that wait at the same time; return results and errors."""
    return await asyncio.gather(*map(database.run, jobs), return_exceptions=True)


def keep(name: str) -> Callable[[sqlite3.Connection], str]:
    def job(db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO meta (key, value) VALUES (?, x'00')", (name,))
        return name

    return job


def fail_after(name: str, error: str) -> Callable[[sqlite3.Connection], str]:
    def job(db: sqlite3.Connection) -> str:
        keep(name)(db)
        if error == "ours":
            raise KeyError(name)
        db.execute("INSERT INTO nowhere VALUES (1)")
        return name

    return job


@pytest.mark.parametrize(("error", "kind"), [("ours", KeyError), ("sql", OutboxError)])
async def test_job_that_fails_takes_nothing_else_with_it(
    outbox: Outbox, error: str, kind: type[Exception]
) -> None:
    one, bad, three = await together(
        outbox.database, keep("1"), fail_after("2", error), keep("3")
    )

    assert (one, three) == ("1", "3")
    assert isinstance(bad, kind)
    read = outbox.database.read
    kept = [await read(partial(load, name=n)) is not None for n in "123"]
    assert kept == [True, False, True]
    assert outbox.database.fault is None


async def test_many_jobs_at_once_are_all_done(outbox: Outbox) -> None:
    names = [str(n) for n in range(50)]  # within the patience of a busy machine

    assert await together(outbox.database, *map(keep, names)) == names


async def test_log_is_written_back_in_quiet_moments(
    state_path: Path, tmp_path: Path
) -> None:
    """In the middle of a commit it would hold up what cannot wait."""
    at_once = Timings(quiet=0.0)
    copy = tmp_path / "file-without-log.db"

    def count() -> int:
        shutil.copy(state_path, copy)
        with closing(sqlite3.connect(copy)) as db:
            try:
                return int(db.execute("SELECT count(*) FROM items").fetchone()[0])
            except sqlite3.DatabaseError:
                return 0  # not even the tables are there, or it is being written

    async with Database.open(File(state_path), timings=at_once) as database:
        outbox = await Outbox.of(database, TWO)
        await put(outbox, "0")
        before = count()
        for number in range(20):
            await put(outbox, str(number))
        async with asyncio.timeout(60):
            while count() < 10:
                await asyncio.sleep(0)

        assert before == 0
        assert len(await due(outbox, sink=A)) == 21


async def test_full_disk_is_remembered_until_one_commit_works(outbox: Outbox) -> None:
    await outbox.database.run(lambda db: db.execute("PRAGMA max_page_count = 60"))
    large = outgoing("1", data={"x": "y" * 500_000})

    assert not await outbox.commit([large], now=NOW, checkpoint=checkpoint())

    assert "full" in str(outbox.database.fault)
    (delivery,) = await rows(outbox)
    assert b'"durable":false' in delivery.body
    await outbox.database.read(lambda db: db.execute("PRAGMA max_page_count = 9999"))
    await outbox.database.heal()
    assert outbox.database.fault is None
    await put(outbox, "2")
    assert await due(outbox) == ["1", "2"]


async def test_job_is_done_although_its_caller_was_cancelled(outbox: Outbox) -> None:
    gate = Gate()
    waiting = asyncio.ensure_future(outbox.database.run(gate))
    await gate.reached()
    caller = asyncio.ensure_future(put(outbox, "1"))
    await asyncio.sleep(0)

    caller.cancel()
    gate.may_end.set()
    await waiting
    await outbox.database.read(lambda _: None)

    assert await due(outbox) == ["1"]


async def test_jobs_that_wait_are_done_before_the_file_is_closed(
    state_path: Path,
) -> None:
    async with opened(state_path) as outbox:
        gate = Gate()
        jobs = [asyncio.ensure_future(outbox.database.run(gate))]
        await gate.reached()
        jobs += [asyncio.ensure_future(put(outbox, str(n))) for n in range(600)]
        await asyncio.sleep(0)
        gate.may_end.set()

    await asyncio.gather(*jobs)
    async with opened(state_path) as outbox:
        assert (await outbox.deliveries.tallies())[A].pending == 600


async def test_closed_file_is_an_error_and_no_endless_wait(state_path: Path) -> None:
    async with opened(state_path) as outbox:
        pass

    with pytest.raises(OutboxError, match="closed"):
        await put(outbox, "1")


async def test_file_remembers_whose_it_is(state_path: Path) -> None:
    async with Database.open(File(state_path)) as database:
        assert await owner_of(database) is None
        set_owner(database, "vm-1")
    async with Database.open(File(state_path)) as database:
        set_owner(database, "vm-2")
        assert await owner_of(database) == "vm-2"


# -- the file itself -----------------------------------------------------------


@pytest.fixture
def empty_file(state_path: Path) -> Path:
    state_path.touch()
    return state_path


async def test_empty_file_becomes_one_of_ours(empty_file: Path) -> None:
    async with opened(empty_file) as outbox:
        await put(outbox, "1")

        assert await outbox.database.run(version) == SCHEMA


async def test_file_is_written_as_durably_as_sqlite_can(outbox: Outbox) -> None:
    def modes(db: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous")
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await outbox.database.run(modes) == ["wal", 2]


async def test_file_of_a_newer_version_is_refused_and_left_alone(
    state_path: Path,
) -> None:
    connection = connect(state_path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(NewerSchemaError, match="99"):
        connect(state_path)


@pytest.mark.parametrize("size", [10, 5000])
def test_file_that_is_no_database_is_corrupt(state_path: Path, size: int) -> None:
    state_path.write_bytes(b"not a database " * size)

    with pytest.raises(OutboxCorruptError, match=r"state\.db"):
        connect(state_path)


async def test_file_damaged_in_the_middle_is_found_corrupt_at_use(
    state_path: Path,
) -> None:
    async with opened(state_path) as outbox:
        await put(outbox, "1")
    damage(state_path, "deliveries")

    async def use() -> None:
        async with opened(state_path) as outbox:
            await put(outbox, "2")
            await outbox.database.died()

    with pytest.raises(OutboxCorruptError):
        await use()


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    connection = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
    ((page,),) = connection.execute(query, (table,)).fetchall()
    ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    connection.close()
    body = bytearray(path.read_bytes())
    body[(page - 1) * size : page * size] = b"\xaa" * size
    path.write_bytes(body)


async def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutboxError) as caught:
        async with Database.open(File(tmp_path / "nowhere" / "state.db")):
            pass

    assert not isinstance(caught.value, OutboxCorruptError)


async def test_database_of_somebody_else_is_not_taken_over(state_path: Path) -> None:
    connection = sqlite3.connect(state_path)
    connection.execute("CREATE TABLE meta (theirs)")
    connection.close()

    with pytest.raises(OutboxError, match="another program"):
        async with opened(state_path):
            pass

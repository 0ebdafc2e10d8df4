"""The poller: one reader of the document, one commit for each that says something."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from bridge.events.build import EventContext
from bridge.events.look import Look, Need
from bridge.events.watch import Moment
from bridge.foundation.errors import (
    MetadataError,
    MetadataRefusedError,
    MetadataUnavailableError,
)
from bridge.foundation.values import Duration
from bridge.imds.config import LEAST_INTERVAL, ImdsConfig
from bridge.imds.poller import Poller
from bridge.outbox.records import Decision, Delivery
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from tests.support.builders import (
    EVENT_ID,
    SINK,
    body_of,
    imds_event,
    observed,
    patient_outbox,
    router,
    started,
)
from tests.support.fakes import (
    START,
    FakeClock,
    FakeMetadata,
    FullOutbox,
    settled,
    turns,
)

EMPTY = body_of(incarnation=1)
SCHEDULED = body_of(imds_event(), incarnation=2)
STARTED = body_of(started(), incarnation=3)
GONE = body_of(incarnation=4)


def unavailable(
    outcome: str = "503", retry_after: float | None = None
) -> MetadataUnavailableError:
    return MetadataUnavailableError("no", outcome=outcome, retry_after=retry_after)


TIMEOUT = unavailable("timeout")


def refused(status: str) -> MetadataRefusedError:
    return MetadataRefusedError(f"IMDS answered {status} to GET", outcome=status)


class Rig:
    """A poller, its script of answers, and what it has published."""

    def __init__(  # noqa: PLR0913 - one for each edge
        self,
        metadata: FakeMetadata,
        outbox: Outbox,
        event_context: EventContext,
        clock: FakeClock,
        metrics: Metrics,
        *,
        with_documents: bool = False,
    ) -> None:
        self.metadata, self.outbox, self.clock = metadata, outbox, clock
        self.metrics, self.event_context = metrics, event_context
        self.poller, self.observer = observed(
            metadata,
            outbox,
            event_context,
            clock,
            metrics,
            with_documents=with_documents,
        )

    async def sees(self, *bodies: bytes | None, etag: str | None = None) -> None:
        """Look at each of these, a second apart."""
        for body in bodies:
            self.metadata.answers.clear()
            self.metadata.says(body, etag=etag)
            await self.poller.step()
            if self.poller.requests:
                self.poller.requests.turn(self.poller.latest)
            self.clock.pass_by(1)

    async def fails(self, *errors: MetadataError) -> None:
        for error in errors:
            self.metadata.answers.clear()
            self.metadata.fails(error)
            await self.poller.step()
            self.clock.pass_by(1)

    async def restart(self) -> "Rig":
        later = Rig(
            self.metadata, self.outbox, self.event_context, self.clock, self.metrics
        )
        await later.observer.restore()
        return later

    async def deliveries(self) -> list[Delivery]:
        """Return what waits, in the order in which it was published."""
        await settled(self.outbox)
        found = []
        for _ in range(20):
            due, _ = await self.outbox.deliveries.due(SINK, now=9e9, limit=100)
            for one in due:
                found.append(one)
                await self.outbox.deliveries.delivered(one, now=0)
        return sorted(found, key=lambda one: one.id)

    async def published(self) -> list[str]:
        return [one.type.split(".")[-2] for one in await self.deliveries()]


@pytest.fixture
def rig(
    metadata: FakeMetadata,
    outbox: Outbox,
    event_context: EventContext,
    clock: FakeClock,
    metrics: Metrics,
) -> Rig:
    return Rig(metadata, outbox, event_context, clock, metrics)


def configured(rig: Rig, **values: float) -> None:
    """Replace durations of `[imds]`."""
    durations = {name: Duration(value) for name, value in values.items()}
    rig.metadata.config = ImdsConfig(**durations)  # type: ignore[arg-type]  # durations


def etags(rig: Rig) -> list[str | None]:
    return [etag for etag, _ in rig.metadata.asked]


def timeouts(rig: Rig) -> list[float]:
    return [timeout for _, timeout in rig.metadata.asked]


def data_of(delivery: Delivery) -> dict[str, object]:
    found: dict[str, object] = orjson.loads(delivery.body)["data"]
    return found


# -- what is seen is published ------------------------------------------------------


async def test_each_change_of_the_document_is_published(rig: Rig) -> None:
    await rig.sees(EMPTY, SCHEDULED, STARTED, GONE)

    assert await rig.published() == ["scheduled", "started", "completed"]


async def test_document_that_stays_the_same_is_published_once(rig: Rig) -> None:
    await rig.sees(SCHEDULED, SCHEDULED, SCHEDULED)

    assert await rig.published() == ["scheduled"]


async def test_what_is_published_names_document_time_and_gap(rig: Rig) -> None:
    await rig.sees(EMPTY, SCHEDULED)

    (delivery,) = await rig.deliveries()
    data = data_of(delivery)
    assert data["documentIncarnation"] == 2
    assert data["observedAt"] == "2026-03-02T12:00:01Z"
    assert data["unobservedSeconds"] == 1


async def test_same_thing_published_again_gets_another_id(rig: Rig) -> None:
    """Behind de-duplication an equal id would swallow the last news."""
    await rig.sees(
        SCHEDULED, body_of(incarnation=3), body_of(imds_event(), incarnation=4)
    )

    found = await rig.deliveries()
    assert [one.type.split(".")[-2] for one in found] == [
        "scheduled",
        "cancelled",
        "scheduled",
    ]
    assert len({one.cloud_event_id for one in found}) == 3


async def test_event_whose_approval_was_begun_is_not_called_cancelled(
    rig: Rig,
) -> None:
    await rig.sees(EMPTY, SCHEDULED)
    posted = Decision(
        message="m",
        key=EVENT_ID,
        event_id=EVENT_ID,
        sequence=1,
        state="intent",
        posted=True,
    )
    await rig.outbox.approvals.save(posted, now=0)

    await rig.sees(body_of(incarnation=3))

    assert await rig.published() == ["scheduled", "ended"]


async def test_events_that_stood_in_the_document_are_remembered(rig: Rig) -> None:
    await rig.sees(SCHEDULED, GONE)

    assert await rig.outbox.observations.was_seen(EVENT_ID)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ([], "is empty"),
        (None, "is no list of names"),
        ("WestNO_0", "is no list of names"),
        (["WestNO_0", 7], "is no list of names"),
    ],
)
async def test_event_without_readable_resources_is_a_warning_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, names: object, what: str
) -> None:
    event = imds_event(Resources=names)

    await rig.sees(body_of(event), body_of(event | {"Description": "x"}), GONE)

    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert record.message == "event names no machine"
    assert record.__dict__["eventId"] == EVENT_ID
    fault = f"Resources {what}: scope own or first may not let it through"
    assert record.__dict__["fault"] == fault


async def test_element_that_cannot_be_read_is_named_in_the_log_and_others_published(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.sees(body_of("odd", imds_event(), incarnation=2))

    assert await rig.published() == ["scheduled"]
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.__dict__["fault"] == "Events[0] is no object"


@pytest.mark.parametrize(
    "odd", ['"\\ud800"', "1e999", "7" * 400, '{"\\udfff": [12345678901234567890123]}']
)
async def test_oddity_that_json_allows_goes_all_the_way(rig: Rig, odd: str) -> None:
    body = SCHEDULED.replace(b'"Freeze"', odd.encode())
    await rig.sees(body)
    later = await rig.restart()
    await later.sees(body, GONE)

    steps = await later.deliveries()
    assert [step.type.split(".")[-2] for step in steps] == ["scheduled", "ended"]
    event_types = [orjson.loads(s.body)["data"]["event"]["EventType"] for s in steps]
    assert event_types[0] == event_types[1]


async def test_absence_after_a_fall_counts_after_five_minutes_of_the_same_bytes(
    rig: Rig,
) -> None:
    await rig.sees(body_of(started(), incarnation=9), EMPTY)
    for _ in range(5):
        await rig.sees(EMPTY)
        rig.clock.pass_by(60)
    assert await rig.published() == ["started"]

    await rig.sees(EMPTY)

    assert await rig.published() == ["completed"]


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_change_of_the_document_itself_is_published_where_it_is_wanted(
    rig: Rig, *, is_wanted: bool
) -> None:
    rig.observer.with_documents = is_wanted
    await rig.sees(EMPTY, EMPTY, *[body_of(incarnation=2)] * 2)

    published = await rig.deliveries()
    kinds = ["sebridge.document.changed.v1"] * 2 * is_wanted
    assert [one.type for one in published] == kinds
    for number, one in enumerate(published, start=1):
        assert data_of(one)["previousIncarnation"] == (number - 1 or None)
        assert data_of(one)["document"] == {"DocumentIncarnation": number, "Events": []}


@pytest.mark.parametrize("number", [None, "two", 2])
async def test_other_document_is_published_whatever_its_number(
    rig: Rig, number: object
) -> None:
    """A number that is absent, a text or the same says nothing about the content."""
    rig.observer.with_documents = True
    await rig.sees(*[body_of(imds_event(), incarnation=number)] * 2)
    await rig.sees(*[body_of(started(), incarnation=number)] * 2)

    assert await rig.published() == ["scheduled", "changed", "started", "changed"]


async def test_member_beside_the_events_makes_another_document(rig: Rig) -> None:
    rig.observer.with_documents = True
    more = orjson.loads(SCHEDULED) | {"New": 1}
    await rig.sees(SCHEDULED, orjson.dumps(more))

    assert await rig.published() == ["scheduled", "changed", "changed"]


async def test_other_order_makes_no_other_document(rig: Rig) -> None:
    rig.observer.with_documents = True
    events = [imds_event("a", Resources=["x", "y"]), imds_event("b")]
    other = [imds_event("b"), imds_event("a", Resources=["y", "x"])]
    await rig.sees(body_of(*events), body_of(*other))

    assert await rig.published() == ["scheduled", "scheduled", "changed"]


@pytest.mark.parametrize("number", [None, 2])
async def test_document_is_not_published_again_after_a_restart(
    rig: Rig, number: object
) -> None:
    rig.observer.with_documents = True
    await rig.sees(body_of(imds_event(), incarnation=number))
    later = await rig.restart()
    later.observer.with_documents = True
    await later.sees(body_of(imds_event(), incarnation=number))
    await later.sees(body_of(started(), incarnation=number))

    assert await later.published() == ["scheduled", "changed", "started", "changed"]


async def test_document_that_comes_back_is_published_with_another_id(rig: Rig) -> None:
    rig.observer.with_documents = True
    await rig.sees(EMPTY, *[body_of(incarnation=n) for n in (2, 1, 2)])

    assert len({one.cloud_event_id for one in await rig.deliveries()}) == 4


async def test_steps_and_the_document_itself_are_published_together(rig: Rig) -> None:
    rig.observer.with_documents = True
    await rig.sees(EMPTY, SCHEDULED)

    assert await rig.published() == ["changed", "scheduled", "changed"]


# -- restart -------------------------------------------------------------------


async def test_document_is_compared_with_the_last_one_after_a_restart(
    rig: Rig,
) -> None:
    await rig.sees(SCHEDULED)
    rig.clock.pass_by(100)
    later = await rig.restart()

    await later.sees(SCHEDULED, STARTED)

    assert await later.published() == ["scheduled", "started"]


async def test_what_happened_while_away_is_published_with_the_gap(rig: Rig) -> None:
    await rig.sees(SCHEDULED)
    rig.clock.pass_by(99)
    later = await rig.restart()

    await later.sees(body_of(incarnation=3))

    gone = (await later.deliveries())[-1]
    assert gone.type == "sebridge.scheduledevent.ended.v1"
    assert data_of(gone)["unobservedSeconds"] == 100


async def test_first_life_has_nothing_to_restore(rig: Rig) -> None:
    await rig.observer.restore()

    assert rig.observer.watch.seen is None


async def test_checkpoint_that_cannot_be_read_does_not_end_every_life(
    rig: Rig, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite does not see a wrong byte in a value: quick_check calls it sound."""
    await rig.sees(body_of(imds_event()))
    await rig.outbox.state.write({})  # a look waits for no disk
    broken = b'{"known": {"\xff": 1}}'
    await rig.outbox.database.run(
        lambda db: db.execute("UPDATE meta SET value = ?", (broken,))
    )

    async with patient_outbox(state_path, router()) as outbox:
        later = Rig(rig.metadata, outbox, rig.event_context, rig.clock, rig.metrics)
        await later.observer.restore()
        await later.sees(body_of(imds_event(), incarnation=3))

    assert "checkpoint in the state file is damaged" in caplog.text
    assert later.observer.watch.seen is not None


async def test_change_that_the_file_refuses_is_published_all_the_same(rig: Rig) -> None:
    """The next start publishes it again, with the same ids."""
    await rig.sees(EMPTY)
    await rig.outbox.database.run(lambda db: db.execute("DROP TABLE followers"))

    await rig.sees(SCHEDULED)

    assert await rig.published() == ["scheduled"]


# -- ETag ----------------------------------------------------------------------


async def test_first_request_is_unconditional(rig: Rig) -> None:
    await rig.sees(EMPTY, etag="1")

    assert etags(rig) == [None]


async def test_etag_is_used_when_it_was_offered(rig: Rig) -> None:
    await rig.sees(EMPTY, EMPTY, etag="1")
    await rig.sees(None, etag="2")
    await rig.sees(EMPTY, EMPTY)

    assert etags(rig) == [None, "1", "1", "2", None]


async def test_request_is_unconditional_every_ten_seconds(rig: Rig) -> None:
    await rig.sees(*[EMPTY] * 25, etag="1")

    assert [index for index, etag in enumerate(etags(rig)) if not etag] == [0, 10, 20]


async def test_request_after_a_failed_unconditional_one_is_unconditional(
    rig: Rig,
) -> None:
    await rig.sees(EMPTY, etag="1")
    rig.clock.pass_by(10)
    await rig.fails(TIMEOUT)
    await rig.sees(EMPTY, etag="1")

    assert etags(rig) == [None, None, None]


async def test_request_for_an_approval_is_unconditional(rig: Rig) -> None:
    await rig.sees(EMPTY, etag="1")
    async with asyncio.TaskGroup() as group:
        group.create_task(fresh(rig.poller))
        await turns()
        await rig.sees(EMPTY, etag="1")

    assert etags(rig) == [None, None]


async def test_etag_is_not_used_over_a_restart(rig: Rig) -> None:
    await rig.sees(EMPTY, etag="1")
    later = await rig.restart()
    await later.sees(EMPTY)

    assert etags(rig) == [None, None]


async def test_not_modified_counts_as_a_look_at_the_same_document(rig: Rig) -> None:
    await rig.sees(EMPTY, SCHEDULED, etag="1")
    await rig.sees(*[None] * 30, etag="1")
    await rig.sees(body_of(incarnation=3))

    assert await rig.published() == ["scheduled", "cancelled"]
    assert not rig.poller.is_overdue()


async def test_not_modified_without_a_document_says_nothing(rig: Rig) -> None:
    await rig.sees(None)

    assert rig.poller.imds_state == "malformed"
    assert rig.observer.document is None


async def test_not_modified_after_a_fall_is_compared_all_the_same(rig: Rig) -> None:
    await rig.sees(body_of(started(), incarnation=9), EMPTY, etag="1")
    rig.clock.pass_by(300)
    await rig.sees(None, etag="1")

    assert await rig.published() == ["started", "completed"]


# -- how long an event has been as it is ---------------------------------------


async def test_first_sight_of_an_event_as_it_is_outlives_the_process(
    rig: Rig,
) -> None:
    await rig.sees(EMPTY, SCHEDULED)
    seen = rig.clock.now() - timedelta(seconds=1)
    await rig.sees(SCHEDULED)
    rig.clock.pass_by(100)
    later = await rig.restart()
    await later.sees(SCHEDULED, SCHEDULED)

    (known,) = later.observer.watch.known.values()
    assert known.since is not None
    assert known.since.at == seen
    now = Moment(at=rig.clock.now(), monotonic=rig.clock.monotonic())
    assert known.age(now) == (rig.clock.now() - seen).total_seconds()


async def age_in_the_next_life(rig: Rig) -> float:
    """Return how old an event is taken for right after a start."""
    later = await rig.restart()
    await later.sees(SCHEDULED)
    (known,) = later.poller.watch.known.values()
    return known.age(Moment(at=rig.clock.now(), monotonic=rig.clock.monotonic()))


async def test_clock_that_is_set_before_a_stop_makes_no_event_older(rig: Rig) -> None:
    rig.metadata.says(SCHEDULED)
    async with running(rig):
        await live(rig, 0.5)
        rig.clock.jump(90)  # and the document is not read again

    assert await age_in_the_next_life(rig) <= 5


async def test_clock_that_is_set_before_a_crash_makes_no_event_older(rig: Rig) -> None:
    rig.metadata.says(SCHEDULED)
    async with running(rig):
        await live(rig, 0.5)
        rig.clock.jump(90)
        await live(rig, 2)

        assert (
            await age_in_the_next_life(rig) <= 5
        )  # without the last words of this one


async def test_clock_that_is_set_before_the_first_look_makes_no_event_older(
    rig: Rig,
) -> None:
    await rig.sees(SCHEDULED)
    later = await rig.restart()
    rig.clock.jump(90)
    await later.sees(SCHEDULED)

    (known,) = later.poller.watch.known.values()
    now = Moment(at=rig.clock.now(), monotonic=rig.clock.monotonic())
    assert known.age(now) <= 5


async def test_clock_that_is_set_while_imds_is_away_makes_no_event_older(
    rig: Rig,
) -> None:
    rig.metadata.says(SCHEDULED)
    async with running(rig):
        await live(rig, 0.5)
        rig.metadata.fails(unavailable())
        await live(rig, 2)
        rig.clock.jump(90)
        await live(rig, 12)

        rig.metadata.answers.clear()
        assert await age_in_the_next_life(rig) <= 20


# -- patience ------------------------------------------------------------------


async def test_first_request_may_take_two_minutes(rig: Rig) -> None:
    await rig.fails(unavailable(), unavailable())
    await rig.sees(EMPTY, EMPTY)

    assert timeouts(rig) == [130, 130, 130, 5]


async def test_request_after_three_time_outs_in_a_row_may_take_two_minutes(
    rig: Rig,
) -> None:
    await rig.sees(EMPTY)
    await rig.fails(*[TIMEOUT] * 5)
    await rig.sees(EMPTY, EMPTY)

    assert timeouts(rig) == [130, 5, 5, 5, 130, 130, 130, 5]


async def test_other_failure_in_between_begins_the_count_of_time_outs_anew(
    rig: Rig,
) -> None:
    await rig.sees(EMPTY)
    await rig.fails(TIMEOUT, TIMEOUT, unavailable(), TIMEOUT, TIMEOUT, TIMEOUT)

    assert timeouts(rig)[1:] == [5] * 6


# -- the document that says nothing ----------------------------------------------


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>", b'{"Events": 1}'])
async def test_malformed_document_changes_nothing(rig: Rig, body: bytes) -> None:
    await rig.sees(EMPTY, SCHEDULED)
    before = (rig.observer.watch, rig.observer.document, rig.poller.last_success)

    await rig.sees(body)

    assert (
        rig.observer.watch,
        rig.observer.document,
        rig.poller.last_success,
    ) == before
    assert await rig.published() == ["scheduled"]
    assert rig.poller.imds_state == "malformed"


async def test_malformed_document_does_not_become_what_the_next_is_compared_with(
    rig: Rig,
) -> None:
    await rig.sees(SCHEDULED, etag="1")
    await rig.sees(b"{}", etag="bad")
    await rig.sees(None, etag="1")

    assert etags(rig) == [None, "1", "1"]
    assert rig.poller.imds_state == "ok"


async def test_malformed_document_is_logged_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.sees(*[b"{}"] * 121)

    assert len(caplog.records) == 3
    assert {r.message for r in caplog.records} == {"no document from IMDS"}
    assert {r.levelname for r in caplog.records} == {"ERROR"}
    assert caplog.records[0].__dict__["fault"] == "the document has no Events array"


async def test_graver_trouble_is_logged_at_once_and_then_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.fails(unavailable(), unavailable())
    for _ in range(29):
        await rig.sees(b"{}")
        await rig.fails(unavailable())

    assert [r.levelname for r in caplog.records] == ["WARNING", "ERROR"]


async def test_trouble_that_comes_again_is_logged_by_its_own_gravity(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.sees(b"{}", EMPTY)
    await rig.fails(unavailable())
    await rig.sees(b"{}")

    assert [r.levelname for r in caplog.records] == ["ERROR", "WARNING", "ERROR"]


async def test_new_trouble_after_a_good_document_is_logged_at_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.sees(b"{}", EMPTY, b"{}")

    assert len(caplog.records) == 2


async def test_refusal_is_an_error_in_the_log_each_time(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.fails(refused("403"), refused("400"))

    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    assert rig.poller.imds_state == "400"


async def test_end_of_trouble_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await rig.fails(unavailable(), unavailable())
    await rig.sees(EMPTY, EMPTY)

    (record,) = [r for r in caplog.records if r.message == "IMDS answers again"]
    assert record.__dict__["failures"] == 2


# -- fresh looks ---------------------------------------------------------------


class Askers:
    """Requests that need a fresh look, and nothing else."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.waiting = list[tuple[int, asyncio.Future[Look]]]()

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def turn(self, look: Look | None) -> Need:
        if look is not None:
            for after, one in self.waiting:
                if look.number > after and not one.done():
                    one.set_result(look)
            self.waiting = [(n, one) for n, one in self.waiting if not one.done()]
        return Need(look=bool(self.waiting))

    def begin(self) -> None:
        raise AssertionError

    def answered(self, answer: object) -> None:
        raise AssertionError(answer)

    def failed(self, error: MetadataError, began: float) -> None:
        waiting, self.waiting = self.waiting, []
        for _, one in waiting:
            if not one.done():
                one.set_exception(error)

    def end_late(self, began: float = 0.0) -> float:
        return float("inf")

    def close(self) -> None:
        self.failed(
            MetadataUnavailableError("the bridge is stopping", outcome="stopping"), 0.0
        )


async def fresh(poller: Poller) -> Look:
    """Return the next look that a request has asked for."""
    if poller.is_over:
        raise unavailable("stopping")
    if not isinstance(poller.requests, Askers):
        poller.requests = Askers(poller)
    one: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
    poller.requests.waiting.append((poller.reads, one))
    poller.wake.set()
    return await one


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[asyncio.Event]:
    """Let the poller run; time is moved by ``live``."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.poller.run(stop))
        await settled(rig.outbox)
        yield stop
        stop.set()


async def live(rig: Rig, seconds: float, step: float = 0.25) -> None:
    for _ in range(round(seconds / step)):
        await rig.clock.advance(step)
        await settled(rig.outbox)


def keep_distance(rig: Rig) -> None:
    """Let the loop keep the least time between two requests, as it does on a VM."""
    rig.poller, _ = observed(
        rig.metadata,
        rig.outbox,
        rig.event_context,
        rig.clock,
        rig.metrics,
        spacing=LEAST_INTERVAL,
    )


async def test_idle_loop_wakes_up_once_for_each_request(rig: Rig) -> None:
    rig.metadata.says(EMPTY)
    keep_distance(rig)
    async with running(rig):
        await live(rig, 9.5)

    assert len(rig.metadata.asked) == 10
    assert len(rig.clock.waits) == 10  # an idle VM pays for each time it wakes up


async def test_requests_are_a_quarter_of_a_second_apart(rig: Rig) -> None:
    rig.metadata.says(EMPTY)
    keep_distance(rig)
    async with running(rig), asyncio.TaskGroup() as group:
        await rig.clock.advance(0.1)
        look = group.create_task(fresh(rig.poller))
        await rig.clock.advance(0.14)
        assert len(rig.metadata.asked) == 1
        await rig.clock.advance(0.01)
        assert len(rig.metadata.asked) == 2
        await settled(rig.outbox)
        assert (await look).began == pytest.approx(rig.clock.monotonic())


async def test_fresh_look_is_shared_by_all_that_wait(rig: Rig) -> None:
    rig.metadata.says(EMPTY)
    async with running(rig), asyncio.TaskGroup() as group:
        before = len(rig.metadata.asked)
        looks = [group.create_task(fresh(rig.poller)) for _ in range(5)]
        await settled(rig.outbox)

        assert len(rig.metadata.asked) == before + 1
        assert len({id(await look) for look in looks}) == 1


async def test_fresh_look_does_not_wait_for_the_interval(rig: Rig) -> None:
    configured(rig, poll_interval=3600)
    rig.metadata.says(EMPTY, SCHEDULED)
    async with running(rig), asyncio.TaskGroup() as group:
        look = group.create_task(fresh(rig.poller))
        await settled(rig.outbox)

        assert look.done()
    assert await rig.published() == ["scheduled"]


async def test_fresh_look_shows_what_is_committed_already(rig: Rig) -> None:
    rig.metadata.says(SCHEDULED)
    async with running(rig), asyncio.TaskGroup() as group:
        look = await group.create_task(fresh(rig.poller))

    assert EVENT_ID in look.document.events
    assert look.watch == rig.observer.watch
    assert await rig.published() == ["scheduled"]


@pytest.mark.parametrize("ahead", [None, timedelta(hours=2)])
async def test_fresh_look_tells_the_time_of_imds_else_of_the_clock(
    rig: Rig, ahead: timedelta | None
) -> None:
    date = None if ahead is None else START + ahead
    rig.metadata.says(EMPTY, date=date)
    async with running(rig), asyncio.TaskGroup() as group:
        look = await group.create_task(fresh(rig.poller))

    assert look.now == START + (ahead or timedelta())


async def test_fresh_look_that_fails_fails_for_all_that_wait(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(outcome_of(rig.poller)) for _ in range(3)]
        await turns()
        await rig.fails(unavailable("429"))

    assert [await look for look in looks] == ["429"] * 3


async def outcome_of(poller: Poller) -> str:
    try:
        await fresh(poller)
    except MetadataError as error:
        return error.outcome
    return "ok"


@pytest.mark.parametrize("is_good", [True, False])
async def test_caller_that_gave_up_waiting_disturbs_nobody(
    rig: Rig, *, is_good: bool
) -> None:
    gone = asyncio.ensure_future(outcome_of(rig.poller))
    stays = asyncio.ensure_future(outcome_of(rig.poller))
    await turns()
    gone.cancel()
    await turns()

    await (rig.sees(EMPTY) if is_good else rig.fails(unavailable("429")))

    assert await stays == ("ok" if is_good else "429")


async def test_those_who_wait_are_told_when_the_bridge_stops(rig: Rig) -> None:
    rig.metadata.says(EMPTY)
    rig.metadata.gate = asyncio.Event()
    async with running(rig) as stop:
        waiting = asyncio.ensure_future(outcome_of(rig.poller))
        await turns()
        stop.set()
        await turns()
        rig.metadata.gate.set()
        await settled(rig.outbox)

    assert await waiting == "stopping"
    assert await outcome_of(rig.poller) == "stopping", "and who asks later, too"


async def test_caller_that_gave_up_is_not_told_of_the_stop(rig: Rig) -> None:
    rig.metadata.says(EMPTY)
    rig.metadata.gate = asyncio.Event()
    async with running(rig) as stop:
        gone = asyncio.ensure_future(outcome_of(rig.poller))
        await turns()
        gone.cancel()
        stop.set()
        await turns()
        rig.metadata.gate.set()

    assert gone.cancelled()


# -- the pace ------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0.25, 1.0, 2.0])
async def test_document_is_read_once_per_interval(rig: Rig, interval: float) -> None:
    configured(rig, poll_interval=interval)
    rig.metadata.says(EMPTY)
    async with running(rig):
        await live(rig, 10)

    assert len(rig.metadata.asked) == 1 + 10 / interval


async def times_of(rig: Rig, seconds: float) -> list[float]:
    """Return when requests were made, in seconds since the start."""
    found: list[float] = []
    async with running(rig):
        for tick in range(int(seconds) + 1):
            new = len(rig.metadata.asked) - len(found)
            found += [tick] * new
            await live(rig, 1, step=1)
    return found


async def test_limits_of_imds_are_followed_by_longer_and_longer_waits(
    rig: Rig,
) -> None:
    rig.metadata.fails(unavailable("429"))

    assert await times_of(rig, 50) == [0, 1, 3, 7, 15, 25, 35, 45]


async def test_other_failures_are_followed_by_short_waits(rig: Rig) -> None:
    """A Spot eviction is announced 30 s before: an IMDS that is back is seen soon."""
    rig.metadata.fails(unavailable())

    assert await times_of(rig, 12) == [0, 1, 3, 5, 7, 9, 11]


async def test_failure_is_followed_by_a_short_wait_with_a_long_interval_too(
    rig: Rig,
) -> None:
    configured(rig, poll_interval=10)
    rig.metadata.fails(unavailable("500"))
    rig.metadata.says(b"garbage", EMPTY)

    assert await times_of(rig, 15) == [0, 2, 4, 14]


async def test_good_answer_brings_the_pace_back(rig: Rig) -> None:
    rig.metadata.fails(unavailable(), unavailable(), unavailable())
    rig.metadata.says(EMPTY)

    assert await times_of(rig, 10) == [0, 1, 3, 5, 6, 7, 8, 9, 10]


async def test_wish_of_imds_to_be_left_alone_has_its_limit(rig: Rig) -> None:
    rig.metadata.fails(unavailable("429", 86_400))
    rig.metadata.says(EMPTY)

    assert await times_of(rig, 301) == [0, 300, 301]


async def test_wish_of_imds_is_obeyed_when_longer(rig: Rig) -> None:
    rig.metadata.fails(unavailable("429", 7), unavailable("429", 0.5))
    rig.metadata.says(EMPTY)

    assert await times_of(rig, 11) == [0, 7, 9, 10, 11]


@pytest.mark.parametrize("status", ["400", "403"])
async def test_refusals_are_followed_by_waits_of_up_to_a_minute(
    rig: Rig, status: str
) -> None:
    """One stray answer must not cost the half minute that a notice may have."""
    rig.metadata.fails(refused(status))

    assert await times_of(rig, 190) == [0, 1, 3, 7, 15, 31, 63, 123, 183]


async def test_refusal_after_an_outage_costs_no_more_than_any_other(rig: Rig) -> None:
    rig.metadata.fails(*[unavailable()] * 5, refused("400"), unavailable())
    rig.metadata.says(EMPTY)

    assert await times_of(rig, 13) == [0, 1, 3, 5, 7, 9, 10, 12, 13]


async def asked_after(rig: Rig, seconds: float, error: MetadataError) -> list[float]:
    """Return when requests were made if somebody needs a fresh look after a failure."""
    found = list[float]()
    rig.metadata.fails(refused("403"), refused("403"), refused("403"), error)
    rig.metadata.says(EMPTY)
    async with running(rig):
        await live(rig, 7)
        count = len(rig.metadata.asked)
        await live(rig, seconds)
        look = asyncio.ensure_future(outcome_of(rig.poller))
        for tick in range(20):
            found += [tick] * (len(rig.metadata.asked) - count)
            count = len(rig.metadata.asked)
            await live(rig, 1, step=1)
        await look
    return found


async def test_approval_that_waits_cuts_a_long_wait_short(rig: Rig) -> None:
    times = await asked_after(rig, 3, refused("403"))

    assert times[0] <= 1


async def test_approval_that_waits_does_not_make_failures_follow_at_once(
    rig: Rig,
) -> None:
    times = await asked_after(rig, 0, refused("403"))

    assert times[0] == 1


async def test_approval_that_waits_does_not_cut_short_what_imds_asked_for(
    rig: Rig,
) -> None:
    times = await asked_after(rig, 3, unavailable("429", 10))

    assert times[0] >= 7


async def test_document_that_finds_no_room_is_published_later(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    full = FullOutbox(rig.outbox)
    rig.observer.outbox, full.is_full = full, True
    rig.metadata.says(SCHEDULED)
    await rig.poller.step()
    assert rig.poller.imds_state == "no-room"
    assert "no document" in caplog.text
    full.is_full = False

    await rig.poller.step()

    assert await rig.published() == ["scheduled"]


async def test_malformed_document_does_not_slow_the_pace(rig: Rig) -> None:
    rig.metadata.says(b"{}")

    assert await times_of(rig, 5) == [0, 1, 2, 3, 4, 5]


async def test_stop_ends_the_wait_of_the_interval(rig: Rig) -> None:
    configured(rig, poll_interval=3600)
    rig.metadata.says(EMPTY)
    async with running(rig):
        pass

    assert len(rig.metadata.asked) == 1


async def test_stop_ends_the_wait_after_a_failure(rig: Rig) -> None:
    rig.metadata.fails(refused("403"))
    async with running(rig):
        pass

    assert len(rig.metadata.asked) == 1


async def test_last_look_is_kept_at_the_stop(rig: Rig) -> None:
    rig.metadata.says(SCHEDULED)
    async with running(rig):
        await live(rig, 30, step=1)
    later = await rig.restart()

    seen = later.observer.watch.seen
    assert seen is not None
    assert seen.at == START + timedelta(seconds=30)


async def test_last_look_is_kept_once_a_minute(rig: Rig) -> None:
    rig.metadata.says(SCHEDULED)
    async with running(rig):
        await live(rig, 100, step=1)
        later = await rig.restart()

    seen = later.observer.watch.seen
    assert seen is not None
    assert (
        timedelta(0) <= seen.at - START - timedelta(seconds=60) < timedelta(seconds=5)
    )


async def test_stop_before_any_document_keeps_nothing(rig: Rig) -> None:
    rig.metadata.fails(unavailable())
    async with running(rig):
        pass
    later = await rig.restart()

    assert later.observer.watch.seen is None


# -- how IMDS stands -----------------------------------------------------------


async def test_imds_is_starting_until_it_has_answered(rig: Rig) -> None:
    assert rig.poller.imds_state == "starting"
    await rig.sees(EMPTY)
    assert rig.poller.imds_state == "ok"
    await rig.fails(unavailable("410"))
    assert rig.poller.imds_state == "410"


@pytest.mark.parametrize(
    ("interval", "limit"), [(1.0, 30), (10.0, 30), (20.0, 60), (0.25, 30)]
)
async def test_imds_is_overdue_after_three_polls_or_half_a_minute(
    rig: Rig, interval: float, limit: float
) -> None:
    configured(rig, poll_interval=interval)
    assert rig.poller.is_overdue(), "nothing was ever read"
    await rig.sees(EMPTY)
    rig.clock.pass_by(limit - 1)
    assert not rig.poller.is_overdue()

    rig.clock.pass_by(1)

    assert rig.poller.is_overdue()


async def test_pause_of_the_vm_is_no_failure_of_imds(rig: Rig) -> None:
    """Nothing was read for long, and one read may have been cut by the pause."""
    await rig.sees(EMPTY)
    rig.clock.pass_by(300)
    assert not rig.poller.is_unreachable()

    await rig.fails(unavailable("timeout"))
    assert not rig.poller.is_unreachable()
    await rig.fails(unavailable("timeout"))
    assert rig.poller.is_unreachable()
    await rig.sees(EMPTY)
    assert not rig.poller.is_unreachable()


async def test_imds_is_not_unreachable_during_the_patient_first_request(
    rig: Rig,
) -> None:
    rig.clock.pass_by(130)
    assert not rig.poller.is_unreachable()

    rig.clock.pass_by(1)

    assert rig.poller.is_unreachable()


@pytest.mark.parametrize("jump", [-86400, 86400])
async def test_clock_that_jumps_makes_nothing_overdue(rig: Rig, jump: float) -> None:
    await rig.sees(EMPTY)
    rig.clock.jump(jump)

    assert not rig.poller.is_overdue()


# -- what is measured ----------------------------------------------------------


def sample(rig: Rig, name: str, **labels: str) -> float | None:
    found: float | None = rig.metrics.registry.get_sample_value(
        f"sebridge_{name}", labels
    )
    return found


async def test_transitions_are_counted(rig: Rig) -> None:
    await rig.sees(EMPTY, SCHEDULED, STARTED)

    for step in ("scheduled", "started"):
        labels = {"transition": step, "event_type": "Freeze"}
        assert sample(rig, "transitions_total", **labels) == 1


async def test_unknown_types_are_counted_as_other(rig: Rig) -> None:
    odd = imds_event(EventType="Melt\n", EventStatus="Odd")
    await rig.sees(body_of(odd, incarnation=2))

    labels = {"event_type": "other", "event_status": "other"}
    assert sample(rig, "scheduled_events", **labels) == 1


async def test_events_that_are_gone_are_no_longer_measured(rig: Rig) -> None:
    labels = {"event_type": "Freeze", "event_status": "Scheduled"}
    await rig.sees(SCHEDULED)
    assert sample(rig, "scheduled_events", **labels) == 1
    assert sample(rig, "document_incarnation") == 2

    await rig.sees(body_of(incarnation=None))

    assert sample(rig, "scheduled_events", **labels) is None
    assert sample(rig, "document_incarnation") == 2


async def test_time_of_the_last_answer_is_measured(rig: Rig) -> None:
    await rig.sees(EMPTY)
    await rig.fails(unavailable())

    assert sample(rig, "imds_last_success_timestamp_seconds") == START.timestamp()

"""The relay against the real outbox: what a sink answers, and what follows from it."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import (
    NotSentError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.pace import RetryPolicy
from bridge.outbox.admin import as_json
from bridge.outbox.questions import Selection
from bridge.outbox.records import Delivery, Tally, not_stored
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy, is_urgent
from bridge.pipeline.relay import Deliver, Relay
from bridge.telemetry.metrics import FAILURES, Metrics
from tests.support.book import Book
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.fakes import START, FakeClock, RecordingSink, settled, turns

BUSY = TransientDeliveryError("siem answered 503", Reason.SERVER)
REFUSED = RefusedDeliveryError("siem answered 401", Reason.UNAUTHORIZED)
SLOW_DOWN = TransientDeliveryError("siem answered 429", Reason.THROTTLED)
UNFORESEEN = TransientDeliveryError("siem failed oddly", Reason.UNFORESEEN)
BAD = PermanentDeliveryError("siem answered 400", Reason.REJECTED)


def throttled(seconds: float) -> TransientDeliveryError:
    return TransientDeliveryError(
        "siem answered 429", Reason.THROTTLED, retry_after=seconds
    )


def soon(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Rig:
    """A relay, its sink and its outbox, moved by hand.

    ``pass_by`` lets time pass as the loop of the relay would: it looks again
    whenever the wait it asked for is over.
    """

    outbox: Outbox
    clock: FakeClock
    sink: RecordingSink
    metrics: Metrics
    relay: Relay
    group: asyncio.TaskGroup
    wait: float = 0.0
    looks_at: float = 0.0

    async def put(self, *events: OutgoingEvent) -> None:
        await self.outbox.commit(events, now=self.clock.now().timestamp())

    async def look(self) -> None:
        """Look until nothing more happens by itself."""
        news = self.outbox.wakeups.of(SINK)
        news.set()
        while news.is_set():
            self.wait = await self.relay.step(self.group)
            await settled(self.outbox)
        self.looks_at = self.clock.monotonic() + max(self.wait, 0.001)

    async def pass_by(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.looks_at <= end:
            self.clock.pass_by(max(0.0, self.looks_at - self.clock.monotonic()))
            await self.look()
        self.clock.pass_by(end - self.clock.monotonic())

    @property
    async def tally(self) -> Tally:
        return (await self.outbox.deliveries.tallies())[SINK]

    def count(self, outcome: str) -> float:
        return self.sample("deliveries_total", outcome=outcome)

    def failures(self) -> dict[str, float]:
        """Return how many attempts failed, by reason."""
        name = "delivery_failures_total"
        found = {reason: self.sample(name, reason=reason) for reason in FAILURES}
        return {reason: count for reason, count in found.items() if count}

    def sample(self, name: str, **labels: str) -> float:
        """Return a metric of the sink."""
        found = self.metrics.registry.get_sample_value(
            f"sebridge_{name}", {"sink": SINK, **labels}
        )
        assert found is not None, name
        return found


def relay_of(  # noqa: PLR0913 - each is one thing a test varies
    outbox: Outbox,
    deliver: Deliver | None = None,
    *,
    clock: FakeClock | None = None,
    chance: Callable[[], float] = lambda: 1.0,
    policy: RelayPolicy | None = None,
    repeats: bool = False,
) -> Relay:
    return Relay(
        sink=SINK,
        deliver=deliver or RecordingSink(),
        outbox=outbox,
        clock=clock or FakeClock(),
        metrics=Metrics([SINK], "1"),
        policy=policy or policy_of(),
        chance=chance,
        repeats=repeats,
    )


def policy_of(
    *, slots: int = 4, max_age: float = 86400, max_backoff: float = 60
) -> RelayPolicy:
    backoff = RetryPolicy(max_backoff=max_backoff)
    return RelayPolicy(backoff=backoff, max_age=max_age, slots=slots)


@asynccontextmanager
async def rig_of(  # noqa: PLR0913 - each is one thing a test varies
    outbox: Outbox,
    *,
    slots: int = 4,
    max_age: float = 86400,
    max_backoff: float = 60,
    chance: Callable[[], float] = lambda: 1.0,
    policy: RelayPolicy | None = None,
) -> AsyncIterator[Rig]:
    sink, clock = RecordingSink(), FakeClock()
    given = policy_of(slots=slots, max_age=max_age, max_backoff=max_backoff)
    relay = relay_of(outbox, sink, clock=clock, chance=chance, policy=policy or given)
    async with asyncio.TaskGroup() as group:
        yield Rig(outbox, clock, sink, relay.metrics, relay, group)
        for gate in sink.gates.values():
            gate.set()


@pytest.fixture
async def rig(outbox: Outbox) -> AsyncIterator[Rig]:
    async with rig_of(outbox) as found:
        yield found


def names(deliveries: Sequence[Delivery]) -> list[str | None]:
    return [delivery.cloud_event_id for delivery in deliveries]


# -- what a sink answers -------------------------------------------------------


async def test_delivery_that_is_taken_is_settled(rig: Rig) -> None:
    await rig.put(outgoing("1"))
    await rig.look()

    assert names(rig.sink.taken) == ["1"]
    assert (await rig.tally).delivered == 1
    assert rig.count("delivered") == 1
    assert (rig.relay.state, rig.relay.last_error) == ("ok", None)


async def test_transient_failure_is_tried_again(rig: Rig) -> None:
    rig.sink.faults.append(BUSY)
    await rig.put(outgoing("1"))
    await rig.look()
    assert (rig.relay.state, rig.relay.last_error) == ("retrying", str(BUSY))
    assert rig.count("postponed") == 1

    await rig.pass_by(1)

    assert names(rig.sink.taken) == ["1"]
    assert rig.relay.state == "ok"


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        (Reason.UNAUTHORIZED, "auth"),
        (Reason.THROTTLED, "rate-limited"),
        (Reason.NOT_FOUND, "not-found"),
        (Reason.REJECTED, "client-error"),
        (Reason.REDIRECTED, "client-error"),
        (Reason.TOO_LARGE, "too-large"),
        (Reason.SERVER, "server-error"),
        (Reason.CONNECTION, "unreachable"),
        (Reason.TIMEOUT, "timeout"),
        (Reason.UNFORESEEN, "other"),
    ],
)
async def test_each_attempt_that_fails_is_counted_with_its_reason(
    rig: Rig, reason: Reason, label: str
) -> None:
    rig.sink.faults += [TransientDeliveryError("no", reason)] * 2
    await rig.put(outgoing("1"))
    await rig.look()

    await rig.pass_by(10)

    assert rig.failures() == {label: 2}


async def test_failure_that_no_sink_should_raise_is_counted(rig: Rig) -> None:
    rig.sink.faults.append(KeyError("x"))
    await rig.put(outgoing("1"))

    await rig.look()

    assert rig.failures() == {"other": 1}


async def test_heartbeat_that_fails_is_counted(rig: Rig) -> None:
    rig.sink.faults.append(BUSY)
    rig.relay.offer(heartbeat("h1"))

    await rig.look()

    assert rig.failures() == {"server-error": 1}


async def test_permanent_failure_is_a_dead_letter_at_once(rig: Rig) -> None:
    rig.sink.faults.append(BAD)
    await rig.put(outgoing("1"), outgoing("2"))
    await rig.look()
    await rig.pass_by(3600)

    assert names(rig.sink.tried) == ["1", "2"]
    tally = await rig.tally
    assert (tally.dead, tally.delivered) == (1, 1)
    assert tally.last_error == str(BAD)
    assert rig.count("dead") == 1


async def test_sink_that_does_not_answer_is_cut_off_and_tried_again(
    outbox: Outbox,
) -> None:
    """asyncio's own time-out, raised by the sink: no DeliveryError, yet no bug."""
    async with rig_of(outbox) as rig:
        rig.sink.faults.append(TimeoutError())
        await rig.put(outgoing("1"))
        await rig.look()

        assert rig.relay.last_error == "no answer within 60 s"
        await rig.pass_by(1)
        assert names(rig.sink.taken) == ["1"]


async def test_unforeseen_error_stops_nobody_and_is_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.sink.faults.append(KeyError("secret"))
    await rig.put(outgoing("1"), outgoing("2"))
    await rig.look()
    await rig.pass_by(2)

    assert sorted(map(str, names(rig.sink.taken))) == ["1", "2"]
    assert [r.message for r in caplog.records if r.exc_info] == [
        "sink raised an unexpected error"
    ]


async def test_unforeseen_error_at_each_of_ten_attempts_is_a_dead_letter(
    rig: Rig,
) -> None:
    rig.sink.always = KeyError("x")
    await rig.put(outgoing("1"))
    await rig.look()
    await rig.pass_by(3600)

    assert len(rig.sink.tried) == 10
    tally = await rig.tally
    assert (tally.dead, tally.last_error) == (1, "unforeseen: KeyError")


# -- backoff -------------------------------------------------------------------


async def test_backoff_doubles_up_to_its_limit(rig: Rig) -> None:
    """Of a sink that is there and not busy; see ``test_relay_recovery``."""
    rig.sink.always = UNFORESEEN
    await rig.put(outgoing("1"))
    await rig.look()
    dues = []
    for _ in range(9):
        before = rig.clock.monotonic()
        await rig.pass_by(rig.wait)
        dues.append(rig.clock.monotonic() - before)

    assert dues == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60], abs=0.01)


async def test_backoff_is_jittered_by_chance(outbox: Outbox) -> None:
    async with rig_of(outbox, chance=lambda: 0.25) as rig:
        rig.sink.always = BUSY
        await rig.put(outgoing("1"))
        await rig.look()

        assert rig.wait == pytest.approx(0.25)


@settings(max_examples=15)
@given(
    notice=st.floats(1, 899),
    chances=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=10),
)
async def test_urgent_backoff_is_at_most_a_quarter_of_the_notice(
    tmp_path_factory: pytest.TempPathFactory, notice: float, chances: list[float]
) -> None:
    path = tmp_path_factory.mktemp("outbox") / "state.db"
    chance = itertools.cycle(chances).__next__
    async with (
        patient_outbox(path, router()) as outbox,
        rig_of(outbox, chance=chance) as rig,
    ):
        rig.sink.always = BUSY
        await rig.put(outgoing("1", not_before=soon(notice)))
        for _ in range(8):
            await rig.look()
            left = START.timestamp() + notice - rig.clock.now().timestamp()

            assert 0 <= rig.wait <= max(left / 4, 0.1) + 1e-6
            rig.clock.pass_by(rig.wait)


async def test_urgent_one_is_not_tried_without_end_as_its_notice_runs_out(
    outbox: Outbox,
) -> None:
    """A quarter of what is left, again and again, comes to no end."""
    async with rig_of(outbox, chance=lambda: 0.0) as rig:
        rig.sink.always = BUSY
        await rig.put(outgoing("1", not_before=soon(1.0)))
        for _ in range(30):
            await rig.look()
            rig.clock.pass_by(max(rig.wait, 0.001))

        assert rig.clock.now().timestamp() >= START.timestamp() + 1.0


async def test_urgent_one_is_tried_again_on_time_beside_a_hanging_one(
    rig: Rig,
) -> None:
    """Thirty seconds of notice must not pass behind somebody else's time-out."""
    rig.sink.gate("slow")
    await rig.put(outgoing("slow"))
    await rig.look()
    rig.sink.faults.append(BUSY)
    await rig.put(outgoing("preempt", not_before=soon(30)))
    await rig.look()

    await rig.pass_by(2)

    assert names(rig.sink.taken) == ["preempt"]


async def test_ordinary_one_is_tried_again_on_time_beside_a_hanging_one(
    rig: Rig,
) -> None:
    rig.sink.gate("slow")
    rig.sink.faults.extend([None, BUSY])
    await rig.put(outgoing("slow"), outgoing("1"))
    await rig.look()

    await rig.pass_by(2)

    assert names(rig.sink.taken) == ["1"]


# -- Retry-After ---------------------------------------------------------------


async def test_retry_after_holds_all_that_is_not_urgent(rig: Rig) -> None:
    rig.sink.faults.append(throttled(120))
    await rig.put(outgoing("1"))
    await rig.look()
    await rig.put(outgoing("2"))
    await rig.look()
    await rig.pass_by(119)
    assert names(rig.sink.tried) == ["1"]

    await rig.pass_by(1)

    assert sorted(map(str, names(rig.sink.taken))) == ["1", "2"]


async def test_retry_after_does_not_hold_urgent_ones(rig: Rig) -> None:
    rig.sink.faults.append(throttled(120))
    await rig.put(outgoing("1"))
    await rig.look()

    await rig.put(outgoing("2", not_before=soon(60)))
    await rig.pass_by(1)  # a busy sink is tried once a second

    assert names(rig.sink.taken) == ["2"]


@pytest.mark.parametrize("wish", [1e12, float("inf")])
async def test_no_wish_of_a_sink_lasts_longer_than_an_hour(
    rig: Rig, wish: float
) -> None:
    """Nor is the moment it ends beyond the calendar."""
    rig.sink.faults.append(throttled(wish))
    await rig.put(outgoing("1"))
    await rig.look()
    (waiting,) = await Book(rig.outbox).find(Selection())
    assert as_json(waiting)["nextAttempt"] == "2026-03-02T13:00:00Z"

    rig.clock.pass_by(3600)
    await rig.look()

    assert names(rig.sink.taken) == ["1"]


async def test_shorter_retry_after_does_not_end_a_longer_one(rig: Rig) -> None:
    rig.sink.faults.extend([throttled(120), throttled(1)])
    await rig.put(outgoing("1"), outgoing("2"))
    await rig.look()
    await rig.put(outgoing("3"))

    await rig.pass_by(119)

    assert "3" not in rig.sink.tried_ids


async def test_success_that_was_under_way_does_not_end_the_hold(rig: Rig) -> None:
    gate = rig.sink.gate("1")
    rig.sink.faults.extend([None, throttled(120)])
    await rig.put(outgoing("1"), outgoing("2"))
    await rig.look()
    gate.set()
    await rig.put(outgoing("3"))
    await rig.look()

    assert names(rig.sink.taken) == ["1"]
    await rig.pass_by(120)
    assert "3" in names(rig.sink.taken)


@pytest.mark.parametrize("wish", [10, 25, 100, 86400])
async def test_urgent_one_is_tried_twice_before_not_before_whatever_the_sink_wishes(
    rig: Rig, wish: float
) -> None:
    rig.sink.always = throttled(wish)
    await rig.put(outgoing("1", not_before=soon(30)))
    await rig.look()

    await rig.pass_by(29.9)

    assert len(rig.sink.tried) >= 2


@pytest.mark.parametrize(
    ("notice", "second"),
    [(600, 300), (30, 15), (12, 6), (8, 3), (6, 1)],
    ids=lambda seconds: f"{seconds}s",
)
async def test_second_try_against_a_wish_comes_at_half_of_the_notice(
    rig: Rig, notice: float, second: float
) -> None:
    """Neither at once, when the sink has hardly rested, nor in the last 5 s."""
    rig.sink.faults.append(throttled(600))
    await rig.put(outgoing("1", not_before=soon(notice)))
    await rig.look()
    await rig.pass_by(second - 0.2)
    assert len(rig.sink.tried) == 1

    await rig.pass_by(0.4)

    assert names(rig.sink.taken) == ["1"]


async def test_second_try_against_a_wish_is_not_put_off_in_the_last_seconds(
    rig: Rig,
) -> None:
    rig.sink.faults.append(throttled(600))
    await rig.put(outgoing("1", not_before=soon(4)))
    await rig.look()

    await rig.pass_by(1.1)

    assert names(rig.sink.taken) == ["1"]


async def test_wish_that_ends_in_the_last_seconds_of_a_notice_is_not_obeyed(
    rig: Rig,
) -> None:
    rig.sink.faults.append(throttled(7))
    await rig.put(outgoing("1", not_before=soon(10)))
    await rig.look()

    await rig.pass_by(5.1)

    assert names(rig.sink.taken) == ["1"]


async def test_urgent_one_that_was_tried_twice_obeys_any_wish(rig: Rig) -> None:
    rig.sink.always = throttled(3600)
    await rig.put(outgoing("1", not_before=soon(600)))
    await rig.look()

    await rig.pass_by(3600)

    assert len(rig.sink.tried) == 2


async def test_urgent_one_obeys_a_wish_that_leaves_time_enough(rig: Rig) -> None:
    rig.sink.faults.append(throttled(20))
    await rig.put(outgoing("1", not_before=soon(30)))
    await rig.look()
    await rig.pass_by(19.9)
    assert len(rig.sink.tried) == 1

    await rig.pass_by(0.2)

    assert names(rig.sink.taken) == ["1"]


async def test_one_that_becomes_urgent_while_it_waits_is_tried_in_time(
    rig: Rig,
) -> None:
    """It was not urgent yet when the sink said that it wants an hour."""
    rig.sink.faults.append(throttled(3600))
    await rig.put(outgoing("1", not_before=soon(1200)))
    await rig.look()

    await rig.pass_by(1199)

    assert names(rig.sink.taken) == ["1"]


async def test_long_backoff_does_not_outlast_the_notice(outbox: Outbox) -> None:
    async with rig_of(outbox, max_backoff=7200) as rig:
        rig.sink.always = BUSY
        await rig.put(outgoing("1", not_before=soon(1200)))
        await rig.look()
        await rig.pass_by(1000)
        rig.sink.always = None

        await rig.pass_by(199)

        assert names(rig.sink.taken) == ["1"]


# -- age -----------------------------------------------------------------------


async def test_delivery_past_its_age_becomes_a_dead_letter(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=100) as rig:
        rig.sink.always = BUSY
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.pass_by(99)
        assert (await rig.tally).dead == 0

        await rig.pass_by(60)

        assert (await rig.tally).dead == 1
        assert rig.count("dead") == 1


async def test_delivery_is_never_given_up_before_three_attempts(
    outbox: Outbox,
) -> None:
    """However long it had to wait behind others until the first."""
    async with rig_of(outbox, max_age=60) as rig:
        rig.sink.always = BUSY
        await rig.look()
        await rig.put(outgoing("1"))
        rig.clock.pass_by(86400)
        await rig.look()
        await rig.pass_by(1)
        assert (len(rig.sink.tried), (await rig.tally).dead) == (2, 0)

        await rig.pass_by(2)

        assert (len(rig.sink.tried), (await rig.tally).dead) == (3, 1)


@pytest.mark.parametrize("trouble", [BUSY, REFUSED, TimeoutError()])
async def test_sink_that_was_down_for_ten_minutes_gets_everything_in_order(
    rig: Rig, trouble: Exception
) -> None:
    rig.sink.always = trouble
    for step in range(4):
        await rig.put(*(outgoing(f"{key}{step}", key=key) for key in "ABC"))
        await rig.pass_by(150)
    rig.sink.always = None

    await rig.pass_by(300)

    taken = [str(name) for name in names(rig.sink.taken)]
    assert sorted(taken) == sorted(f"{key}{n}" for key in "ABC" for n in range(4))
    assert all(
        [t for t in taken if t[0] == key] == [f"{key}{n}" for n in range(4)]
        for key in "ABC"
    )


# -- parking -------------------------------------------------------------------


async def refuse(rig: Rig, times: int = 3) -> None:
    """Let a delivery be refused so many times in a row."""
    rig.sink.faults.extend([REFUSED] * times)
    await rig.put(outgoing("0"))
    await rig.look()
    while rig.sink.faults:
        await rig.pass_by(rig.wait)


def parked(rig: Rig) -> float:
    return rig.sample("sink_parked")


async def test_three_refusals_in_a_row_park_the_sink(rig: Rig) -> None:
    await refuse(rig, 2)
    assert (rig.relay.state, parked(rig)) == ("retrying", 0)
    await rig.pass_by(rig.wait)
    assert rig.relay.state == "ok"

    await refuse(rig, 3)

    assert (rig.relay.state, parked(rig)) == ("parked", 1)
    assert (await rig.tally).dead == 0


@pytest.mark.parametrize("between", [BUSY, BAD, None])
async def test_anything_else_in_between_begins_the_count_anew(
    rig: Rig, between: Exception | None
) -> None:
    rig.sink.faults.extend([REFUSED, REFUSED, between, REFUSED, REFUSED])
    await rig.put(outgoing("1"), outgoing("2", key="K"), outgoing("3", key="K"))
    await rig.look()
    await rig.pass_by(30)

    assert not rig.sink.faults
    assert rig.relay.state != "parked"


async def test_refusals_of_attempts_made_at_once_count_as_one(rig: Rig) -> None:
    """An idle link's token has expired: four wait, and all four are refused by it."""
    rig.sink.faults.extend([REFUSED] * 4)
    await rig.put(*(outgoing(str(n)) for n in range(4)))
    await rig.look()
    assert rig.relay.state == "retrying"

    await rig.pass_by(2)

    assert len(rig.sink.taken) == 4


async def test_parked_sink_is_probed_with_one_delivery_now_and_then(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox, max_backoff=60, chance=lambda: 0.0) as rig:
        await refuse(rig)
        rig.sink.always = REFUSED
        await rig.put(outgoing("1"), outgoing("2"), outgoing("3"))
        await rig.look()
        before = len(rig.sink.tried)
        found = []
        for seconds in (59, 2, 118, 2, 238, 2, 298, 2, 298, 2):
            await rig.pass_by(seconds)
            found.append(len(rig.sink.tried) - before)

        assert found == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("max_backoff", "chance", "seconds"),
    [(60, 0.0, 60), (60, 0.5, 67.5), (290, 1.0, 300), (3600, 0.0, 300), (5, 0.0, 5)],
)
async def test_first_probe_comes_after_the_longest_backoff(
    outbox: Outbox, max_backoff: float, chance: float, seconds: float
) -> None:
    async with rig_of(outbox, max_backoff=max_backoff, chance=lambda: chance) as rig:
        await refuse(rig)
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.pass_by(seconds - 0.1)
        assert rig.relay.state == "parked"

        await rig.pass_by(0.2)

        assert rig.relay.state == "ok"


async def test_probe_that_meets_other_trouble_is_not_followed_by_the_next_at_once(
    rig: Rig,
) -> None:
    await refuse(rig)
    rig.sink.always = BUSY
    await rig.put(*(outgoing(str(n)) for n in range(1, 9)))
    before = len(rig.sink.tried)

    await rig.pass_by(310)

    assert len(rig.sink.tried) == before + 2  # one after a minute, one after two


async def test_parked_sink_that_is_busy_in_between_is_not_hammered_when_it_refuses(
    rig: Rig,
) -> None:
    await refuse(rig)
    rig.sink.faults.append(BUSY)
    rig.sink.always = REFUSED
    await rig.put(*(outgoing(str(n)) for n in range(1, 9)))
    await rig.pass_by(310)
    before = len(rig.sink.tried)

    await rig.pass_by(600)

    assert len(rig.sink.tried) == before + 2


async def test_parked_sink_that_takes_no_offence_but_at_one_event_is_probed_on(
    rig: Rig,
) -> None:
    await refuse(rig)
    rig.sink.faults.extend([BAD, BAD])
    await rig.put(*(outgoing(str(n)) for n in range(1, 5)))

    await rig.pass_by(310)

    assert rig.relay.state == "ok"
    assert (await rig.tally).dead == 2


async def test_first_success_opens_the_sink_again(rig: Rig) -> None:
    await refuse(rig)
    await rig.put(outgoing("1"), outgoing("2"), outgoing("3"))

    await rig.pass_by(301)

    assert sorted(map(str, names(rig.sink.taken))) == ["0", "1", "2", "3"]
    assert (rig.relay.state, parked(rig), rig.relay.last_error) == ("ok", 0, None)


async def test_urgent_one_is_tried_although_the_sink_is_parked(rig: Rig) -> None:
    await refuse(rig)

    await rig.put(outgoing("1", not_before=rig.clock.now() + timedelta(seconds=30)))
    await rig.look()

    assert names(rig.sink.taken)[0] == "1"


async def test_parked_sink_is_tried_with_an_urgent_one_twice_and_then_as_others(
    rig: Rig,
) -> None:
    await refuse(rig)
    rig.sink.always, tried = REFUSED, len(rig.sink.tried)
    await rig.put(outgoing("1", is_started=True))
    await rig.look()

    await rig.pass_by(59)

    assert rig.sink.tried_ids[tried:] == ["1", "1"]


async def test_waiting_for_a_person_does_not_count_as_age(outbox: Outbox) -> None:
    async with rig_of(outbox, max_age=60) as rig:
        rig.sink.always = REFUSED
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.pass_by(3600)

        assert len(rig.sink.tried) > 3
        assert (await rig.tally).dead == 0


# -- slots and order -----------------------------------------------------------


async def test_no_more_attempts_run_at_once_than_there_are_slots(rig: Rig) -> None:
    for n in range(9):
        rig.sink.gate(str(n))
    await rig.put(*(outgoing(str(n)) for n in range(9)))

    await rig.look()

    assert len(rig.sink.tried) == 4


async def test_next_attempt_begins_when_a_slot_is_free(rig: Rig) -> None:
    gates = [rig.sink.gate(str(n)) for n in range(9)]
    await rig.put(*(outgoing(str(n)) for n in range(9)))
    await rig.look()

    gates[0].set()
    await rig.look()

    assert len(rig.sink.tried) == 5


async def test_one_slot_is_kept_for_urgent_ones(rig: Rig) -> None:
    for n in range(4):
        rig.sink.gate(str(n))
    await rig.put(*(outgoing(str(n)) for n in range(5)))
    await rig.look()

    await rig.put(outgoing("x", not_before=soon(30)))
    await rig.look()

    assert names(rig.sink.taken) == ["x"]


async def test_urgent_and_ordinary_ones_together_take_one_slot_more_at_most(
    rig: Rig,
) -> None:
    for n in range(20):
        rig.sink.gate(str(n))
    urgent = [outgoing(str(n), not_before=soon(30)) for n in range(8)]
    await rig.put(*urgent, *(outgoing(str(n)) for n in range(8, 16)))

    await rig.look()

    assert len(rig.sink.tried) == 5


async def test_order_of_a_key_is_kept_while_other_keys_go_on(rig: Rig) -> None:
    gate = rig.sink.gate("K1")
    await rig.put(
        outgoing("K1", key="K"), outgoing("K2", key="K"), outgoing("L1", key="L")
    )
    await rig.put(outgoing("L2", key="L"))
    await rig.look()
    assert names(rig.sink.taken) == ["L1", "L2"]

    gate.set()
    await rig.look()

    assert names(rig.sink.taken) == ["L1", "L2", "K1", "K2"]


async def test_later_step_waits_for_an_earlier_one_that_fails(rig: Rig) -> None:
    rig.sink.faults.extend([BUSY, BUSY])
    await rig.put(outgoing("1", key="K"), outgoing("2", key="K"))
    await rig.look()
    await rig.pass_by(10)

    assert rig.sink.tried_ids == ["1", "1", "1", "2"]


async def test_delivery_in_flight_is_not_begun_twice(rig: Rig) -> None:
    rig.sink.gate("1")
    await rig.put(outgoing("1"))
    for _ in range(3):
        await rig.look()

    assert rig.sink.tried_ids == ["1"]


async def test_urgent_step_goes_at_once_when_the_one_before_it_is_taken(
    rig: Rig,
) -> None:
    """Not after the backlog that was due before it, behind a sink that hangs."""
    gates = {name: rig.sink.gate(name) for name in ("K1", *map(str, range(20)))}
    await rig.put(outgoing("K1", key="K"), *(outgoing(str(n)) for n in range(20)))
    async with running(rig):
        await rig.put(outgoing("K2", key="K", not_before=soon(30)))
        await settled(rig.outbox)
        gates["K1"].set()
        await settled(rig.outbox)

        assert "K2" in names(rig.sink.taken)


async def test_one_attempt_of_an_event_ends_before_the_next_step_begins(
    rig: Rig,
) -> None:
    """Also where a person gave up the first while it was under way."""
    gate = rig.sink.gate("K1")
    await rig.put(outgoing("K1", key="K"), outgoing("K2", key="K"))
    await rig.look()
    await Book(rig.outbox).discard(
        Selection(states=("pending",), id=1), now=rig.clock.now().timestamp()
    )
    await rig.look()
    assert rig.sink.tried_ids == ["K1"]

    gate.set()
    await rig.look()

    assert rig.sink.tried_ids == ["K1", "K2"]


async def test_large_backlog_is_drained_in_one_go(rig: Rig) -> None:
    await rig.put(*(outgoing(str(n)) for n in range(50)))

    await rig.look()

    assert len(rig.sink.taken) == 50


@pytest.mark.parametrize("slots", [1, 4, 16])
async def test_nothing_is_sent_twice_while_more_of_a_backlog_is_read(
    slots: int, outbox: Outbox
) -> None:
    """Attempts begin and end while the outbox is read; the sink answers at once."""
    async with rig_of(outbox, slots=slots) as rig:
        await rig.put(*(outgoing(str(n)) for n in range(400)))
        async with running(rig):
            async with asyncio.timeout(30):
                while len(set(rig.sink.tried_ids)) < 400:
                    await rig.clock.advance(0.01)
                    await rig.outbox.database.read(lambda _: None)

        assert sorted(int(one or -1) for one in rig.sink.tried_ids) == list(range(400))


async def test_success_in_a_backlog_waits_a_moment_for_others_to_be_recorded(
    rig: Rig,
) -> None:
    """Each transaction costs a write to the disk."""
    gates = {str(n): rig.sink.gate(str(n)) for n in range(30)}
    await rig.put(*(outgoing(name) for name in gates))
    await rig.look()

    gates["0"].set()
    await rig.look()
    before = (await rig.tally).delivered
    await rig.pass_by(0.02)

    assert (before, (await rig.tally).delivered) == (0, 1)
    assert rig.sample("delivery_seconds_sum") == pytest.approx(0.0, abs=0.001)


async def test_success_is_recorded_at_once_if_little_is_due(rig: Rig) -> None:
    gates = {str(n): rig.sink.gate(str(n)) for n in range(10)}
    await rig.put(*(outgoing(name) for name in gates))
    await rig.look()

    gates["0"].set()
    await rig.look()

    assert (await rig.tally).delivered == 1


async def test_success_in_a_backlog_is_recorded_at_once_when_it_stops(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox) as rig:
        gates = {str(n): rig.sink.gate(str(n)) for n in range(30)}
        await rig.put(*(outgoing(name) for name in gates))
        stop = asyncio.Event()
        running = asyncio.create_task(rig.relay.run(stop))
        await settled(outbox)
        stop.set()
        for gate in gates.values():
            gate.set()
        await running

        assert (await rig.tally).delivered == len(rig.sink.taken) == 4


# -- the clock -----------------------------------------------------------------


async def test_clock_set_back_does_not_delay_what_waits(rig: Rig) -> None:
    rig.sink.faults.append(BUSY)
    await rig.put(outgoing("1"))
    await rig.look()

    rig.clock.jump(-6 * 3600)
    await rig.pass_by(2)

    assert names(rig.sink.taken) == ["1"]


async def test_clock_set_back_does_not_delay_what_was_never_tried(rig: Rig) -> None:
    await rig.look()
    await rig.put(outgoing("1"))

    rig.clock.jump(-6 * 3600)
    await rig.look()

    assert names(rig.sink.taken) == ["1"]


@pytest.mark.parametrize("hours", [-6, 6])
async def test_clock_that_is_set_keeps_the_order_of_waiting(
    rig: Rig, hours: float
) -> None:
    """What was to wait 100 s goes on to wait about as long."""
    rig.sink.faults.append(throttled(100))
    await rig.put(outgoing("1"))
    await rig.look()

    rig.clock.jump(hours * 3600)
    await rig.pass_by(90)

    assert len(rig.sink.tried) == 1


async def test_clock_set_forward_does_not_delay_what_is_new(rig: Rig) -> None:
    await rig.look()
    rig.clock.jump(6 * 3600)

    await rig.put(outgoing("1"))
    await rig.look()

    assert names(rig.sink.taken) == ["1"]


async def test_due_time_beyond_any_backoff_is_due_at_the_start(
    outbox: Outbox,
) -> None:
    """The clock was ahead in an earlier life."""
    ahead = START.timestamp() + 6 * 3600
    await outbox.commit([outgoing("1")], now=ahead)

    async with rig_of(outbox) as rig:
        await rig.look()

        assert names(rig.sink.taken) == ["1"]


async def test_due_time_of_an_ordinary_backoff_holds_over_a_restart(
    outbox: Outbox,
) -> None:
    await outbox.commit([outgoing("1")], now=START.timestamp() + 30)

    async with rig_of(outbox) as rig:
        await rig.look()
        assert rig.sink.taken == []
        await rig.pass_by(31)
        assert names(rig.sink.taken) == ["1"]


# -- heartbeats ----------------------------------------------------------------


def heartbeat(name: str) -> CloudEvent:
    return replace(outgoing(name).event, type="sebridge.bridge.heartbeat.v1")


async def test_heartbeat_is_delivered_and_not_stored(rig: Rig) -> None:
    rig.relay.offer(heartbeat("h1"))
    assert rig.outbox.wakeups.of(SINK).is_set()

    await rig.look()

    assert names(rig.sink.taken) == ["h1"]
    assert await rig.outbox.deliveries.tallies() == {}


async def test_heartbeat_that_was_not_sent_waits_unless_a_newer_one_does(
    rig: Rig,
) -> None:
    rig.sink.faults.extend([NotSentError()])
    rig.relay.offer(heartbeat("h1"))

    await rig.look()
    assert rig.sink.tried_ids == ["h1", "h1"]
    assert names(rig.sink.taken) == ["h1"]

    rig.sink.faults.extend([NotSentError()])
    gate = rig.sink.gate("h2")
    rig.relay.offer(heartbeat("h2"))
    await rig.look()
    rig.relay.offer(heartbeat("h3"))
    gate.set()
    await rig.look()
    assert names(rig.sink.taken) == ["h1", "h3"]


async def test_only_the_newest_heartbeat_waits(rig: Rig) -> None:
    gate = rig.sink.gate("h1")
    for number in range(1, 5):
        rig.relay.offer(heartbeat(f"h{number}"))
        await rig.look()
    gate.set()
    await rig.look()

    assert names(rig.sink.taken) == ["h1", "h4"]


async def test_heartbeat_goes_beside_what_is_in_flight(rig: Rig) -> None:
    rig.sink.gate("1")
    await rig.put(outgoing("1"))
    await rig.look()

    rig.relay.offer(heartbeat("h1"))
    await rig.look()

    assert names(rig.sink.taken) == ["h1"]


async def test_heartbeat_waits_for_a_slot(rig: Rig) -> None:
    gates = [rig.sink.gate(str(n)) for n in range(4)]
    await rig.put(*(outgoing(str(n)) for n in range(4)))
    await rig.look()
    rig.relay.offer(heartbeat("h1"))
    await rig.look()
    assert "h1" not in rig.sink.tried_ids

    for gate in gates:
        gate.set()
    await rig.look()

    assert "h1" in names(rig.sink.taken)


async def test_heartbeat_waits_as_long_as_the_sink_has_asked_for(rig: Rig) -> None:
    gate = rig.sink.gate("1")
    rig.sink.faults.extend([None, throttled(120)])
    await rig.put(outgoing("1"), outgoing("2"))
    await rig.look()
    gate.set()
    await rig.look()
    rig.relay.offer(heartbeat("h1"))
    await rig.pass_by(119)
    assert "h1" not in rig.sink.tried_ids

    await rig.pass_by(1)

    assert "h1" in names(rig.sink.taken)


async def test_heartbeat_waits_while_stored_ones_meet_trouble(rig: Rig) -> None:
    rig.sink.faults.append(BUSY)
    await rig.put(outgoing("1"))
    await rig.look()
    rig.relay.offer(heartbeat("h1"))
    await rig.look()
    assert len(rig.sink.tried) == 1

    await rig.pass_by(2)

    assert names(rig.sink.taken) == ["1", "h1"]


async def test_delivery_that_a_heartbeat_kept_waiting_begins_at_its_end(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox, slots=1) as rig, running(rig):
        gate = rig.sink.gate("h1")
        rig.relay.offer(heartbeat("h1"))
        await settled(rig.outbox)
        await rig.put(outgoing("1"))
        await settled(rig.outbox)
        assert rig.sink.tried_ids == ["h1"]

        gate.set()
        await settled(rig.outbox)

        assert names(rig.sink.taken) == ["h1", "1"]


async def test_heartbeat_goes_on_after_a_dead_letter(rig: Rig) -> None:
    """Else one bad event would look like a dead bridge for ever."""
    rig.sink.faults.append(BAD)
    await rig.put(outgoing("1"))
    await rig.look()

    rig.relay.offer(heartbeat("h1"))
    await rig.look()

    assert names(rig.sink.taken) == ["h1"]
    assert rig.relay.state == "ok"


@pytest.mark.parametrize("fault", [BUSY, BAD, REFUSED, TimeoutError(), KeyError()])
async def test_heartbeat_that_fails_is_dropped(
    rig: Rig, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rig.sink.faults.append(fault)
    rig.relay.offer(heartbeat("h1"))
    await rig.look()
    await rig.pass_by(600)

    assert rig.sink.tried_ids == ["h1"]
    assert "heartbeat not delivered" in [record.message for record in caplog.records]
    await rig.put(outgoing("1"))
    await rig.look()
    assert names(rig.sink.taken) == ["1"]


# -- what is measured ----------------------------------------------------------


async def late(rig: Rig) -> float:
    return rig.sample("deliveries_late_total")


@pytest.mark.parametrize(("wait", "count"), [(59, 0), (61, 1)])
async def test_delivery_after_not_before_counts_as_late(
    rig: Rig, wait: float, count: int
) -> None:
    await rig.put(outgoing("1", not_before=soon(60)))
    rig.clock.pass_by(wait)

    await rig.look()

    assert await late(rig) == count


@pytest.mark.parametrize(("passed", "seconds"), [(7, 7), (-7, 0)])
async def test_time_to_deliver_is_measured_and_never_negative(
    rig: Rig, passed: float, seconds: float
) -> None:
    await rig.look()
    await rig.put(outgoing("1"))
    rig.clock.jump(passed)

    await rig.look()

    total = rig.sample("delivery_seconds_sum")
    assert total == pytest.approx(seconds)


async def test_each_attempt_leaves_one_line_in_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.sink.faults.extend([BUSY, None, BAD])
    await rig.put(outgoing("1"))
    await rig.look()
    await rig.pass_by(1)
    await rig.put(outgoing("2"))
    await rig.look()

    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("WARNING", "delivery postponed"),
        ("INFO", "delivered"),
        ("ERROR", "dead letter"),
    ]
    assert [r.__dict__["attempt"] for r in caplog.records] == [1, 2, 1]


@pytest.mark.parametrize(
    ("since", "until", "is_so"),
    [
        (0, 10, True),
        (5, 10, True),
        (6, 10, False),
        (0, 5, False),
        (None, 10, False),
        (0, None, False),
    ],
)
def test_urgency_is_a_span_of_time(
    since: float | None, until: float | None, *, is_so: bool
) -> None:
    some = not_stored(SINK, "h", "sebridge.bridge.heartbeat.v1", b"{}", 0)
    one = with_fields(some, urgent_from=since, urgent_until=until)

    assert is_urgent(one, 5) is is_so


# -- running and stopping ------------------------------------------------------


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = rig.group.create_task(rig.relay.run(stop))
    await settled(rig.outbox)
    try:
        yield stop
    finally:
        stop.set()
        for gate in rig.sink.gates.values():
            gate.set()
    await settled(rig.outbox)
    assert task.done()


async def test_relay_that_runs_delivers_what_comes_and_retries_by_itself(
    rig: Rig,
) -> None:
    async with running(rig):
        rig.sink.faults.append(BUSY)
        await rig.put(outgoing("1"))
        await settled(rig.outbox)
        assert rig.sink.taken == []

        await rig.clock.advance(1)
        await settled(rig.outbox)

        assert names(rig.sink.taken) == ["1"]


async def test_stop_finishes_what_is_in_flight_and_begins_nothing_new(
    rig: Rig,
) -> None:
    gate = rig.sink.gate("1")
    stop = asyncio.Event()
    task = rig.group.create_task(rig.relay.run(stop))
    await rig.put(outgoing("1", key="K"), outgoing("2", key="K"))
    await settled(rig.outbox)
    stop.set()
    await settled(rig.outbox)
    assert not task.done()

    gate.set()
    await settled(rig.outbox)

    assert task.done()
    assert rig.sink.tried_ids == ["1"]
    assert (await rig.tally).pending == 1


async def test_nothing_begins_after_a_stop_in_the_middle_of_a_look(rig: Rig) -> None:
    """The state file may be slow to answer what is due."""
    stop, has_begun, may_end = asyncio.Event(), threading.Event(), threading.Event()

    def slow_disk(_: object) -> None:
        has_begun.set()
        may_end.wait(60)

    await rig.put(outgoing("1"))
    rig.outbox.image._read.clear()  # its content must be read again
    blocking = rig.outbox.database.read(slow_disk)
    await asyncio.to_thread(has_begun.wait, 10)
    task = rig.group.create_task(rig.relay.run(stop))
    rig.relay.offer(heartbeat("h1"))
    await turns()
    stop.set()
    may_end.set()
    await blocking
    await settled(rig.outbox)

    assert task.done()
    assert rig.sink.tried == []


async def test_attempt_cut_off_by_the_end_stays_in_the_outbox(rig: Rig) -> None:
    rig.sink.gate("1")
    task = rig.group.create_task(rig.relay.run(asyncio.Event()))
    await rig.put(outgoing("1"))
    await settled(rig.outbox)

    task.cancel()
    await settled(rig.outbox)

    assert task.cancelled()
    tally = await rig.tally
    assert (tally.pending, tally.dead) == (1, 0)


async def test_last_call_tries_one_event_once(rig: Rig) -> None:
    rig.sink.faults.extend([BUSY, None])
    await rig.put(outgoing("1"), outgoing("2"))

    await rig.relay.last_call("2", 0)
    await rig.relay.last_call("never committed", 0)

    assert rig.sink.tried_ids == ["2"]
    assert (await rig.tally).pending == 2


async def test_last_call_comes_after_what_is_in_flight(rig: Rig) -> None:
    gate = rig.sink.gate("1")
    stop = asyncio.Event()
    rig.group.create_task(rig.relay.run(stop))
    await rig.put(outgoing("1"))
    await settled(rig.outbox)
    stop.set()
    await rig.put(outgoing("2"))

    call = rig.group.create_task(rig.relay.last_call("2", 0))
    await settled(rig.outbox)
    assert rig.sink.tried_ids == ["1"]
    gate.set()
    await call

    assert rig.sink.tried_ids == ["1", "2"]


async def test_relay_is_named_after_its_sink(outbox: Outbox) -> None:
    assert relay_of(outbox).name == "relay:siem"


# -- pace ----------------------------------------------------------------------


async def test_no_more_than_the_rate_begins_and_urgent_ones_go_first(rig: Rig) -> None:
    rig.relay.pace.most = 0.5
    await rig.put(outgoing("1"), outgoing("2"))
    await rig.look()
    await rig.put(outgoing("preempt", not_before=soon(60)))
    await rig.look()
    assert names(rig.sink.tried) == ["1"]

    await rig.pass_by(1.9)
    assert names(rig.sink.tried) == ["1"]
    await rig.pass_by(0.2)
    assert names(rig.sink.tried) == ["1", "preempt"]
    await rig.pass_by(2)
    assert names(rig.sink.tried) == ["1", "preempt", "2"]


async def test_what_waits_for_its_turn_behind_an_attempt_is_not_forgotten(
    outbox: Outbox,
) -> None:
    """The attempt that ends begins the next one itself, and nobody else looks."""
    async with rig_of(outbox, slots=1) as rig:
        rig.relay.pace.most = 10
        gate = rig.sink.gate("1")
        await rig.put(outgoing("1"), outgoing("2"), outgoing("3"))
        await rig.look()
        await rig.pass_by(4)
        gate.set()
        await rig.look()

        await rig.pass_by(0.2)

        assert names(rig.sink.taken) == ["1", "2", "3"]


async def test_rate_that_the_other_side_grants_holds_at_once(rig: Rig) -> None:
    rig.relay.pace.most = 10
    await rig.put(outgoing("1"), outgoing("2"), outgoing("3"))
    await rig.look()
    rig.relay.pace.granted = 0.1

    await rig.pass_by(9)

    assert names(rig.sink.tried) == ["1", "2"]


async def test_heartbeat_does_not_wait_for_what_is_due_much_later(
    outbox: Outbox,
) -> None:
    """One event that is tried for hours would look like a dead bridge."""
    slow = RetryPolicy(first=3600, max_backoff=7200)
    policy = RelayPolicy(backoff=slow, max_age=86400, slots=2)
    async with rig_of(outbox, policy=policy) as rig:
        rig.relay.pace.most = 1
        rig.sink.faults.append(UNFORESEEN)
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.put(outgoing("2"))
        await rig.look()
        await rig.pass_by(1.5)
        assert names(rig.sink.taken) == ["2"]

        rig.relay.offer(heartbeat("beat"))
        await rig.look()
        await rig.pass_by(2)

        assert names(rig.sink.taken) == ["2", "beat"]


async def test_heartbeat_takes_no_turn_of_what_is_stored(rig: Rig) -> None:
    rig.relay.pace.most = 1
    await rig.put(outgoing("1"), outgoing("2"))
    rig.relay.offer(heartbeat("beat"))
    await rig.pass_by(1.5)
    assert names(rig.sink.tried) == ["1", "2"]

    await rig.pass_by(1)

    assert names(rig.sink.tried) == ["1", "2", "beat"]

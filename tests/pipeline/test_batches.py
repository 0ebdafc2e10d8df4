"""Batches: each attempt gets its own result, whatever becomes of the request."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import Histogram

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import (
    DeliveryError,
    NotSentError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    RefusedEventError,
    TransientDeliveryError,
)
from bridge.outbox.records import Delivery
from bridge.pipeline.batches import Batches
from bridge.sinks.base import BatchLimits
from tests.support.builders import SINK, outgoing, sizes_histogram
from tests.support.fakes import START, FakeClock, turns

SIZE = 10  # of each event, in units of so many bytes:
UNIT = 300
BUSY = TransientDeliveryError("busy", Reason.SERVER)
REFUSED = RefusedDeliveryError("who are you", Reason.UNAUTHORIZED)
BAD = PermanentDeliveryError("what is this", Reason.REJECTED)


def delivery(
    name: str, key: str | None = None, *, size: int = SIZE, is_urgent: bool = False
) -> Delivery:
    """Return a delivery whose JSON has a size in units: the rest is blank."""
    body = outgoing(name, key=key).event.to_json().ljust(size * UNIT)
    assert len(body) == size * UNIT
    now = START.timestamp()
    return Delivery(
        id=1,
        sink=SINK,
        kind="event",
        state="pending",
        key=key and key.upper(),
        event_id=key,
        cloud_event_id=name,
        type="sebridge.scheduledevent.scheduled.v1",
        body=body,
        attempts=0,
        due=now,
        created=now,
        not_before=None,
        urgent_from=now if is_urgent else None,
        urgent_until=now + 1e6 if is_urgent else None,
        last_error=None,
    )


@dataclass
class Request:
    """A request that waits for its answer."""

    ids: list[str]
    answer: "asyncio.Future[list[DeliveryError | None]]"


@dataclass
class Receiver:
    """A sink that holds each request until it is told what to answer.

    Attributes:
        bad: ids of events that it never takes: a request with one of them is refused.
        faulty: ids of events at which the sink has a bug.
        names: whether it says which event is bad.
        room: events that it takes out of one request; None: all.
        errors: what an event that is alone in its request gets, by id.
        fault: raised for each request.
        is_quick: whether it answers at once.
    """

    bad: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    names: bool = False
    room: int | None = None
    errors: dict[str, DeliveryError] = field(default_factory=dict)
    fault: Exception | None = None
    is_quick: bool = True
    requests: list[list[str]] = field(default_factory=list)
    flying: list[Request] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    keys: list[list[str | None]] = field(default_factory=list)
    most: int = 0

    async def deliver(self, event: CloudEvent) -> None:
        (error,) = await self.deliver_many([event])
        if error is not None:
            raise error

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        ids = [event.id for event in events]
        self.requests.append(ids)
        self.keys.append([event.text("correlationid") for event in events])
        request = Request(ids, asyncio.get_running_loop().create_future())
        self.flying.append(request)
        self.most = max(self.most, len(self.flying))
        if self.is_quick:
            self.answer(request)
        try:
            return await request.answer
        finally:
            self.flying.remove(request)

    def answer(self, request: Request, fault: Exception | None = None) -> None:
        """Answer as the receiver is told to."""
        if request.answer.done():
            return
        if (fault := fault or self.fault) is not None:
            request.answer.set_exception(fault)
            return
        ids = request.ids[: self.room]
        if self.faulty.intersection(ids):
            request.answer.set_exception(ZeroDivisionError())
            return
        bad = [place for place, one in enumerate(ids) if one in self.bad]
        if bad:
            named = RefusedEventError("bad", Reason.REJECTED, bad[0])
            request.answer.set_exception(named if self.names else BAD)
            return
        self.taken += [one for one in ids if one not in self.errors]
        request.answer.set_result([self.errors.get(one) for one in ids])


class Tasks(asyncio.TaskGroup):
    """A group that nobody waits for."""

    create_task = staticmethod(asyncio.create_task)


@dataclass
class World:
    """Batches with their receiver, and the attempts that are made.

    Attributes:
        held: ids of events that may not be sent now.
    """

    receiver: Receiver
    limits: BatchLimits
    held: set[str] = field(default_factory=set)
    clock: FakeClock = field(default_factory=FakeClock)
    counted: Histogram = field(default_factory=sizes_histogram)
    batches: Batches = field(init=False)
    attempts: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batches = Batches(
            self.receiver, self.limits, self.clock, self.may_send, self.counted
        )

    def may_send(self, delivery: Delivery) -> bool:
        return delivery.cloud_event_id not in self.held

    def begin(
        self,
        name: str,
        key: str | None = None,
        *,
        size: int = SIZE,
        is_urgent: bool = False,
    ) -> asyncio.Future[None]:
        mine = delivery(name, key, size=size, is_urgent=is_urgent)
        attempt = self.batches.deliver(mine, Tasks())
        self.attempts[name], self.sizes[name] = attempt, size
        return attempt

    async def all(self, count: int) -> list[BaseException | None]:
        """Make so many attempts at the same time; return their results."""
        made = [self.begin(f"{number}") for number in range(count)]
        return await asyncio.gather(*made, return_exceptions=True)


def world(receiver: Receiver, **limits: float) -> World:
    given = {"most": 4, "size": 1000, "wait": 0.0, "requests": 2, "alone": 1, **limits}
    known = BatchLimits(
        most=int(given["most"]),
        size=int(given["size"]) * UNIT,
        wait=given["wait"],
        requests=int(given["requests"]),
        alone=int(given["alone"]),
    )
    return World(receiver, known)


async def test_what_begins_at_the_same_time_goes_together() -> None:
    it = world(Receiver())

    assert await it.all(6) == [None] * 6
    assert it.receiver.requests == [["0", "1", "2", "3"], ["4", "5"]]


async def test_event_without_company_waits_for_none() -> None:
    it = world(Receiver())

    await it.begin("alone")

    assert it.receiver.requests == [["alone"]]
    assert it.clock.waits == []


async def test_request_holds_no_more_bytes_than_it_may() -> None:
    it = world(Receiver(), size=25)

    await it.all(3)

    assert it.receiver.requests == [["0", "1"], ["2"]]


async def test_event_that_is_too_large_for_company_goes_alone() -> None:
    it = world(Receiver(), size=25)
    large = it.begin("large", size=900)
    small = it.begin("small")

    await asyncio.gather(large, small)

    assert it.receiver.requests == [["large"], ["small"]]


async def test_two_events_of_one_event_id_never_go_together() -> None:
    """Case makes no difference to an EventId."""
    it = world(Receiver())
    made = [it.begin("a", "key"), it.begin("b", "KEY"), it.begin("c")]

    await asyncio.gather(*made)

    assert it.receiver.requests == [["a", "c"], ["b"]]


async def test_request_that_is_not_full_waits_for_more_but_no_longer_than_told() -> (
    None
):
    it = world(Receiver(), wait=2.0)
    first = it.begin("0")
    await it.clock.advance(1.9)
    it.begin("1")
    await it.clock.advance(0.05)
    assert not first.done()

    await it.clock.advance(0.06)

    assert first.done()
    assert it.receiver.requests == [["0", "1"]]


async def test_request_that_is_full_waits_no_longer() -> None:
    it = world(Receiver(), wait=2.0)
    it.begin("0")
    await turns()
    for name in "123":
        it.begin(name)
    await turns()

    assert it.receiver.requests == [["0", "1", "2", "3"]]


async def test_urgent_event_goes_alone_and_at_once() -> None:
    it = world(Receiver(), wait=2.0)
    it.begin("0")
    await turns()

    await it.begin("urgent", is_urgent=True)

    assert it.receiver.requests == [["urgent"]]


async def test_urgent_events_beyond_those_in_flight_go_together_and_at_once() -> None:
    it = world(Receiver(is_quick=False), wait=2.0)
    for name in ("u0", "u1", "u2"):
        it.begin(name, is_urgent=True)
    await turns()

    assert it.receiver.requests == [["u0"], ["u1", "u2"]]


async def test_urgent_event_goes_before_those_that_wait() -> None:
    it = world(Receiver(is_quick=False), most=2, requests=1)
    it.begin("u0", is_urgent=True)
    it.begin("0")
    await turns()  # both are in flight
    for name in "123":
        it.begin(name)
    it.begin("u1", is_urgent=True)
    await turns()

    it.receiver.answer(it.receiver.flying[1])
    await turns()

    assert it.receiver.requests[-1] == ["u1", "1"]


async def test_no_more_requests_are_in_flight_than_may_be() -> None:
    """So what comes meanwhile goes together, and not in many small requests."""
    it = world(Receiver(is_quick=False))
    for name in "012345":
        it.begin(name)
        await turns()
    assert it.receiver.requests == [["0"], ["1"]]

    it.receiver.answer(it.receiver.flying[0])
    await turns()

    assert it.receiver.requests[-1] == ["2", "3", "4", "5"]


async def test_requests_that_hang_do_not_hold_up_the_others_for_ever() -> None:
    it = world(Receiver(is_quick=False))
    for name in "0123":
        it.begin(name)
        await turns()

    await it.clock.advance(3.1)

    assert it.receiver.requests[-1] == ["2", "3"]


@pytest.mark.parametrize("error", [BUSY, REFUSED])
async def test_failure_of_a_request_is_that_of_all_its_events(
    error: DeliveryError,
) -> None:
    it = world(Receiver(fault=error))

    assert await it.all(3) == [error] * 3
    assert len(it.receiver.requests) == 1


async def test_each_event_gets_its_own_result() -> None:
    it = world(Receiver(errors={"1": BUSY, "2": BAD}))

    assert await it.all(4) == [None, BUSY, BAD, None]
    assert len(it.receiver.requests) == 1


async def test_refused_batch_is_split_until_the_guilty_event_is_alone() -> None:
    it = world(Receiver(bad={"2"}))

    assert await it.all(4) == [None, None, BAD, None]
    assert it.receiver.requests == [
        ["0", "1", "2", "3"],
        ["0", "1"],
        ["2", "3"],
        ["2"],
        ["3"],
    ]
    assert it.receiver.taken == ["0", "1", "3"]


async def test_event_that_the_receiver_names_is_judged_alone() -> None:
    it = world(Receiver(bad={"1"}, names=True))

    results = await it.all(4)

    assert isinstance(results[1], PermanentDeliveryError)
    assert [results[n] for n in (0, 2, 3)] == [None] * 3
    assert it.receiver.requests == [["0", "1", "2", "3"], ["0"], ["1"], ["2", "3"]]


@pytest.mark.parametrize("place", [0, 99])
async def test_receiver_that_names_the_wrong_event_costs_none(place: int) -> None:
    wrong = RefusedEventError("bad", Reason.REJECTED, place)
    it = world(Receiver(is_quick=False, bad={"1"}))
    made = [it.begin("0"), it.begin("1")]
    await turns()
    it.receiver.is_quick = True
    it.receiver.answer(it.receiver.flying[0], wrong)

    results = await asyncio.gather(*made, return_exceptions=True)

    assert results == [None, BAD]


async def test_what_had_no_room_is_sent_next() -> None:
    it = world(Receiver(room=3))

    assert await it.all(4) == [None] * 4
    assert it.receiver.requests == [["0", "1", "2", "3"], ["3"]]


async def test_failure_in_the_middle_leaves_what_was_decided() -> None:
    it = world(Receiver(is_quick=False, room=2))
    made = [it.begin(f"{number}") for number in range(4)]
    await turns()
    it.receiver.answer(it.receiver.flying[0])
    await turns()
    it.receiver.answer(it.receiver.flying[0], BUSY)

    results = await asyncio.gather(*made, return_exceptions=True)

    assert results == [None, None, BUSY, BUSY]


async def test_fault_of_the_sink_reaches_the_attempt_at_its_event_alone() -> None:
    """Where the relay logs it, and gives the event up in the end."""
    it = world(Receiver(faulty={"1"}))

    found = await it.all(4)

    assert [type(one) for one in found] == [
        type(None),
        ZeroDivisionError,
        type(None),
        type(None),
    ]


async def test_sink_that_sends_nothing_does_not_make_it_turn_for_ever() -> None:
    it = world(Receiver(room=0))

    found = await it.all(2)

    assert [type(one) for one in found] == [ValueError, ValueError]


async def test_request_goes_on_although_one_of_its_events_is_cut_off() -> None:
    it = world(Receiver(is_quick=False))
    first, second = it.begin("0"), it.begin("1")
    await turns()

    first.cancel()
    await turns()
    it.receiver.answer(it.receiver.flying[0])
    await second

    assert first.cancelled()
    assert it.receiver.requests == [["0", "1"]]


async def test_request_is_given_up_when_all_its_events_are_cut_off() -> None:
    """And it holds up no other one."""
    it = world(Receiver(is_quick=False), requests=1)
    made = [it.begin("0"), it.begin("1")]
    await turns()
    later = it.begin("2")

    for one in made:
        one.cancel()
    await turns()

    (request,) = it.receiver.flying
    it.receiver.answer(request)
    await later
    assert it.receiver.requests == [["0", "1"], ["2"]]


@pytest.mark.parametrize("wait", [0.0, 2.0])
async def test_event_that_is_cut_off_while_it_waits_is_not_sent(wait: float) -> None:
    it = world(Receiver(), wait=wait)
    made = [it.begin(name) for name in "012"]
    await asyncio.sleep(0)

    made[0].cancel()
    made[1].cancel()
    await it.clock.advance(5)

    assert made[2].done()
    assert it.receiver.requests == [["2"]]


async def test_nothing_is_sent_when_all_have_left() -> None:
    it = world(Receiver(), wait=1.0)
    made = [it.begin(name) for name in "01"]
    await asyncio.sleep(0)

    for one in made:
        one.cancel()
    await it.clock.advance(5)

    assert it.receiver.requests == []


async def test_event_whose_attempt_is_over_is_not_sent_again() -> None:
    it = world(Receiver(is_quick=False, bad={"1"}))
    made = [it.begin(f"{number}") for number in range(3)]
    await turns()
    made[2].cancel()
    await turns()
    it.receiver.is_quick = True
    it.receiver.answer(it.receiver.flying[0])

    await asyncio.gather(*made, return_exceptions=True)

    assert it.receiver.requests == [["0", "1", "2"], ["0"], ["1"]]


# -- what may not be sent any more --------------------------------------------

PAUSE = TransientDeliveryError("slow down", Reason.THROTTLED, retry_after=30)


async def test_what_waits_is_not_sent_once_it_may_not_be() -> None:
    it = world(Receiver(is_quick=False), requests=1)
    for name in "0123":
        it.begin(name)
        await turns()

    it.held = {"1", "3"}
    it.receiver.is_quick = True
    it.receiver.answer(it.receiver.flying[0], PAUSE)
    found = await asyncio.gather(*it.attempts.values(), return_exceptions=True)

    assert it.receiver.requests == [["0"], ["2"]]
    assert [type(one) for one in found] == [
        TransientDeliveryError,
        NotSentError,
        type(None),
        NotSentError,
    ]


async def test_rest_of_a_split_batch_is_not_sent_once_it_may_not_be() -> None:
    it = world(Receiver(is_quick=False))
    made = [it.begin(f"{number}") for number in range(4)]
    await turns()
    it.receiver.answer(it.receiver.flying[0], BAD)
    await turns()

    it.held = {"2", "3"}
    it.receiver.answer(it.receiver.flying[0])
    found = await asyncio.gather(*made, return_exceptions=True)

    assert it.receiver.requests == [["0", "1", "2", "3"], ["0", "1"]]
    assert [type(one) for one in found] == [type(None)] * 2 + [NotSentError] * 2


@pytest.mark.parametrize("error", [PAUSE, REFUSED])
async def test_nothing_more_is_sent_after_an_event_for_which_a_pause_is_asked(
    error: DeliveryError,
) -> None:
    """The relay does not know of it yet: the attempt that sends is not over."""
    it = world(Receiver(room=2, errors={"0": error}))

    found = await it.all(4)

    assert found[:2] == [error, None]
    assert [type(one) for one in found[2:]] == [NotSentError] * 2
    assert it.receiver.requests == [["0", "1", "2", "3"]]


async def test_event_that_is_busy_alone_holds_up_no_other() -> None:
    it = world(Receiver(room=2, errors={"0": BUSY}))

    assert await it.all(4) == [BUSY, None, None, None]


def samples(histogram: Histogram) -> dict[str, float]:
    """Return the sum, and the number of values up to each bound."""
    (metric,) = histogram.collect()
    return {
        sample.labels.get("le", sample.name.rpartition("_")[2]): sample.value
        for sample in metric.samples
    }


async def test_events_of_each_request_are_counted() -> None:
    it = world(Receiver(bad={"2"}))

    await it.all(4)
    await it.begin("urgent", is_urgent=True)

    found = samples(it.counted)
    assert found["sum"] == 4 + 2 + 2 + 1 + 1 + 1
    assert [found[bound] for bound in ("1.0", "2.0", "5.0")] == [3, 5, 6]


# -- whatever happens ---------------------------------------------------------

KEYS = (None, "k1", "k2")
ANSWERS: tuple[Exception | None, ...] = (
    None,
    None,
    BUSY,
    REFUSED,
    BAD,
    RefusedEventError("bad", Reason.REJECTED, 1),
    ZeroDivisionError(),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come"] * 5 + ["answer"] * 2 + ["urgent", "cancel", "pass"]),
        st.integers(0, 6),
    ),
    max_size=60,
)


@dataclass
class Model:
    """Does what it is told to the batches, and looks at each turn."""

    it: World
    count: int = 0
    busy: set[str] = field(default_factory=set)

    async def do(self, what: str, which: int) -> None:
        it = self.it
        waiting = [one for one in it.receiver.flying if not one.answer.done()]
        match what:
            case "come" | "urgent":
                self._come(which, is_urgent=what == "urgent")
            case "answer" if waiting:
                it.receiver.answer(waiting[which % len(waiting)], ANSWERS[which])
            case "cancel" if it.attempts:
                list(it.attempts.values())[which % len(it.attempts)].cancel()
            case "pass":
                await it.clock.advance(which / 2)
        if which % 2:
            await turns()

    def _come(self, which: int, *, is_urgent: bool) -> None:
        """Begin an attempt, as the relay does: one of an EventId at a time."""
        key = KEYS[which % len(KEYS)]
        flying = {name for name, one in self.it.attempts.items() if not one.done()}
        if key is not None and any(name.startswith(f"{key}-") for name in flying):
            return
        self.count += 1
        name = f"{key}-{self.count}"
        size = (1, SIZE, 2 * SIZE)[which % 3]
        self.it.begin(name, key, size=size, is_urgent=is_urgent)

    async def end(self) -> None:
        """Let the receiver answer, and time pass, until nothing is left."""
        receiver = self.it.receiver
        receiver.is_quick = True
        for request in list(receiver.flying):
            receiver.answer(request)
        for _ in range(10):
            await self.it.clock.advance(4)

    def judge(self, most: int, size: int) -> None:
        it, receiver = self.it, self.it.receiver
        assert all(one.done() for one in it.attempts.values()), "one waits for ever"
        for ids in receiver.requests:
            assert len(ids) <= most
            assert len(ids) == 1 or sum(it.sizes[name] for name in ids) <= size
        for keys in receiver.keys:
            known = [key for key in keys if key is not None]
            assert len(known) == len(set(known)), "two steps in one request"
        sent = Counter(name for ids in receiver.requests for name in ids)
        for name, attempt in it.attempts.items():
            taken = receiver.taken.count(name)
            assert taken <= 1, "taken twice by one attempt"
            if attempt.cancelled():
                continue
            error = attempt.exception()
            assert sent[name], "a result without a request"
            # Nobody reads the answer to a request whose leader is cancelled just then:
            # its events are sent again, with the same ids.
            is_unknown = str(error) == "the request was given up"
            assert is_unknown or (error is None) == (taken == 1), (
                "it says what is not so"
            )


@settings(max_examples=300)
@given(
    steps=STEPS,
    bad=st.sets(st.integers(1, 12), max_size=3),
    names=st.booleans(),
    room=st.sampled_from([None, 2]),
    wait=st.sampled_from([0.0, 1.0]),
    most=st.integers(2, 4),
    requests=st.integers(1, 2),
)
@example(  # the answer comes in the moment in which its attempt is given up
    steps=[("come", 0), ("come", 1), ("answer", 0), ("cancel", 0)],
    bad=set(),
    names=False,
    room=None,
    wait=0.0,
    most=2,
    requests=1,
)
async def test_whatever_happens_each_attempt_has_one_true_result(  # noqa: PLR0913 - each is drawn
    steps: list[tuple[str, int]],
    bad: set[int],
    *,
    names: bool,
    room: int | None,
    wait: float,
    most: int,
    requests: int,
) -> None:
    receiver = Receiver(is_quick=False, names=names, room=room)
    receiver.bad = {f"{key}-{number}" for key in KEYS for number in bad}
    it = world(receiver, wait=wait, most=most, requests=requests, size=3 * SIZE)
    model = Model(it)
    for what, which in steps:
        await model.do(what, which)
    await model.end()
    await asyncio.gather(*it.attempts.values(), return_exceptions=True)

    model.judge(most, 3 * SIZE)
    later = it.begin("later")
    await it.clock.advance(4)
    assert later.done(), "what is over holds up what comes later"

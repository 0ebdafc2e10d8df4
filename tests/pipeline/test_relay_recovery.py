"""A sink that cannot be reached, and its return: found soon, and then all goes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bridge.events.build import OutgoingEvent
from bridge.foundation.errors import (
    DeliveryError,
    Reason,
    TransientDeliveryError,
)
from bridge.foundation.pace import RetryPolicy
from bridge.outbox.deliveries import Deliveries
from bridge.outbox.questions import Selection
from bridge.outbox.records import Delivery
from bridge.outbox.storage.file import Connection
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from tests.pipeline.test_relay import (
    BAD,
    BUSY,
    REFUSED,
    SLOW_DOWN,
    UNFORESEEN,
    Rig,
    heartbeat,
    names,
    policy_of,
    relay_of,
    rig_of,
    running,
    soon,
    throttled,
)
from tests.support.book import Book
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.fakes import START, FakeClock, RecordingSink, settled

GONE = TransientDeliveryError("siem cannot be reached", Reason.CONNECTION)
SILENT = TransientDeliveryError("siem did not answer in time", Reason.TIMEOUT)
LONGEST_GAP = 3.0 * 1.25


@dataclass
class Server:
    """The other side: up, down in one way or another, or silent for so many seconds.

    Attributes:
        fault: what an attempt fails with while it is down.
        hangs: how long an attempt that is begun while it is down gets no answer.
        began: when each attempt began.
        gave_up: whose attempts failed, or were cut off.
        slow: how many seconds it takes until these are taken.
    """

    clock: FakeClock
    is_up: bool = True
    fault: DeliveryError = GONE
    hangs: float = 0.0
    began: list[float] = field(default_factory=list)
    tried: list[str | None] = field(default_factory=list)
    taken: list[str | None] = field(default_factory=list)
    gave_up: list[str | None] = field(default_factory=list)
    slow: dict[str | None, float] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, delivery: Delivery) -> None:
        self.began.append(self.clock.monotonic())
        self.tried.append(delivery.cloud_event_id)
        name = delivery.cloud_event_id
        try:
            await self._answer(name)
        except BaseException:
            self.gave_up.append(name)
            raise
        self.taken.append(delivery.cloud_event_id)

    async def _answer(self, name: str | None) -> None:
        if not self.is_up:
            await self.clock.wait(self.gone, self.hangs)
            raise self.fault
        if name in self.slow:
            await self.clock.wait(self.gone, self.slow[name])

    def end(self) -> None:
        """Let go of all that hangs: the test is over."""
        self.is_up = True
        self.gone.set()

    @property
    def gaps(self) -> list[float]:
        """The seconds between attempts."""
        return [b - a for a, b in zip(self.began, self.began[1:], strict=False)]


@asynccontextmanager
async def served(
    outbox: Outbox,
    *,
    slots: int = 8,
    max_backoff: float = 60,
    chance: Callable[[], float] | None = None,
    repeats: bool = False,
) -> AsyncIterator[tuple[Rig, Server]]:
    """Run a relay whose sink is a server."""
    clock = FakeClock()
    server = Server(clock)
    relay = relay_of(
        outbox,
        server,
        clock=clock,
        chance=chance or random.Random(7).random,  # noqa: S311 - the spread of waits
        policy=policy_of(slots=slots, max_backoff=max_backoff),
        repeats=repeats,
    )
    async with asyncio.TaskGroup() as group:
        rig = Rig(outbox, clock, RecordingSink(), relay.metrics, relay, group)
        async with running(rig):
            yield rig, server
            server.end()


async def live(rig: Rig, seconds: float, step: float = 0.25) -> None:
    """Let time pass in small steps, and everybody do what he does meanwhile."""
    end = rig.clock.monotonic() + seconds
    while (left := end - rig.clock.monotonic()) > 1e-9:
        rig.clock.pass_by(min(step, left))
        await settled(rig.outbox)


# -- the return ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "hangs"),
    [(BUSY, 0.0), (GONE, 0.0), (SILENT, 10.0), (SILENT, 60.0)],
    ids=["503", "refused", "half-open", "half-open for a minute"],
)
@pytest.mark.parametrize("max_backoff", [60, 3600])
async def test_all_of_200_are_out_within_5_seconds_of_the_return(
    outbox: Outbox, fault: DeliveryError, hangs: float, max_backoff: float
) -> None:
    async with served(outbox, max_backoff=max_backoff) as (rig, server):
        server.is_up, server.fault, server.hangs = False, fault, hangs
        await rig.put(*(outgoing(f"{n}", key=f"K{n}") for n in range(200)))
        await live(rig, 57.3, step=1)
        assert not server.taken

        server.is_up = True
        await live(rig, 5)

        assert len(set(server.taken)) == 200
        assert rig.relay.state == "ok"


@pytest.mark.parametrize("hangs", [0.0, 10.0])
async def test_order_of_each_event_holds_through_outage_and_return(
    outbox: Outbox, hangs: float
) -> None:
    async with served(outbox) as (rig, server):
        server.is_up, server.hangs = False, hangs
        await rig.put(*(outgoing(f"{k}{n}", key=k) for n in range(9) for k in "ABC"))
        await live(rig, 30, step=1)

        server.is_up = True
        await live(rig, 5)

        for key in "ABC":
            of_key = [name for name in server.taken if name and name[0] == key]
            assert of_key == [f"{key}{n}" for n in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("chance", [0.02, 0.999])
@pytest.mark.parametrize("count", [1, 5])
async def test_sink_that_cannot_be_reached_is_tried_at_least_every_3_seconds(
    outbox: Outbox, chance: float, count: int
) -> None:
    """Whatever ``max_backoff`` says, for as long as it lasts."""
    async with served(outbox, max_backoff=3600, chance=lambda: chance) as found:
        rig, server = found
        server.is_up = False
        await rig.put(*(outgoing(f"{n}") for n in range(count)))
        await live(rig, 300, step=0.5)

        assert len(server.began) > 300 / (LONGEST_GAP + 0.5)
        assert max(server.gaps) <= LONGEST_GAP + 0.5


async def test_attempts_that_hang_do_not_keep_others_from_being_made(
    outbox: Outbox,
) -> None:
    """All slots hang for a minute, and the sink is back after 20 seconds."""
    async with served(outbox, slots=2) as (rig, server):
        server.is_up, server.hangs = False, 60.0
        await rig.put(*(outgoing(f"{n}", key=f"K{n}") for n in range(50)))
        await live(rig, 20)

        server.is_up = True
        await live(rig, 5)

        assert len(set(server.taken)) == 50


async def test_urgent_one_goes_at_once_although_all_slots_and_more_hang(
    outbox: Outbox,
) -> None:
    async with served(outbox, slots=2) as (rig, server):
        server.is_up, server.hangs = False, 60.0
        await rig.put(*(outgoing(f"{n}") for n in range(50)))
        await live(rig, 15)
        assert len(server.tried) > 3
        await rig.put(outgoing("preempt", not_before=soon(40)))
        await settled(outbox)

        assert server.tried[-1] == "preempt"


# -- the only one that waits, and hangs ----------------------------------------


def urgent(name: str, key: str | None = None) -> OutgoingEvent:
    return outgoing(name, key=key, not_before=soon(600))


async def test_urgent_delivery_is_sent_again_beside_its_attempt_that_hangs(
    outbox: Outbox,
) -> None:
    """Else nobody would see that the sink is back before a minute is over."""
    async with served(outbox, repeats=True) as (rig, server):
        server.is_up = False
        await rig.put(urgent("1", "K"), urgent("2", "K"))
        await live(rig, 1)
        server.hangs = 60.0
        await live(rig, 30)

        server.is_up = True
        await live(rig, 5)

        assert server.taken == ["1", "2"]
        assert (await rig.tally).delivered == 2
        assert rig.count("delivered") == 2


@pytest.mark.parametrize("repeats", [False, True])
async def test_one_that_is_not_urgent_or_may_not_be_repeated_is_not(
    outbox: Outbox, *, repeats: bool
) -> None:
    async with served(outbox, repeats=repeats) as (rig, server):
        server.is_up, server.fault = False, GONE
        await rig.put(outgoing("1") if repeats else urgent("1"))
        await live(rig, 0.25)
        server.hangs = 60.0
        await live(rig, 55)

        assert len(server.tried) - len(server.gave_up) == 1


async def test_attempts_at_one_delivery_do_not_pile_up(outbox: Outbox) -> None:
    async with served(outbox, repeats=True) as (rig, server):
        server.is_up = False
        await rig.put(urgent("1"))
        await live(rig, 1)
        server.hangs = 60.0
        await live(rig, 50)

        assert max(server.gaps) <= LONGEST_GAP + 0.25
        assert len(server.tried) - len(server.gave_up) == 4


async def test_second_attempt_that_fails_decides_nothing(outbox: Outbox) -> None:
    async with served(outbox, repeats=True) as (rig, server):
        server.is_up = False
        await rig.put(urgent("1"))
        await live(rig, 1)
        tried, postponed = len(server.tried), rig.count("postponed")
        server.hangs = 60.0
        await live(rig, 4)
        server.hangs = 0.0
        await live(rig, 10)

        assert len(server.tried) > tried + 2
        assert rig.count("postponed") == postponed
        server.end()
        await live(rig, 1)
        assert server.taken == ["1"]


async def test_dead_letter_ends_all_attempts_at_it(outbox: Outbox) -> None:
    async with served(outbox, repeats=True) as (rig, server):
        server.is_up = False
        await rig.put(urgent("1"))
        await live(rig, 1)
        server.hangs, server.fault = 8.0, BAD
        await live(rig, 12)

        assert (await rig.tally).dead == 1
        assert rig.count("dead") == 1
        assert len(server.tried) == len(server.gave_up)


# -- a sink that is silent, and whose address can be asked -----------------------


@dataclass
class Address:
    """An address: whether it answers a probe, and when it was asked."""

    clock: FakeClock
    is_there: bool = True
    asked: list[float] = field(default_factory=list)

    async def __call__(self) -> None:
        self.asked.append(self.clock.monotonic())
        if not self.is_there:
            raise GONE


@asynccontextmanager
async def silent(outbox: Outbox) -> AsyncIterator[tuple[Rig, Server, Address]]:
    """Run a relay whose sink takes everything and answers nothing for 10 s."""
    async with served(outbox, repeats=True) as (rig, server):
        address = Address(rig.clock)
        rig.relay.probe_with(address)
        server.is_up, server.hangs, server.fault = False, 10.0, SILENT
        yield rig, server, address


async def test_silent_sink_gets_one_request_at_a_time_for_one_event(
    outbox: Outbox,
) -> None:
    """It may be working on the event; what is asked meanwhile is its address."""
    async with silent(outbox) as (rig, server, address):
        await rig.put(outgoing("1"))
        await live(rig, 41)

        assert [at - server.began[0] for at in server.began] == pytest.approx(
            [0, 30], abs=0.5
        )
        assert len(address.asked) >= 8


async def test_urgent_event_is_sent_to_a_silent_sink_again_and_again(
    outbox: Outbox,
) -> None:
    async with silent(outbox) as (rig, server, _):
        await rig.put(urgent("1"))
        await live(rig, 41)

        assert len(server.began) >= 8


async def test_other_event_goes_to_a_silent_sink(outbox: Outbox) -> None:
    async with silent(outbox) as (rig, server, _):
        await rig.put(*(outgoing(str(n)) for n in range(12)))
        await live(rig, 29)

        assert sorted(map(str, server.tried)) == sorted(str(n) for n in range(12))


async def test_address_that_is_back_gets_what_hangs_and_waits(outbox: Outbox) -> None:
    """A connection that broke unseen leaves an attempt without an answer."""
    async with silent(outbox) as (rig, server, address):
        address.is_there, server.hangs = False, 60.0
        await rig.put(*(outgoing(str(n)) for n in range(30)))
        await live(rig, 20)
        address.is_there = server.is_up = True
        await live(rig, 5)

        assert sorted(map(str, server.taken)) == sorted(str(n) for n in range(30))
        assert len(set(server.gave_up)) == len(server.gave_up)


# -- what goes at the return, and what does not ----------------------------------


@pytest.mark.parametrize(
    ("fault", "is_tried"),
    [
        (GONE, True),
        (SILENT, True),
        (BUSY, True),
        (REFUSED, True),
        (SLOW_DOWN, True),
        (throttled(300), False),
        (UNFORESEEN, False),
    ],
    ids=lambda value: str(value).replace(" ", "-"),
)
async def test_success_makes_due_what_failed_for_the_sinks_sake_only(
    outbox: Outbox, fault: DeliveryError, *, is_tried: bool
) -> None:
    """One that names its wait, or dislikes the event, is not told sooner."""
    policy = RelayPolicy(
        backoff=RetryPolicy(first=60, max_backoff=60), max_age=86400, slots=4
    )
    async with rig_of(outbox, policy=policy) as rig:
        rig.sink.faults.append(fault)
        await rig.put(outgoing("1"))
        await rig.look()
        await rig.put(outgoing("2", not_before=soon(60)))
        await rig.pass_by(1)  # a busy sink is tried once a second
        await rig.look()

        assert ("1" in names(rig.sink.taken)) is is_tried


async def test_event_that_always_fails_is_not_tried_at_each_success(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox) as rig:
        await rig.put(outgoing("bad"))
        rig.sink.failing["bad"] = BUSY
        await rig.look()
        for n in range(200):
            await rig.put(outgoing(f"{n}"))
            await rig.look()
            await rig.pass_by(0.1)

        assert len(rig.sink.taken) == 200
        assert rig.sink.tried_ids.count("bad") <= 20 / 2 + 5


async def test_return_keeps_to_the_rate_of_the_sink(outbox: Outbox) -> None:
    async with served(outbox) as (rig, server):
        rig.relay.pace.most = 2
        server.is_up = False
        await rig.put(*(outgoing(f"{n}") for n in range(30)))
        await live(rig, 30)
        server.is_up = True
        await live(rig, 10)

        assert 15 <= len(server.taken) <= 21
        assert min(server.gaps) >= 0.25


async def test_what_failed_in_an_earlier_life_is_tried_at_the_start(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox, max_backoff=3600) as rig:
        rig.sink.faults.append(GONE)
        await rig.put(outgoing("1"))
        await rig.look()
    async with rig_of(outbox, max_backoff=3600) as rig:
        await rig.look()

        assert names(rig.sink.taken) == ["1"]


async def test_slow_delivery_is_cut_off_but_once(outbox: Outbox) -> None:
    """Others that are quick seem to prove that it hangs, each time."""
    async with served(outbox, slots=8) as (rig, server):
        server.slow["slow"] = 8.0
        server.is_up = False
        await rig.put(outgoing("slow"))
        await live(rig, 1)
        server.is_up = True
        for n in range(30):
            await live(rig, 1)
            server.is_up = n % 6 != 5
            await rig.put(outgoing(f"{n}"))

        assert "slow" in server.taken


async def test_heartbeat_that_is_taken_shows_that_the_sink_is_back(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox, max_backoff=3600) as rig:
        gate = rig.sink.gate("h")
        rig.relay.offer(heartbeat("h"))
        await rig.look()
        rig.sink.faults.append(BUSY)
        await rig.put(outgoing("1"))
        await rig.look()
        assert not rig.sink.taken

        gate.set()
        await rig.look()

        assert names(rig.sink.taken) == ["h", "1"]


async def test_parked_sink_is_not_tried_as_one_that_cannot_be_reached(
    outbox: Outbox,
) -> None:
    async with rig_of(outbox) as rig:
        rig.sink.faults.extend([REFUSED] * 3)
        rig.sink.always = GONE
        await rig.put(outgoing("1"))
        await rig.pass_by(10)
        assert rig.relay.state == "parked"
        tried = len(rig.sink.tried)

        await rig.pass_by(120)

        assert len(rig.sink.tried) == tried + 1


async def test_relay_that_is_built_anew_is_not_parked(outbox: Outbox) -> None:
    """All is closed and opened again when the VM becomes known."""
    async with rig_of(outbox) as rig:
        rig.sink.always = REFUSED
        await rig.put(outgoing("1"))
        await rig.pass_by(300)
        assert rig.sample("sink_parked") == 1

        relay = replace(rig.relay)

        assert (relay.state, rig.sample("sink_parked")) == ("untried", 0)


async def test_next_step_of_an_event_is_not_tried_beside_the_one_before_it(
    outbox: Outbox,
) -> None:
    """Also where a person gave up the first while its attempt hangs."""
    async with served(outbox) as (rig, server):
        server.is_up, server.hangs = False, 60.0
        await rig.put(outgoing("K1", key="K"), outgoing("K2", key="K"))
        await live(rig, 1)
        server.hangs = 0.0
        await rig.put(outgoing("other"))
        now = rig.clock.now().timestamp()
        await Book(outbox).discard(Selection(id=1), now=now)
        await live(rig, 20)

        assert server.tried.count("other") > 4
        assert "K2" not in server.tried


class StoppedDeliveries(Deliveries):
    """Deliveries during whose answer the forwarder is asked to stop."""

    stop: asyncio.Event

    async def waiting_for_sink(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> list[Delivery]:
        found = await super().waiting_for_sink(sink, now=now, limit=limit, but=but)
        self.stop.set()
        return found


async def test_stop_while_a_try_is_prepared_begins_nothing(state_path: Path) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        stopped = StoppedDeliveries(outbox.state, outbox.observations, asyncio.Event())
        outbox.deliveries = stopped
        clock = FakeClock()
        server = Server(clock, is_up=False)
        policy = RelayPolicy(backoff=RetryPolicy(first=60), max_age=86400, slots=1)
        relay = relay_of(outbox, server, clock=clock, policy=policy)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(relay.run(stopped.stop))
            await outbox.commit([outgoing("1")], now=clock.now().timestamp())
            await settled(outbox)
            await clock.advance(LONGEST_GAP)
            await settled(outbox)

        assert task.done()
        assert len(server.tried) == 1


async def test_large_backlog_is_made_due_in_parts(
    state_path: Path, outbox: Outbox
) -> None:
    """So that what is new does not wait behind one long write."""

    def fail(db: Connection) -> None:
        db.execute("UPDATE deliveries SET due = due + 3600, waits_for_sink = 1")

    events = [outgoing(f"{n}") for n in range(10_001)]
    for some in (events[:9000], events[9000:]):
        await outbox.commit(some, now=START.timestamp())
    await outbox.database.run(fail)
    async with (
        patient_outbox(state_path, router()) as again,
        rig_of(again, max_backoff=7200) as rig,
    ):
        rig.sink.always = GONE
        rig.wait = await rig.relay.step(rig.group)
        now = rig.clock.now().timestamp()
        waiting = await again.deliveries.waiting_for_sink(SINK, now=now, limit=9)
        assert len(waiting) == 1

        rig.wait = await rig.relay.step(rig.group)
        waiting = await again.deliveries.waiting_for_sink(SINK, now=now, limit=9)
        assert all(d.last_error for d in waiting), "only what was tried since waits"

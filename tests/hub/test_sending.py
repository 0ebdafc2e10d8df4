"""A decision goes out once it may, again where nobody knows, and never otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from bridge.foundation.errors import HubStoreAwayError
from bridge.foundation.values import Secret
from bridge.hub.config import HubConfig
from bridge.hub.decisions import Claimed, DecisionState, Result
from bridge.hub.metrics import HubMetrics
from bridge.hub.sending import Dispatcher, message_of
from bridge.hub.store.store import Store
from bridge.signing.dsse import SignedEvent, Verdict, judge
from tests.signing.test_dsse import KEY, OTHER
from tests.signing.test_keys import pem
from tests.support.builders import EVENT_ID, not_before
from tests.support.fleet import at, azure, event, outcome, step, vm
from tests.support.hub import (
    HubWorld,
    access,
    beat,
    config,
    ended,
    grid,
    offer,
    received,
)

LONGER = event(DurationInSeconds=90)


@pytest.fixture
async def world(store: Store) -> AsyncIterator[HubWorld]:
    async with HubWorld(store, config()).open() as opened:
        await opened.scheduled()
        yield opened


async def state(world: HubWorld) -> tuple[str, str | None, str | None]:
    found = await world.decision()
    return found["state"], found["outcome"], found["outcomeReason"]


async def test_decision_that_was_taken_waits_for_its_outcome(world: HubWorld) -> None:
    await world.post()
    assert await world.dispatcher.step() == 1
    assert await world.dispatcher.step() == 0
    assert await state(world) == ("sent", None, None)


async def test_without_an_outcome_the_very_same_goes_again(world: HubWorld) -> None:
    await world.post()
    for wait in (0, 30, 60, 120):
        world.clock.pass_by(wait)
        await world.store.keep([beat(0, wait)])
        assert await world.dispatcher.step() == 1
        assert await world.dispatcher.step() == 0

    assert len({(one.id, one.message) for one in world.transport.taken}) == 1
    assert [one.attempt for one in world.transport.taken] == [1, 2, 3, 4]


async def test_what_was_not_taken_is_tried_again(world: HubWorld) -> None:
    world.transport.results = [Result(fault="the broker is away", retry_after=5)]
    await world.post()
    await world.dispatcher.step()
    assert await state(world) == ("sending", None, "the broker is away")
    world.clock.pass_by(6)
    await world.dispatcher.step()
    assert await state(world) == ("sent", None, None)


async def test_crash_while_sending_sends_the_very_same_again(world: HubWorld) -> None:
    class Dies:
        async def send(self, claimed: Claimed) -> Result:
            world.transport.taken.append(claimed)
            raise RuntimeError

    await world.post()
    dispatcher = world.dispatcher
    dispatcher.transports = {"bridge": Dies()}
    with pytest.raises(ExceptionGroup):
        await dispatcher.step()
    assert await world.dispatcher.step() == 0, "it may still be on its way"
    world.clock.pass_by(61)
    assert await world.dispatcher.step() == 1
    first, second = world.transport.taken
    assert (first.id, first.message) == (second.id, second.message)


async def test_change_before_it_is_sent_voids_it(world: HubWorld) -> None:
    await world.post()
    await world.store.keep(
        [received(step("updated", LONGER, previous=event(), seconds=5))]
    )
    assert await world.dispatcher.step() == 0
    assert await state(world) == ("void", None, "the event has changed")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (step("started", event(EventStatus="Started"), seconds=9), "has started"),
        (step("completed", seconds=9), "is over"),
    ],
)
async def test_event_that_begins_or_ends_voids_it(
    world: HubWorld, body: bytes, words: str
) -> None:
    await world.post()
    await world.store.keep([received(body)])
    await world.dispatcher.step()
    assert words in (await state(world))[2]  # type: ignore[operator]  # a text
    assert world.transport.taken == []


async def test_event_that_came_back_takes_a_decision_of_its_own(
    world: HubWorld,
) -> None:
    await world.post()
    await world.store.keep([received(step("completed", seconds=5))])
    await world.store.keep(
        [received(step("scheduled", seconds=60, who=vm(1), repeats=1))]
    )
    await world.dispatcher.step()
    assert "another one has come" in (await state(world))[2]  # type: ignore[operator]  # a text


async def test_rule_that_wants_more_people_by_now_voids_it(world: HubWorld) -> None:
    await world.post()
    world.config = replace(world.config, access=access(2))
    await world.dispatcher.step()
    assert await state(world) == ("void", None, "the rule wants 2 people by now")


async def test_person_who_may_decide_no_more_voids_it(world: HubWorld) -> None:
    await world.post("ann")
    world.config = replace(
        world.config, access=replace(access(), approvers=("bob", "cat"))
    )
    await world.dispatcher.step()
    why = "not all who decided may decide now"
    assert await state(world) == ("void", None, why)
    assert world.transport.taken == []


async def test_event_that_ends_while_it_is_sent_closes_it_at_once(
    world: HubWorld,
) -> None:
    world.transport.results = [Result(fault="the broker is away", retry_after=60)]
    _, decided = await world.post()
    await world.dispatcher.step()
    await world.store.keep([received(step("completed", seconds=5))])

    assert (await state(world))[:2] == ("failed", "event-over")
    world.clock.pass_by(100)
    assert await world.dispatcher.step() == 0
    await world.store.keep([received(outcome("relayed", decided["id"], seconds=9))])
    assert (await state(world))[:2] == ("done", "relayed"), "it had arrived after all"


async def test_answer_to_an_attempt_counts_when_the_event_has_ended(
    world: HubWorld,
) -> None:
    class Quick:
        async def send(self, claimed: Claimed) -> Result:
            await world.store.keep([received(step("completed", seconds=5))])
            return ended(DecisionState.DONE, "acknowledged")

    await world.post()
    dispatcher = world.dispatcher
    dispatcher.transports = {"bridge": Quick()}
    await dispatcher.step()
    assert (await state(world))[:2] == ("done", "acknowledged")


async def test_rules_of_the_bridge_that_deny_by_now_void_it(world: HubWorld) -> None:
    await world.post()
    deny = {"name": "no", "action": "deny"}
    await world.store.keep([beat(0, 5, approvals=offer(deny))])
    await world.dispatcher.step()
    assert "DeniedByRule no" in (await state(world))[2]  # type: ignore[operator]  # a text
    assert world.transport.taken == []


async def test_change_after_it_was_sent_sends_it_no_more(world: HubWorld) -> None:
    _, decided = await world.post()
    await world.dispatcher.step()
    await world.store.keep(
        [received(step("updated", LONGER, previous=event(), seconds=5))]
    )
    world.clock.pass_by(300)
    assert await world.dispatcher.step() == 0
    await world.store.keep(
        [received(outcome("denied", decided["id"], LONGER, seconds=9))]
    )
    assert (await state(world))[:2] == ("failed", "denied")


async def test_decision_waits_until_somebody_answers(world: HubWorld) -> None:
    await world.post()
    world.clock.pass_by(400)  # silent for more than three intervals
    assert await world.dispatcher.step() == 0
    assert await state(world) == ("decided", None, "no bridge of this event answers")
    await world.store.keep([beat(0, 401)])
    world.clock.pass_by(6)
    assert await world.dispatcher.step() == 1


async def test_decision_that_nobody_took_in_time_fails(world: HubWorld) -> None:
    await world.post()
    world.clock.pass_by(400)
    await world.dispatcher.step()
    world.clock.pass_by(501)
    await world.dispatcher.step()
    words = "no bridge of this event answers"
    assert await state(world) == ("failed", "not-sent", words)
    assert world.transport.taken == []


async def test_decision_without_an_outcome_in_time_fails(world: HubWorld) -> None:
    await world.post()
    await world.dispatcher.step()
    world.clock.pass_by(901)
    await world.dispatcher.step()
    assert (await state(world))[0] == "sent"
    world.clock.pass_by(121)
    await world.dispatcher.step()
    assert await state(world) == ("failed", "no-answer", "no outcome came in time")
    assert len(world.transport.taken) == 1


async def test_session_that_several_share_goes_first(world: HubWorld) -> None:
    await world.store.keep(
        [
            *(beat(n) for n in range(4)),
            received(step("scheduled", who=vm(0)), session="own"),
            *(received(step("scheduled", who=vm(n)), session="shared") for n in (1, 2)),
        ]
    )
    await world.post()
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    assert sent.address is not None
    assert sent.address.session == "shared"


async def test_bridge_that_is_not_heard_of_may_answer(store: Store) -> None:
    async with HubWorld(store, config()).open() as world:
        body = orjson.loads(step("scheduled"))
        body["data"]["reporter"]["vmId"] = None
        await store.keep([received(orjson.dumps(body))])
        await world.post()
        assert await world.dispatcher.step() == 1


async def test_outcome_that_is_faster_than_the_record_holds(world: HubWorld) -> None:
    class Quick:
        async def send(self, claimed: Claimed) -> Result:
            await world.store.keep(
                [received(outcome("relayed", claimed.id, seconds=1))]
            )
            return Result(is_accepted=True)

    await world.post()
    dispatcher = world.dispatcher
    dispatcher.transports = {"bridge": Quick()}
    await dispatcher.step()
    assert (await state(world))[:2] == ("done", "relayed")


async def test_transport_that_hangs_times_out(world: HubWorld) -> None:
    class Hangs:
        async def send(self, claimed: Claimed) -> Result:
            raise TimeoutError

    await world.post()
    dispatcher = world.dispatcher
    dispatcher.transports = {"bridge": Hangs()}
    await dispatcher.step()
    assert await state(world) == ("sending", None, "no answer in time")
    world.clock.pass_by(6)
    dispatcher.transports = {}
    await dispatcher.step()
    assert (await state(world))[2] == "decisions cannot be sent via bridge"


async def test_slow_transport_holds_up_no_other_decision(world: HubWorld) -> None:
    class Slow:
        """Never finishes one event; sends others at once."""

        begun = 0

        async def send(self, claimed: Claimed) -> Result:
            self.begun += 1
            if claimed.event_id == EVENT_ID:
                await asyncio.Event().wait()
            return Result(is_accepted=True)

    stop, slow = asyncio.Event(), Slow()
    await world.post()
    dispatcher = world.dispatcher
    dispatcher.transports = {"bridge": slow}
    running = asyncio.create_task(dispatcher.run(stop))
    async with asyncio.timeout(60):
        while not slow.begun:
            await asyncio.sleep(0.01)
        world.clock.pass_by(1)
        await world.store.keep([received(step("scheduled", event("OTHER")))])
        await world.post(event_id="OTHER")
        while (await state(world))[0] != "sent":
            await world.clock.advance(0.5)
            await asyncio.sleep(0.01)
    assert slow.begun == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Held:
    """A transport that waits until a test releases it."""

    def __init__(self) -> None:
        self.begun = 0
        self.is_enough = asyncio.Event()

    async def send(self, _: Claimed) -> Result:
        self.begun += 1
        await self.is_enough.wait()
        return Result(is_accepted=True)


async def test_decision_of_a_hub_that_is_gone_is_carried_soon(world: HubWorld) -> None:
    held, dispatcher = Held(), world.dispatcher
    dispatcher.transports = {"bridge": held}
    await world.post()
    dying = asyncio.create_task(dispatcher.step())
    await until(lambda: held.begun == 1)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)

    assert await world.dispatcher.step() == 0, "the other one may still live"
    world.clock.pass_by(16)
    assert await world.dispatcher.step() == 1
    assert (await state(world))[0] == "sent"


async def test_decision_of_a_hub_that_takes_long_is_its_own(world: HubWorld) -> None:
    held, dispatcher = Held(), world.dispatcher
    dispatcher.transports = {"bridge": held}
    await world.post()
    going = asyncio.create_task(dispatcher.step())
    await until(lambda: held.begun == 1)
    for _ in range(8):
        renewals = world.clock.waits.count(5.0)
        await world.clock.advance(5)
        await until(lambda: world.clock.waits.count(5.0) > renewals)  # noqa: B023 - awaited
        assert await world.dispatcher.step() == 0

    held.is_enough.set()
    assert await going == 1
    assert (await state(world))[0] == "sent"
    world.clock.pass_by(29)
    assert await world.dispatcher.step() == 0, "the wait for the outcome stands"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_end_that_the_transport_reports_is_stored(world: HubWorld) -> None:
    world.transport.results = [ended(DecisionState.FAILED, "rejected", "HTTP 400")]
    await world.post()
    await world.dispatcher.step()
    assert await state(world) == ("failed", "rejected", "HTTP 400")


async def test_store_that_is_away_stops_no_dispatcher(
    world: HubWorld, caplog: pytest.LogCaptureFixture
) -> None:
    class Away:
        is_away = True

        async def read(self, _: Any) -> Any:
            raise HubStoreAwayError("the store is away")

    stop = asyncio.Event()
    dispatcher = world.dispatcher
    dispatcher.store = Away()  # type: ignore[assignment]  # it is away
    running = asyncio.create_task(dispatcher.run(stop))
    await world.clock.advance(1)
    stop.set()
    await running
    assert "decisions cannot be read" in caplog.text


async def test_decision_whose_store_goes_away_is_carried_later(
    world: HubWorld, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails:
        def __init__(self, store: Store) -> None:
            self.read = store.read

        async def write(self, _: Any) -> Any:
            raise HubStoreAwayError("the store is away")

    await world.post()
    dispatcher = world.dispatcher
    dispatcher.store = Fails(world.store)  # type: ignore[assignment]  # it fails
    assert await dispatcher.step() == 0
    assert "decision cannot be carried" in caplog.text
    assert await world.dispatcher.step() == 1


async def test_message_is_the_same_each_time_but_for_its_time_to_live(
    world: HubWorld,
) -> None:
    await world.post()
    await world.dispatcher.step()
    (sent,) = world.transport.taken
    first, late = message_of(sent, at(0)), message_of(sent, at(9999))

    assert (first.message_id, first.body) == (late.message_id, late.body)
    assert first.time_to_live == timedelta(seconds=900)
    assert late.time_to_live == timedelta(seconds=1)
    assert (first.subject, first.session_id) == ("sebridge.startrequest.v1", None)


async def test_start_in_the_far_future_makes_no_endless_message(
    store: Store,
) -> None:
    async with HubWorld(store, config()).open() as world:
        await world.scheduled(NotBefore="Fri, 31 Dec 9999 23:59:59 GMT")
        await world.post()
        await world.dispatcher.step()
        (sent,) = world.transport.taken
        assert message_of(sent, at(0)).time_to_live == timedelta(days=30)


async def test_two_hubs_on_one_store_send_it_once(
    hub_config: HubConfig, store: Store
) -> None:
    async with HubWorld(store, config()).open() as world:
        await world.scheduled()
        await world.post()
        both = [world.dispatcher, world.dispatcher]
        done = await asyncio.gather(*(one.step() for one in both))
        assert sorted(done) == [0, 1]
        assert len(world.transport.taken) == 1


async def test_dispatcher_runs_until_it_is_stopped(world: HubWorld) -> None:
    stop = asyncio.Event()
    await world.post()
    dispatcher: Dispatcher = world.dispatcher
    dispatcher.metrics = HubMetrics(("b",), "1")
    running = asyncio.create_task(dispatcher.run(stop))
    while not world.transport.taken or (await state(world))[0] != "sent":
        await asyncio.sleep(0.01)
    stop.set()
    await world.clock.advance(1)
    await running


# -- signed decisions -----------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "sign.pem"
    path.write_text(pem(KEY))
    return path


@pytest.fixture
async def signing(store: Store, key_file: Path) -> AsyncIterator[HubWorld]:
    given = config(sign_key=Secret(f"file:{key_file}", {}))
    async with HubWorld(store, given).open() as opened:
        await opened.scheduled()
        yield opened


async def test_decision_is_signed_for_the_source_of_its_event(
    signing: HubWorld,
) -> None:
    await signing.post()
    await signing.dispatcher.step()

    (sent,) = signing.transport.taken
    event = SignedEvent.parse(sent.message)
    found = judge(event, {KEY.key_id: KEY.public})
    assert (found.verdict, found.key_id) == (Verdict.HOLDS, KEY.key_id)
    body = orjson.loads(step("scheduled", LONGER))
    assert orjson.loads(event.data)["audience"] == body["source"]


async def test_signed_decision_ends_within_a_day(store: Store, key_file: Path) -> None:
    """So that nobody can send it again after that."""
    given = config(sign_key=Secret(f"file:{key_file}", {}))
    async with HubWorld(store, given).open() as world:
        await world.scheduled(NotBefore=not_before(5 * 86400))
        await world.post()
        await world.dispatcher.step()

    (sent,) = world.transport.taken
    assert sent.expires == world.clock.now() + timedelta(hours=24)
    data = orjson.loads(sent.message)["data"]
    assert datetime.fromisoformat(data["expiresAt"]) == sent.expires


async def test_decision_keeps_its_signature_over_a_new_key(
    signing: HubWorld, key_file: Path
) -> None:
    """The bytes are stored: they are the same after a restart and a new key."""
    await signing.post()
    await signing.dispatcher.step()
    key_file.write_text(pem(OTHER))
    signing.clock.pass_by(30)
    await signing.store.keep([beat(0, 30)])
    await signing.dispatcher.step()

    first, second = signing.transport.taken
    assert first.message == second.message


async def test_decision_is_signed_by_both_keys_of_the_file(
    signing: HubWorld, key_file: Path
) -> None:
    key_file.write_text(pem(KEY) + pem(OTHER))
    await signing.post()
    await signing.dispatcher.step()

    event = SignedEvent.parse(signing.transport.taken[0].message)
    for one in (KEY, OTHER):
        assert judge(event, {one.key_id: one.public}).verdict is Verdict.HOLDS


async def test_nothing_is_decided_while_the_key_cannot_be_read(
    signing: HubWorld, key_file: Path
) -> None:
    key_file.unlink()
    status, said = await signing.post()

    assert status == 503
    assert "hub.sign_key" in str(said)
    key_file.write_text(pem(KEY))
    assert (await signing.post())[0] == 200


async def test_event_that_no_bridge_has_reported_of_cannot_be_signed(
    store: Store, key_file: Path
) -> None:
    """Its bridges would deny an approval that does not name their source."""
    given = config(sign_key=Secret(f"file:{key_file}", {}))
    async with HubWorld(store, given).open() as world:
        await world.store.keep([beat(0, 0, offer()), grid(azure("Scheduled"))])
        status, said = await world.post()
        assert status == 409
        assert "no bridge has reported the event" in str(said)

        await world.scheduled()
        assert (await world.post())[0] == 200


async def test_source_that_a_bridge_makes_up_at_its_start_is_not_signed(
    signing: HubWorld,
) -> None:
    """It denies an approval for that source, once it knows its VM."""
    other = event("OTHER", Resources=["web-0"])
    early = orjson.loads(step("scheduled", other))
    early |= {"source": "urn:sebridge:web-0"}
    begun = step("updated", {**other, "DurationInSeconds": 7}, seconds=1)
    await signing.store.keep([received(orjson.dumps(early)), received(begun, 1)])
    await signing.post(event_id="OTHER")
    await signing.dispatcher.step()

    data = orjson.loads(signing.transport.taken[-1].message)["data"]
    assert data["audience"] == orjson.loads(begun)["source"]

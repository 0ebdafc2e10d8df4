"""The approval receiver: the real SDK against a broker's bad days."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import ApprovalQueueError
from bridge.foundation.values import Secret
from bridge.servicebus.decode import (
    ABANDON,
    ReceivedMessage,
    Settlement,
    body_of,
    text_of,
)
from bridge.servicebus.namespace import (
    TIMINGS,
    ApprovalSource,
    NamespaceConfig,
    Timings,
)
from bridge.servicebus.receiver import ApprovalQueue, LockTime, open_queue
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.rules.rule import CorrelationFilter
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import Condition
from tests.simulator.servicebus_fixtures import rules_for
from tests.support.stopwatch import Stopwatch
from tests.system.proxy import proxy_to

BRIEF = timedelta(seconds=4)
ENTITIES = Entities(
    queues=(
        QueueSettings(name="q"),
        QueueSettings(name="sessions", requires_session=True),
        QueueSettings(name="brief", lock_duration=BRIEF),
        QueueSettings(
            name="brief-sessions", lock_duration=BRIEF, requires_session=True
        ),
    ),
    topics=(
        TopicSettings(
            name="t",
            subscriptions=(
                SubscriptionSettings(name="s"),
                SubscriptionSettings(name="by-session", requires_session=True),
            ),
        ),
        TopicSettings(
            name="per-vm",
            subscriptions=tuple(
                SubscriptionSettings(
                    name=vm,
                    rules=rules_for(CorrelationFilter(properties={"SessionId": vm})),
                )
                for vm in ("a", "b")
            ),
        ),
    ),
)


class Stage:
    """A broker, and queues opened against it."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.stop = asyncio.Event()
        self._stack = stack

    @property
    def config(self) -> NamespaceConfig:
        secret = Secret(self.broker.connection_string, {})
        return NamespaceConfig(connection_string=secret)

    async def opened(
        self,
        source: ApprovalSource,
        clock: Clock | None = None,
        lock_time: LockTime | None = None,
        *,
        timings: Timings = TIMINGS,
        port: int | None = None,
    ) -> ApprovalQueue:
        """Open a queue; ``port`` is that of a cable to the broker."""
        text = self.broker.connection_string
        if port is not None:
            text = text.replace(f":{self.broker.port}", f":{port}")
        config = NamespaceConfig(connection_string=Secret(text, {}))
        clock = clock or SystemClock()
        queue = open_queue(config, source, clock, lock_time, timings)
        return await self._stack.enter_async_context(queue)

    async def put(
        self, *messages: ServiceBusMessage | AmqpAnnotatedMessage, into: str = "q"
    ) -> None:
        client = ServiceBusClient.from_connection_string(self.broker.connection_string)
        async with client, client.get_queue_sender(into) as sender:
            for message in messages:
                await sender.send_messages(message)

    async def received(self, queue: ApprovalQueue) -> ReceivedMessage:
        """Receive one message; a receiver that died meanwhile is opened anew."""
        async with asyncio.timeout(60):
            while True:
                with suppress(ApprovalQueueError):
                    for message in await queue.receive(self.stop):
                        return message

    def count(self, path: str = "q") -> tuple[int, int, int]:
        counts = self.broker.snapshot()[path]
        return counts.active, counts.locked, counts.dead


@pytest.fixture
async def stage(brisk_sdk: None) -> AsyncIterator[Stage]:
    async with Broker(ENTITIES) as broker, AsyncExitStack() as stack:
        yield Stage(broker, stack)


def approval(session: str | None = None, **options: object) -> ServiceBusMessage:
    return ServiceBusMessage(b"{}", session_id=session, message_id="m-1", **options)  # type: ignore[arg-type]  # options are what the test gives


async def test_message_is_received_with_all_that_the_listener_needs(
    stage: Stage,
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(
        ServiceBusMessage(
            b'{"StartRequests": []}',
            message_id="m-1",
            content_type="application/json",
            reply_to="replies",
            reply_to_session_id="them",
            application_properties={"approvedBy": "Jürgen", "n": 1, "flag": True},
        )
    )

    message = await stage.received(queue)

    assert message.body == b'{"StartRequests": []}'
    assert (message.message_id, message.sequence_number) == ("m-1", 1)
    assert message.content_type == "application/json"
    assert (message.reply_to, message.reply_to_session_id) == ("replies", "them")
    assert message.application_properties == {
        "approvedBy": "Jürgen",
        "n": 1,
        "flag": True,
    }
    assert message.enqueued_at is not None
    assert message.enqueued_at > before
    assert message.delivery_count == 0
    assert queue.attached
    assert queue.last_error is None


async def test_value_body_is_read_too(stage: Stage) -> None:
    """Not all senders send data sections; the JavaScript SDK may send values."""
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(AmqpAnnotatedMessage(value_body={"StartRequests": ["ü"]}))

    message = await stage.received(queue)

    assert message.body == '{"StartRequests":["ü"]}'.encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([b"ab", b"cd"], b"abcd"),
        ((part for part in (b"ab", b"cd")), b"abcd"),
        ([], b""),
        (b"ab", b"ab"),
        ("ü", "ü".encode()),
        ({b"a": [b"b", None, 1]}, b'{"a":["b",null,1]}'),
        ([[b"row", 1], [b"row", 2]], b'[["row",1],["row",2]]'),
        (5, b"5"),
        (None, b"null"),
        (2**70, b""),
    ],
)
def test_body_of_any_kind_becomes_bytes(body: object, expected: bytes) -> None:
    assert body_of(body) == expected


@given(
    st.recursive(
        st.none() | st.integers() | st.binary() | st.text() | st.uuids() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.binary(), inner),
    )
)
def test_no_body_is_too_odd_to_be_read(body: object) -> None:
    assert isinstance(body_of(body), bytes)
    text_of(body)


async def test_each_way_of_settling_ends_where_it_should(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    first = await stage.received(queue)
    await queue.settle(first, ABANDON)
    again = await stage.received(queue)
    await queue.settle(again, Settlement("dead-letter", "Denied", "x" * 5000))
    await stage.put(approval())
    await queue.settle(await stage.received(queue))

    assert (first.delivery_count, again.delivery_count) == (0, 1)
    assert stage.count() == (0, 0, 1)


async def test_dead_letter_says_why(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    await queue.settle(
        await stage.received(queue),
        Settlement("dead-letter", "Denied", "not on weekends"),
    )

    dead = await stage.opened(ApprovalSource(queue="q/$DeadLetterQueue"))
    message = await stage.received(dead)
    assert message.application_properties["DeadLetterReason"] == "Denied"
    words = message.application_properties["DeadLetterErrorDescription"]
    assert words == "not on weekends"


async def test_subscription_is_received_from(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(topic="t", subscription="s"))
    await stage.put(approval(), into="t")

    await queue.settle(await stage.received(queue))

    assert stage.count("t/Subscriptions/s") == (0, 0, 0)


async def test_only_the_session_asked_for_is_received(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(queue="sessions", session="mine"))
    await stage.put(approval("other"), approval("mine"), into="sessions")

    message = await stage.received(queue)
    await queue.settle(message)

    assert message.session_id == "mine"
    assert stage.count("sessions") == (1, 0, 0)


async def test_session_held_elsewhere_is_stood_by_for_and_had_later(
    stage: Stage,
) -> None:
    source = ApprovalSource(queue="sessions", session="mine")
    holder = await stage.opened(source)
    await holder.reach()
    waiting = await stage.opened(source, lock_time=LockTime(0.4))
    received = await waiting.receive(stage.stop)
    found, stood_by = waiting.last_error, waiting.stands_by
    await holder.close()
    await stage.put(approval("mine"), into="sessions")
    await stage.received(waiting)

    assert received == []
    assert stood_by
    assert "session mine: is held elsewhere" in str(found)
    assert (waiting.last_error, waiting.stands_by) == (None, False)


class WaitingClock(SystemClock):
    """Notes the waits of a queue that stands by, and lets them be over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        if not slack:  # not the tick of the locks
            self.waits.append(seconds)
            return event.is_set()
        return await super().wait(event, seconds, slack=slack)


@pytest.mark.parametrize(
    ("before", "quarter"), [((), 5.0), (("own",), 15.0)], ids=["unknown", "known"]
)
async def test_session_is_asked_for_again_at_a_quarter_of_the_lock_time(
    before: tuple[str, ...], quarter: float, stage: Stage
) -> None:
    """The time is learnt from any other session of the entity: it is the same."""
    clock, lock_time = WaitingClock(), LockTime()
    source = ApprovalSource(queue="sessions", session="mine")
    holder = await stage.opened(source)
    await holder.reach()
    for name in before:
        own = ApprovalSource(queue="sessions", session=name)
        await (await stage.opened(own, lock_time=lock_time)).reach()
    waiting = await stage.opened(source, clock, lock_time)
    await waiting.receive(stage.stop)

    assert clock.waits == [pytest.approx(quarter, rel=0.1)]


@pytest.mark.slow
@pytest.mark.parametrize("is_held", [False, True], ids=["released", "held"])
async def test_session_of_a_bridge_that_died_is_taken_over_in_its_lock_time(
    *, is_held: bool, stage: Stage
) -> None:
    """Whether the broker frees it with the connection or waits for its lock to end."""
    stage.broker.faults.hold_session_locks = is_held
    source = ApprovalSource(queue="brief-sessions", session="mine")
    holder = await stage.opened(source)
    await holder.reach()
    waiting = await stage.opened(source, lock_time=LockTime(BRIEF.total_seconds()))
    taking = asyncio.create_task(stage.received(waiting))
    await asyncio.sleep(0.2)
    await stage.put(approval("mine"), into="brief-sessions")
    watch = Stopwatch()
    stage.broker.faults.drop_connections()
    message = await taking
    took = watch.seconds

    assert message.session_id == "mine"
    assert took < BRIEF.total_seconds() * 1.25 + 1


async def test_topic_with_sessions_serves_each_its_own(stage: Stage) -> None:
    mine = ApprovalSource(topic="t", subscription="by-session", session="mine")
    other = ApprovalSource(topic="t", subscription="by-session", session="other")
    queues = [await stage.opened(source) for source in (mine, other)]
    await stage.put(approval("other"), approval("mine"), into="t")

    messages = [await stage.received(queue) for queue in queues]

    assert [m.session_id for m in messages] == ["mine", "other"]


async def test_correlation_filter_gives_each_vm_its_own_subscription(
    stage: Stage,
) -> None:
    """The layout without sessions: a filter on the SessionId says who is meant."""
    sources = [ApprovalSource(topic="per-vm", subscription=vm) for vm in ("a", "b")]
    queues = [await stage.opened(source) for source in sources]
    await stage.put(approval("b"), approval("a"), approval(), into="per-vm")
    for queue in queues:
        await queue.settle(await stage.received(queue))

    assert stage.count("per-vm/Subscriptions/a") == (0, 0, 0)
    assert stage.count("per-vm/Subscriptions/b") == (0, 0, 0)


class StallingClock(SystemClock):
    """A monotonic clock that is ahead by what the loop is said to have stood still."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_session_not_renewed_for_its_lock_time_is_taken_anew(
    stage: Stage,
) -> None:
    """As after a freeze of the VM: whoever has the session now, it may not be us."""
    clock = StallingClock()
    source = ApprovalSource(queue="sessions", session="mine")
    queue = await stage.opened(source, clock)
    waiting = asyncio.create_task(queue.receive(stage.stop))
    await until_attached(queue)
    clock.ahead = 90.0
    with pytest.raises(ApprovalQueueError, match="not renewed for longer than it"):
        await waiting
    assert not queue.attached
    await queue.reach()

    assert queue.attached


async def test_age_of_the_link_and_last_message_are_known(stage: Stage) -> None:
    clock = StallingClock()
    queue = await stage.opened(ApprovalSource(queue="q"), clock)
    before = (queue.link_seconds, queue.last_receive)
    await stage.put(approval())
    await stage.received(queue)
    clock.ahead = 30.0
    age, last = queue.link_seconds, queue.last_receive
    await queue.close()

    assert before == (None, None)
    assert age is not None
    assert 30 <= age < 90
    assert last is not None
    assert datetime.now(UTC) - last < timedelta(seconds=60)
    assert queue.link_seconds is None


async def until_attached(queue: ApprovalQueue) -> None:
    async with asyncio.timeout(60):
        while not queue.attached:
            await asyncio.sleep(0.02)


async def test_stop_ends_waiting_at_once_and_settling_still_works(
    stage: Stage,
) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    message = await stage.received(queue)
    waiting = asyncio.create_task(queue.receive(stage.stop))
    await asyncio.sleep(0.1)
    stage.stop.set()
    async with asyncio.timeout(60):
        received = await waiting
    await queue.settle(message)

    assert received == []
    assert await queue.receive(stage.stop) == []
    assert stage.count() == (0, 0, 0)


async def test_message_is_settled_while_the_next_is_waited_for(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    first = await stage.received(queue)
    waiting = asyncio.create_task(stage.received(queue))
    await asyncio.sleep(0.1)
    await queue.settle(first)
    await stage.put(approval())
    await queue.settle(await waiting)

    assert stage.count() == (0, 0, 0)


@pytest.mark.parametrize(
    "source",
    [
        ApprovalSource(queue="q"),
        ApprovalSource(queue="sessions", session="mine"),
    ],
    ids=str,
)
@pytest.mark.parametrize("fault", ["drop_connections", "detach_links"])
async def test_receiver_that_died_is_opened_anew(
    source: ApprovalSource, fault: str, stage: Stage
) -> None:
    """A session receiver of the SDK never comes back by itself."""
    queue = await stage.opened(source)
    waiting = asyncio.create_task(queue.receive(stage.stop))
    await until_attached(queue)
    getattr(stage.broker.faults, fault)()
    await stage.put(approval(source.session), into=source.queue)
    with suppress(ApprovalQueueError):
        async with asyncio.timeout(60):
            for message in await waiting:
                await queue.settle(message, ABANDON)
    message = await stage.received(queue)
    await queue.settle(message)

    assert stage.count(source.queue) == (0, 0, 0)


async def test_dead_receiver_is_not_attached_and_says_why(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    waiting = asyncio.create_task(queue.receive(stage.stop))
    await until_attached(queue)
    stage.broker.faults.drop_connections()
    with pytest.raises(ApprovalQueueError, match="Service Bus q: cannot be reached"):
        await waiting

    assert not queue.attached
    assert queue.last_error is not None


async def test_message_in_hand_when_the_receiver_dies_is_delivered_again(
    stage: Stage,
) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    message = await stage.received(queue)
    stage.broker.faults.drop_connections()
    with pytest.raises(ApprovalQueueError):
        await queue.receive(stage.stop)
    with pytest.raises(ApprovalQueueError, match="lock of a message is lost"):
        await queue.settle(message)
    stage.broker.faults.expire_locks("q")
    again = await stage.received(queue)

    assert (again.message_id, again.delivery_count) == ("m-1", 1)


async def test_lost_lock_of_one_message_leaves_the_receiver_alone(
    stage: Stage,
) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    message = await stage.received(queue)
    stage.broker.faults.expire_locks("q")
    with pytest.raises(ApprovalQueueError, match="lock of a message is lost"):
        await queue.settle(message)

    assert queue.attached
    await queue.settle(await stage.received(queue))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition.NOT_FOUND, "does not exist"),
        (Condition.UNAUTHORIZED, "denies the right"),
        (Condition.ENTITY_DISABLED, "is disabled"),
    ],
)
async def test_entity_that_cannot_be_received_from_says_why(
    condition: Condition, words: str, stage: Stage
) -> None:
    stage.broker.faults.refuse_attach("q", condition)
    queue = await stage.opened(ApprovalSource(queue="q"))
    with pytest.raises(ApprovalQueueError, match=words):
        await queue.receive(stage.stop)

    assert not queue.attached
    assert words in str(queue.last_error)


async def test_entity_that_is_not_there_is_reported_so(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(topic="t", subscription="no-such"))
    with pytest.raises(ApprovalQueueError, match="t/no-such: does not exist"):
        await queue.receive(stage.stop)


async def test_queue_is_reached_without_receiving(stage: Stage) -> None:
    queue = await stage.opened(ApprovalSource(queue="q"))
    await stage.put(approval())
    await queue.reach()

    assert queue.attached
    assert stage.count() == (1, 0, 0)


async def test_missing_secret_says_which() -> None:
    config = NamespaceConfig(connection_string=Secret("env:GONE", {}))
    async with open_queue(config, ApprovalSource(queue="q"), SystemClock()) as queue:
        with pytest.raises(ApprovalQueueError, match="GONE is not set"):
            await queue.receive(asyncio.Event())


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        ApprovalSource(queue="brief"),
        ApprovalSource(queue="brief-sessions", session="mine"),
    ],
    ids=str,
)
async def test_lock_is_kept_as_long_as_the_message_is_in_hand(
    source: ApprovalSource, stage: Stage
) -> None:
    """A start request may wait for IMDS longer than any lock lasts."""
    queue = await stage.opened(source)
    await stage.put(approval(source.session), into=source.queue)
    message = await stage.received(queue)
    await asyncio.sleep(BRIEF.total_seconds() * 1.6)
    await queue.settle(message)

    assert queue.attached
    assert stage.count(source.queue) == (0, 0, 0)


async def test_silent_broker_is_noticed_by_renewing(stage: Stage) -> None:
    """To receive from a silent peer is to find an empty queue, for ever."""
    brief = Timings(look=0.5, renew=0.3, close=0.3)
    queue = await stage.opened(ApprovalSource(queue="q"), timings=brief)
    waiting = asyncio.create_task(queue.receive(stage.stop))
    await until_attached(queue)
    stage.broker.faults.freeze()
    with pytest.raises(ApprovalQueueError, match="did not answer in time"):
        await waiting
    stage.broker.faults.thaw()

    assert not queue.attached


@pytest.mark.slow
async def test_connection_that_went_dead_swallows_one_message_once(
    stage: Stage,
) -> None:
    """The broker takes it for alive, and locks what it hands to it."""
    async with proxy_to(stage.broker.port) as cable:
        queue = await stage.opened(
            ApprovalSource(queue="brief"), timings=Timings(look=1.0), port=cable.port
        )
        await stage.put(approval(), into="brief")
        await queue.settle(await stage.received(queue))
        receiving = asyncio.create_task(stage.received(queue))
        await asyncio.sleep(1.5)  # until it asks for the next one
        cable.silence()
        cable.forget()
        three = (ServiceBusMessage(b"{}", message_id=f"m-{n}") for n in range(3))
        await stage.put(*three, into="brief")
        found = [await receiving]
        found += [await stage.received(queue) for _ in range(2)]

        handed = {message.message_id: message.delivery_count for message in found}
        assert handed == {"m-0": 1, "m-1": 0, "m-2": 0}

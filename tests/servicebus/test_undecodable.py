"""Messages that the SDK cannot decode: the real SDK and broker, raw bytes between."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus.aio import ServiceBusClient
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.app.approve_reply import Answers
from bridge.approvals.listener import Listener
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import ApprovalQueueError
from bridge.foundation.values import Secret
from bridge.servicebus.decode import (
    UNDECODABLE,
    ReceivedMessage,
    Settlement,
    guarded,
    readable,
)
from bridge.servicebus.namespace import ApprovalSource, NamespaceConfig
from bridge.servicebus.receiver import ApprovalQueue, open_queue
from bridge.servicebus.salvage import WORDS
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import Entities, QueueSettings
from tests.approvals.approval_world import world_of
from tests.support.builders import EVENT_ID, imds_event
from tests.support.oracle import ORACLE
from tests.support.raw_amqp import encoded, nested, section, send_raw
from tests.support.stopwatch import Stopwatch
from tests.system.proxy import Proxy

proton = pytest.importorskip("proton", reason=ORACLE)

PLAIN, SESSIONS = ApprovalSource(queue="q"), ApprovalSource(queue="s", session="m")
ENTITIES = Entities(
    queues=(
        QueueSettings(name="q"),
        QueueSettings(name="s", requires_session=True),
        QueueSettings(name="replies"),
    )
)
_PLAIN: Any = proton.UNDESCRIBED
PROPERTIES = section(0x73, ["bad", *[None] * 9, "m"])
APPROVAL = f'{{"StartRequests": [{{"EventId": "{EVENT_ID}"}}]}}'


def bad(**fields: object) -> bytes:
    return encoded("{}", id="bad", group_id="m", **fields)


def arrays() -> Any:
    inner = proton.Array(_PLAIN, proton.Data.INT, 1, 2)
    return proton.Array(_PLAIN, proton.Data.ARRAY, inner, inner)


BAD = {
    "nested 70 deep": PROPERTIES + nested(70),
    "array of arrays": PROPERTIES + section(0x77, arrays()),
    "list as a key": PROPERTIES + b"\x00\x53\x77\xc1\x03\x02\x45\x40",
    "100 kB in frames": PROPERTIES + section(0x75, b"x" * 100_000) + nested(70),
    "array of nothing": PROPERTIES + b"\x00\x53\x77\xf0\0\0\0\5\0\0\xff\xff\x40",
    "message-id is no text": section(0x73, [b"\xff", *[None] * 9, "m"]) + nested(70),
    "a property without a name": PROPERTIES
    + section(0x74, {proton.char("x"): 1})
    + section(0x75, b"{}"),
}
# An entry of these cannot be decoded; the rest of the message can.
ODD_ENTRIES = {
    "char": bad(properties={"x": proton.char("a")}),
    "decimal32": bad(properties={"x": proton.decimal32(5)}),
    "decimal64": bad(properties={"x": proton.decimal64(5)}),
    "nested": bad(properties={"x": [[proton.char("a")]]}),
    "char among the annotations": bad(
        annotations={proton.symbol("x"): proton.char("a")}
    ),
}


def config_of(connection_string: str) -> NamespaceConfig:
    return NamespaceConfig(connection_string=Secret(connection_string, {}))


class Stage:
    """A broker and a queue opened against it."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.stop = asyncio.Event()
        self._stack = stack
        self._kept: ApprovalQueue | None = None

    async def opened(self, source: ApprovalSource) -> ApprovalQueue:
        config = config_of(self.broker.connection_string)
        return await self._stack.enter_async_context(
            open_queue(config, source, SystemClock())
        )

    async def kept(self, source: ApprovalSource) -> ApprovalQueue:
        """Open a queue once, for all examples."""
        if self._kept is None:
            self._kept = await self.opened(source)
        return self._kept

    async def received(self, queue: ApprovalQueue, count: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += await queue.receive(self.stop)
        return found


@pytest.fixture
async def stage(brisk_sdk: None) -> AsyncIterator[Stage]:
    async with Broker(ENTITIES) as broker, AsyncExitStack() as stack:
        yield Stage(broker, stack)


@pytest.mark.parametrize("source", [PLAIN, SESSIONS], ids=str)
@pytest.mark.parametrize("name", BAD)
async def test_message_behind_one_that_cannot_be_decoded_is_received(
    name: str, source: ApprovalSource, stage: Stage
) -> None:
    queue = await stage.opened(source)
    await queue.reach()
    good = encoded(APPROVAL, id="good", group_id="m")
    await send_raw(stage.broker, source.queue, [BAD[name], good])

    first, second = await stage.received(queue, 2)
    await queue.settle(
        first, Settlement("dead-letter", "InvalidMessage", "cannot be decoded")
    )
    await queue.settle(second)

    assert (first.fault, second.fault) == (WORDS, None)
    assert (first.sequence_number, second.message_id) == (1, "good")
    assert first.enqueued_at is not None
    counts = stage.broker.snapshot()[source.queue]
    assert (counts.active, counts.locked, counts.dead) == (0, 0, 1)
    assert queue.last_error is None


@pytest.mark.parametrize("source", [PLAIN, SESSIONS], ids=str)
@pytest.mark.parametrize("name", ODD_ENTRIES)
async def test_entry_that_cannot_be_decoded_is_left_out(
    name: str, source: ApprovalSource, stage: Stage
) -> None:
    queue = await stage.opened(source)
    await send_raw(stage.broker, source.queue, [ODD_ENTRIES[name]])

    (message,) = await stage.received(queue, 1)
    await queue.settle(message)

    assert (message.message_id, message.body, message.fault) == ("bad", b"{}", None)
    assert message.enqueued_at is not None
    lost = {} if "annotations" in name else {"x": UNDECODABLE}
    assert message.application_properties == lost


@pytest.mark.parametrize(
    ("properties", "outcome"),
    [
        ({"grade": proton.char("a")}, None),
        ({"approvedBy": proton.char("a")}, None),
        ({"expiresAt": proton.char("a")}, "expiresAt is no RFC 3339 time"),
        ({"ApprovedEvent": proton.char("a")}, "approvedEvent is no JSON object"),
        ({"cloudEvents_type": proton.char("a")}, "the CloudEvent is not of"),
        ({"expires": proton.char("a")}, "the property expires has no effect"),
        (
            {
                "expiresAt": proton.Described(
                    proton.symbol("com.microsoft:datetime-offset"), 639028224000000000
                )
            },  # a DateTimeOffset of .NET: 2026-01-01
            "it came too late to be relayed: ExpiresAt",
        ),
    ],
)
async def test_property_that_cannot_be_decoded_spoils_only_what_needs_it(
    properties: dict[str, Any], outcome: str | None, stage: Stage, tmp_path: Path
) -> None:
    queue = await stage.opened(PLAIN)
    sent = encoded(APPROVAL.encode(), id="odd", properties=properties)
    await send_raw(stage.broker, "q", [sent])
    (message,) = await stage.received(queue, 1)
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(imds_event())
        world.with_terms(max_age=1e9)
        settlement = await world.handle(message)

    assert settlement is not None
    assert world.imds.posts == ([] if outcome else [EVENT_ID])
    assert (outcome or "") in settlement.words
    assert settlement.verdict == ("dead-letter" if outcome else "complete")


async def test_approval_behind_it_is_relayed_within_seconds(
    stage: Stage, tmp_path: Path
) -> None:
    """And what cannot be decoded is a dead letter, with its outcome and its reply."""
    queue = await stage.opened(SESSIONS)
    fields = [*["bad", None, None, None, "replies"], *[None] * 5, *["m", None, "back"]]
    odd = [section(0x73, fields) + nested(depth) for depth in (70, 71)]
    good = encoded(APPROVAL, id="good", group_id="m")
    async with world_of(tmp_path / "state.db") as world:
        world.imds.shows(imds_event())
        world.with_terms(max_age=1e9)
        listener = Listener(queue=queue, context=world.context)
        stop = asyncio.Event()
        listening = asyncio.create_task(listener.run(stop))
        await send_raw(stage.broker, "s", [*odd, good])
        watch = Stopwatch()
        async with asyncio.timeout(60):
            while not (world.imds.posts and stage.broker.snapshot()["s"].dead == 2):
                await asyncio.sleep(0.02)
        took = watch.seconds
        stop.set()
        await listening
        kinds, outcomes = await world.kinds(), await world.outcomes()
        replies = await world.replies()

    assert took < 5
    assert world.imds.posts == [EVENT_ID]
    assert sorted(kinds) == ["invalid", "invalid", "relayed"]
    invalid = [event for event in outcomes if event.data["outcome"] == "invalid"]
    assert len({event.id for event in invalid}) == 2
    for event in invalid:
        assert event.data["reason"] == WORDS
        request = event.data["request"]
        assert isinstance(request, dict)
        assert request["messageId"] == "bad"
        assert request["enqueuedAt"]
    assert [(reply["entity"], reply["sessionId"]) for reply in replies] == [
        ("replies", "back")
    ] * 2
    dead = await stage.opened(ApprovalSource(queue="s/$DeadLetterQueue"))
    (letter, _) = await stage.received(dead, 2)
    assert letter.message_id == "bad"
    assert letter.fault == WORDS


async def test_look_at_the_queue_survives_what_cannot_be_decoded(stage: Stage) -> None:
    """A receiver without a session peeks once a minute, to know that it is alive."""
    await send_raw(stage.broker, "q", [BAD["nested 70 deep"], ODD_ENTRIES["char"]])
    client = ServiceBusClient.from_connection_string(stage.broker.connection_string)
    async with client, guarded(client.get_queue_receiver("q")) as receiver:
        peeked = await receiver.peek_messages(10, sequence_number=1)

    assert [message.sequence_number for message in peeked] == [1, 2]


async def test_reply_behind_what_cannot_be_decoded_is_found_and_taken(
    stage: Stage,
) -> None:
    """``sebridge approve --wait`` reads a queue that others may write to as well."""
    found = b'{"messageId": "m-1", "outcomes": [{"outcome": "relayed"}]}'
    good = encoded(found, id="r", correlation_id="m-1")
    config = config_of(stage.broker.connection_string)
    await send_raw(stage.broker, "replies", [*BAD.values(), good])
    async with Answers(config, "replies", SystemClock()) as answers:
        outcomes = await answers.outcomes("m-1", within=60)

    assert outcomes == [{"outcome": "relayed"}]
    async with asyncio.timeout(60):  # the broker hears of it a moment later
        while stage.broker.snapshot()["replies"].active != len(BAD):
            await asyncio.sleep(0.05)
    assert stage.broker.snapshot()["replies"].dead == 0


def scalars() -> st.SearchStrategy[object]:
    """Return values of each AMQP type that holds no others, as Proton has them."""
    wide = st.integers(0, 2**32 - 1)
    numbers = st.sampled_from(
        [
            proton.ubyte,
            proton.byte,
            proton.ushort,
            proton.short,
            proton.int32,
            proton.uint,
            proton.ulong,
        ]
    )
    return st.one_of(
        st.none()
        | st.booleans()
        | st.floats()
        | st.floats(width=32).map(proton.float32),
        st.builds(lambda kind, number: kind(number), numbers, st.integers(0, 127)),
        st.integers(-(2**63), 2**63 - 1) | wide.map(proton.timestamp),
        wide.map(proton.decimal32) | wide.map(proton.decimal64),
        st.binary(min_size=16, max_size=16).map(proton.decimal128),
        st.characters(exclude_categories=["Cs"]).map(proton.char),
        st.uuids() | st.binary(max_size=9) | st.text(max_size=9),
        st.text(st.characters(codec="ascii"), max_size=9).map(proton.symbol),
    )


def arrays_of_one_kind() -> st.SearchStrategy[object]:
    kinds = st.sampled_from(
        [
            *(
                (proton.Data.NULL, None),
                (proton.Data.BOOL, True),
                (proton.Data.INT, 7),
                (proton.Data.STRING, "x"),
            ),
            *(
                (proton.Data.CHAR, proton.char("a")),
                (proton.Data.UUID, UUID(int=7)),
                (proton.Data.BINARY, b"x"),
            ),
            *(
                (proton.Data.SYMBOL, proton.symbol("x")),
                (proton.Data.DECIMAL64, proton.decimal64(7)),
            ),
            (proton.Data.ARRAY, proton.Array(_PLAIN, proton.Data.INT, 1, 2)),
        ]
    )
    sizes = st.integers(0, 3) | st.just(300)
    return st.builds(
        lambda kind, n: proton.Array(_PLAIN, kind[0], *[kind[1]] * n), kinds, sizes
    )


def amqp_values() -> st.SearchStrategy[object]:
    """Return any value that Proton encodes."""
    return st.recursive(
        scalars() | arrays_of_one_kind(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(scalars(), inner, max_size=3),
            st.builds(
                proton.Described,
                st.integers(0, 255).map(proton.ulong) | scalars(),
                inner,
            ),
        ),
        max_leaves=8,
    )


def amqp_messages() -> st.SearchStrategy[bytes]:
    """Return messages with any sections, in any order, as often as it comes."""
    maps = st.dictionaries(scalars(), amqp_values(), max_size=3)
    kinds: dict[int, st.SearchStrategy[object]] = {
        0x70: st.lists(amqp_values(), max_size=6)
    }
    kinds |= dict.fromkeys((0x71, 0x72, 0x74, 0x78), maps)
    kinds |= {0x73: st.lists(amqp_values(), max_size=14)}
    kinds |= {0x75: st.binary(max_size=30), 0x76: st.lists(amqp_values(), max_size=3)}
    likely = [
        st.tuples(st.just(code), values | amqp_values())
        for code, values in (kinds | {0x77: amqp_values()}).items()
    ]
    return st.lists(st.one_of(likely), max_size=5).map(
        lambda parts: b"".join(section(code, value) for code, value in parts)
    )


@settings(max_examples=int(os.environ.get("SEBRIDGE_FUZZ_EXAMPLES", "25")))
@given(batch=st.lists(amqp_messages(), min_size=1, max_size=10))
async def test_no_message_that_proton_encodes_ends_approvals(
    batch: list[bytes], stage: Stage
) -> None:
    """A valid approval that was sent behind it is received.

    SEBRIDGE_FUZZ_EXAMPLES in the environment says how many batches are tried.
    """
    queue = await stage.kept(PLAIN)
    taken = await send_raw(stage.broker, "q", batch)
    await send_raw(stage.broker, "q", [encoded(APPROVAL, id="good")])
    async with asyncio.timeout(60):
        found: list[ReceivedMessage] = []
        while not any(message.message_id == "good" for message in found):
            more = await queue.receive(stage.stop)
            for message in more:
                await queue.settle(
                    message, Settlement("dead-letter", "InvalidMessage", "as it may be")
                )
            found += more

    assert len(found) <= taken + 1
    assert queue.attached


class OddFrames(Proxy):
    """A proxy that can say what no broker should: a frame of an unknown type."""

    def confuse(self) -> None:
        for writer in self._writers:
            if writer.get_extra_info("sockname")[1] == self.port:
                writer.write(b"\0\0\0\x0c\2\7\0\0" + bytes(4))


async def test_empty_receive_long_before_its_time_is_a_broken_receiver(
    stage: Stage,
) -> None:
    """The SDK takes the ValueError of such a frame for a time-out."""
    proxy = OddFrames(stage.broker.port)
    await proxy.mend()
    near = stage.broker.connection_string.replace(str(stage.broker.port), "{port}")
    config = config_of(near.format(port=proxy.port))
    async with open_queue(config, SESSIONS, SystemClock()) as queue:
        await queue.reach()
        waiting = asyncio.create_task(queue.receive(stage.stop))
        await asyncio.sleep(0.1)
        proxy.confuse()
        with pytest.raises(ApprovalQueueError, match="has given up receiving"):
            async with asyncio.timeout(60):
                await waiting
        attached = queue.attached
        await send_raw(stage.broker, "s", [encoded(APPROVAL, id="a", group_id="m")])
        async with asyncio.timeout(60):
            (message,) = await queue.receive(stage.stop)
        await queue.settle(message)
    proxy.cut()

    assert not attached
    assert message.message_id == "a"


class Moved:
    """A receiver of an SDK that has changed inside."""


class HalfMoved:
    """One whose links are not where they were."""

    _handler: object = None

    def _create_handler(self) -> None:
        self._handler = object()


async def test_sdk_that_has_changed_inside_is_reported_and_works_as_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moved, half = guarded(Moved()), guarded(HalfMoved())
    half._create_handler()

    assert isinstance(moved, Moved)
    assert type(half._handler) is object
    words = "messages that cannot be decoded are not replaced"
    assert [record.message for record in caplog.records] == [words, words]


async def test_sdk_that_decodes_otherwise_refuses_no_message(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else each approval would be one that cannot be decoded."""

    def moved(payload: object) -> object:
        raise TypeError("takes two arguments now")

    monkeypatch.setattr("azure.servicebus._pyamqp._decode.decode_payload", moved)
    half = guarded(HalfMoved())

    assert "_create_handler" not in vars(half)
    (record,) = caplog.records
    assert record.message == "messages that cannot be decoded are not replaced"


def test_array_of_nothing_takes_no_memory() -> None:
    """Twelve bytes make the SDK's decoder build a list of 65,535."""
    bomb = b"\xf0\0\0\0\5\0\0\xff\xff\x40" * 5000
    size, count = len(bomb) + 4, 5000
    payload = b"\0\x53\x77\xd0" + size.to_bytes(4) + count.to_bytes(4) + bomb
    tracemalloc.start()
    try:
        taken = readable(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken != payload
    assert peak < 20 * len(payload)

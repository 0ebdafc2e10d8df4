"""Transactions over the wire: sends and settlements, all or none."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.values import encode_section
from bridge.simulator.wire.message import Message
from bridge.simulator.wire.outcomes import (
    Accepted,
    Declared,
    Modified,
    Outcome,
    Rejected,
    State,
    Transactional,
)
from bridge.simulator.wire.performatives import Detach, Disposition, Transfer
from bridge.simulator.wire.values import Described, ULong
from tests.simulator.amqp_socket import Speaker, flow, session
from tests.simulator.servicebus_fixtures import SDK_ENTITIES, WallClock
from tests.simulator.wire.amqp_client import message, receives, sends
from tests.support.oracle import ORACLE

COORDINATOR = Described(ULong(0x30), [])
PAYLOAD = encode_section(0x75, b"x")


class Shop:
    """A client with a coordinator, which sends to and receives from queues.

    Args:
        client: the connection.
        broker: the broker.
    """

    def __init__(self, client: Speaker, broker: Broker) -> None:
        self._client = client
        self._broker = broker
        self._number = 0
        self._handles: dict[str, int] = {}

    async def open(self) -> None:
        """Attach the coordinator."""
        answer = await self._client.attach(sends(0, target=COORDINATOR))
        assert answer.target == COORDINATOR

    async def declare(self) -> bytes:
        """Begin a transaction."""
        state = await self._coordinate(Described(ULong(0x31), []))
        assert isinstance(state, Declared)
        return state.txn_id

    async def discharge(self, txn_id: object, *, fail: bool = False) -> State | None:
        """End a transaction; return the answer."""
        return await self._coordinate(Described(ULong(0x32), [txn_id, fail]))

    async def send(self, queue: str, txn_id: bytes | None) -> State | None:
        """Send a message; return its outcome."""
        target = Described(ULong(0x29), [queue])
        handle = await self._attached(f"to {queue}", lambda n: sends(n, target=target))
        state = None if txn_id is None else Transactional(txn_id)
        return await self._sent(handle, PAYLOAD, state)

    async def receive(self, queue: str) -> int:
        """Put a message into a queue and receive it; return its delivery-id."""
        self._broker.put(queue, b"x")
        source = Described(ULong(0x28), [queue])
        name = f"from {queue}"
        is_new = name not in self._handles
        handle = await self._attached(name, lambda n: receives(n, source=source))
        if is_new:
            self._client.say(flow(handle, 1000))
        found = (await self._client.hear(Transfer)).delivery_id
        assert found is not None
        return found

    async def settle(
        self, number: int, outcome: Outcome, txn_id: bytes | None
    ) -> State | None:
        """Settle a message; return the broker's answer."""
        state: State = outcome if txn_id is None else Transactional(txn_id, outcome)
        self._client.say(Disposition(is_receiver=True, first=number, state=state))
        return (await self._client.hear(Disposition)).state

    def close_coordinator(self) -> None:
        """Detach the coordinator."""
        self._client.say(Detach(handle=0, closed=True))

    async def _attached(self, name: str, attach: object) -> int:
        if name not in self._handles:
            handle = self._handles[name] = len(self._handles) + 1
            await self._client.attach(attach(handle))  # type: ignore[operator]  # makes an Attach
        return self._handles[name]

    async def _coordinate(self, body: Described) -> State | None:
        return await self._sent(0, Message(body).encode(), None)

    async def _sent(
        self, handle: int, payload: bytes, state: State | None
    ) -> State | None:
        sent = message(self._number, handle=handle, state=state)
        self._number += 1
        self._client.say(sent, payload=payload)
        return (await self._client.hear(Disposition)).state


@asynccontextmanager
async def shop(broker: Broker) -> AsyncIterator[Shop]:
    async with session(broker.port) as client:
        found = Shop(client, broker)
        await found.open()
        yield found


@pytest.fixture
async def local(wall_clock: WallClock) -> AsyncIterator[Broker]:
    """A broker with the engine that knows transactions."""
    async with Broker(SDK_ENTITIES, clock=wall_clock) as running:
        yield running


def found(broker: Broker, *queues: str) -> Mapping[str, Counts]:
    counts = broker.snapshot()
    return {queue: counts[queue] for queue in queues}


async def test_commit_does_everything_over_several_entities(local: Broker) -> None:
    async with shop(local) as client:
        number = await client.receive("plain")
        txn_id = await client.declare()
        shown = [
            await client.send("unique", txn_id),
            await client.send("news", txn_id),
            await client.settle(number, Accepted(), txn_id),
        ]
        before = found(local, "plain", "unique", "news/Subscriptions/all")
        ended = await client.discharge(txn_id)
        after = found(local, "plain", "unique", "news/Subscriptions/all")

    assert shown == [Transactional(txn_id, Accepted())] * 3
    assert list(before.values()) == [Counts(active=1, locked=1), Counts(), Counts()]
    assert ended == Accepted()
    assert list(after.values()) == [Counts(), Counts(active=1), Counts(active=1)]


async def test_rollback_does_nothing_and_the_lock_stays(local: Broker) -> None:
    async with shop(local) as client:
        number = await client.receive("plain")
        txn_id = await client.declare()
        await client.send("unique", txn_id)
        await client.settle(number, Accepted(), txn_id)

        assert await client.discharge(txn_id, fail=True) == Accepted()
        assert found(local, "plain", "unique") == {
            "plain": Counts(active=1, locked=1),
            "unique": Counts(),
        }


@pytest.mark.parametrize(
    ("outcome", "left"),
    [
        (Modified(failed=True), Counts(active=1, locked=1)),  # it is received again
        (Modified(undeliverable=True), Counts(deferred=1)),
        (Rejected(), Counts(dead=1)),
    ],
)
async def test_each_outcome_waits_for_the_commit(
    local: Broker, outcome: Outcome, left: Counts
) -> None:
    async with shop(local) as client:
        number = await client.receive("plain")
        txn_id = await client.declare()
        await client.settle(number, outcome, txn_id)
        assert local.snapshot()["plain"] == Counts(active=1, locked=1)

        assert await client.discharge(txn_id) == Accepted()
        assert local.snapshot()["plain"] == left


async def test_what_is_beside_a_transaction_is_done_at_once(local: Broker) -> None:
    async with shop(local) as client:
        txn_id = await client.declare()
        await client.send("unique", txn_id)

        assert await client.send("plain", None) == Accepted()
        assert found(local, "plain")["plain"] == Counts(active=1)
        await client.discharge(txn_id, fail=True)
        assert found(local, "plain")["plain"] == Counts(active=1)


async def test_part_that_is_not_possible_any_more_rolls_everything_back(
    local: Broker,
) -> None:
    async with shop(local) as client:
        number = await client.receive("plain")
        txn_id = await client.declare()
        await client.send("unique", txn_id)
        await client.settle(number, Accepted(), txn_id)
        local.faults.expire_locks("plain")

        error = failure(await client.discharge(txn_id))
        assert error[0] == "amqp:transaction:rollback"
        assert "The lock supplied is invalid" in error[1]
        assert found(local, "unique")["unique"] == Counts()


async def test_part_that_is_refused_rolls_everything_back(local: Broker) -> None:
    """The queue takes 200 bytes: the messages fit one by one, and not together."""
    async with shop(local) as client:
        txn_id = await client.declare()
        await client.send("unique", txn_id)
        shown = [await client.send("small", txn_id) for _ in range(10)]

        assert failure(shown[-1])[0] == "amqp:resource-limit-exceeded"
        assert failure(await client.discharge(txn_id))[0] == "amqp:transaction:rollback"
        assert found(local, "unique", "small") == {
            "unique": Counts(),
            "small": Counts(),
        }


async def test_transaction_has_100_messages_at_most(local: Broker) -> None:
    async with shop(local) as client:
        txn_id = await client.declare()
        for _ in range(100):
            assert await client.send("plain", txn_id) == Transactional(
                txn_id, Accepted()
            )
        refused = await client.send("plain", txn_id)

        assert "100 messages at most" in failure(refused)[1]
        assert failure(await client.discharge(txn_id))[0] == "amqp:transaction:rollback"
        assert found(local, "plain")["plain"] == Counts()


async def test_transaction_lasts_two_minutes_at_most(
    local: Broker, wall_clock: WallClock
) -> None:
    async with shop(local) as client:
        txn_id = await client.declare()
        await client.send("plain", txn_id)
        wall_clock.ahead += 119
        assert await client.send("plain", txn_id) == Transactional(txn_id, Accepted())
        wall_clock.ahead += 2
        await client.send("unique", None)

        assert failure(await client.send("plain", txn_id))[0] == UNKNOWN
        assert failure(await client.discharge(txn_id))[0] == UNKNOWN
        assert found(local, "plain")["plain"] == Counts()


UNKNOWN = "amqp:transaction:unknown-id"


async def test_transaction_ends_with_its_coordinator(local: Broker) -> None:
    async with shop(local) as client:
        txn_id = await client.declare()
        await client.send("plain", txn_id)
        client.close_coordinator()

        assert failure(await client.send("plain", txn_id))[0] == UNKNOWN


async def test_transaction_of_a_connection_is_unknown_to_another(local: Broker) -> None:
    async with shop(local) as one, shop(local) as other:
        txn_id = await one.declare()

        assert failure(await other.send("plain", txn_id))[0] == UNKNOWN
        assert await one.discharge(txn_id) == Accepted()


@pytest.mark.parametrize("txn_id", [b"none", None])
async def test_unknown_transaction_is_not_discharged(
    local: Broker, txn_id: bytes | None
) -> None:
    async with shop(local) as client:
        condition, _ = failure(await client.discharge(txn_id))

    assert condition in {UNKNOWN, "amqp:decode-error"}


async def test_coordinator_takes_nothing_else(local: Broker) -> None:
    async with session(local.port) as client:
        await client.attach(sends(0, target=COORDINATOR))
        client.say(message(0), payload=PAYLOAD)

        condition, words = failure((await client.hear(Disposition)).state)

    assert condition == "amqp:not-implemented"
    assert "a declare or a discharge" in words


async def test_request_in_a_transaction_is_refused_in_words(local: Broker) -> None:
    """Scheduling and settling by requests are not part of a transaction here."""
    async with shop(local) as client:
        txn_id = await client.declare()

        condition, words = failure(await client.send("plain/$management", txn_id))

    assert condition == "amqp:not-implemented"
    assert "requests in a transaction" in words


def failure(state: State | None) -> tuple[str, str]:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition, state.error.description or ""


def test_proton_is_an_oracle_for_all_but_this() -> None:
    """It does not report transactions, so its coordinator is refused in words."""
    links = pytest.importorskip("tests.support.proton_links", reason=ORACLE)
    assert not links.ProtonLink.can_transact

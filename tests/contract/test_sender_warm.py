"""A sender that is kept warm: whoever sends after an hour of silence does not wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge.servicebus.namespace import open_handle
from bridge.servicebus.sender import Message, Sender
from bridge.simulator.servicebus.broker import Broker
from tests.contract.test_sink_servicebus import sender, stored

__all__ = ["sender"]  # the fixture

MESSAGE = Message(body=b"{}", content_type="application/json", message_id="1")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each opening of a link."""
    noted = list[str]()

    def noting(*arguments: Any) -> object:
        noted.append("opened")
        return open_handle(*arguments)

    monkeypatch.setattr("bridge.servicebus.sender.open_handle", noting)
    return noted


@asynccontextmanager
async def warm(sender: Sender, every: float) -> AsyncIterator[None]:
    task = asyncio.create_task(sender.keep_warm(every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(opened: list[str], count: int) -> None:
    async with asyncio.timeout(60):
        while len(opened) < count:
            await asyncio.sleep(0.01)


async def test_sender_is_open_before_the_first_message(
    sender: Sender, broker: Broker, opened: list[str]
) -> None:
    async with warm(sender, 60):
        await until(opened, 1)
        await sender.send(MESSAGE)

    assert opened == ["opened"]
    assert stored(broker, "vm-approvals") == 1


async def test_idle_link_that_died_without_a_word_is_replaced_before_it_is_needed(
    sender: Sender, broker: Broker, opened: list[str]
) -> None:
    await sender.send(MESSAGE)
    broker.faults.drop_connections()
    async with warm(sender, 0.3):
        await until(opened, 2)
        await sender.send(MESSAGE)

    assert len(opened) == 2


async def test_sender_in_use_is_left_alone(sender: Sender, opened: list[str]) -> None:
    async with warm(sender, 1.5):
        for _ in range(10):
            await sender.send(MESSAGE)
            await asyncio.sleep(0.2)

    assert len(opened) == 1


async def test_broker_that_is_away_is_no_reason_to_give_up(
    sender: Sender, broker: Broker, opened: list[str]
) -> None:
    await broker.__aexit__(None, None, None)
    async with warm(sender, 0.1):
        await until(opened, 2)
        await broker.__aenter__()
        await sender.send(MESSAGE)

    assert stored(broker, "vm-approvals") == 1


async def test_warmth_ends_at_whatever_moment_it_is_asked_to(sender: Sender) -> None:
    """The SDK may swallow that it is cancelled; the stop waited for minutes then."""
    for moment in range(60):
        await sender.close()
        sender._used = float("-inf")
        task = asyncio.create_task(sender.keep_warm(60))
        await asyncio.sleep(moment * 0.001)
        task.cancel()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)

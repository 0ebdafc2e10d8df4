"""Ctrl-C while a command waits."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from bridge.cli.long_running import run


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Install Python's handler, because the tests may run with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def connected(order: list[str]) -> None:
    """Wait for a result from a callback of the loop, inside which Ctrl-C comes."""
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def connect() -> None:
        if not answer.done():
            signal.raise_signal(signal.SIGINT)
            answer.set_result(None)

    loop.set_exception_handler(lambda _, found: order.append(found["message"]))
    loop.call_soon(connect)
    try:
        await answer
        await asyncio.sleep(60)
    finally:
        order.append("closed")


def test_interrupt_inside_a_callback_ends_the_work_without_an_error() -> None:
    order = list[str]()

    with pytest.raises(KeyboardInterrupt):
        run(connected(order))

    assert order == ["closed"]


def test_result_is_returned_and_the_signal_is_as_before() -> None:
    assert run(asyncio.sleep(0, "done")) == "done"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_that_is_cancelled_without_a_signal_is_no_interrupt() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(work())


def test_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def work() -> str:
        signal.raise_signal(signal.SIGINT)
        return "done"

    assert run(work()) == "done"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

"""Faults on demand: a client sees each of them."""

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from bridge.simulator.faults import Answer, Fault, FaultQueue, Hang
from tests.simulator.imds_client import life, vm

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


async def test_status_is_answered_so_many_times() -> None:
    async with vm() as it:
        fault = {"status": 503, "retryAfter": 2, "body": "later", "times": 2}
        await it.control("POST", "faults", fault)

        replies = [await it.get() for _ in range(3)]

        assert [reply.status for reply in replies] == [503, 503, 200]
        assert replies[0].headers["Retry-After"] == "2"
        assert replies[0].body == b"later"


async def test_fault_stays_until_cleared() -> None:
    async with vm() as it:
        await it.control("POST", "faults", {"status": 410, "untilCleared": True})
        assert {(await it.get()).status for _ in range(4)} == {410}

        await it.control("DELETE", "faults")

        assert (await it.get()).status == 200


async def test_fault_strikes_only_what_it_is_meant_for() -> None:
    async with vm() as it:
        path = "/metadata/scheduledevents"
        await it.control("POST", "faults", {"status": 500, "path": "/metadata/i"})
        await it.control(
            "POST", "faults", {"status": 500, "method": "post", "path": path}
        )

        assert (await it.get()).status == 200
        assert (await it.approve(ID)).status == 500
        assert (await it.approve(ID)).status == 400


async def test_faults_do_not_strike_the_control() -> None:
    async with vm() as it:
        await it.control("POST", "faults", {"status": 500, "untilCleared": True})

        assert (await it.control("GET", "state")).status == 200


async def test_hang_delays_the_answer() -> None:
    async with vm() as it:
        await it.control("POST", "faults", {"hang": 30})

        assert (await it.get()).status == 200

        assert it.clock.waits == [30]


async def test_reset_connection_reaches_the_client() -> None:
    """With POST, because aiohttp repeats a GET whose connection was reset."""
    async with vm() as it:
        await it.control("POST", "faults", {"reset": True})

        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
            await it.approve(ID)


async def test_truncated_body_reaches_the_client() -> None:
    async with vm() as it:
        await it.control("POST", "faults", {"truncated": True})

        with pytest.raises(aiohttp.ClientPayloadError):
            await it.get()


@pytest.mark.parametrize("body", [None, "<html>"])
async def test_garbage_is_no_json(body: str | None) -> None:
    async with vm() as it:
        await it.control("POST", "faults", {"garbage": True, "body": body})

        reply = await it.get()

        assert reply.status == 200
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(reply.body)


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_lost_answer_leaves_open_whether_it_worked(
    takes_effect: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    async with vm() as it:
        it.imds.schedule(life(event_id=ID))
        fault = {"status": 500, "method": "POST", "takesEffect": takes_effect}
        await it.control("POST", "faults", fault)

        assert (await it.approve(ID)).status == 500

        is_started = (await it.event())["EventStatus"] == "Started"
        assert is_started is takes_effect


async def test_faulty_first_read_does_not_start_a_scenario() -> None:
    async with vm() as it:
        it.imds.faults.add(Fault(strike=Answer(status=500)))
        await it.get()

        assert it.imds.requests[0].method == "GET"
        assert it.clock.waits == []


async def test_state_lists_the_waiting_faults() -> None:
    async with vm() as it:
        await it.control("POST", "faults", {"hang": 1, "times": 3})
        await it.get()

        assert (await it.control("GET", "state")).json["faults"] == [
            {
                "fault": "hang",
                "method": None,
                "path": "/",
                "times": 2,
                "takesEffect": False,
            }
        ]


async def test_stop_does_not_wait_for_what_hangs() -> None:
    async with asyncio.timeout(60), vm() as it:
        release = asyncio.Event()

        async def hang(seconds: float) -> None:
            await release.wait()

        it.clock.sleep = hang  # type: ignore[method-assign]  # a wait without end
        it.imds.faults.add(Fault(strike=Hang(3600)))
        asking: asyncio.Task[Any] = asyncio.ensure_future(it.get())
        while not it.imds.requests:
            await asyncio.sleep(0)
        await it.imds.__aexit__(None, None, None)

        with pytest.raises(aiohttp.ClientError):
            await asking


def test_first_fitting_fault_is_taken_first() -> None:
    queue = FaultQueue()
    for status in (500, 503):
        queue.add(Fault(strike=Answer(status=status), path="/siem"))

    assert queue.take("POST", "/siems") is None
    taken = [queue.take("POST", path) for path in ("/siem", "/siem/x", "/siem")]

    statuses = [f.strike.status for f in taken if f and isinstance(f.strike, Answer)]
    assert statuses == [500, 503]

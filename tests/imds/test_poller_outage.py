"""IMDS that is away for long: what appears meanwhile is published when it is back."""

import asyncio

import pytest

from bridge.foundation.errors import MetadataUnavailableError
from tests.imds.test_poller import (
    EMPTY,
    GONE,
    SCHEDULED,
    Rig,
    data_of,
    fresh,
    live,
    rig,
    running,
    unavailable,
)
from tests.support.fakes import turns

__all__ = ["rig"]  # the fixture


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [("410", 70), ("429", 70), ("connection", 70), ("503", 3600)],
)
async def test_what_appears_while_imds_is_away_is_published_soon_after_its_return(
    outcome: str, seconds: int, rig: Rig
) -> None:
    rig.metadata.says(EMPTY)
    async with running(rig):
        await live(rig, 2, step=1)
        rig.metadata.fails(unavailable(outcome))
        await live(rig, seconds, step=10)
        rig.metadata.answers.clear()
        rig.metadata.says(SCHEDULED)
        await live(rig, 11, step=1)

        (delivery,) = await rig.deliveries()
        assert delivery.type.endswith(".scheduled.v1")
        gap = data_of(delivery)["unobservedSeconds"]
        assert isinstance(gap, int)
        assert seconds - 2 <= gap <= seconds + 11


@pytest.mark.parametrize("outcome", ["500", "410", "reset", "503", "404"])
async def test_event_is_found_within_two_seconds_after_failures(
    outcome: str, rig: Rig
) -> None:
    """A Spot eviction gives 30 s."""
    rig.metadata.says(EMPTY)
    async with running(rig):
        await live(rig, 2, step=1)
        rig.metadata.fails(unavailable(outcome))
        await live(rig, 20, step=1)
        rig.metadata.answers.clear()
        rig.metadata.says(SCHEDULED)
        await live(rig, 2, step=0.5)

        assert await rig.published() == ["scheduled"]


async def test_imds_that_limits_requests_is_left_alone_for_longer(rig: Rig) -> None:
    rig.metadata.says(EMPTY)
    async with running(rig):
        await live(rig, 2, step=1)
        rig.metadata.fails(unavailable("429"))
        await live(rig, 15, step=1)
        before = len(rig.metadata.asked)
        await live(rig, 20, step=1)

        assert len(rig.metadata.asked) - before <= 3


@pytest.mark.parametrize("seconds", [33, 300])
async def test_next_event_tells_how_long_the_vm_stood_still(
    rig: Rig, seconds: int
) -> None:
    rig.metadata.says(EMPTY, SCHEDULED)
    async with running(rig):
        await live(rig, 2, step=1)
        rig.clock.pass_by(seconds)  # the VM is paused, and its clocks run on
        rig.metadata.answers.clear()
        rig.metadata.says(GONE)
        await live(rig, 12, step=1)
        rig.metadata.answers.clear()
        rig.metadata.says(SCHEDULED)
        await live(rig, 2, step=1)

        published = [
            data_of(one).get("pausedSeconds") for one in await rig.deliveries()
        ]

    assert published == [None, seconds - 1, None]
    assert rig.metrics.registry.get_sample_value("sebridge_paused_seconds_count") == 1
    assert not rig.poller.is_unreachable()


async def test_get_during_which_the_vm_stood_still_shows_it(rig: Rig) -> None:
    rig.metadata.gate = asyncio.Event()
    rig.metadata.says(EMPTY)
    async with running(rig):
        rig.clock.pass_by(30)
        await live(rig, 1)
        rig.clock.pass_by(170)  # longer than even the first request may take
        rig.metadata.gate.set()
        await live(rig, 1)

    assert rig.poller.pauses.total == pytest.approx(70, abs=2)


async def test_stop_ends_a_get_that_hangs_at_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.metadata.gate = asyncio.Event()
    rig.metadata.says(EMPTY)
    stop = asyncio.Event()
    polling = asyncio.create_task(rig.poller.run(stop))
    await turns()
    asking = asyncio.create_task(fresh(rig.poller))
    await turns()
    assert len(rig.metadata.asked) == 1

    stop.set()
    await asyncio.wait_for(polling, 60)

    with pytest.raises(MetadataUnavailableError, match="stopping"):
        await asking
    assert caplog.messages == []

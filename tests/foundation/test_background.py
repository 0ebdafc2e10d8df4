"""Work in the background: what fails is logged and begun anew."""

import asyncio
import logging
from collections import deque

import pytest

from bridge.foundation.background import in_background
from tests.support.fakes import FakeClock, turns


class Work:
    """Ends as told, one way each time it is begun; then it goes on for ever."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = deque(ends)
        self.begun = 0
        self.is_cancelled = False

    async def __call__(self) -> None:
        self.begun += 1
        if self.ends:
            if (error := self.ends.popleft()) is not None:
                raise error
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == "bridge.foundation.background"]


@pytest.mark.parametrize(
    "end", [KeyError("x"), None, asyncio.CancelledError()], ids=["fails", "ends", "cut"]
)
async def test_what_ends_is_logged_and_begun_anew_after_a_pause(
    end: BaseException | None, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(end)
    async with in_background(work, name="warmth", clock=clock, pause=5):
        await clock.advance(4.9)
        assert work.begun == 1

        await clock.advance(0.2)

        assert work.begun == 2
    (line,) = lines(caplog)
    assert line.message == "background task ended: it is started again"
    assert vars(line)["task"] == "warmth"
    assert line.levelname == "ERROR"
    is_logged = line.exc_info is not None and line.exc_info[1] is end
    assert is_logged == isinstance(end, KeyError)


async def test_it_is_begun_anew_as_often_as_it_ends(clock: FakeClock) -> None:
    work = Work(*[KeyError("x")] * 3)
    async with in_background(work, name="warmth", clock=clock, pause=1):
        await clock.advance(10)

        assert work.begun == 4


async def test_what_may_end_is_not_begun_anew(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(None)
    async with in_background(work, name="once", clock=clock, may_end=True):
        await clock.advance(100)

    assert work.begun == 1
    assert lines(caplog) == []


@pytest.mark.parametrize("end", [KeyError("x"), asyncio.CancelledError()])
async def test_what_may_end_is_begun_anew_where_it_did_not_get_so_far(
    end: BaseException, clock: FakeClock
) -> None:
    work = Work(end, None)
    async with in_background(work, name="once", clock=clock, may_end=True):
        await clock.advance(100)

    assert work.begun == 2


async def test_it_ends_with_the_context(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    async with in_background(work, name="warmth", clock=clock):
        await turns()

    assert work.is_cancelled
    assert lines(caplog) == []
    assert len(asyncio.all_tasks()) == 1


async def test_context_can_be_left_during_the_pause(clock: FakeClock) -> None:
    work = Work(KeyError("x"))
    async with in_background(work, name="warmth", clock=clock):
        await turns()

    assert work.begun == 1
    assert len(asyncio.all_tasks()) == 1

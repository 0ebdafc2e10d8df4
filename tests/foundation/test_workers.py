"""The lifecycle: asked to stop, failing, returning unasked, and out of grace."""

import asyncio

import pytest

from bridge.foundation.errors import WorkerExitedError
from bridge.foundation.workers import run_workers, unless, waking
from tests.support.fakes import FakeWorker, turns


async def obedient(stop: asyncio.Event) -> None:
    await stop.wait()


async def failing(stop: asyncio.Event) -> None:
    raise ZeroDivisionError


async def returning(stop: asyncio.Event) -> None:
    return


class Recorder:
    """A worker that notes how it ended."""

    def __init__(self, turns_to_finish: int | None = 0) -> None:
        self.ends: list[str] = []
        self.turns_to_finish = turns_to_finish

    async def life(self, stop: asyncio.Event) -> None:
        try:
            await stop.wait()
            if self.turns_to_finish is None:
                await asyncio.Event().wait()
            await turns(self.turns_to_finish or 0)
            self.ends.append("finished")
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise


async def run(*workers: FakeWorker, grace: float = 5) -> None:
    """Run the workers and ask them to stop at the next turn."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    await run_workers(workers, stop, grace=lambda: grace)


async def test_workers_end_when_asked_to() -> None:
    recorders = [Recorder(), Recorder(turns_to_finish=10)]

    await run(*(FakeWorker(recorder.life) for recorder in recorders))

    assert [recorder.ends for recorder in recorders] == [["finished"], ["finished"]]


async def test_worker_that_is_not_done_within_the_grace_is_cancelled() -> None:
    slow, quick = Recorder(turns_to_finish=None), Recorder()

    await run(FakeWorker(slow.life), FakeWorker(quick.life), grace=0.01)

    assert (slow.ends, quick.ends) == (["cancelled"], ["finished"])


async def test_worker_that_fails_cancels_the_others_and_surfaces() -> None:
    other = Recorder()

    with pytest.raises(ExceptionGroup) as caught:
        await run_workers(
            [FakeWorker(failing), FakeWorker(other.life)],
            asyncio.Event(),
            grace=lambda: 5,
        )

    assert caught.group_contains(ZeroDivisionError)
    assert other.ends == ["cancelled"]


async def test_worker_that_returns_unasked_is_a_bug_that_names_it() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run_workers(
            [FakeWorker(returning, "lazy"), FakeWorker(obedient)],
            asyncio.Event(),
            grace=lambda: 5,
        )

    assert caught.group_contains(WorkerExitedError, match="lazy returned before")


async def test_worker_that_fails_while_stopping_surfaces() -> None:
    async def late(stop: asyncio.Event) -> None:
        await stop.wait()
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await run(FakeWorker(late), FakeWorker(Recorder(turns_to_finish=None).life))

    assert caught.group_contains(ZeroDivisionError)


async def test_caller_that_is_cancelled_cancels_the_workers() -> None:
    recorder = Recorder()
    running = asyncio.ensure_future(
        run_workers([FakeWorker(recorder.life)], asyncio.Event(), grace=lambda: 5)
    )
    await turns()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert recorder.ends == ["cancelled"]


async def test_tasks_bear_the_names_of_their_workers() -> None:
    found: list[str] = []

    async def life(stop: asyncio.Event) -> None:
        task = asyncio.current_task()
        found.append(task.get_name() if task else "")
        await stop.wait()

    await run(FakeWorker(life, "poller"), FakeWorker(life, "relay:siem"))

    assert found == ["poller", "relay:siem"]


async def test_stop_wakes_who_waits_for_something_else() -> None:
    stop, wake = asyncio.Event(), asyncio.Event()
    async with waking(stop, wake):
        asyncio.get_running_loop().call_soon(stop.set)
        await wake.wait()

    assert wake.is_set()


async def test_nothing_is_woken_without_a_stop() -> None:
    stop, wake = asyncio.Event(), asyncio.Event()
    async with waking(stop, wake):
        await turns()
    stop.set()
    await turns()

    assert not wake.is_set()


async def test_error_inside_is_not_hidden_by_the_waiting() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with waking(asyncio.Event(), asyncio.Event()):
            raise ZeroDivisionError

    assert caught.group_contains(ZeroDivisionError)


async def forever() -> str:
    await asyncio.Event().wait()
    return "never"


async def at_once() -> str:
    return "done"


async def broken() -> str:
    raise ZeroDivisionError


async def test_work_is_dropped_as_soon_as_the_stop_is_asked_for() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)

    assert await unless(stop, forever()) is None


async def test_work_that_ends_before_the_stop_gives_its_result() -> None:
    assert await unless(asyncio.Event(), at_once()) == "done"


async def test_work_that_fails_before_the_stop_surfaces() -> None:
    with pytest.raises(ZeroDivisionError):
        await unless(asyncio.Event(), broken())

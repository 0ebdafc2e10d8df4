"""Threads for calls that may block for ever: name resolution, or a hanging disk.

The process can end while such a thread still runs. The threads of asyncio's default
executor would delay the end of the process until their calls return.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def lend() -> None:
    """Make the running loop use daemon threads for blocking work.

    This holds for ``asyncio.to_thread`` and for name resolution.
    """
    asyncio.get_running_loop().set_default_executor(_Threads())


class _Threads(ThreadPoolExecutor):
    """Starts a daemon thread for each call.

    A subclass of ThreadPoolExecutor, because asyncio accepts no other executor.
    """

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        future: Future[T] = Future()
        call = partial(_settle, future, partial(fn, *args, **kwargs))
        threading.Thread(target=call, name="blocking", daemon=True).start()
        return future


class Pool(Executor):
    """A fixed number of daemon threads, which begin calls in the order of ``submit``.

    Args:
        count: the number of threads; they are started with the first calls.
        name: the name of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Let one of the threads make a call. Only one thread may use this method."""
        future: Future[T] = Future()
        self._calls.put(partial(_settle, future, partial(fn, *args, **kwargs)))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self, patience: float) -> None:
        """End the threads after all waiting calls; do not wait for a call that hangs.

        Args:
            patience: seconds to wait for each thread.
        """
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(patience)
            if thread.is_alive():
                return


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Make a call, unless its future was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - passed to the caller
        future.set_exception(error)
    else:
        future.set_result(result)

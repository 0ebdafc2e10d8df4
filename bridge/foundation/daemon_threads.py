"""Threads for calls that may block for ever: name resolution, or a hanging disk.

The process can end while such a thread still runs. The threads of asyncio's default
executor would delay the end of the process until their calls return.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
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

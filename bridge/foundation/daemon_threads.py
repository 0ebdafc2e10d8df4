"""Threads for what blocks, and may never come back: a name server, a disk, a key.

The end of the process does not wait for them. Those of asyncio's own executor would
hold up the stop of the forwarder for as long as the resolver is patient, or for ever.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def lend() -> None:
    """Have the running loop do blocking work in threads that nobody waits for.

    Holds for ``asyncio.to_thread`` and for names that are looked up.
    """
    asyncio.get_running_loop().set_default_executor(_Threads())


class _Threads(ThreadPoolExecutor):
    """A thread for each call: asyncio takes no executor of another kind."""

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        future: Future[T] = Future()

        def live() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=live, name="blocking", daemon=True).start()
        return future

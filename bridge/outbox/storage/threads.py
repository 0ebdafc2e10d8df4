"""The thread that works on the state file, and its replacement when the disk hangs."""

import asyncio
import threading
from collections.abc import Callable

from msgspec import Struct, field

from bridge.outbox.storage.front import Front
from bridge.outbox.storage.shift import Shift


class Threads(Struct):
    """Runs the work of ``Front``, in one thread at a time.

    Attributes:
        front: the messages to the thread, and the work on them.
    """

    front: Front
    _shift: Shift = field(default_factory=Shift)
    _thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, opened: asyncio.Future[None]) -> None:
        """Start the thread.

        Args:
            opened: gets its result when the thread has opened the file, or the error.
        """

        def work() -> None:
            try:
                self.front.keeper.open()
            except Exception as error:  # noqa: BLE001 - passed to the caller of serving
                self.front.call_in_loop(opened.set_exception, error)
                return
            self.front.call_in_loop(opened.set_result, None)
            self.front.run(self._shift, None)

        self._begin(work)

    def replace_if_hung(self, patience: float) -> float | None:
        """Start another thread, in memory, if the disk is silent for ``patience``.

        Returns:
            For how many seconds the disk has not answered; None = it has nothing to do.
        """
        if self._shift.relieve(patience):
            group = self._shift.group
            self._shift = shift = Shift()
            self._begin(lambda: self.front.run(shift, group))
        return self._shift.waits_for()

    def _begin(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="outbox", daemon=True)
        self._thread.start()

"""Logs errors that no code handled, without their text: it may contain a secret.

asyncio itself would log the text. An error of aiohttp, for example, names the proxy
with its password. A server that has no file descriptor left gives the same error
thousands of times a second: equal ones are logged once a minute.
"""

import asyncio
import logging
from pathlib import Path
from traceback import extract_tb

from msgspec import Struct, field

log = logging.getLogger(__name__)

_MOST_FRAMES = 5
_EVERY = 60.0
_MOST_KINDS = 256


def log_unseen_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Replace the loop's own handler of unhandled errors."""
    seen = _Seen()
    loop.set_exception_handler(lambda loop_, context: seen.write(context, loop_.time()))


class _Seen(Struct):
    """The errors that were logged in the last minute.

    Attributes:
        kinds: when each was logged last, and how many equal ones were left out since.
    """

    kinds: dict[tuple[object, ...], tuple[float, int]] = field(default_factory=dict)

    def write(self, context: dict[str, object], now: float) -> None:
        """Log an error, unless an equal one was logged within a minute."""
        error = context.get("exception")
        task = context.get("task", context.get("future"))
        kind = type(error).__name__ if isinstance(error, BaseException) else None
        name = task.get_name() if isinstance(task, asyncio.Task) else None
        where = _where(error) if isinstance(error, BaseException) else []
        key = (kind, name, *where)
        at, left_out = self.kinds.get(key, (-_EVERY, 0))
        if at <= now < at + _EVERY:
            self.kinds[key] = at, left_out + 1
            return
        if len(self.kinds) >= _MOST_KINDS:
            self.kinds.pop(next(iter(self.kinds)))
        self.kinds[key] = now, 0
        found = {"kind": kind, "task": name, "where": where, "repeated": left_out}
        log.error("unhandled error", extra=found)


def _where(error: BaseException) -> list[str]:
    """Return the innermost lines of the traceback."""
    frames = extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]

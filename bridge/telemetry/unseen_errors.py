"""Logs errors that no task waits for, without their text: it may hold a secret.

asyncio itself writes the error as it is: one of aiohttp, for example, names the proxy
with its password.
"""

import asyncio
import logging
from pathlib import Path
from traceback import extract_tb

log = logging.getLogger(__name__)

_MOST_FRAMES = 5


def log_unseen_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Take the place of the loop's own handler of errors that nobody waits for."""
    loop.set_exception_handler(lambda _, context: _write(context))


def _write(context: dict[str, object]) -> None:
    error, task = context.get("exception"), context.get("task", context.get("future"))
    is_error = isinstance(error, BaseException)
    log.error(
        "error that nobody waited for",
        extra={
            "kind": type(error).__name__ if is_error else None,
            "task": task.get_name() if isinstance(task, asyncio.Task) else None,
            "where": _where(error) if isinstance(error, BaseException) else [],
        },
    )


def _where(error: BaseException) -> list[str]:
    """Return the innermost places that the error came through."""
    frames = extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]

"""Logs errors that no code handled, without their text: it may contain a secret.

asyncio itself would log the text. An error of aiohttp, for example, names the proxy
with its password.
"""

import asyncio
import logging
from pathlib import Path
from traceback import extract_tb

log = logging.getLogger(__name__)

_MOST_FRAMES = 5


def log_unseen_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Replace the loop's own handler of unhandled errors."""
    loop.set_exception_handler(lambda _, context: _write(context))


def _write(context: dict[str, object]) -> None:
    error, task = context.get("exception"), context.get("task", context.get("future"))
    is_error = isinstance(error, BaseException)
    log.error(
        "unhandled error",
        extra={
            "kind": type(error).__name__ if is_error else None,
            "task": task.get_name() if isinstance(task, asyncio.Task) else None,
            "where": _where(error) if isinstance(error, BaseException) else [],
        },
    )


def _where(error: BaseException) -> list[str]:
    """Return the innermost lines of the traceback."""
    frames = extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]

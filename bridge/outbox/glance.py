"""A glance at the state file before it is opened, for whoever must answer at once."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from bridge.outbox.statements import load

_PATIENCE = 1.0
_BUSY_SECONDS = 0.2


async def glance(
    path: Path, names: Sequence[str], patience: float = _PATIENCE
) -> Mapping[str, bytes]:
    """Return what an earlier life has kept under names; those that are not there, not.

    Nothing is changed, and no fault is told: whoever opens the file tells it.

    Args:
        path: the state file.
        names: what is looked for.
        patience: seconds; a disk may hang.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            return await asyncio.to_thread(_read, path, names)
    return {}


def _read(path: Path, names: Sequence[str]) -> Mapping[str, bytes]:
    found = dict[str, bytes]()
    with suppress(OSError, sqlite3.Error):
        if path.is_file():
            uri = f"{path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as db:
                for name in names:
                    if (body := load(db, name)) is not None:
                        found[name] = body
    return found

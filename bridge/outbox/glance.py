"""Reads values from the state file before it is opened, for the traffic probe."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from bridge.foundation.errors import ForeignFolderError
from bridge.foundation.privileges import enter
from bridge.outbox.storage.meta import load

_PATIENCE = 1.0
_BUSY_SECONDS = 0.2


async def glance(
    path: Path, names: Sequence[str], patience: float = _PATIENCE
) -> Mapping[str, bytes]:
    """Return the values that an earlier run of the forwarder saved, if they exist.

    The file is not changed. Errors are ignored: opening the file reports them later.

    Args:
        path: the state file.
        names: the names of the values.
        patience: seconds to wait for a disk that hangs.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            return await asyncio.to_thread(_read, path, names)
    return {}


def _read(path: Path, names: Sequence[str]) -> Mapping[str, bytes]:
    found = dict[str, bytes]()
    with suppress(ForeignFolderError, OSError, sqlite3.Error):
        enter(path)
        if path.is_file():
            uri = f"{path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as db:
                for name in names:
                    if (body := load(db, name)) is not None:
                        found[name] = body
    return found

"""The SQLite file of a hub: what is done where it cannot be used as it is.

of a version before the first release → moved aside; a fresh file
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bridge.foundation.errors import HubStoreError, OutboxError
from bridge.outbox import statefile

log = logging.getLogger(__name__)


def begin_anew(path: Path, held: Mapping[str, int]) -> None:
    """Move a file with a schema of before the first release aside; its name is logged.

    Args:
        path: the file; no connection to it is open.
        held: how many events, decisions and votes it has.

    Raises:
        HubStoreError: it cannot be renamed.
    """
    kept = _set_aside(path, "before-0-1-0")
    log.error(
        "store of a version before 0.1.0 is moved aside",
        extra={
            "kept": str(kept),
            "events": held.get("events", 0),
            "decisions": held.get("decisions", 0),
            "votes": held.get("votes", 0),
        },
    )


def _set_aside(path: Path, why: str) -> Path:
    """Rename a file and its log; the new name ends with the time of its last change.

    Raises:
        HubStoreError: it cannot be renamed.
    """
    try:
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return statefile.set_aside(path, why, changed)
    except (OSError, OutboxError) as error:
        raise HubStoreError(
            f"hub.store: {path} cannot be moved aside: {error}"
        ) from error

"""The VM that a state file belongs to: a cloned disk has the file of another VM."""

import sqlite3

from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Change
from bridge.outbox.storage.meta import load

_OWNER = "vm_id"
_ROW: Change = ("meta", (_OWNER,))


async def is_foreign(database: Database, vm_id: str) -> bool:
    """Whether the state file belongs to another VM: its disk was cloned."""
    return is_other(await owner_of(database), vm_id)


def is_other(owner: str | None, vm_id: str | None) -> bool:
    """Whether two vmIds are known, and are of two VMs."""
    return bool(owner and vm_id) and str(owner).casefold() != str(vm_id).casefold()


async def owner_of(database: Database) -> str | None:
    """Return the vmId of the VM that wrote the file; None if that is not known."""
    row = database.unwritten().get(_ROW)
    if row is not None:
        return bytes(row[0]).decode()  # type: ignore[arg-type]  # of a BLOB
    found: str | None = await database.read(owner_in)
    return found


def owner_in(db: sqlite3.Connection) -> str | None:
    """Return the vmId in an open state file; None if there is none."""
    owner = load(db, _OWNER)
    return owner.decode(errors="replace") if owner else None


def set_owner(database: Database, vm_id: str) -> None:
    """Save the vmId of the VM that writes the file."""
    database.put({_ROW: (vm_id.encode(),)})

"""The VM that a state file belongs to: a cloned disk has the file of another VM."""

from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Change
from bridge.outbox.storage.meta import OWNER, is_other, owner_in

_ROW: Change = ("meta", (OWNER,))


async def is_foreign(database: Database, vm_id: str) -> bool:
    """Whether the state file belongs to another VM: its disk was cloned."""
    return is_other(await owner_of(database), vm_id)


async def owner_of(database: Database) -> str | None:
    """Return the vmId of the VM that wrote the file; None if that is not known."""
    row = database.unwritten().get(_ROW)
    if row is not None:
        return bytes(row[0]).decode()  # type: ignore[arg-type]  # of a BLOB
    found: str | None = await database.read(owner_in)
    return found


def set_owner(database: Database, vm_id: str) -> None:
    """Save the vmId of the VM that writes the file."""
    database.put({_ROW: (vm_id.encode(),)})

"""The table ``meta`` by SQL: named values."""

import sqlite3

from bridge.outbox.records import intact_value

OWNER = "vm_id"  # of the VM that writes the file: a cloned disk has that of another
AGAIN = "again:"  # + the EventId: its events are to be published again


def load(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return the value of ``name``: None if there is none, b"" if it is damaged."""
    query = "SELECT value, checksum FROM meta WHERE key = ?"
    return intact_value(name, db.execute(query, (name,)).fetchone())


def is_other(owner: str | None, vm_id: str | None) -> bool:
    """Whether two vmIds are known, and are of two VMs."""
    return bool(owner and vm_id) and str(owner).casefold() != str(vm_id).casefold()


def owner_in(db: sqlite3.Connection) -> str | None:
    """Return the vmId in an open state file; None if there is none."""
    owner = load(db, OWNER)
    return owner.decode(errors="replace") if owner else None

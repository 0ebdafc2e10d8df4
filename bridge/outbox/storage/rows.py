"""Writes rows to the state file, each with its checksum.

A row says what will hold afterwards, so it may be written twice.
"""

import sqlite3
from collections.abc import Iterable

from bridge.outbox.records import (
    Content,
    checksum_of,
    checksum_of_decision,
    checksum_of_value,
)
from bridge.outbox.storage.schema import TABLES

Value = str | bytes | int | float | None
Change = tuple[str, tuple[Value, ...]]  # the table, and the primary key
Row = tuple[Value, ...]  # in the order of ``Table.columns``
Rows = dict[Change, Row | None]  # None = the row is deleted


def write(db: sqlite3.Connection, commits: Iterable[Rows]) -> None:
    """Write the rows of commits in the transaction that is open; each row occurs once.

    Raises:
        sqlite3.Error: a row was refused, or the disk has failed.
    """
    gone, kept = dict[str, list[Row]](), dict[str, list[Row]]()
    for rows in commits:
        for (name, key), row in rows.items():
            if row is None:
                gone.setdefault(name, []).append(key)
            elif TABLES[name].has_checksum:
                one = (*key, *row, _checksum(name, key, row))
                kept.setdefault(name, []).append(one)
            else:
                kept.setdefault(name, []).append((*key, *row))
    for name, keys in gone.items():
        db.executemany(TABLES[name].drop, keys)
    for name, found in kept.items():
        db.executemany(TABLES[name].put, found)


def _checksum(name: str, key: Row, row: Row) -> int | None:
    if name == "meta":
        (value,) = row
        return checksum_of_value(str(key[0]), value) if type(value) is bytes else None
    if name == "items":
        number, content = key[0], Content(*row[:6])  # type: ignore[arg-type]
        return checksum_of(number, content)  # type: ignore[arg-type]
    return checksum_of_decision(key[1], *row[:-1])

"""Checksums of rows: damaged content must not be sent with the id of an intact event.

CRC-32 is enough, because it guards against a failing disk and not against an attacker:
it detects every run of up to 32 wrong bits. Other damage escapes it in one of four
billion cases. It is stored in the row as a number, and costs less than a microsecond
per kilobyte.
"""

import logging
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

log = logging.getLogger(__name__)

# The allowed pairs of index in Content and type. SQLite returns no subclasses.
_KINDS_READ = {
    *((place, str) for place in range(5)),
    *((place, type(None)) for place in (1, 2, 3)),
    (5, bytes),
}
_ENCODER = msgspec.json.Encoder()
BROKEN = -1  # never a valid checksum: a row with this value is never sent


class Content(NamedTuple):
    """The columns that the checksum covers, together with the id of the row.

    Attributes:
        kind: ``event`` or ``reply``.
        key: deliveries with the same key keep their order.
        event_id: the EventId as received.
        body: what is sent.
    """

    kind: str
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes


def checksum_of(number: int, content: Content) -> int:
    """Return the checksum of ``content`` in the row with the id ``number``."""
    head = _ENCODER.encode((number, *content[:-1]))
    return zlib.crc32(content.body, zlib.crc32(head))


def checksum_of_value(name: str, value: bytes) -> int:
    """Return the checksum of a named value."""
    return zlib.crc32(value, zlib.crc32(name.encode()))


def intact_value(name: str, row: Sequence[object] | None) -> bytes | None:
    """Return the value of a row; if it is damaged, log that and return b"".

    Args:
        name: the name of the value.
        row: value and checksum, without checksum in an older file; None = no row.
    """
    if row is None or not isinstance(value := row[0], bytes):
        return None
    checksum = row[1] if len(row) > 1 else None
    if checksum is None or checksum == checksum_of_value(name, value):
        return value
    log_damage(name)
    return b""


def checksum_of_decision(*columns: object) -> int:
    """Return the checksum of a decision on an approval."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def log_damage(what: str) -> None:
    """Log that a damaged value of the state file is ignored."""
    log.error("stored value is damaged: going on without it", extra={"what": what})


def damage_of(number: object, content: Content, checksum: object) -> str | None:
    """Return what is wrong with a row; None = nothing.

    Args:
        number: the id of the row; None = the row is missing.
        content: as it was read: any field may have a wrong type.
        checksum: as it was read; None = the row was written without one.
    """
    if not isinstance(number, int):
        return "the content of this delivery is missing in the state file"
    is_bytes = type(content.body) is bytes
    if is_bytes and checksum == checksum_of(number, content):
        return None  # the usual case: a wrong type would have another checksum
    if not _is_readable(*content):
        return "the content of this delivery cannot be read in the state file"
    if checksum is None:
        return None
    return "the content of this delivery is damaged in the state file"


def _is_readable(*content: object) -> bool:
    return _KINDS_READ.issuperset(enumerate(map(type, content)))

"""The checksum of what is sent: damage on the disk must not go out under an old id.

CRC-32, since it is damage that is looked for and not an adversary: it notices every run
of up to 32 wrong bits for sure, and of any other damage all but one in four billion. It
stands in the row as a plain number, and costs less than a microsecond per kilobyte.
"""

import logging
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

log = logging.getLogger(__name__)

BROKEN = -1  # no checksum is negative: what bears it is never sent


class Content(NamedTuple):
    """What the checksum is over, beside the number of the row.

    Attributes:
        kind: ``event`` or ``reply``.
        key: order is kept among equal keys.
        event_id: the EventId as received.
        body: what goes out.
    """

    kind: str
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes


def checksum_of(number: int, content: Content) -> int:
    """Return the checksum of ``content`` in the row ``number``."""
    head = msgspec.json.encode((number, *content[:-1]))
    return zlib.crc32(content.body, zlib.crc32(head))


def checksum_of_value(name: str, value: bytes) -> int:
    """Return the checksum of what is kept under a name."""
    return zlib.crc32(value, zlib.crc32(name.encode()))


def whole(name: str, row: Sequence[object] | None) -> bytes | None:
    """Return what is kept under a name; nothing where it is damaged, which is logged.

    Args:
        name: of it.
        row: value and checksum, which an older file has not; None = nothing is kept.
    """
    if row is None or not isinstance(value := row[0], bytes):
        return None
    checksum = row[1] if len(row) > 1 else None
    if checksum is None or checksum == checksum_of_value(name, value):
        return value
    tell_of_damage(name)
    return b""


def checksum_of_decision(*columns: object) -> int:
    """Return the checksum of what was decided on an approval."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def tell_of_damage(what: str) -> None:
    """Log that something of the state file is left out."""
    log.error("what was kept is damaged: going on without it", extra={"what": what})


def damage_of(number: object, content: Content, checksum: object) -> str | None:
    """Return what is wrong with a row as it was read; None = nothing.

    Args:
        number: of the row; None = there is no such row.
        content: as it was read: nothing in it need be of its type.
        checksum: as it stands in the row; None = it was never counted.
    """
    if not isinstance(number, int):
        return "what was to be sent is gone from the state file"
    if not _is_readable(*content):
        return "what was to be sent cannot be read in the state file"
    if checksum is None or checksum == checksum_of(number, content):
        return None
    return "what was to be sent is damaged in the state file"


def _is_readable(*content: object) -> bool:
    kind, key, event_id, cloud_event_id, name, body = content
    return (
        isinstance(body, bytes)
        and all(isinstance(text, str) for text in (kind, name))
        and all(
            text is None or isinstance(text, str)
            for text in (key, event_id, cloud_event_id)
        )
    )

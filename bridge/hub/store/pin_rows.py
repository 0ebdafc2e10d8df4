"""Stores which key belongs to which machine; all hubs of a store have the same pins.

``[hub] keys`` is read again when it changes. The pin of a key that it lists no more
ends, and is kept as long as decisions: what the key has signed before still counts.

A key is replaced by a message that the old and the new one have signed, and whose
``data.signing`` holds both. That is taken once, from a pinned key. The old one ends a
day after the first message that the new one alone has signed.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
import orjson
from msgspec.structs import replace
from sqlalchemy import Connection, delete, select

from bridge.foundation.hashing import hash32
from bridge.foundation.values import Secret
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.facts import table
from bridge.hub.pins import Pin, Pins, listed
from bridge.hub.store.rows import insert, lock, micros, put
from bridge.hub.store.tables import pins, told_keys
from bridge.signing.dsse import SignedEvent, Verdict, judge

_MOST = 2  # keys in ``data.signing``
_WAITING = timedelta(days=1)  # in which what the old key has signed may still come


class KnownPins:
    """The pins that a hub knows now.

    Attributes:
        source: ``[hub] keys``; None = no key is pinned.
        required: ``[hub] require_signed``.
        now: the pins.
        fault: why ``[hub] keys`` cannot be used; the pins of before count meanwhile.
    """

    def __init__(
        self, source: Secret | None = None, required: tuple[str, ...] = ()
    ) -> None:
        self.source, self.required = source, required
        self.now = Pins(required)
        self.fault: str | None = None
        self._text = ""
        self._stored: Sequence[Pin] = ()

    def look(self, connection: Connection, now: datetime) -> None:
        """Store the pins of ``[hub] keys`` if it has changed; read those in the store.

        Args:
            connection: a connection within a transaction.
            now: when pins end that are listed no more.
        """
        if self.source is None:
            return
        try:
            text = self.source.reveal()
            if text != self._text:
                _keep_listed(connection, listed(text), now)
            self.fault, self._text = None, text
        except ValueError as error:
            self.fault = f"hub.keys: {error}"
        stored = [pin for pin, _ in _stored(connection).values()]
        if stored != self._stored:
            self.now, self._stored = Pins.of(stored, self.required), stored


def _keep_listed(connection: Connection, found: Sequence[Pin], now: datetime) -> None:
    lock(connection, ["listed"], "pins")
    known, given = _stored(connection), {id_of(one): one for one in found}
    for name, (old, is_listed) in known.items():
        if is_listed and name not in given:
            _put(connection, replace(old, until=min(old.until or now, now)))
    for name, new in given.items():
        old = known[name][0] if name in known else new
        until = new.until or (old.until if old.successor else None)
        whole = replace(new, until=until, successor=old.successor)
        _put(connection, whole, is_listed=True)


def keep_rotations(
    connection: Connection, reports: Sequence[tuple[BridgeReport, bytes]], known: Pins
) -> None:
    """Store which keys have replaced which.

    Args:
        connection: a connection within a transaction.
        reports: of pinned bridges, each with its body.
        known: the pins.
    """
    for report, body in reports:
        at, keys = report.heard, report.signed_by
        old = known.pinned(report.reporter, keys, at)
        new = next(_successors(report, body, known), None)
        if old is not None and new is not None:
            _replace(connection, old, replace(new, since=at))
        for key in keys:
            before = known.replaced.get(key)
            if before is not None and before.key not in keys:
                _end(connection, before, at + _WAITING)


def _successors(report: BridgeReport, body: bytes, known: Pins) -> Iterator[Pin]:
    """Yield the pins of keys that are not known, and have signed a message, too."""
    for new in told_pins(report, body):
        if new.key not in known.keys:
            yield new


def told_pins(report: BridgeReport, body: bytes) -> Iterator[Pin]:
    """Yield the keys in ``data.signing`` that have signed the message themselves."""
    from bridge.signing.keys import public_keys  # noqa: PLC0415 - needs 10 MiB

    given = table(report.data.get("signing")).get("keys")
    if not isinstance(given, list):
        return
    try:
        found = public_keys(orjson.dumps({"keys": given[:_MOST]}).decode())
        event = SignedEvent.parse(body)
    except (TypeError, ValueError):
        return
    for key, public in found.items():
        if judge(event, {key: public}).verdict is Verdict.HOLDS:
            yield Pin(
                key=key,
                vm_id=report.reporter.vm_id,
                resource_id=report.reporter.resource_id.lower(),
                jwk=public.jwk,
            )


def _replace(connection: Connection, old: Pin, new: Pin) -> None:
    """Pin the successor of a key, unless it has one."""
    lock(connection, ["listed"], "pins")
    stored = _stored(connection)
    before, is_listed = stored.get(id_of(old), (old, False))
    if not before.successor and id_of(new) not in stored:
        _put(connection, replace(before, successor=new.key), is_listed=is_listed)
        _put(connection, new)


def _end(connection: Connection, old: Pin, until: datetime) -> None:
    lock(connection, ["listed"], "pins")
    before, is_listed = _stored(connection).get(id_of(old), (old, False))
    if before.until is None:
        _put(connection, replace(before, until=until), is_listed=is_listed)


def _stored(connection: Connection) -> dict[str, tuple[Pin, bool]]:
    """Return the pins with whether they are listed, by the ids of their rows."""
    query = select(pins).order_by(pins.c.id)
    return {
        row.id: (msgspec.json.decode(row.body, type=Pin), row.is_listed)
        for row in connection.execute(query)
    }


def id_of(pin: Pin) -> str:
    """Return the id of a pin's row: of a key, a vmId and a resource id."""
    return hash32([pin.key, pin.vm_id, pin.resource_id])


def _put(connection: Connection, pin: Pin, *, is_listed: bool = False) -> None:
    """Store a pin; its key waits no more."""
    row = {
        "id": id_of(pin),
        "body": msgspec.json.encode(pin),
        "is_listed": is_listed,
        "until": None if pin.until is None else micros(pin.until),
    }
    statement = insert(pins)
    fresh = {name: statement.excluded[name] for name in row}
    change = statement.on_conflict_do_update(index_elements=["id"], set_=fresh)
    put(connection, change, [row])
    connection.execute(delete(told_keys).where(told_keys.c.id == row["id"]))

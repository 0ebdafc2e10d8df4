"""Stores which key belongs to which machine; all hubs of a store have the same pins.

``[hub] keys`` is read again when it changes. The pin of a key that it lists no more
ends, and is kept as long as decisions: what the key has signed before still counts. An
accepted pin that it contradicts ends, too.

Each change gives the pins another stamp. So a batch of messages is judged by the pins
of its own transaction, whichever hub has changed them.

A key is replaced by a message that the old and the new one have signed, and whose
``data.signing`` holds both. That is taken once, from a pinned key. The old one ends a
day after the first message that the new one alone has signed.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
import orjson
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, select

from bridge.events.cloudevent import hash32
from bridge.foundation.values import Secret
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.facts import table
from bridge.hub.pins import Pin, Pins, listed
from bridge.hub.store.engine import Values, lock, note, noted, put, upsert
from bridge.hub.store.rows import micros
from bridge.hub.store.tables import pins, told_keys
from bridge.signing.dsse import SignedEvent, Verdict, judge

_STAMP = "pins"  # the name of their stamp
_MOST = 2  # keys in ``data.signing``
_WAITING = timedelta(days=1)  # in which what the old key has signed may still come


class KnownPins:
    """The pins that a hub knows now.

    Attributes:
        source: ``[hub] keys``; None = only people pin keys.
        required: ``[hub] require_signed``.
        now: the pins.
        fault: why ``[hub] keys`` cannot be used; the pins of before count meanwhile.
        text: what ``[hub] keys`` held when its pins were stored last.
    """

    def __init__(
        self, source: Secret | None = None, required: tuple[str, ...] = ()
    ) -> None:
        self.source, self.required = source, required
        self.now = Pins(required)
        self.fault: str | None = None
        self.text = ""
        self._stamp: str | None = None

    def look(self, connection: Connection, now: datetime) -> str:
        """Store the pins of ``[hub] keys`` if it has changed; read those in the store.

        Args:
            connection: a connection within a transaction.
            now: when pins end that are listed no more.

        Returns:
            ``text``, once the transaction is committed.
        """
        found = self.text
        try:
            found = self.source.reveal() if self.source else ""
            if found != self.text:
                _keep_listed(connection, listed(found), now)
            self.fault = None
        except ValueError as error:
            self.fault, found = f"hub.keys: {error}", self.text
        self.refresh(connection)
        return found

    def refresh(self, connection: Connection) -> Pins:
        """Return the pins in the store; they are read again if one has changed."""
        stamp = noted(connection, _STAMP) or ""
        if stamp != self._stamp:
            stored = [pin for pin, _ in stored_pins(connection).values()]
            self.now, self._stamp = Pins.of(stored, self.required), stamp
        return self.now


def _keep_listed(connection: Connection, found: Sequence[Pin], now: datetime) -> None:
    lock(connection, ["listed"], "pins")
    known, given = stored_pins(connection), {id_of(one): one for one in found}
    changed: dict[str, tuple[Pin, bool]] = {}
    for name, new in given.items():
        old = known[name][0] if name in known else new
        until = new.until or (old.until if old.successor else None)
        changed[name] = replace(new, until=until, successor=old.successor), True
    everyone = {name: pin for name, (pin, _) in known.items()}
    heirs = {name for new, _ in changed.values() for name in heirs_of(new, everyone)}
    rights = defaultdict[str, list[Pin]](list)
    for new in found:
        for part in (new.key, new.vm_id, new.resource_id) if new.holds(now) else ():
            rights[part].append(new)
    for name, (old, is_listed) in known.items():
        mine = (old.key, old.vm_id, old.resource_id)
        is_against = name not in heirs and any(
            new.contradicts(old) for part in mine for new in rights.get(part, ())
        )
        if name not in given and (is_listed or is_against):
            changed[name] = replace(old, until=min(old.until or now, now)), False
    put_pins(connection, list(changed.values()))


def heirs_of(pin: Pin, known: Mapping[str, Pin]) -> list[str]:
    """Return the rows of the keys that have replaced a pin's key, one after another."""
    found, heir = list[str](), pin
    while heir.successor:
        name = id_of(replace(heir, key=heir.successor))
        if name in found or name not in known:
            break
        found.append(name)
        heir = known[name]
    return found


def keep_rotations(
    connection: Connection, reports: Sequence[tuple[BridgeReport, bytes]], known: Pins
) -> None:
    """Store which keys have replaced which, by what pinned bridges say."""
    for report, body in reports:
        at, keys = report.heard, report.signed_by
        old = known.pinned(report.reporter, keys, at)
        new = next(_successors(report, body, known, old), None) if old else None
        if old is not None and new is not None:
            _replace(connection, old, replace(new, since=at))
        for key in keys:
            before = known.replaced.get(key)
            if before is not None and before.key not in keys:
                _end(connection, before, at + _WAITING)


def _successors(
    report: BridgeReport, body: bytes, known: Pins, old: Pin
) -> Iterator[Pin]:
    """Yield the pins of new keys that have signed a message, too.

    The new key comes first: what follows the pinned one is older.
    """
    for new in told_pins(report, body):
        if new.key == old.key:
            return
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
    stored = stored_pins(connection)
    before, is_listed = stored.get(id_of(old), (old, False))
    if not before.successor and id_of(new) not in stored:
        heir = replace(new, accepted_by=before.accepted_by)
        changed = replace(before, successor=new.key)
        put_pins(connection, [(changed, is_listed), (heir, False)])


def _end(connection: Connection, old: Pin, until: datetime) -> None:
    lock(connection, ["listed"], "pins")
    before, is_listed = stored_pins(connection).get(id_of(old), (old, False))
    if before.until is None:
        put_pins(connection, [(replace(before, until=until), is_listed)])


def stored_pins(connection: Connection) -> dict[str, tuple[Pin, bool]]:
    """Return the pins with whether they are listed, by the ids of their rows."""
    query = select(pins).order_by(pins.c.id)
    return {
        row.id: (msgspec.json.decode(row.body, type=Pin), row.is_listed)
        for row in connection.execute(query)
    }


def id_of(pin: Pin) -> str:
    """Return the id of a pin's row: of a key, a vmId and a resource id."""
    return hash32([pin.key, pin.vm_id, pin.resource_id])


def put_pins(connection: Connection, found: Sequence[tuple[Pin, bool]]) -> None:
    """Store pins, each with whether it is listed; their keys wait no more."""
    rows: list[Values] = [
        {
            "id": id_of(pin),
            "body": msgspec.json.encode(pin),
            "is_listed": is_listed,
            "until": None if pin.until is None else micros(pin.until),
        }
        for pin, is_listed in found
    ]
    put(connection, upsert(pins, "body", "is_listed", "until"), rows)
    here = told_keys.c.id == bindparam("row")
    put(connection, delete(told_keys).where(here), [{"row": r["id"]} for r in rows])
    mark_pins(connection)


def mark_pins(connection: Connection) -> None:
    """Let all hubs read the pins again, since they have changed."""
    note(connection, _STAMP, uuid.uuid4().hex)

"""Which key belongs to which machine, and what the word of a message is worth. Pure.

``[hub] keys`` pins each key to a vmId and a resource id.

    pinned      signed by the key that is pinned to its vmId and resource id
    doubtful    not so, although its machine has a pin, or ``require_signed`` names it,
                or by a key that is pinned to another machine. It has no machine then
    plain       all others

Which of the keys have signed a message is found out when it is stored. What that is
worth is asked at each fold of its event, so it changes with the pins.

Source: config/signing.md
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from bridge.foundation.values import Secret
from bridge.hub.facts import Fact, Reporter, Trust, group_of, kept_name, place_of
from bridge.signing.dsse import ATTRIBUTE, SignedEvent, Verdict, Verifier, judge

_CLOCK = 300  # seconds between time and EnqueuedTime, for a new run
_MOST_RUNS = 1000  # that are known to be over, of a bridge
_SIGNATURE = f'"{ATTRIBUTE}"'.encode()


class Mark(msgspec.Struct, frozen=True):
    """Where a message is among those of its bridge.

    Attributes:
        run: the start of the bridge that it belongs to.
        kind: what is counted alone: the kind of ``bridge.*``; or "".
        number: its number; for messages that have none, ``second``.
        second: its time, in seconds since 1970. Fractions are not signed.
    """

    run: str
    kind: str
    number: int
    second: int


class Runs(msgspec.Struct):
    """The current run of a bridge, and those that it has replaced.

    Of a pinned bridge, only fresh messages tell that it lives, what it offers, and that
    it stops: so a replay is an old fact.

    Attributes:
        marks: the last number of each kind.
    """

    run: str = ""
    marks: dict[str, int] = {}
    over: list[str] = []

    def take(self, mark: Mark, heard: float) -> bool:
        """Whether a message is of the current run, and later than others of its kind.

        A run becomes current by a message whose time is within 5 min of ``heard``, when
        the broker enqueued it. Once replaced, it never is again.
        """
        if mark.run != self.run:
            if mark.run in self.over or abs(mark.second - heard) > _CLOCK:
                return False
            self.over = [*self.over, self.run][-_MOST_RUNS:]
            self.run, self.marks = mark.run, {}
        if mark.number <= self.marks.get(mark.kind, -1):
            return False
        self.marks[mark.kind] = mark.number
        return True


class _Chain(msgspec.Struct):
    run: str
    n: int | None = None


class _Data(msgspec.Struct):
    chain: _Chain


class Pins(msgspec.Struct, frozen=True):
    """The keys of bridges.

    Attributes:
        required: globs of resource ids whose messages must be signed.
        keys: the public keys, by their thumbprints.
        owners: key, vmId and resource id of each pin.
        claimed: the vmIds and the machines that have a pin.
    """

    required: tuple[str, ...] = ()
    keys: Mapping[str, Verifier] = {}
    owners: frozenset[tuple[str, str, str]] = frozenset()
    claimed: frozenset[object] = frozenset()

    @classmethod
    def read(cls, source: Secret | None, required: tuple[str, ...] = ()) -> "Pins":
        """Read the keys of ``[hub] keys``.

        Raises:
            ValueError: it is no JWKS, or a key has no vmId or resourceId.
        """
        if source is None:
            return cls(required)
        from bridge.signing.keys import public_keys  # noqa: PLC0415 - needs 10 MiB

        keys, owners, claimed = dict[str, Verifier](), set[Any](), set[object]()
        try:
            for jwk in orjson.loads(source.reveal())["keys"]:
                found = public_keys(orjson.dumps(jwk).decode())
                vm_id, resource = jwk["vmId"].lower(), jwk["resourceId"].lower()
                owners |= {(key, vm_id, resource) for key in found}
                claimed |= {vm_id, *_places(Reporter(resource_id=resource))}
                keys |= found
        except (AttributeError, KeyError, TypeError, orjson.JSONDecodeError) as error:
            words = "must be a JWKS in which each key has vmId and resourceId"
            raise ValueError(words) from error
        return cls(required, keys, frozenset(owners), frozenset(claimed))

    def trust(self, who: Reporter, keys: Collection[str]) -> Trust:
        """Return what the word of a reporter is worth that some keys have signed."""
        mine = (who.vm_id, who.resource_id.lower())
        if any((key, *mine) in self.owners for key in keys):
            return Trust.PINNED
        is_known = bool(keys) or not self.claimed.isdisjoint({who.vm_id, *_places(who)})
        is_asked = any(fnmatchcase(mine[1], glob.lower()) for glob in self.required)
        return Trust.DOUBTFUL if is_known or is_asked else Trust.PLAIN

    def weighed(self, fact: Fact) -> Fact:
        """Return a fact with what it is worth; a doubtful one has no machine."""
        trust = self.trust(fact.reporter, fact.signed_by)
        if fact.is_azures or trust is fact.trust:
            return fact
        place = None if trust is Trust.DOUBTFUL else place_of(fact.reporter)
        return replace(fact, trust=trust, place=place)

    def proof(self, body: bytes, kind: str) -> tuple[tuple[str, ...], Mark | None]:
        """Return which keys have signed a message, and where it is among others.

        Args:
            body: a CloudEvent.
            kind: that of ``bridge.*``; otherwise "".
        """
        if _SIGNATURE not in body:
            return (), None
        try:
            event = SignedEvent.parse(body)
            found = judge(event, self.keys)
            keys = found.keys if found.verdict is Verdict.HOLDS else ()
            time = datetime.fromisoformat(str(event.attributes.get("time")).upper())
            second = int(time.timestamp())
            chain = msgspec.json.decode(event.data, type=_Data).chain
        except (ValueError, RecursionError, OverflowError):
            return (), None
        named = (kind, chain.n) if chain.n is not None else (f"{kind} by time", second)
        return keys, Mark(chain.run, *named, second)


def _places(who: Reporter) -> set[tuple[str, str, str] | None]:
    """Return the machines that a reporter claims to be, by resource id and by name."""
    group = group_of(who.resource_id)
    return {place_of(who), (*group, kept_name(who.name)) if group[1] else None} - {None}

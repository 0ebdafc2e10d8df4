"""Which key belongs to which machine, and what the word of a message is worth. Pure.

``[hub] keys`` pins each key to a vmId and a resource id, and so do people, who accept a
key that its bridge has told: see ``store.accepting``. A message that a pinned key and
its successor have both signed pins the successor; see ``store.pin_rows``.

    pinned      signed by the key that is pinned to its vmId and resource id
    doubtful    not so, although its machine has a pin, or ``require_signed`` names it,
                or by a key that is pinned to another machine. It has no machine then
    plain       all others

Which of the keys have signed a message is found out when it is stored. What that is
worth is asked at each fold of its event, so it changes with the pins.

Source: config/signing.md
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
import orjson
from msgspec.structs import replace

from bridge.hub.facts import Fact, Reporter, Trust, group_of, kept_name, place_in
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


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A key that belongs to a machine.

    Attributes:
        key: its thumbprint.
        vm_id: the vmId of the machine, in lower case.
        resource_id: its resource id, in lower case.
        jwk: the public key.
        since: EnqueuedTime of the first message that it can speak for.
        until: EnqueuedTime from which on it speaks for none; None = it still does.
        successor: the thumbprint of the key that has replaced it; "" = none.
        accepted_by: who has accepted it, or the key that it has replaced; () = it is,
            or was, in ``[hub] keys``.
    """

    key: str
    vm_id: str
    resource_id: str
    jwk: dict[str, str]
    since: datetime = datetime.min.replace(tzinfo=UTC)
    until: datetime | None = None
    successor: str = ""
    accepted_by: tuple[str, ...] = ()

    def holds(self, at: datetime) -> bool:
        """Whether it holds for a message that was enqueued at a time."""
        return self.since <= at and (self.until is None or at < self.until)

    def contradicts(self, other: "Pin") -> bool:
        """Whether two pins give one key, vmId or machine to different owners."""
        mine = (self.key, self.vm_id, self.resource_id)
        pairs = zip(mine, (other.key, other.vm_id, other.resource_id), strict=True)
        same_key, same_vm, same_machine = (one == two for one, two in pairs)
        is_same_vm_alone = same_vm and not same_key
        return is_same_vm_alone or (not same_vm and (same_key or same_machine))


class Doubt(StrEnum):
    """Why a key that a bridge has told is not pinned, and who else has a right to it.

    ``new-machine`` contradicts nothing; the others speak for something that has a pin,
    or that another bridge tells, too.
    """

    NEW_MACHINE = "new-machine"
    NEW_KEY = "new-key"  # the vmId is pinned to another key, or tells one
    SECOND_VM_ID = "second-vm-id"  # another vmId has, or tells, the same machine
    SHARED_KEY = "shared-key"  # another vmId has, or tells, the same key


_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class _Listed(msgspec.Struct, rename={"since": "from"}):
    """What a key of ``[hub] keys`` says about its machine."""

    vm_id: str = msgspec.field(name="vmId")
    resource_id: str = msgspec.field(name="resourceId")
    since: _Moment = datetime.min.replace(tzinfo=UTC)
    until: _Moment | None = None


def listed(text: str) -> list[Pin]:
    """Return the pins in the text of ``[hub] keys``.

    Raises:
        ValueError: it is no JWKS, a key has no vmId or resourceId, or two of them
            contradict each other.
    """
    from bridge.signing.keys import public_keys  # noqa: PLC0415 - needs 10 MiB

    found = list[Pin]()
    try:
        for jwk in orjson.loads(text)["keys"]:
            held = msgspec.convert(jwk, _Listed)
            for key, public in public_keys(orjson.dumps(jwk).decode()).items():
                pin = Pin(
                    key=key,
                    vm_id=held.vm_id.lower(),
                    resource_id=held.resource_id.lower(),
                    jwk=public.jwk,
                    since=held.since,
                    until=held.until,
                )
                found.append(pin)
    except (KeyError, TypeError, orjson.JSONDecodeError, msgspec.ValidationError) as e:
        words = "must be a JWKS in which each key has vmId and resourceId"
        raise ValueError(words) from e
    _check_owners(found)
    return found


def _check_owners(pins: Sequence[Pin]) -> None:
    owners, machines = dict[str, str](), dict[str, str]()
    for pin in pins:
        if owners.setdefault(pin.key, pin.vm_id) != pin.vm_id:
            raise ValueError(f"the key {pin.key} has two vmIds: make one key anew")
        known = machines.setdefault(pin.resource_id, pin.vm_id) if not pin.until else ""
        if known not in {"", pin.vm_id}:
            raise ValueError(
                f"{pin.resource_id} has two vmIds: remove the older one, or say until "
                'when it was one, such as "until": "2026-03-02T12:00:00Z"'
            )


class Pins(msgspec.Struct, frozen=True):
    """The keys of bridges.

    Attributes:
        required: globs of resource ids whose messages must be signed.
        keys: the public keys, by their thumbprints.
        owners: the pins, by key, vmId and resource id.
        claimed: the pins of each vmId, of each machine, and of each ("key", key).
        replaced: the pins whose successor is known, and that have no end, by successor.
    """

    required: tuple[str, ...] = ()
    keys: Mapping[str, Verifier] = {}
    owners: Mapping[tuple[str, str, str], Pin] = {}
    claimed: Mapping[object, Sequence[Pin]] = {}
    replaced: Mapping[str, Pin] = {}

    @classmethod
    def of(cls, pins: Sequence[Pin], required: tuple[str, ...] = ()) -> "Pins":
        """Return what is known of keys.

        Raises:
            ValueError: a key cannot be read.
        """
        if not pins:
            return cls(required)
        from bridge.signing.keys import public_keys  # noqa: PLC0415 - needs 10 MiB

        text = orjson.dumps({"keys": [one.jwk for one in pins]}).decode()
        claimed = defaultdict[object, list[Pin]](list)
        for one in pins:
            claimed[one.vm_id].append(one)
            claimed["key", one.key].append(one)
            for place in _places(Reporter(resource_id=one.resource_id)):
                claimed[place].append(one)
        return cls(
            required,
            public_keys(text),
            {(one.key, one.vm_id, one.resource_id): one for one in pins},
            dict(claimed),
            {one.successor: one for one in pins if one.successor and not one.until},
        )

    def pinned(self, who: Reporter, keys: Iterable[str], at: datetime) -> Pin | None:
        """Return the pin by which a message speaks for its machine; None = none."""
        mine = (who.vm_id, who.resource_id.lower())
        found = (self.owners.get((key, *mine)) for key in keys)
        return next((one for one in found if one and one.holds(at)), None)

    def trust(self, who: Reporter, keys: Collection[str], at: datetime) -> Trust:
        """Return what the word of a reporter is worth.

        Args:
            who: the reporter.
            keys: the keys that have signed the message.
            at: when the broker enqueued it.
        """
        if self.pinned(who, keys, at):
            return Trust.PINNED
        names = (who.vm_id, *_places(who))
        claims = (one for name in names for one in self.claimed.get(name, ()))
        is_known = bool(keys) or any(one.holds(at) for one in claims)
        is_asked = self.is_required(who.resource_id)
        return Trust.DOUBTFUL if is_known or is_asked else Trust.PLAIN

    def is_required(self, resource_id: str) -> bool:
        """Whether what a machine says must be signed, also if it has no pin."""
        mine = resource_id.lower()
        return any(fnmatchcase(mine, glob.lower()) for glob in self.required)

    def doubt(
        self, told: Pin, name: str, at: datetime, others: Mapping[str, Collection[str]]
    ) -> Doubt:
        """Return why a key that a bridge has told is not pinned.

        Args:
            told: the key, with the machine that the bridge claims to be.
            name: of that machine.
            at: when that counts.
            others: the vmIds that tell a key, or a resource id, and the keys that are
                told for a vmId; its own are among them.
        """

        def pinned(*names: object) -> set[str]:
            found = (one for name in names for one in self.claimed.get(name, ()))
            return {one.vm_id for one in found if one.holds(at)}

        mine, machine = {told.vm_id}, told.resource_id
        places = _places(Reporter(name=name, resource_id=machine))
        if pinned(("key", told.key)) - mine or len(others.get(told.key, ())) > 1:
            return Doubt.SHARED_KEY
        if pinned(*places) - mine or len(others.get(machine, ())) > 1:
            return Doubt.SECOND_VM_ID
        if pinned(told.vm_id) or len(others.get(told.vm_id, ())) > 1:
            return Doubt.NEW_KEY
        return Doubt.NEW_MACHINE

    def rivals(self, new: Pin, at: datetime) -> list[Pin]:
        """Return the pins that hold at a time, and that another one contradicts."""
        names = (new.vm_id, *_places(Reporter(resource_id=new.resource_id)))
        claims = (self.claimed.get(name, ()) for name in (("key", new.key), *names))
        found = {
            (one.key, one.vm_id, one.resource_id): one for of in claims for one in of
        }
        return [one for one in found.values() if one.holds(at) and one.contradicts(new)]

    def weighed(self, fact: Fact) -> Fact:
        """Return a fact with what it is worth; a doubtful one has no machine."""
        trust = self.trust(fact.reporter, fact.signed_by, fact.enqueued)
        if fact.is_azures or trust is fact.trust:
            return fact
        place = None if trust is Trust.DOUBTFUL else place_in(fact.reporter.resource_id)
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
    return {
        place_in(who.resource_id),
        (*group, kept_name(who.name)) if group[1] else None,
    } - {None}

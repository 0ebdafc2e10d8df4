"""Signs approvals, and checks that a key of ``[approvals] signed_by`` has signed one.

    no signature, or not of a structured CloudEvent           → Unsigned
    changed, cut, written anew, or by a key that is not named → WrongSignature
    for the events of another source                          → WrongAudience
    a name given twice, no limits, limits that are too far    → invalid

What is signed is what counts: of the properties of the message only limits have an
effect. Source: config/signing.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from bridge.events.cloudevent import hash32
from bridge.foundation.errors import MalformedApprovalError
from bridge.foundation.values import Secret
from bridge.signing import own_key
from bridge.signing.dsse import (
    ATTRIBUTE,
    Opinion,
    SignedEvent,
    Signer,
    Verdict,
    Verifier,
    judge,
    material,
)

UNSIGNED, WRONG_SIGNATURE = "Unsigned", "WrongSignature"
WRONG_AUDIENCE, ID_TAKEN = "WrongAudience", "IdTaken"
LONGEST = timedelta(hours=24)
"""How long a signed approval may be valid."""
SHORTEST = timedelta(minutes=1)
_MAKESHIFT = "urn:sebridge:"  # the source of a bridge that knows none yet
_SKEW = timedelta(minutes=1)
_MARK = b"\xef\xbb\xbf"  # of the byte order, which some write before JSON
_CLAIMS = {"approvedby", "reason"}


def expiry(not_before: datetime | None, now: datetime) -> datetime:
    """Return ``expiresAt`` of an approval: NotBefore, but in 1 min to 24 h."""
    return min(max(not_before or now + LONGEST, now + SHORTEST), now + LONGEST)


def signed(body: bytes, signers: Sequence[Signer]) -> bytes:
    """Return a structured CloudEvent with the attribute ``dssematerial``.

    Args:
        body: the event; its bytes stay as they are.
        signers: the keys that sign it.

    Raises:
        ValueError: it cannot be signed.
    """
    value = material(SignedEvent.parse(body), signers).encode()
    return b'{"%b":"%b",%b' % (ATTRIBUTE.encode(), value, body.lstrip()[1:])


def signers(key: Secret) -> Sequence[Signer]:
    """Return the keys that sign: one, or two while one is replaced.

    Raises:
        ValueError: the file cannot be read, or has no private key.
    """
    found: Sequence[Signer] = _library().private_keys(key.reveal())
    return found


def fault_of(read: Callable[[], object]) -> str | None:
    """Return why keys cannot be read; None = they can."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return None


class Checked(Struct, frozen=True, kw_only=True):
    """What a check of an approval has found.

    Attributes:
        reason: why it is denied; "" = it is not.
        detail: more about the reason.
        name: a hash of source and id of the event; "" = it is denied.
        content: a hash of its bytes.
    """

    reason: str = ""
    detail: str = ""
    name: str = ""
    content: str = ""


class Approvers(Struct):
    """The public keys of those whose approvals count.

    Attributes:
        references: where they are; read again for each approval, so that a key can be
            replaced without a restart.
    """

    references: Sequence[Secret]

    @property
    def fault(self) -> str | None:
        """Why a file of keys cannot be read now; None = all can."""
        return self._read()[1]

    def check(
        self, body: bytes, audience: str | None, sent: datetime
    ) -> Checked | None:
        """Check an approval; None = that must wait until all keys can be read.

        Args:
            body: the body of the message.
            audience: the source of this bridge's events; None = not known yet.
            sent: when the message was sent, by the clock of the broker.

        Raises:
            MalformedApprovalError: a name is given twice, or a limit is missing.
        """
        keys, fault = self._read()
        event = _event_in(body)
        opinion = judge(event, keys) if event else Opinion(verdict=Verdict.UNSIGNED)
        if fault and opinion.verdict is Verdict.UNKNOWN_KEY:
            return None
        if event is None or opinion.verdict is not Verdict.HOLDS:
            return _refused(opinion)
        data = _data(event)
        _check_limits(data, sent)
        named = data.get("audience")
        known = audience or named  # an event may have had a makeshift source at first
        is_mine = known == named or str(named).startswith(_MAKESHIFT)
        if not isinstance(named, str) or not is_mine:
            return Checked(reason=WRONG_AUDIENCE, detail=f"data.audience is {named!r}")
        return Checked(
            name=hash32([event.attributes.get("source"), event.attributes.get("id")]),
            content=sha256(body).hexdigest(),
        )

    def bridges(self, state: Path) -> Iterator[str]:
        """Yield why a key is that of a bridge, which must approve nothing for others.

        Args:
            state: the state file of this bridge, with its key beside it.
        """
        own = own_key.held_in(state.with_name(f"{state.name}{own_key.SUFFIX}"))
        mine = set(_keys_in(json.dumps({"keys": own.keys}))) if own else set()
        for index, reference in enumerate(self.references):
            place = f"approvals.signed_by[{index}]"
            text = reference.reveal()
            if not mine.isdisjoint(_keys_in(text)):
                yield f"{place} holds the own key of this bridge"
            elif text.startswith("{") and '"vmId"' in text:
                yield f"{place} holds the key of a bridge: one with vmId"

    def _read(self) -> tuple[Mapping[str, Verifier], str | None]:
        """Return the keys that can be read, and why others cannot."""
        found: dict[str, Verifier] = {}
        fault = None
        for index, reference in enumerate(self.references):
            try:
                found |= _keys_in(reference.reveal())
            except ValueError as error:
                fault = f"approvals.signed_by[{index}]: {error}"
        return found, fault


def limits_alone(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the properties of a signed message that count: no claims, no context."""
    return {
        name: value
        for name, value in properties.items()
        if name.casefold() not in _CLAIMS and not name.startswith("cloudEvents")
    }


@lru_cache(maxsize=8)
def _keys_in(text: str) -> Mapping[str, Verifier]:
    found: Mapping[str, Verifier] = _library().public_keys(text)
    return found


def _library() -> Any:
    from bridge.signing import keys  # noqa: PLC0415 - needs 10 MiB

    return keys


def _event_in(body: bytes) -> SignedEvent | None:
    """Return the structured CloudEvent of a message; None if it is none.

    Raises:
        MalformedApprovalError: a name is given twice in an object.
    """
    try:
        text = body.removeprefix(_MARK).strip()
        if text.startswith(b'"'):  # the JavaScript SDK sends a text as a JSON string
            text = orjson.loads(text).encode()
        _check_names(text)
        event = SignedEvent.parse(text)
        _check_names(event.data)
    except (ValueError, RecursionError):
        return None
    names = {name.casefold() for name in event.attributes}
    is_structured = "specversion" in names and "startrequests" not in names
    return event if is_structured else None


def _check_names(text: bytes) -> None:
    json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str)


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedApprovalError("a name is given twice in an object")
    return found


def _refused(opinion: Opinion) -> Checked:
    if opinion.verdict is Verdict.UNSIGNED:
        return Checked(reason=UNSIGNED, detail="no key of signed_by has signed it")
    detail = opinion.verdict.value
    if opinion.verdict is Verdict.UNKNOWN_KEY:
        detail = "it is signed by a key that is not in signed_by"
    return Checked(reason=WRONG_SIGNATURE, detail=detail)


def _data(event: SignedEvent) -> dict[str, Any]:
    found: Any = orjson.loads(event.data.removeprefix(_MARK))
    return found if isinstance(found, dict) else {}


def _check_limits(data: Mapping[str, Any], sent: datetime) -> None:
    """Check that a signed approval cannot be used for ever, nor for another event."""
    if not isinstance(data.get("approvedEvent"), dict):
        raise MalformedApprovalError("approvedEvent is missing: it must be signed, too")
    try:
        end = datetime.fromisoformat(str(data.get("expiresAt")).upper())
        is_far = end > sent + LONGEST + _SKEW
    except (TypeError, ValueError) as error:
        raise MalformedApprovalError("data.expiresAt is no time with a zone") from error
    if is_far:
        raise MalformedApprovalError("expiresAt is more than 24 h after the sending")

"""Signs and verifies a CloudEvent by *Verifiable CloudEvents with DSSE*. Pure.

    core     = SHA-256 over the digests of eight attributes and of the data, as bytes
    ext      = SHA-256 over the digests of the other signed attributes
    payload  = {"core", "ext", "signedextattrs"} as JSON
    envelope = payload, and a signature of it by each key
    dssematerial = the envelope in base64: an attribute of the event

The data counts as its very bytes: who formats it anew breaks the signature. Of ``time``
only the second counts. An attribute that is missing counts as an empty one.

Source: cloudevents/spec, extensions/verifiability.md at commit d54e6bb;
        DSSE 1.0.2 (protocol.md, envelope.md)
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Protocol

import msgspec
import orjson
from msgspec import Struct

ATTRIBUTE = "dssematerial"
_PAYLOAD_TYPE = "https://cloudevents.io/verifiability/dsse/v0.1"
_CORE = (
    *("id", "source", "specversion", "type"),
    *("datacontenttype", "dataschema", "subject", "time"),
)
_NOT_EXTENSIONS = {*_CORE, ATTRIBUTE, "data", "data_base64"}
_DIGEST = 32  # bytes
_SIGNATURES = 4  # the most that are looked at: two keys while one is replaced


class Verdict(StrEnum):
    """What a look at an event and its signature shows."""

    HOLDS = "holds"
    REFORMATTED = "re-serialised, holds"
    CHANGED = "changed"
    WRONG = "wrong"
    UNKNOWN_KEY = "unknown key"
    UNSIGNED = "unsigned"


class Signer(Protocol):
    """A private key."""

    @property
    def key_id(self) -> str:
        """The thumbprint of its public key, by RFC 7638."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the ECDSA signature of a message: r and s, 32 bytes each."""
        ...


class Verifier(Protocol):
    """A public key."""

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the key has made a signature."""
        ...


class SignedEvent(Struct, frozen=True, kw_only=True):
    """A CloudEvent, with its data as it was written.

    Attributes:
        attributes: every attribute that is set, by name.
        data: the bytes of the data; b"" = there is none.
    """

    attributes: Mapping[str, object]
    data: bytes = b""

    @classmethod
    def parse(cls, body: bytes) -> "SignedEvent":
        """Parse a structured CloudEvent.

        Raises:
            ValueError: it is no JSON object, or has data twice, or no base64.
        """
        try:
            members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except RecursionError as error:
            raise ValueError("no JSON object") from error
        if "data" in members and "data_base64" in members:
            raise ValueError("data_base64 stands beside data")
        data = bytes(members.pop("data", b""))
        found: dict[str, object] = {
            name: orjson.loads(bytes(raw)) for name, raw in members.items()
        }
        if (encoded := found.pop("data_base64", None)) is not None:
            data = _bytes_of(encoded)
        return cls(attributes=found, data=data)

    @property
    def extensions(self) -> list[str]:
        """The names of its extension attributes, sorted."""
        return sorted(self.attributes.keys() - _NOT_EXTENSIONS)

    def core(self, data: bytes) -> bytes:
        """Return the digest of the core attributes and of some data.

        Raises:
            ValueError: ``time`` is no time.
        """
        values = {**self.attributes}
        if values.get("time"):
            values["time"] = _second_of(values["time"])
        return _digest([*(_canonical(values.get(name)) for name in _CORE), data])

    def ext(self, names: Iterable[str]) -> bytes:
        """Return the digest of extension attributes.

        Raises:
            ValueError: a value has no type of CloudEvents.
        """
        return _digest(_canonical(self.attributes.get(name)) for name in names)


def material(event: SignedEvent, signers: Sequence[Signer]) -> str:
    """Return ``dssematerial`` of an event: all its extension attributes are signed.

    Args:
        event: the event.
        signers: the keys that sign; two while one of them is replaced.

    Raises:
        ValueError: the event cannot be signed.
    """
    content: dict[str, object] = {"core": _text_of(event.core(event.data))}
    if names := event.extensions:
        content |= {"ext": _text_of(event.ext(names)), "signedextattrs": names}
    payload = orjson.dumps(content)
    message = _framed(payload)
    envelope = {
        "payloadType": _PAYLOAD_TYPE,
        "payload": _text_of(payload),
        "signatures": [
            {"keyid": one.key_id, "sig": _text_of(one.sign(message))} for one in signers
        ],
    }
    return _text_of(orjson.dumps(envelope))


class Opinion(Struct, frozen=True, kw_only=True):
    """The verdict on an event, and the key that has signed it.

    Attributes:
        keys: the keys whose signatures hold.
        key_id: the first of them, or the one that is not known; "" = none.
        core: the digest that was signed, in base64; "" = no signature holds.
    """

    verdict: Verdict
    keys: tuple[str, ...] = ()
    key_id: str = ""
    core: str = ""


def judge(event: SignedEvent, keys: Mapping[str, Verifier]) -> Opinion:
    """Compare an event with its signature.

    Args:
        event: the event as it came.
        keys: the keys that are accepted, by their thumbprints.
    """
    text = event.attributes.get(ATTRIBUTE)
    if text is None or text == "":
        return Opinion(verdict=Verdict.UNSIGNED)
    try:
        sealed = _Sealed.parse(text)
        found = sealed.signed_by(keys)
    except _UnknownKeyError as error:
        return Opinion(verdict=Verdict.UNKNOWN_KEY, key_id=str(error))
    except ValueError:
        return Opinion(verdict=Verdict.WRONG)
    core = _text_of(sealed.core)
    verdict = _compared(event, sealed)
    return Opinion(verdict=verdict, keys=found, key_id=found[0], core=core)


def _compared(event: SignedEvent, sealed: "_Sealed") -> Verdict:
    """Compare an event with the digests that its key has signed."""
    try:
        if sealed.ext is not None and event.ext(sealed.names) != sealed.ext:
            return Verdict.CHANGED
        # Some sign the blank after the colon, too, as the vectors do.
        if sealed.core in {event.core(event.data), event.core(b" " + event.data)}:
            return Verdict.HOLDS
        if event.core(reformatted(event.data)) == sealed.core:
            return Verdict.REFORMATTED
    except ValueError:
        pass
    return Verdict.CHANGED


def reformatted(data: bytes) -> bytes:
    """Return data as a bridge writes it: JSON without blanks, with sorted names.

    Raises:
        ValueError: it is no JSON.
    """
    return orjson.dumps(orjson.loads(data), option=orjson.OPT_SORT_KEYS)


class _UnknownKeyError(ValueError):
    """None of the signatures is by a known key; the text is the first key's id."""


class _Signature(msgspec.Struct):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


class _Content(msgspec.Struct):
    core: str
    ext: str | None = None
    signedextattrs: list[str] | None = None


class _Sealed(Struct, frozen=True, kw_only=True):
    """An envelope, unpacked; nothing in it is proved before ``signed_by``."""

    payload: bytes
    core: bytes
    ext: bytes | None
    names: tuple[str, ...]
    signatures: tuple[tuple[str, bytes], ...]

    @classmethod
    def parse(cls, text: object) -> "_Sealed":
        """Unpack an envelope.

        Raises:
            ValueError: it has not the form that the extension demands.
        """
        envelope = msgspec.json.decode(_bytes_of(text), type=_Envelope)
        payload = _bytes_of(envelope.payload)
        content = msgspec.json.decode(payload, type=_Content)
        if envelope.payload_type != _PAYLOAD_TYPE:
            raise ValueError("another payloadType")
        if (content.ext is None) != (content.signedextattrs is None):
            raise ValueError("ext and signedextattrs come together")
        names = tuple(content.signedextattrs or ())
        if len(set(names)) < len(names) or not _NOT_EXTENSIONS.isdisjoint(names):
            raise ValueError("signedextattrs names an attribute that it must not")
        return cls(
            payload=payload,
            core=_digest_of(content.core),
            ext=None if content.ext is None else _digest_of(content.ext),
            names=names,
            signatures=tuple(
                (one.keyid, _bytes_of(one.sig))
                for one in envelope.signatures[:_SIGNATURES]
            ),
        )

    def signed_by(self, keys: Mapping[str, Verifier]) -> tuple[str, ...]:
        """Return the ids of the keys whose signatures hold.

        Raises:
            ValueError: no signature holds.
        """
        known = [(name, sig) for name, sig in self.signatures if name in keys]
        if not known and self.signatures:
            raise _UnknownKeyError(self.signatures[0][0])
        message = _framed(self.payload)
        found = [name for name, sig in known if keys[name].verifies(sig, message)]
        if not found:
            raise ValueError("no signature holds")
        return tuple(found)


def _framed(payload: bytes) -> bytes:
    """Return what is signed: PAE of DSSE, with the type and all lengths."""
    kind = _PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _digest(values: Iterable[bytes]) -> bytes:
    return sha256(b"".join(sha256(value).digest() for value in values)).digest()


def _canonical(value: object) -> bytes:
    """Return the bytes of an attribute's value."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if value is None or isinstance(value, int | str):
        return b"" if value is None else str(value).encode()
    raise ValueError("an attribute has no type of CloudEvents")


def _second_of(value: object) -> str:
    moment = datetime.fromisoformat(str(value).upper())
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except OverflowError as error:
        raise ValueError("a time before the year 1, or after 9999") from error


def _text_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes_of(value: object) -> bytes:
    return base64.b64decode(str(value), validate=True)


def _digest_of(value: object) -> bytes:
    found = _bytes_of(value)
    if len(found) != _DIGEST:
        raise ValueError("no digest")
    return found

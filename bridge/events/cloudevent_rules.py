"""Checks an event in structured JSON against CloudEvents 1.0. Pure.

The official JSON Schema is not used: it accepts any specversion and any content type,
and has no rule for extensions.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2 (spec.md, json-format.md);
RFC 2045 (media types), RFC 3339 (times), RFC 3986 (URIs)
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address

from bridge.events.cloudevent import SPEC_VERSION

REQUIRED = ("specversion", "id", "source", "type")

_NAME = re.compile(r"[a-z0-9]+")
# Forbidden in a String, as are the last two characters of each Unicode plane.
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef]")
_INTEGERS = range(-(2**31), 2**31)
_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt](?P<minute>([01]\d|2[0-3]):[0-5]\d)"
    r":(?P<second>[0-5]\d|60)(?P<fraction>\.\d+)?"
    r"(?P<zone>[Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_WORD = r"[!#$%&'*+\-.0-9A-Z^_`a-z{|}~]+"
_MEDIA_TYPE = re.compile(
    rf'{_WORD}/{_WORD}([ \t]*;[ \t]*{_WORD}=({_WORD}|"([^"\\\r\n]|\\.)*"))*',
    re.ASCII,
)
_CHAR = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})"  # in a name of a URI
_SEGMENT = rf"(?:{_CHAR}|[:@])"
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:)?"
    r"(?:"
    rf"//(?:(?:{_CHAR}|:)*@)?"
    rf"(?:\[(?:v[0-9A-Fa-f]+\.(?:{_CHAR}|:)+|(?P<ipv6>[0-9A-Fa-f:.]+))\]|{_CHAR}*)"
    rf"(?::[0-9]*)?(?:/{_SEGMENT}*)*"
    rf"|/(?:{_SEGMENT}+(?:/{_SEGMENT}*)*)?"
    rf"|(?P<first>{_SEGMENT}+)(?:/{_SEGMENT}*)*"
    r"|"
    r")"
    rf"(?:\?(?:{_SEGMENT}|[/?])*)?(?:\#(?:{_SEGMENT}|[/?])*)?"
)


def faults(members: Mapping[str, object]) -> Iterator[str]:
    """Yield each reason why an object is not a CloudEvent, as part of a sentence.

    Args:
        members: the members of the object; null counts as absent.
    """
    given = {name: value for name, value in members.items() if value is not None}
    for name in REQUIRED:
        if name not in given:
            yield f"it has no {name}"
    for name, value in given.items():
        yield from _member_faults(name, value)
    if "data" in given and "data_base64" in given:
        yield "it has both data and data_base64"


def _member_faults(name: str, value: object) -> Iterator[str]:
    if name == "data":
        return
    if name in _RULES:
        yield from _attribute_faults(name, value)
    elif not _NAME.fullmatch(name):
        yield (
            f"an attribute is called {name[:40]!r}, and only a to z and 0 to 9 are "
            "allowed"
        )
    elif isinstance(value, str):
        yield from _text_faults(name, value)
    elif not isinstance(value, bool) and not _is_integer(value):
        yield f"its {name} must be text, true, false or a whole number of 32 bits"


def _attribute_faults(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"its {name} must be text"
        return
    if not value:
        yield f"its {name} is empty"
        return
    yield from _text_faults(name, value)
    rule, words = _RULES[name]
    if not rule(value):
        yield f"its {name} is {value[:40]!r}, and {words}"


def _text_faults(name: str, value: str) -> Iterator[str]:
    if _NO_TEXT.search(value) or any(ord(char) & 0xFFFE == 0xFFFE for char in value):
        yield f"its {name} holds a character that is not allowed: {value[:40]!r}"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and value in _INTEGERS


def _is_any(_: str) -> bool:
    return True


def is_uri_reference(text: str) -> bool:
    """Return whether a text is a URI or a relative reference (RFC 3986)."""
    if not (match := _URI.fullmatch(text)):
        return False
    if (address := match["ipv6"]) is not None and not _is_ipv6(address):
        return False
    # Without a scheme, the first segment must not contain a colon: the part before
    # the colon would be read as the scheme.
    return bool(match["scheme"]) or ":" not in (match["first"] or "")


def is_uri(text: str) -> bool:
    """Return whether a text is a URI with a scheme."""
    match = _URI.fullmatch(text)
    return bool(match and match["scheme"]) and is_uri_reference(text)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def is_media_type(text: str) -> bool:
    """Return whether a text is type/subtype, with or without parameters."""
    return bool(_MEDIA_TYPE.fullmatch(text))


def is_base64(text: str) -> bool:
    """Return whether a text is valid base64."""
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def is_time(text: str) -> bool:
    """Return whether a text is a time in the format of RFC 3339."""
    return as_time(text) is not None


def as_time(text: str) -> datetime | None:
    """Parse a time in the format of RFC 3339; None if the text is not such a time.

    Python has no leap seconds: one is read as the second after it.
    """
    if not (found := _TIME.fullmatch(text)):
        return None
    is_leap = found["second"] == "60"
    second = "59" if is_leap else found["second"]
    plain = (
        f"{found['day']}T{found['minute']}:{second}"
        f"{found['fraction'] or ''}{found['zone'].upper()}"
    )
    try:
        moment = datetime.fromisoformat(plain).astimezone(UTC)
        return moment + timedelta(seconds=is_leap)
    except (ValueError, OverflowError):
        return None


_NO_REFERENCE = "no URI reference"
_RULES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "specversion": (SPEC_VERSION.__eq__, f"not {SPEC_VERSION!r}"),
    "id": (_is_any, ""),
    "source": (is_uri_reference, _NO_REFERENCE),
    "type": (_is_any, ""),
    "subject": (_is_any, ""),
    "time": (is_time, "not as in RFC 3339"),
    "datacontenttype": (is_media_type, "no media type such as application/json"),
    "dataschema": (is_uri, "no URI with a scheme"),
    "data_base64": (is_base64, "no base64"),
}

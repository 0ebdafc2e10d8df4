"""The allowed names and values of headers."""

import re
from collections.abc import Iterator

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.values import Secret
from bridge.net.http_client import revealed

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# The sink or HTTP itself sets these; a second one would be ambiguous.
_OWN = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def name_faults(name: str) -> Iterator[str]:
    """Yield the faults of a header's name."""
    if not _TOKEN.fullmatch(name):
        yield "is not a valid header name"
    elif name.lower() in _OWN or name.lower().startswith("ce-"):
        yield "is set by the sink itself"


def value_faults(value: str) -> Iterator[str]:
    """Yield the faults of a header's value, without showing the value."""
    if _CONTROL.search(value):
        yield "must not hold line breaks or other control characters"


def revealed_value(secret: Secret, what: str) -> str:
    """Return a secret for use in a header, read at this moment.

    Raises:
        RefusedDeliveryError: it can no longer be read, or would break the header.
    """
    value = revealed(secret, what)
    if _CONTROL.search(value):
        text = f"{what} holds line breaks or other control characters"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    return value

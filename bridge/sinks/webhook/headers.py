"""What a header may be called and hold, for all who write one."""

import re
from collections.abc import Iterator

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.values import Secret
from bridge.net.http_client import revealed

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# These are made by the sink or by HTTP itself; a second one would be ambiguous.
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
    """Yield what is wrong with the name of a header."""
    if not _TOKEN.fullmatch(name):
        yield "is no name of a header"
    elif name.lower() in _OWN or name.lower().startswith("ce-"):
        yield "is set by the sink itself"


def value_faults(value: str) -> Iterator[str]:
    """Yield what is wrong with the value of a header, without showing it."""
    if _CONTROL.search(value):
        yield "must not hold line breaks or other control characters"


def revealed_value(secret: Secret, what: str) -> str:
    """Return a secret that becomes part of a header, at the moment of its use.

    Raises:
        RefusedDeliveryError: it cannot be had any more, or would break the header.
    """
    value = revealed(secret, what)
    if _CONTROL.search(value):
        text = f"{what} holds line breaks or other control characters"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    return value

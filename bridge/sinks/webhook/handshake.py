"""Abuse protection of CloudEvents webhooks: may we send, and at which rate?

The bridge waits for the answer. It does not offer a WebHook-Request-Callback, which the
receiver would call later: a forwarder accepts no connections from outside its VM.

Source: https://github.com/cloudevents/spec/blob/ce@v1.0.2/cloudevents/http-webhook.md
        (section 4)
"""

import math
import re
from collections.abc import Callable
from typing import Literal

from bridge.foundation.errors import Reason, RefusedDeliveryError
from bridge.foundation.values import PLACEHOLDERS
from bridge.net.http_client import Answer

HandshakeKind = Literal["off", "attempt", "required"]

ORIGIN = "WebHook-Request-Origin"
_RATE = "WebHook-Request-Rate"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_ORIGIN = rf"{_LABEL}(\.{_LABEL})*"  # compiled at its first use, which is rare
_NOBODY = "scheduled-events-bridge"


def is_origin(text: str) -> bool:
    """Whether a text is a DNS name; a placeholder counts as a part of one."""
    for name in PLACEHOLDERS:
        text = text.replace(f"{{{name}}}", "x")
    return bool(re.fullmatch(_ORIGIN, text, re.IGNORECASE))


def origin_of(configured: str, expand: Callable[[str], str]) -> str:
    """Return the origin: as configured, else the VM's name as a DNS name.

    Raises:
        ValueError: a placeholder has no value here, or the result is no DNS name.
    """
    if configured:
        origin = expand(configured)
        if not is_origin(origin):
            raise ValueError("is not a DNS name after placeholders are filled in")
        return origin
    try:
        name = expand("{vm_name}")
    except ValueError:
        return _NOBODY
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:63].strip("-")
    return plain or _NOBODY


def question(origin: str, rate: float | None) -> dict[str, str]:
    """Return the headers of the request for permission.

    Args:
        origin: the origin that asks.
        rate: the wanted deliveries per second; None = as many as there are.
    """
    wish = {} if rate is None else {_RATE: str(max(1, math.ceil(rate * 60)))}
    return {ORIGIN: origin} | wish


def granted_rate(answer: Answer, *, origin: str, target: str) -> float | None:
    """Return the allowed deliveries per second; None = any number.

    Args:
        answer: its headers count, not its status.
        origin: the origin that asked.
        target: the name of the other side in errors.

    Raises:
        RefusedDeliveryError: nothing is allowed.
    """
    said = f"{target} answered {answer.status}"
    allowed = answer.headers.get("WebHook-Allowed-Origin", "").strip()
    if allowed != "*" and allowed.lower() != origin.lower():
        what = "another origin" if allowed else "no origin"
        text = f"{said} and allows {what}: this is {origin} (handshake)"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    rate = answer.headers.get("WebHook-Allowed-Rate", "*").strip()
    if rate == "*":
        return None
    if not re.fullmatch(r"[0-9]{1,9}", rate) or not int(rate):
        text = f"{said} and allows a rate that is not a number (handshake)"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    return int(rate) / 60

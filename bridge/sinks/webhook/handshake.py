"""Abuse protection of CloudEvents web hooks: may we send, and how often?

The answer is awaited; the other way, with a WebHook-Request-Callback that is called
back later, is not offered: a forwarder listens to nobody from outside its VM.

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
_ORIGIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.IGNORECASE)
_NOBODY = "scheduled-events-bridge"


def is_origin(text: str) -> bool:
    """Whether it is a DNS name; a placeholder stands for a part of one."""
    for name in PLACEHOLDERS:
        text = text.replace(f"{{{name}}}", "x")
    return bool(_ORIGIN.fullmatch(text))


def origin_of(configured: str, expand: Callable[[str], str]) -> str:
    """Return who asks: as configured, else the VM's name as DNS would have it.

    Raises:
        ValueError: a placeholder has no value on this machine, or makes no DNS name.
    """
    if configured:
        origin = expand(configured)
        if not is_origin(origin):
            raise ValueError("is no DNS name once it is filled in")
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
        origin: who asks.
        rate: deliveries a second that are wanted; None = as many as there are.
    """
    wish = {} if rate is None else {_RATE: str(max(1, math.ceil(rate * 60)))}
    return {ORIGIN: origin} | wish


def granted_rate(answer: Answer, *, origin: str, target: str) -> float | None:
    """Return how many deliveries a second are allowed; None = any number.

    Args:
        answer: its headers count, and not its status.
        origin: who asked.
        target: how the other side is named in errors.

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
        text = f"{said} and allows a rate that is no number (handshake)"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    return int(rate) / 60

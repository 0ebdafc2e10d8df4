"""The value of an Approve or Refuse button, for the app that receives the click. Pure.

    value     = hex(HMAC-SHA256(secret, "sebridge-button-v1:" + json)) + "." + json
    json      = an object without white space, in ASCII, with exactly these members
    action    "approve" or "refuse"
    digest    of the event as shown, see ``digest``
    eventId   as received
    replyTo   the approval entity
    session   ReplyToSessionId; null if the entity has no sessions

Source: infra/functions/approver/buttons.py, which reads it;
docs.slack.dev/reference/block-kit/block-elements/button-element (2,000 characters).
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.foundation.hashing import hash32
from bridge.sinks.base import ApprovalAddress

Action = Literal["approve", "refuse"]

LEAST_SECRET = 32
MOST_CHARACTERS = 2000
_DOMAIN = b"sebridge-button-v1:"
_TERMS = ("DurationInSeconds", "EventSource", "EventType", "NotBefore")
_HIDDEN = "<signature>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Signs buttons, and names the approval entity in them.

    Attributes:
        address: the approval entity.
        secret: shared with the app that receives clicks; None shows no signature.
    """

    address: ApprovalAddress
    secret: str | None = field(repr=False)

    def value(self, action: Action, event: Mapping[str, object]) -> str | None:
        """Return the value of a button for an event; None = too long for Slack.

        Args:
            action: what a click requests.
            event: the IMDS object as shown.
        """
        members = {
            "action": action,
            "digest": digest(event),
            "eventId": event.get("EventId"),
            "replyTo": self.address.entity,
            "session": self.address.session,
        }
        text = json.dumps(members, separators=(",", ":"))
        value = f"{self._signature(text)}.{text}"
        return value if len(value) <= MOST_CHARACTERS else None

    def _signature(self, text: str) -> str:
        if self.secret is None:
            return _HIDDEN
        key, signed = self.secret.encode(), _DOMAIN + text.encode()
        return hmac.new(key, signed, hashlib.sha256).hexdigest()


def digest(event: Mapping[str, object]) -> str:
    """Return the fingerprint of what a person approves.

    The hash32 of DurationInSeconds, EventSource, EventType, NotBefore (null where
    absent) and Resources (sorted). EventStatus and Description are not part of it.
    """
    names = event.get("Resources")
    resources = sorted(map(str, names)) if isinstance(names, list) else []
    return hash32([*(event.get(name) for name in _TERMS), resources])

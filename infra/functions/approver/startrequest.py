"""Write the approval message: a CloudEvent that holds the IMDS body. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CONTENT_TYPE: Final = "application/cloudevents+json"
MOST_BYTES: Final = 64 * 1024
"""The largest approval that the bridge accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """An approval of one event.

    Attributes:
        id: MessageId and id of the CloudEvent: the same for the same approval.
        event_id: as received.
        approved_by: who approved; a claim, which is recorded.
        approved_event: the IMDS object as the approver saw it: the bridge refuses
            the approval if the event has got worse.
        time: when it was decided, RFC 3339.
        reason: the reason as text.
        expires_at: RFC 3339; after this time the bridge does not relay it.
        audience: the source of the event; a signed approval names it.
        signature: ``dssematerial``; "" = it is not signed.
    """

    id: str
    event_id: str
    approved_by: str
    approved_event: Mapping[str, object]
    time: str
    reason: str | None = None
    expires_at: str | None = None
    audience: str | None = None
    signature: str = ""

    def attributes(self, prefix: str, source: str) -> dict[str, str]:
        """Return the attributes of the CloudEvent; the arguments: see ``to_bytes``."""
        return {
            "specversion": "1.0",
            "type": f"{prefix}.startrequest.v1",
            "source": source,
            "id": self.id,
            "subject": self.event_id,
            "time": self.time,
            "datacontenttype": "application/json",
        }

    @property
    def data(self) -> bytes:
        """The data as it stands in the message."""
        data = {
            "StartRequests": [{"EventId": self.event_id}],
            "approvedBy": self.approved_by,
            "reason": self.reason,
            "expiresAt": self.expires_at,
            "audience": self.audience,
            "approvedEvent": self.approved_event,
        }
        return _json({key: value for key, value in data.items() if value is not None})

    def to_bytes(self, prefix: str, source: str) -> bytes:
        """Return the body of the message.

        Args:
            prefix: the prefix of the types of the bridge's CloudEvents.
            source: the source of the CloudEvent: this app.
        """
        event = self.attributes(prefix, source)
        if self.signature:
            event["dssematerial"] = self.signature
        return _json(event)[:-1] + b',"data":' + self.data + b"}"


def _json(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")

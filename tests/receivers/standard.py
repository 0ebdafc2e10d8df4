"""A receiver of Standard Webhooks: the reference library reads what is sent."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from tests.receivers.serving import Post, Reply, Way

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass(slots=True)
class StandardWebhooks:
    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        try:
            payload = Webhook(SECRET).verify(post.body, dict(post.headers))
        except WebhookVerificationError:
            return Reply(401)
        if self.status:
            return Reply(self.status)
        if payload.keys() != {"type", "timestamp", "data"}:
            return Reply(422)
        datetime.fromisoformat(payload["timestamp"])
        self.taken.append(payload)
        return Reply(204)


WAYS = {
    "standard-webhooks": Way(
        StandardWebhooks,
        "/webhooks",
        {},
        {"signature": {"secrets": [SECRET]}},
        {"PARTNER_SECRET": SECRET},
        wrong={"signature": {"secrets": ["whsec_" + "A" * 32]}},
        statuses={400: "P", 410: "R", 429: "T", 502: "T", 504: "T"},
    )
}

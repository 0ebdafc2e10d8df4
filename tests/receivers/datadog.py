"""Datadog: the events API v1.

Source: https://docs.datadoghq.com/api/latest/events/post-an-event/
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.receivers.serving import Post, Reply, Way, faults_of, json_reply

KEY = "9775a026f1ca7d1c6c5af9d94d9595a4"
# Some time in between: the events of the tests are of one day.
NOW = 1795255200
_FIELDS = {
    *("title", "text", "date_happened", "priority", "host", "tags", "alert_type"),
    *("aggregation_key", "source_type_name", "device_name", "related_event_id"),
}
_KINDS = {"error", "warning", "info", "success", "user_update", "recommendation"}


@dataclass(slots=True)
class Datadog:
    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        if post.headers.get("DD-API-KEY") != KEY:
            return json_reply(403, {"errors": ["Forbidden"]})
        if post.path != "/api/v1/events" or self.status:
            return Reply(self.status or 404)
        event = json.loads(post.body)
        faults = _faults(event)
        if faults or post.media_type != "application/json":
            return json_reply(400, {"errors": faults})
        self.taken.append(event)
        return json_reply(202, {"status": "ok", "event": {"id": 1}})


def _faults(event: dict[str, Any]) -> list[str]:
    happened = event.get("date_happened", NOW)
    tags = event.get("tags", [])
    return faults_of(
        {
            "unknown field": event.keys() <= _FIELDS,
            "title": 0 < len(event.get("title", "")) <= 100,
            "text": 0 < len(event.get("text", "")) <= 4000,
            "date_happened is no integer": isinstance(happened, int),
            "alert_type": event.get("alert_type", "info") in _KINDS,
            "aggregation_key": len(event.get("aggregation_key", "")) <= 100,
            "tags": all(re.fullmatch(r"[a-z][\w\-.:/\\]{0,199}", tag) for tag in tags),
            "somebody is mentioned": not re.search(r"@\w", event["text"]),
        }
    )


WAYS = {
    "datadog": Way(
        Datadog,
        "/api/v1/events",
        {"DD-API-KEY": KEY},
        {"auth": {"value": KEY}},
        {"DATADOG_API_KEY": KEY},
        wrong={"auth": {"value": "wrong"}},
        statuses={400: "P", 403: "R", 408: "T", 413: "P", 429: "T", 500: "T"},
    )
}

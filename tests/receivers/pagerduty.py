"""PagerDuty's Events API v2.

Source: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
"""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.receivers.serving import Post, Reply, Way, faults_of, json_reply

KEY = "e93facc04764012d7bfb002500d5d1a6"
_LARGEST = 512 * 1024
_TOP = {
    *("routing_key", "event_action", "dedup_key", "payload"),
    *("client", "client_url", "links", "images"),
}
_PAYLOAD = {
    *("summary", "timestamp", "severity", "source", "component"),
    *("group", "class", "custom_details"),
}


@dataclass(slots=True)
class PagerDuty:
    """One integration; ``alerts`` are its open alerts and what became of them."""

    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)
    alerts: dict[str, str] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if post.path != "/v2/enqueue":
            return Reply(404)
        if self.status:
            return Reply(self.status)
        if len(post.body) > _LARGEST:
            return Reply(413)
        event = json.loads(post.body)
        if faults := _faults(event) or post.media_type != "application/json":
            said = {"status": "invalid event", "message": "Event object is invalid"}
            return json_reply(400, {**said, "errors": faults})
        self.taken.append(event)
        self._apply(event)
        said = {"status": "success", "dedup_key": event["dedup_key"]}
        return json_reply(202, {**said, "message": "Event processed"})

    def _apply(self, event: dict[str, Any]) -> None:
        key, action = event["dedup_key"], event["event_action"]
        if action == "trigger" and self.alerts.get(key) in {None, "resolved"}:
            self.alerts[key] = "triggered"
        elif action != "trigger" and self.alerts.get(key, "resolved") != "resolved":
            self.alerts[key] = f"{action}d"


def _faults(event: dict[str, Any]) -> list[str]:
    if len(event.get("routing_key", "")) != 32:
        return ["Length of 'routing_key' is incorrect (should be 32 characters)"]
    if event["routing_key"] != KEY:
        return ["Invalid routing key"]
    action, payload = event.get("event_action"), event.get("payload")
    found = faults_of(
        {
            "'event_action' is invalid": action
            in {"trigger", "acknowledge", "resolve"},
            "'dedup_key' is missing or too long": 0
            < len(event.get("dedup_key", ""))
            <= 255,
            "unknown member": event.keys() <= _TOP,
            "'payload' is missing or blank": action != "trigger" or bool(payload),
        }
    )
    return found + (_payload_faults(payload) if payload else [])


def _payload_faults(payload: dict[str, Any]) -> list[str]:
    severities = {"critical", "error", "warning", "info"}
    datetime.fromisoformat(payload.get("timestamp", "2026-01-01T00:00:00Z"))
    return faults_of(
        {
            "unknown member of payload": payload.keys() <= _PAYLOAD,
            "'summary'": 0 < len(payload.get("summary", "")) <= 1024,
            "'severity' is invalid": payload.get("severity") in severities,
            "'source' is missing or blank": bool(payload.get("source")),
            "'custom_details'": isinstance(payload.get("custom_details", {}), dict),
        }
    )


WAYS = {
    "pagerduty": Way(
        PagerDuty,
        "/v2/enqueue",
        {},
        {"auth": {"value": KEY}},
        {"PAGERDUTY_KEY": KEY},
        wrong={"auth": {"value": "wrong" + "0" * 27}},
        statuses={400: "P", 429: "T", 500: "T", 502: "T"},
    )
}

"""Alertmanager's API v2, Grafana IRM and incident.io.

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
        https://grafana.com/docs/oncall/latest (formatted webhook; 300 alerts in 5 min)
        https://docs.incident.io/api-reference/alert-events-v2/createhttp
"""

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.receivers.serving import Post, Reply, Way, faults_of, json_reply

TOKEN = "0f0f0f0f"
SOURCE = "01GW2G3V0S59R238FAHPDS1R66"
_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(slots=True)
class Alertmanager:
    """``now`` is its clock; ``ends`` when each alert ends, by its labels."""

    status: int | None = None
    now: datetime = datetime(2026, 3, 2, 12, tzinfo=UTC)
    taken: list[list[dict[str, Any]]] = field(default_factory=list)
    ends: dict[tuple[tuple[str, str], ...], datetime] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if post.path != "/api/v2/alerts" or self.status:
            return Reply(self.status or 404)
        if post.media_type != "application/json":
            return json_reply(415, {"code": 415, "message": "unsupported media type"})
        alerts = json.loads(post.body)
        if faults := [fault for one in alerts for fault in _faults(one)]:
            return json_reply(400, faults)
        for one in alerts:
            key = tuple(sorted(one["labels"].items()))
            self.ends[key] = datetime.fromisoformat(one["endsAt"])
        self.taken.append(alerts)
        return Reply(200)

    def firing(self) -> list[dict[str, str]]:
        return [dict(key) for key, end in self.ends.items() if end > self.now]


def _faults(one: dict[str, Any]) -> list[str]:
    labels, notes = one["labels"], one.get("annotations", {})
    end = datetime.fromisoformat(one["endsAt"])
    start = datetime.fromisoformat(one.get("startsAt", one["endsAt"]))
    return faults_of(
        {
            "at least one label pair required": bool(labels),
            "invalid name": all(map(_NAME.fullmatch, [*labels, *notes])),
            "no string": all(
                isinstance(v, str) and v for v in [*labels.values(), *notes.values()]
            ),
            "start time must be before end time": start <= end,
            "unknown member": one.keys()
            <= {"labels", "annotations", "startsAt", "endsAt", "generatorURL"},
        }
    )


@dataclass(slots=True)
class Grafana:
    """A formatted webhook: alert groups by ``alert_uid``."""

    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if post.path != f"/oncall/integrations/v1/formatted_webhook/{TOKEN}/":
            return Reply(403)
        if self.status:
            return Reply(self.status)
        if len(self.taken) >= 300:
            return Reply(429)
        alert = json.loads(post.body)
        faults = faults_of(
            {
                "alert_uid": bool(alert.get("alert_uid")),
                "title": len(alert.get("title", "")) > 0,
                "state": alert.get("state") in {"ok", "alerting"},
                "message": isinstance(alert.get("message"), str),
                "media type": post.media_type == "application/json",
            }
        )
        if faults:
            return json_reply(400, faults)
        self.taken.append(alert)
        self.groups[alert["alert_uid"]] = alert["state"]
        return Reply(200, b"Ok.")


@dataclass(slots=True)
class IncidentIo:
    """An HTTP alert source: alerts by ``deduplication_key``."""

    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)
    alerts: dict[str, str] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if (post.scheme, post.credentials) != ("Bearer", TOKEN):
            return json_reply(401, {"type": "authentication_error"})
        if post.path != f"/v2/alert_events/http/{SOURCE}" or self.status:
            return Reply(self.status or 404)
        alert = json.loads(post.body)
        known = {
            *("title", "status", "deduplication_key", "description"),
            *("metadata", "source_url"),
        }
        faults = faults_of(
            {
                "unknown field": alert.keys() <= known,
                "title": bool(alert.get("title")),
                "status": alert.get("status") in {"firing", "resolved"},
                "deduplication_key": bool(alert.get("deduplication_key")),
                "metadata": isinstance(alert.get("metadata", {}), dict),
                "media type": post.media_type == "application/json",
            }
        )
        if faults:
            return json_reply(422, {"type": "validation_error", "errors": faults})
        self.taken.append(alert)
        self.alerts[alert["deduplication_key"]] = alert["status"]
        return json_reply(202, {"status": "success"})


WAYS = {
    "alertmanager": Way(
        Alertmanager,
        "/api/v2/alerts",
        statuses={400: "P", 404: "R", 429: "T", 500: "T"},
    ),
    "grafana-irm": Way(
        Grafana,
        f"/oncall/integrations/v1/formatted_webhook/{TOKEN}/",
        environ={"GRAFANA_IRM_URL": "https://oncall.example/formatted_webhook/t/"},
        wrong={"url": "http://127.0.0.1:9/oncall/integrations/v1/wrong/"},
        statuses={400: "P", 429: "T", 500: "T"},
    ),
    "incident-io": Way(
        IncidentIo,
        f"/v2/alert_events/http/{SOURCE}",
        {"Authorization": f"Bearer {TOKEN}"},
        {"auth": {"token": TOKEN}},
        {"INCIDENT_IO_TOKEN": TOKEN},
        wrong={"auth": {"token": "wrong"}},
        statuses={404: "R", 422: "P", 429: "T", 500: "T"},
    ),
}

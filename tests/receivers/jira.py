"""Jira Service Management: the integration events API.

Source: https://developer.atlassian.com/cloud/jira/service-desk-ops/rest/v1/api-group-integration-events
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.receivers.serving import Post, Reply, Way, faults_of, json_reply

KEY = "0c8b1b2e-63d4-4f0e-a3c1-5d7e8f9a0b1c"
PATH = "/jsm/ops/integration/v2/alerts"
_ACTION = re.compile(rf"{PATH}/(.+)/(acknowledge|close)")
_CREATED = {
    *("message", "alias", "description", "responders", "visibleTo", "actions"),
    *("tags", "details", "entity", "source", "priority", "note", "user"),
}
_LIMITS = {"message": 130, "alias": 512, "description": 15000, "entity": 512}


@dataclass(slots=True)
class Jira:
    """One API integration; ``alerts`` are aliases and what became of them."""

    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)
    alerts: dict[str, str] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if (post.scheme, post.credentials) != ("GenieKey", KEY):
            return json_reply(401, {"message": "Could not authenticate"})
        if self.status:
            return json_reply(self.status, {"message": "as told"})
        if post.media_type != "application/json":
            return json_reply(415, {"message": "Unsupported media type"})
        body = json.loads(post.body)
        if match := _ACTION.fullmatch(post.path):
            return self._acted(match[1], match[2], post, body)
        faults = _created_faults(body)
        if post.path != PATH or faults:
            return json_reply(404 if not faults else 422, {"errors": faults})
        self.alerts.setdefault(body["alias"], "open")
        if self.alerts[body["alias"]] == "closed":
            self.alerts[body["alias"]] = "open"
        return self._accepted(body)

    def _acted(
        self, alias: str, action: str, post: Post, body: dict[str, Any]
    ) -> Reply:
        is_known = post.query.get("identifierType") == "alias"
        is_small = body.keys() <= {"user", "source", "note"}
        if not is_known or not is_small or len(body.get("note", "")) > 25000:
            return json_reply(422, {"message": "Request body is not processable"})
        if self.alerts.get(alias) in {"open", "acknowledged"}:
            done = {"acknowledge": "acknowledged", "close": "closed"}
            self.alerts[alias] = done[action]
        return self._accepted(body)

    def _accepted(self, body: dict[str, Any]) -> Reply:
        self.taken.append(body)
        said = {"result": "Request will be processed", "took": 0.1}
        return json_reply(202, {**said, "requestId": "43a29c5c-3dbf-4fa4-9c26"})


def _created_faults(body: dict[str, Any]) -> list[str]:
    tags, details = body.get("tags", []), body.get("details", {})
    limits = {
        f"{name} is too long": len(body.get(name, "")) <= limit
        for name, limit in _LIMITS.items()
    }
    return faults_of(
        {
            **limits,
            "message is required": bool(body.get("message")),
            "unknown field": body.keys() <= _CREATED,
            "source is too long": len(body.get("source", "")) <= 100,
            "priority": body.get("priority", "P3") in {"P1", "P2", "P3", "P4", "P5"},
            "tags": len(tags) <= 20 and all(0 < len(tag) <= 50 for tag in tags),
            "details are strings": all(isinstance(v, str) for v in details.values()),
            "details are too long": len(json.dumps(details, ensure_ascii=False))
            <= 8000,
        }
    )


WAYS = {
    "jira-service-management": Way(
        Jira,
        PATH,
        {"Authorization": f"GenieKey {KEY}"},
        {"auth": {"token": KEY}},
        {"JSM_API_KEY": KEY},
        wrong={"auth": {"token": "wrong"}},
        statuses={403: "R", 422: "P", 429: "T", 500: "T", 503: "T"},
    )
}

"""ServiceNow: events of Event Management, and standard changes.

Source: https://www.servicenow.com/docs (Event Management; Change Management API)
"""

import json
import re
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from tests.receivers.serving import Post, Reply, Way, faults_of, json_reply

BASIC = b64encode(b"sebridge:a-password").decode()
TEMPLATE = "0f" * 16
EVENTS = "/api/global/em/jsonv2"
CHANGES = "/api/sn_chg_rest/change"
_LIMITS = {
    "source": 100,
    "event_class": 100,
    "node": 100,
    "type": 100,
    "resource": 100,
    "metric_name": 100,
    "message_key": 1024,
    "description": 4000,
}
_EVENT = {
    *_LIMITS,
    *("severity", "resolution_state", "time_of_event", "additional_info"),
}
_OPTIONS = {"auth": {"username": "sebridge", "password": "a-password"}}
_ENVIRON = {"SERVICENOW_PASSWORD": "a-password"}
_WRONG = {"auth": {"username": "sebridge", "password": "wrong"}}
_STATUSES = {400: "P", 403: "R", 404: "R", 429: "T", 500: "T", 503: "T"}


def _is_time(text: str) -> bool:
    try:
        datetime.strptime(text, "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - GMT
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class Events:
    """The table of events; ``alerts`` are message keys and their severities."""

    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)
    alerts: dict[str, str] = field(default_factory=dict)

    def answer(self, post: Post) -> Reply:
        if (post.scheme, post.credentials) != ("Basic", BASIC):
            return json_reply(401, {"error": {"message": "User Not Authenticated"}})
        if post.path != EVENTS or self.status:
            return Reply(self.status or 404)
        body = json.loads(post.body)
        records = body.get("records")
        faults = [f for one in records for f in _event_faults(one)]
        if faults or not records or post.media_type != "application/json":
            return json_reply(400, {"error": {"message": faults}})
        self.taken.append(body)
        for one in records:
            self.alerts[one["message_key"]] = one["severity"]
        said = f"{len(records)} events were inserted"
        return json_reply(200, {"result": {"Default Bulk Endpoint": said}})


def _event_faults(one: dict[str, Any]) -> list[str]:
    limits = {
        f"{name} is too long": len(one.get(name, "")) <= limit
        for name, limit in _LIMITS.items()
    }
    return faults_of(
        {
            **limits,
            "custom fields belong into additional_info": one.keys() <= _EVENT,
            "source and node are needed": bool(one.get("source") and one.get("node")),
            "severity": one.get("severity") in set("012345"),
            "resolution_state": one.get("resolution_state") in {"New", "Closing"},
            "time_of_event": _is_time(one.get("time_of_event", "")),
            "additional_info": isinstance(json.loads(one["additional_info"]), dict),
        }
    )


_FIELDS = {
    *("short_description", "description", "correlation_id", "correlation_display"),
    *("start_date", "end_date", "work_notes", "state", "close_code", "close_notes"),
}
_NEXT = {"-5": {"-2", "4"}, "-2": {"-1", "4"}, "-1": {"0", "4"}, "0": {"3"}}
_CODES = {"successful", "successful_issues", "unsuccessful"}


@dataclass(slots=True)
class Changes:
    """A standard template; ``loses`` = answers to a POST that get lost."""

    methods = frozenset({"GET", "POST", "PATCH"})

    status: int | None = None
    loses: int = 0
    changes: dict[str, dict[str, str]] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)

    @property
    def taken(self) -> list[dict[str, str]]:
        return list(self.changes.values())

    def answer(self, post: Post) -> Reply:
        if (post.scheme, post.credentials) != ("Basic", BASIC):
            return json_reply(401, {"error": {"message": "User Not Authenticated"}})
        if self.status:
            return Reply(self.status)
        if post.method == "GET" and post.path == CHANGES:
            return self._found(post.query["sysparm_query"])
        fields = json.loads(post.body)
        if post.method == "POST" and post.path == f"{CHANGES}/standard/{TEMPLATE}":
            return self._opened(fields)
        match = re.fullmatch(rf"{CHANGES}/([0-9a-f]{{32}})", post.path)
        if post.method == "PATCH" and match and match[1] in self.changes:
            return self._patched(self.changes[match[1]], fields)
        return json_reply(404, {"error": {"message": "No Record found"}})

    def _found(self, query: str) -> Reply:
        key = unquote(query).removeprefix("correlation_id=")
        found = [
            {"sys_id": _field(sys_id), "state": _field(one["state"])}
            for sys_id, one in self.changes.items()
            if one["correlation_id"] == key
        ]
        return json_reply(200, {"result": found})

    def _opened(self, fields: dict[str, str]) -> Reply:
        if faults := _change_faults(fields):
            return json_reply(400, {"error": {"message": faults}})
        sys_id = f"{len(self.changes):032x}"
        self.changes[sys_id] = {"state": "-5", **fields}
        if self.loses:
            self.loses -= 1
            return Reply(504)
        return json_reply(201, {"result": {"sys_id": _field(sys_id)}})

    def _patched(self, change: dict[str, str], fields: dict[str, str]) -> Reply:
        state = fields.get("state", change["state"])
        is_allowed = state == change["state"] or state in _NEXT.get(
            change["state"], set()
        )
        is_closed_well = state != "3" or (
            fields.get("close_code") in _CODES and bool(fields.get("close_notes"))
        )
        faults = _change_faults(fields)
        if faults or not is_allowed or not is_closed_well:
            return json_reply(400, {"error": {"message": [*faults, state]}})
        if state != change["state"]:
            self.states.append(state)
        change.update(fields)
        return json_reply(200, {"result": {"state": _field(state)}})


def _field(value: str) -> dict[str, str]:
    return {"value": value, "display_value": value}


def _change_faults(fields: dict[str, str]) -> list[str]:
    dates = (fields[k] for k in ("start_date", "end_date") if k in fields)
    return faults_of(
        {
            "unknown field": fields.keys() <= _FIELDS,
            "short_description": len(fields.get("short_description", "")) <= 160,
            "description": len(fields.get("description", "")) <= 4000,
            "correlation_id": len(fields.get("correlation_id", "")) <= 100,
            "dates": all(map(_is_time, dates)),
            "all are strings": all(isinstance(v, str) for v in fields.values()),
        }
    )


WAYS = {
    "servicenow-event": Way(
        Events,
        EVENTS,
        {"Authorization": f"Basic {BASIC}"},
        _OPTIONS,
        _ENVIRON,
        wrong=_WRONG,
        statuses=_STATUSES,
    ),
    "servicenow-change": Way(
        Changes,
        f"{CHANGES}/standard/{TEMPLATE}",
        {"Authorization": f"Basic {BASIC}"},
        {**_OPTIONS, "when": {"scope": "first"}},
        _ENVIRON,
        wrong=_WRONG,
        statuses=_STATUSES,
    ),
}

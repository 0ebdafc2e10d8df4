"""Azure's ways in over HTTP: Logs Ingestion, Event Grid, Event Hubs, Functions.

Source: https://learn.microsoft.com/azure/azure-monitor/logs/logs-ingestion-api-overview
        https://learn.microsoft.com/azure/event-grid/post-to-custom-topic
        https://learn.microsoft.com/rest/api/eventhub/send-event
        https://learn.microsoft.com/rest/api/eventhub/send-batch-events
        https://learn.microsoft.com/azure/azure-functions/function-keys-how-to
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from jsonschema import Draft7Validator, FormatChecker
from msgspec import ValidationError, convert

from tests.receivers.serving import Post, Reply, Way, json_reply

TOKEN = "an-entra-token"
RULE = "dcr-" + "0f" * 16
ROOT = Path(__file__).parents[2]
STREAM = json.loads((ROOT / "infra/siem/sentinel/stream.preset.json").read_text())
RESERVED = {"id", "type", "title", "tenantid", "uniqueid", "_resourceid"}
_MIB = 1024 * 1024
_EVENT = Draft7Validator(
    json.loads((ROOT / "tests/data/cloudevents.schema.json").read_text()),
    format_checker=FormatChecker(),
)


def _is_date(value: object) -> bool:
    try:
        convert(value, datetime)
    except ValidationError:
        return False
    return True


_TYPES: dict[str, Callable[[object], bool]] = {
    "string": lambda v: isinstance(v, str),
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "datetime": _is_date,
    "dynamic": lambda v: isinstance(v, dict),
}


@dataclass(slots=True)
class Sentinel:
    """A data collection rule with the stream of infra/siem, and nothing beyond it."""

    status: int | None = None
    retry_after: str = ""
    rule: str = RULE
    taken: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        if post.scheme != "Bearer" or post.credentials != TOKEN:
            return Reply(401)
        wanted = f"/dataCollectionRules/{self.rule}/streams/{STREAM['name']}"
        if post.path != wanted:
            return json_reply(404, {"error": {"code": "NotFound"}})
        if self.status:
            wish = {"Retry-After": self.retry_after} if self.retry_after else {}
            return Reply(self.status, headers=wish)
        if len(post.body) > _MIB:
            return json_reply(413, {"error": {"code": "ContentLengthLimitExceeded"}})
        if fault := self._fault(post):
            return json_reply(400, {"error": {"code": fault}})
        self.taken += json.loads(post.body)
        return Reply(204)

    def _fault(self, post: Post) -> str:
        if post.query.get("api-version") != "2023-01-01":
            return "MissingApiVersionParameter"
        if post.media_type != "application/json":
            return "UnsupportedContentType"
        records = json.loads(post.body)
        if not isinstance(records, list) or not records:
            return "InvalidPayload: no array"
        return "; ".join(fault for record in records for fault in _row_faults(record))


def _row_faults(row: dict[str, Any]) -> list[str]:
    columns = {c["name"]: c["type"] for c in STREAM["columns"]}
    found = [] if "TimeGenerated" in row else ["no TimeGenerated"]
    for name, value in row.items():
        is_name = re.fullmatch(r"[A-Za-z]\w{0,44}", name)
        if not is_name or name.lower() in RESERVED or name not in columns:
            found.append(f"InvalidColumn: {name}")
        elif not _TYPES[columns[name]](value):
            found.append(f"InvalidValue: {name}")
        elif len(json.dumps(value, ensure_ascii=False).encode()) > 64 * 1024:
            found.append(f"would be cut: {name}")
    return found


@dataclass(slots=True)
class EventGrid:
    """A custom topic whose input schema is CloudEventSchemaV1_0."""

    key: str = "a-key"
    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        by_key = post.headers.get("aeg-sas-key") == self.key
        if not by_key and (post.scheme, post.credentials) != ("Bearer", TOKEN):
            return json_reply(401, {"error": {"code": "Unauthorized"}})
        if post.path != "/api/events" or self.status:
            return json_reply(self.status or 404, {"error": {"code": "x"}})
        if len(post.body) > _MIB:
            return json_reply(413, {"error": {"code": "RequestEntityTooLarge"}})
        events = self._events(post)
        faults = [fault for event in events for fault in _cloudevent_faults(event)]
        if faults or not events or post.query.get("api-version") != "2018-01-01":
            return json_reply(400, {"error": {"code": "BadRequest", "details": faults}})
        self.taken += events
        return Reply(200)

    def _events(self, post: Post) -> list[dict[str, Any]]:
        if "Content-Encoding" in post.headers:
            return []
        if post.media_type == "application/cloudevents-batch+json":
            found: list[dict[str, Any]] = json.loads(post.body)
            return found
        is_one = post.media_type == "application/cloudevents+json"
        return [json.loads(post.body)] if is_one else []


def _cloudevent_faults(event: dict[str, Any]) -> list[str]:
    odd = [n for n in event if not re.fullmatch(r"[a-z0-9]{1,20}", n)]
    nested = [
        n for n, v in event.items() if n != "data" and isinstance(v, (dict, list))
    ]
    return odd + nested + [e.message for e in _EVENT.iter_errors(event)]


@dataclass(slots=True)
class EventHub:
    """An event hub of the Standard tier over HTTPS."""

    status: int | None = None
    taken: list[tuple[str | None, bytes]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        if not self._is_allowed(post):
            return Reply(401)
        if post.path != "/maintenance/messages" or self.status:
            return Reply(self.status or 404)
        properties = json.loads(post.headers.get("BrokerProperties", "{}"))
        key = properties.get("PartitionKey")
        is_plain = key is None or (isinstance(key, str) and 0 < len(key) <= 128)
        if not is_plain or not post.body or "Content-Encoding" in post.headers:
            return Reply(400)
        if len(post.body) > _MIB:
            return Reply(413)
        if post.media_type == "application/vnd.microsoft.servicebus.json":
            return self._many(key, json.loads(post.body))
        self.taken.append((key, post.body))
        return Reply(201)

    def _many(self, key: str | None, entries: object) -> Reply:
        """Take a batch: all of it goes to one partition."""
        if not isinstance(entries, list) or not entries:
            return Reply(400)
        known = {"Body", "BrokerProperties", "UserProperties"}
        keys = {one.get("BrokerProperties", {}).get("PartitionKey") for one in entries}
        bodies = [one.get("Body") for one in entries]
        is_plain = all(one.keys() <= known for one in entries)
        if not is_plain or keys != {key} or not all(isinstance(b, str) for b in bodies):
            return Reply(400)
        self.taken += [(key, body.encode()) for body in bodies]
        return Reply(201)

    def _is_allowed(self, post: Post) -> bool:
        if post.scheme == "SharedAccessSignature":
            parts = dict(p.split("=", 1) for p in post.credentials.split("&"))
            return parts.keys() == {"sr", "sig", "se", "skn"}
        return (post.scheme, post.credentials) == ("Bearer", TOKEN)


@dataclass(slots=True)
class AzureFunction:
    """A function with authLevel "function" that reads CloudEvents with the SDK."""

    key: str = "a-function-key"
    status: int | None = None
    taken: list[BaseCloudEvent] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        if self.key not in (
            post.headers.get("x-functions-key"),
            post.query.get("code"),
        ):
            return Reply(401)
        if post.path != "/api/events" or self.status:
            return Reply(self.status or 404)
        message = HTTPMessage(headers=dict(post.headers), body=post.body)
        self.taken.append(from_http(message, JSONFormat(), CloudEvent))
        return Reply(204)


SAS = "SharedAccessSignature sr=ns&sig=x&se=1&skn=send"
WAYS = {
    "sentinel": Way(
        Sentinel,
        f"/dataCollectionRules/{RULE}/streams/{STREAM['name']}?api-version=2023-01-01",
        {"Authorization": f"Bearer {TOKEN}"},
        {"auth": {"type": "bearer", "token": TOKEN}},
        wrong={"auth": {"type": "bearer", "token": "wrong"}},
        statuses={
            400: "P",
            403: "R",
            404: "R",
            413: "P",
            429: "T",
            500: "T",
            503: "T",
        },
    ),
    "eventgrid": Way(
        EventGrid,
        "/api/events?api-version=2018-01-01",
        {"aeg-sas-key": "a-key"},
        {"auth": {"value": "a-key"}},
        {"EVENTGRID_KEY": "a-key"},
        wrong={"auth": {"value": "wrong"}},
        statuses={400: "P", 403: "R", 404: "R", 413: "P", 429: "T", 503: "T"},
    ),
    "eventhubs": Way(
        EventHub,
        "/maintenance/messages?api-version=2014-01",
        {"Authorization": SAS},
        {"headers": {"authorization": SAS}},
        wrong={"headers": {"authorization": "Bearer wrong"}},
        statuses={400: "P", 403: "R", 404: "R", 413: "P", 500: "T", 503: "T"},
    ),
    "azure-function": Way(
        AzureFunction,
        "/api/events",
        {"x-functions-key": "a-function-key"},
        {"auth": {"value": "a-function-key"}},
        {"FUNCTION_KEY": "a-function-key"},
        wrong={"auth": {"value": "wrong"}},
        statuses={404: "R", 429: "T", 500: "T", 503: "T"},
    ),
}
